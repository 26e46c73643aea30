//! The file's tables before they are read: the only vif or context of a guest may be written in the guest's
//! table. It is a context if it has a `nic`.
//!
//! ```text
//! [[guest]]                                [[guest]]
//! name = "red"                 stands      name = "red"
//! mac = "02:00:00:00:00:01"     for        [[guest.vif]]
//!                                          mac = "02:00:00:00:00:01"
//!
//! [[guest]]                                [[guest]]
//! name = "red"                 stands      name = "red"
//! nic = "card0"                 for        [[guest.context]]
//! mac = "02:00:00:00:00:01"                nic = "card0"
//!                                          mac = "02:00:00:00:00:01"
//! ```

use std::borrow::Cow;

use serde::de::{DeserializeOwned, Error as _};
use toml::Spanned;
use toml::de::{DeArray, DeTable, DeValue, Deserializer, Error};

use super::context::Context;
use super::vif::Vif;

/// Reads a text as if all shorthands were written out. Errors name the line.
pub(super) fn read<T: DeserializeOwned>(text: &str) -> Result<T, Error> {
    T::deserialize(Deserializer::from(parse(text)?)).map_err(|mut error| {
        error.set_input(Some(text));
        error
    })
}

/// Parses a text and writes shorthands out. Values keep their places in the text.
fn parse(text: &str) -> Result<Spanned<DeTable<'_>>, Error> {
    let mut file = DeTable::parse(text)?;
    let Some(guests) = file.get_mut().get_mut("guest") else { return Ok(file) };
    let DeValue::Array(guests) = guests.get_mut() else { return Ok(file) };
    for guest in guests.iter_mut() {
        let place = guest.span();
        if let DeValue::Table(guest) = guest.get_mut() {
            write_out(guest, place)?;
        }
    }
    Ok(file)
}

/// Moves an interface's keys from a guest's table at `place` into a table for the interface.
fn write_out(guest: &mut DeTable<'_>, place: std::ops::Range<usize>) -> Result<(), Error> {
    let (kind, keys) = match guest.contains_key("nic") {
        true => ("context", &Context::KEYS[..]),
        false => ("vif", Vif::KEYS),
    };
    let own: DeTable<'_> = keys.iter().filter_map(|key| guest.remove_entry(*key)).collect();
    let has_own = !own.is_empty();
    if let (true, Some(key)) = (guest.contains_key(kind), own.keys().next()) {
        let name = guest.get("name").and_then(|name| name.get_ref().as_str()).unwrap_or_default();
        let key = key.get_ref();
        return Err(Error::custom(format!(
            "guest {name:?}: {key} is a {kind}'s, and this guest has [[guest.{kind}]] tables; \
             write it there"
        )));
    }
    // A guest without a word about interfaces has a vif.
    let is_silent = !guest.contains_key("vif") && !guest.contains_key("context");
    if has_own || is_silent {
        insert(guest, kind, Some(own), &place);
    }
    if !guest.contains_key("vif") {
        insert(guest, "vif", None, &place);
    }
    Ok(())
}

/// Gives a guest an array of one interface, or of none.
fn insert<'a>(
    guest: &mut DeTable<'a>,
    kind: &'static str,
    interface: Option<DeTable<'a>>,
    place: &std::ops::Range<usize>,
) {
    let mut interfaces = DeArray::new();
    if let Some(interface) = interface {
        interfaces.push(Spanned::new(place.clone(), DeValue::Table(interface)));
    }
    let key = Spanned::new(place.clone(), Cow::Borrowed(kind));
    guest.insert(key, Spanned::new(place.clone(), DeValue::Array(interfaces)));
}

#[cfg(test)]
mod tests {
    use toml::Table;

    use super::*;

    fn table(text: &str) -> Table {
        read(text).unwrap()
    }

    #[test]
    fn the_only_vif_can_be_written_in_the_guests_table() {
        let short =
            "[[guest]]\nname = \"red\"\nmemory_mib = 8\nqueues = 2\nlimit.egress.mbps = 9\n";
        let long = "[[guest]]\nname = \"red\"\nmemory_mib = 8\n\
                    [[guest.vif]]\nqueues = 2\nlimit = { egress = { mbps = 9 } }\n";
        let toml: Table = toml::from_str(long).unwrap();
        assert_eq!(table(short), toml);
        assert_eq!(table(long), toml);
        assert_eq!(table("[[guest]]\n")["guest"][0]["vif"].as_array().unwrap().len(), 1);
        assert!(table("[[uplink]]\nqueues = 2\n")["uplink"][0].get("vif").is_none());
    }

    #[test]
    fn a_guest_with_tables_of_its_vifs_has_their_keys_nowhere_else() {
        let text = "[[guest]]\nname = \"red\"\nqueues = 2\n[[guest.vif]]\nqueues = 3\n";
        let error = read::<Table>(text).unwrap_err().to_string();
        assert!(error.contains("\"red\": queues is a vif's"), "{error}");
    }

    #[test]
    fn the_only_context_can_be_written_in_the_guests_table() {
        let short = "[[guest]]\nname = \"red\"\nnic = \"card0\"\nmac = \"02:00:00:00:00:01\"\n";
        let long = "[[guest]]\nname = \"red\"\nvif = []\n\
                    [[guest.context]]\nnic = \"card0\"\nmac = \"02:00:00:00:00:01\"\n";
        let toml: Table = toml::from_str(long).unwrap();
        assert_eq!(table(short), toml);
        assert_eq!(table(long), toml);
        let without = long.replace("vif = []\n", "");
        assert_eq!(table(&without), toml, "a context instead of a vif");
        let beside = long.replace("vif = []", "queues = 2");
        assert_eq!(table(&beside)["guest"][0]["vif"][0]["queues"].as_integer(), Some(2));
        let error = read::<Table>(&long.replace("vif = []", "nic = \"card1\"")).unwrap_err();
        assert!(error.to_string().contains("nic is a context's"), "{error}");
    }

    #[test]
    fn every_key_of_a_context_has_a_shorthand() {
        let error = toml::from_str::<Context>("colour = 1\n").unwrap_err().to_string();
        let listed = error.split("expected one of ").nth(1).unwrap();
        let listed: Vec<_> = listed.split(',').map(|key| key.trim().trim_matches('`')).collect();
        assert_eq!(listed, Context::KEYS);
    }

    #[test]
    fn every_key_of_a_vif_has_a_shorthand() {
        let error = toml::from_str::<Vif>("colour = 1\n").unwrap_err().to_string();
        let listed = error.split("expected one of ").nth(1).unwrap();
        let listed: Vec<_> = listed.split(',').map(|key| key.trim().trim_matches('`')).collect();
        assert_eq!(listed, Vif::KEYS);
    }
}
