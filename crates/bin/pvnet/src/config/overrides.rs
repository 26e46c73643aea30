//! Keys of guests, their interfaces, uplinks and cards that the command line changes: `--set NAME.KEY=VALUE`.

use std::fmt;
use std::str::FromStr;

use toml::{Table, Value};

use super::context::Context;
use super::guest::vif_name;
use super::vif::Vif;

/// One change.
#[derive(Clone, Debug)]
pub struct Override {
    /// The text on the command line.
    text: String,
    /// The name of a guest, of a vif's port, of an uplink or of a card, or [`EVERY_GUEST`].
    name: String,
    key: String,
    value: Value,
}

/// The name that stands for every guest.
pub const EVERY_GUEST: &str = "*";

impl FromStr for Override {
    type Err = String;

    /// The value is TOML if it parses as TOML, otherwise a string.
    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.split_once('=').and_then(|(place, value)| {
            // A name may have dots; a key has none.
            let (name, key) = place.rsplit_once('.')?;
            (!name.is_empty() && !key.is_empty()).then_some((name, key, value))
        });
        let (name, key, value) = parts.ok_or(
            "not NAME.KEY=VALUE, where NAME is a guest, an uplink, a card, or * for every guest",
        )?;
        Ok(Self {
            text: text.to_owned(),
            name: name.to_owned(),
            key: key.trim().to_owned(),
            value: value_of(value),
        })
    }
}

/// A value in TOML, or a string if it is not TOML.
pub(super) fn value_of(text: &str) -> Value {
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
    /// Sets the key in every table of this name. Shorthands are written out in `config`. A guest's name
    /// is also that of its first vif and of all its contexts.
    pub(super) fn apply(&self, config: &mut Table) -> Result<(), String> {
        let mut known = Vec::new();
        let mut found = false;
        for (name, is_guest, table) in tables_with(config, &self.key) {
            let every = self.name == EVERY_GUEST && is_guest;
            if every || name == self.name {
                table.insert(self.key.clone(), self.value.clone());
                found = true;
            }
            known.push(name);
        }
        let known = || {
            format!("no guest, uplink or card {:?} (there are: {})", self.name, known.join(", "))
        };
        found.then_some(()).ok_or_else(known)
    }
}

/// The tables that may have the key: their names, and whether each is a guest's or one of its interfaces'.
pub(super) fn tables_with<'a>(
    config: &'a mut Table,
    key: &str,
) -> Vec<(String, bool, &'a mut Table)> {
    let is_vifs = Vif::KEYS.contains(&key);
    let is_contexts = !is_vifs && Context::KEYS.contains(&key);
    let mut tables = Vec::new();
    for (kind, value) in config {
        for table in children(value) {
            let name = table.get("name").and_then(Value::as_str).unwrap_or_default().to_owned();
            match kind.as_str() {
                "guest" if is_vifs => {
                    let vifs = table.get_mut("vif").into_iter().flat_map(children);
                    let named = |(handle, vif)| (vif_name(&name, handle), true, vif);
                    tables.extend((0..).zip(vifs).map(named));
                }
                "guest" if is_contexts => {
                    let contexts = table.get_mut("context").into_iter().flat_map(children);
                    tables.extend(contexts.map(|context| (name.clone(), true, context)));
                }
                "guest" => tables.push((name, true, table)),
                "uplink" | "nic" | "port" => tables.push((name, false, table)),
                _ => {}
            }
        }
    }
    tables
}

/// The tables in an array of tables.
fn children(value: &mut Value) -> impl Iterator<Item = &mut Table> {
    value.as_array_mut().into_iter().flatten().filter_map(Value::as_table_mut)
}

#[cfg(test)]
mod tests {
    use super::super::shorthand;
    use super::*;

    const CONFIG: &str = "[[guest]]\nname = \"a.b\"\nqueues = 1\n[[guest]]\nname = \"c\"\n\
                          [[uplink]]\nname = \"up\"\n";

    fn set(text: &str) -> Result<Table, String> {
        let mut table = shorthand::read(CONFIG).unwrap();
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
        assert_eq!(table["guest"][0]["vif"][0]["queues"], Value::Integer(2));
        assert!(table["guest"][1]["vif"][0].get("queues").is_none());
        let table = set("*.queues=3").unwrap();
        let queues = |n: usize| table["guest"][n]["vif"][0]["queues"].as_integer();
        assert_eq!([0, 1].map(queues), [Some(3); 2]);
        assert!(table["uplink"][0].get("queues").is_none());
    }

    #[test]
    fn a_vif_is_named_as_its_port_is() {
        const TWO: &str = "[[guest]]\nname = \"a\"\n[[guest.vif]]\n[[guest.vif]]\nqueues = 1\n";
        let set = |text: &str| -> Result<Table, String> {
            let mut table = shorthand::read(TWO).unwrap();
            text.parse::<Override>()?.apply(&mut table).map(|()| table)
        };
        for (change, expected) in [
            ("a.queues=2", [Some(2), Some(1)]),
            ("a.1.queues=2", [None, Some(2)]),
            ("*.queues=2", [Some(2); 2]),
        ] {
            let table = set(change).unwrap();
            let queues = |n: usize| table["guest"][0]["vif"][n].get("queues")?.as_integer();
            assert_eq!([0, 1].map(queues), expected, "{change}");
        }
        assert!(set("a.2.queues=2").unwrap_err().contains("there are: a, a.1"));
        assert_eq!(set("a.memory_mib=8").unwrap()["guest"][0]["memory_mib"].as_integer(), Some(8));
        assert!(set("a.1.memory_mib=8").unwrap_err().contains("there are: a)"));
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
