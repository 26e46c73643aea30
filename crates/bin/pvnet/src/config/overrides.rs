//! Keys of guests and uplinks that the command line changes: `--set NAME.KEY=VALUE`.

use std::fmt;
use std::str::FromStr;

use toml::{Table, Value};

/// One change.
#[derive(Clone, Debug)]
pub struct Override {
    /// The text on the command line.
    text: String,
    /// The name of a guest or uplink, or [`EVERY_GUEST`].
    name: String,
    key: String,
    value: Value,
}

/// The name that stands for every guest.
pub const EVERY_GUEST: &str = "*";
/// The tables that have names.
const KINDS: [&str; 2] = ["guest", "uplink"];

impl FromStr for Override {
    type Err = String;

    /// The value is TOML if it parses as TOML, otherwise a string.
    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.split_once('=').and_then(|(place, value)| {
            // A name may have dots; a key has none.
            let (name, key) = place.rsplit_once('.')?;
            (!name.is_empty() && !key.is_empty()).then_some((name, key, value))
        });
        let (name, key, value) = parts
            .ok_or("not NAME.KEY=VALUE, where NAME is a guest, an uplink, or * for every guest")?;
        Ok(Self {
            text: text.to_owned(),
            name: name.to_owned(),
            key: key.trim().to_owned(),
            value: value_of(value),
        })
    }
}

fn value_of(text: &str) -> Value {
    let table: Result<Table, _> = toml::from_str(&format!("value = {text}"));
    match table {
        Ok(mut table) if table.len() == 1 => table.remove("value"),
        _ => None,
    }
    .unwrap_or_else(|| Value::String(text.to_owned()))
}

impl fmt::Display for Override {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.text.fmt(f)
    }
}

impl Override {
    /// Sets the key in every table of this name.
    pub(super) fn apply(&self, config: &mut Table) -> Result<(), String> {
        let mut known = Vec::new();
        let mut found = false;
        for kind in KINDS {
            let tables = config.get_mut(kind).and_then(Value::as_array_mut).into_iter().flatten();
            for table in tables.filter_map(Value::as_table_mut) {
                let name = table.get("name").and_then(Value::as_str).unwrap_or_default();
                known.push(name.to_owned());
                let every = self.name == EVERY_GUEST && kind == "guest";
                if every || name == self.name {
                    table.insert(self.key.clone(), self.value.clone());
                    found = true;
                }
            }
        }
        let known =
            || format!("no guest or uplink {:?} (there are: {})", self.name, known.join(", "));
        found.then_some(()).ok_or_else(known)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: &str = "[[guest]]\nname = \"a.b\"\nqueues = 1\n[[guest]]\nname = \"c\"\n\
                          [[uplink]]\nname = \"up\"\n";

    fn set(text: &str) -> Result<Table, String> {
        let mut table = toml::from_str(CONFIG).unwrap();
        text.parse::<Override>()?.apply(&mut table)?;
        Ok(table)
    }

    #[test]
    fn values_are_toml_or_strings() {
        for (text, value) in [
            ("2", Value::Integer(2)),
            ("true", Value::Boolean(true)),
            ("\"x\"", Value::String("x".into())),
            ("[\"x\"]", Value::Array(vec!["x".into()])),
            ("csum+sg", Value::String("csum+sg".into())),
            ("10.0.0.1/24", Value::String("10.0.0.1/24".into())),
            ("a=b", Value::String("a=b".into())),
            ("1\nother = 2", Value::String("1\nother = 2".into())),
            ("", Value::String(String::new())),
        ] {
            assert_eq!(set(&format!("up.key={text}")).unwrap()["uplink"][0]["key"], value);
        }
    }

    #[test]
    fn only_the_named_tables_are_changed() {
        let table = set("a.b.queues=2").unwrap();
        assert_eq!(table["guest"][0]["queues"], Value::Integer(2));
        assert!(table["guest"][1].get("queues").is_none());
        let table = set("*.queues=3").unwrap();
        assert_eq!([0, 1].map(|n| table["guest"][n]["queues"].as_integer()), [Some(3); 2]);
        assert!(table["uplink"][0].get("queues").is_none());
    }

    #[test]
    fn a_change_without_a_table_is_refused() {
        let error = set("red.queues=1").unwrap_err();
        assert!(error.contains("\"red\"") && error.contains("a.b, c, up"), "{error}");
        for text in ["", "c", "c.queues", "queues=1", ".queues=1", "c.=1"] {
            assert!(set(text).unwrap_err().contains("NAME.KEY=VALUE"), "{text}");
        }
        let mut none = Table::new();
        assert!("*.queues=1".parse::<Override>().unwrap().apply(&mut none).is_err());
    }
}
