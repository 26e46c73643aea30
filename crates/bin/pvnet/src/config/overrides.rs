//! Keys of guests, their interfaces, uplinks and cards that the command line changes: `--set NAME.KEY=VALUE`.

use std::fmt;
use std::str::FromStr;

use toml_edit::{DocumentMut, Item, Value};

use super::edit::{Found, said, tables_with, value_of};
use super::guest::EVERY_GUEST;
use super::{Config, Error};

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
            value: value_of(key.trim(), value),
        })
    }
}

impl fmt::Display for Override {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.text.fmt(f)
    }
}

impl Override {
    /// Sets the key in every table of this name. A guest's name is also that of its first vif and of all its contexts.
    pub(super) fn apply(&self, document: &mut DocumentMut) -> Result<(), String> {
        let mut known = Vec::new();
        let mut found = false;
        for Found { name, guest, table, .. } in tables_with(document, &self.key) {
            if name == self.name || self.name == EVERY_GUEST && guest.is_some() {
                table.insert(&self.key, Item::Value(self.value.clone()));
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

/// Applies changes of the command line to a text.
///
/// # Errors
/// A change, and why it is none.
pub(super) fn with_overrides(text: &str, overrides: &[Override]) -> Result<String, Error> {
    let mut text = text.to_owned();
    for set in overrides {
        let refused = |reason| Error::Set { set: set.to_string(), reason };
        let mut document: DocumentMut = text.parse().map_err(said).map_err(refused)?;
        set.apply(&mut document).map_err(refused)?;
        text = document.to_string();
        Config::parse(&text).map_err(|fault| refused(fault.of_key()))?;
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: &str = "[[guest]]\nname = \"a.b\"\nqueues = 1\n[[guest]]\nname = \"c\"\n\
                          [[uplink]]\nname = \"up\"\n";

    fn set(config: &str, text: &str) -> Result<DocumentMut, String> {
        let mut document: DocumentMut = config.parse().unwrap();
        text.parse::<Override>()?.apply(&mut document)?;
        Ok(document)
    }

    #[test]
    fn values_are_toml_or_strings() {
        for (text, written) in [
            ("2", "2"),
            ("true", "true"),
            ("\"x\"", "\"x\""),
            ("[\"x\"]", "[\"x\"]"),
            ("csum+sg", "\"csum+sg\""),
            ("10.0.0.1/24", "\"10.0.0.1/24\""),
            ("a=b", "\"a=b\""),
            ("1\nother = 2", "\"\"\"\n1\nother = 2\"\"\""),
            ("", "\"\""),
        ] {
            let document = set(CONFIG, &format!("up.key={text}")).unwrap().to_string();
            assert_eq!(document, format!("{CONFIG}key = {written}\n"));
        }
    }

    #[test]
    fn only_the_named_tables_are_changed() {
        let queues = |text: &str| {
            let document = set(CONFIG, text).unwrap();
            let of = |kind: &str, n: usize| document[kind][n].get("queues")?.as_integer();
            [of("guest", 0), of("guest", 1), of("uplink", 0)]
        };
        assert_eq!(queues("a.b.queues=2"), [Some(2), None, None]);
        assert_eq!(queues("*.queues=3"), [Some(3), Some(3), None]);
    }

    #[test]
    fn a_vif_is_named_as_its_port_is() {
        const TWO: &str = "[[guest]]\nname = \"a\"\n[[guest.vif]]\n[[guest.vif]]\nqueues = 1\n";
        for (change, expected) in [
            ("a.queues=2", [Some(2), Some(1)]),
            ("a.1.queues=2", [None, Some(2)]),
            ("*.queues=2", [Some(2); 2]),
        ] {
            let document = set(TWO, change).unwrap();
            let queues = |n: usize| document["guest"][0]["vif"][n].get("queues")?.as_integer();
            assert_eq!([0, 1].map(queues), expected, "{change}");
        }
        assert!(set(TWO, "a.2.queues=2").unwrap_err().contains("there are: a, a.1"));
        let document = set(TWO, "a.memory_mib=8").unwrap();
        assert_eq!(document["guest"][0]["memory_mib"].as_integer(), Some(8));
        assert!(set(TWO, "a.1.memory_mib=8").unwrap_err().contains("there are: a)"));
    }

    #[test]
    fn a_change_without_a_table_is_refused() {
        let error = set(CONFIG, "red.queues=1").unwrap_err();
        assert!(error.contains("\"red\"") && error.contains("a.b, c, up"), "{error}");
        for text in ["", "c", "c.queues", "queues=1", ".queues=1", "c.=1"] {
            assert!(set(CONFIG, text).unwrap_err().contains("NAME.KEY=VALUE"), "{text}");
        }
        assert!(set("", "*.queues=1").is_err());
    }
}
