//! A text becomes a configuration. Before its tables are read, two things are done to them.
//!
//! The only interface of a guest may be written in the guest's table: a vif, or a context if it has a `nic`.
//! ```text
//! [[guest]]                                [[guest]]
//! name = "red"                 stands      name = "red"
//! mac = "02:00:00:00:00:01"     for        [[guest.vif]]
//!                                          mac = "02:00:00:00:00:01"
//! ```
//! The [keys that all ports have](PortSettings) are put together, under a key of their own; a table that has no such key refuses it.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;

use control_socket::TableKind;
use serde::Deserialize as _;
use toml::Spanned;
use toml::de::{DeArray, DeTable, DeValue, Deserializer, Error};

use super::guest::Guest;
use super::nic::Context;
use super::port_settings::{PortSettings, PortTable, SETTINGS, effort_in, keys_of};
use super::table::Table as _;
use super::{Config, Vif, single_port};

/// What is wrong with a text, in an operator's words, and where.
#[derive(Clone, Debug)]
pub struct Fault {
    message: String,
    /// The line's number and text, and where in it the fault begins and how long it is.
    line: Option<(usize, String, Range<usize>)>,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some((number, line, place)) = &self.line {
            let edge = " ".repeat(number.to_string().len());
            let column = line[..place.start].chars().count();
            let marks = "^".repeat(line[place.clone()].chars().count().max(1));
            writeln!(f, "line {number}, column {}", column + 1)?;
            writeln!(f, "{edge} |\n{number} | {line}\n{edge} | {}{marks}", " ".repeat(column))?;
        }
        f.write_str(&self.message)
    }
}

impl Fault {
    fn new(text: &str, span: Option<Range<usize>>, message: String) -> Self {
        let line = span.and_then(|Range { start, end }| {
            let before = text.get(..start)?;
            let begin = before.rfind('\n').map_or(0, |end| end + 1);
            let line = text[begin..].lines().next().unwrap_or_default();
            let place =
                (start - begin).min(line.len())..(end - begin).clamp(start - begin, line.len());
            Some((before.matches('\n').count() + 1, line.to_owned(), place))
        });
        let line = line.filter(|(_, line, place)| line.get(place.clone()).is_some());
        Self { message, line }
    }

    fn of_toml(text: &str, error: &Error) -> Self {
        let span = error.span();
        let value = span.clone().and_then(|span| text.get(span));
        let value = value.filter(|value| !value.contains('\n'));
        let message = in_words(error.message(), value.unwrap_or("the value"));
        Self::new(text, span, message)
    }

    /// The same for an operator who has not written the text: with the key, and without the line.
    pub fn of_key(&self) -> String {
        let line = self.line.as_ref().map(|(_, line, _)| line.as_str());
        match line.and_then(|line| line.split_once('=')) {
            Some((key, _)) if !self.message.contains(key.trim()) => {
                format!("{}: {}", key.trim(), self.message)
            }
            _ => self.message.clone(),
        }
    }
}

/// What an address of a socket is.
const SOCKET_ADDRESS: &str = "an address and a port, such as 127.0.0.1:9464";

/// What serde says of a value, in an operator's words.
fn in_words(message: &str, value: &str) -> String {
    let words = |text: &str| {
        // A number is quoted, and its type may follow: integer `99` as i128.
        let quoted = |kind: &str| {
            let value = text.strip_prefix(kind)?;
            let number = value.strip_prefix('`').and_then(|value| value.split('`').next());
            Some(number.unwrap_or(value).to_owned())
        };
        let number = |max: u64| format!("a whole number from 0 to {max}");
        match text {
            "u8" => number(u8::MAX.into()),
            "u16" => number(u16::MAX.into()),
            "u32" => number(u32::MAX.into()),
            "u64" | "usize" => number(u64::MAX),
            "socket address" => SOCKET_ADDRESS.to_owned(),
            "a string" | "path string" => "text in quotes".to_owned(),
            "a boolean" => "true or false".to_owned(),
            "sequence" | "a sequence" => "a list".to_owned(),
            // A date is a map to serde.
            "map" if value.starts_with(|first: char| first.is_ascii_digit()) => value.to_owned(),
            "map" | "a map" => "a table".to_owned(),
            _ if text.starts_with("struct ") => "a table".to_owned(),
            _ => {
                let kinds = ["string ", "integer ", "boolean ", "floating point "];
                kinds.into_iter().find_map(quoted).unwrap_or_else(|| text.to_owned())
            }
        }
    };
    let typed = message.strip_prefix("invalid type: ").or(message.strip_prefix("invalid value: "));
    match typed.and_then(|typed| typed.rsplit_once(", expected ")) {
        // A list of tables, as all but three are.
        Some((found, wanted)) if (&*words(found), &*words(wanted)) == ("a table", "a list") => {
            "a table is not a list; lists of tables have two brackets: [[guest]]".to_owned()
        }
        Some((found, wanted)) => format!("{} is not {}", words(found), words(wanted)),
        None if message == "wanted string or table" => format!("{value} is not text in quotes"),
        None if message == "invalid socket address syntax" => {
            format!("{value} is not {SOCKET_ADDRESS}")
        }
        // Those of our own types do not know the value.
        None if message.starts_with("is not ") => format!("{value} {message}"),
        None => message
            .replace("unknown field", "unknown key")
            .replace("unknown variant", "unknown value")
            .replace("missing field", "missing key"),
    }
}

/// Reads a text, without the checks of what TOML cannot express.
pub(super) fn read(text: &str) -> Result<Config, Fault> {
    let of_toml = |error: Error| Fault::of_toml(text, &error);
    let mut file = DeTable::parse(text).map_err(of_toml)?;
    for (kind, tables) in file.get_mut() {
        // What else is no array of tables, is said when it is read.
        let DeValue::Array(tables) = tables.get_mut() else { continue };
        for table in tables.iter_mut() {
            let place = table.span();
            let DeValue::Table(table) = table.get_mut() else { continue };
            let put = match TableKind::named(kind.get_ref()) {
                Some(TableKind::Guest) => write_out(table, &place),
                Some(kind) => single_port!(kind, T => gather::<T>(table, &place)).unwrap_or(Ok(())),
                None => Ok(()),
            };
            put.map_err(|(place, message)| Fault::new(text, Some(place), message))?;
        }
    }
    Config::deserialize(Deserializer::from(file)).map_err(of_toml)
}

/// What is wrong, and where.
type Refused = (Range<usize>, String);

/// Puts the keys of a port's table that all ports have under one of its own.
fn gather<T: PortTable>(table: &mut DeTable<'_>, place: &Range<usize>) -> Result<(), Refused> {
    if let Some(key) = table.keys().find(|key| effort_in::<T>(key.get_ref()).is_none()) {
        let known: Vec<_> = keys_of::<T>().collect();
        return Err((key.span(), refusal(key.get_ref(), T::KIND, &known)));
    }
    let keys = PortSettings::KEYS.iter();
    let common: DeTable<'_> = keys.filter_map(|(key, _)| table.remove_entry(*key)).collect();
    let key = Spanned::new(place.clone(), Cow::Borrowed(SETTINGS));
    table.insert(key, Spanned::new(place.clone(), DeValue::Table(common)));
    Ok(())
}

/// Why a table has no such key.
fn refusal(key: &str, kind: TableKind, known: &[&str]) -> String {
    match PortSettings::refusal(key, kind) {
        Some(why) => format!("[[{kind}]] has no key `{key}`: {why}"),
        None => format!("unknown key `{key}`, expected one of {}", known.join(", ")),
    }
}

/// Moves an interface's keys from a guest's table at `place` into a table for the interface.
fn write_out(guest: &mut DeTable<'_>, place: &Range<usize>) -> Result<(), Refused> {
    let of_context = Context::KEYS.iter().map(|(key, _)| *key);
    let (kind, keys): (_, Vec<_>) = match guest.contains_key("nic") {
        true => ("context", of_context.collect()),
        false => ("vif", keys_of::<Vif>().collect()),
    };
    let own: DeTable<'_> = keys.iter().filter_map(|key| guest.remove_entry(*key)).collect();
    let has_own = !own.is_empty();
    if let (true, Some(key)) = (guest.contains_key(kind), own.keys().next()) {
        let name = guest.get("name").and_then(|name| name.get_ref().as_str()).unwrap_or_default();
        let message = format!(
            "guest {name:?}: {} is a {kind}'s, and this guest has [[guest.{kind}]] tables; \
             write it there",
            key.get_ref()
        );
        return Err((key.span(), message));
    }
    let known = |key: &str| matches!(key, "vif" | "context") || Guest::key(key).is_some();
    if let Some(key) = guest.keys().find(|key| !known(key.get_ref())) {
        // The fields of the interfaces are tables, under other names.
        let own = Guest::KEYS.iter().map(|(key, _)| match *key {
            "vifs" => "vif",
            "contexts" => "context",
            key => key,
        });
        let mut message = refusal(key.get_ref(), TableKind::Guest, &own.collect::<Vec<_>>());
        if message.starts_with("unknown") {
            let of_vif: Vec<_> = keys_of::<Vif>().collect();
            let of_context = Context::KEYS.iter().map(|(key, _)| *key);
            let of_context: Vec<_> = of_context.filter(|key| !of_vif.contains(key)).collect();
            message += &format!(
                "\nA guest with one interface may have its interface's keys: {}; or a context's: {}",
                of_vif.join(", "),
                of_context.join(", ")
            );
        }
        return Err((key.span(), message));
    }
    // A guest without a word about interfaces has a vif.
    let is_silent = !guest.contains_key("vif") && !guest.contains_key("context");
    if has_own || is_silent {
        insert(guest, kind, Some(own), place);
    }
    if !guest.contains_key("vif") {
        insert(guest, "vif", None, place);
    }
    let vifs = guest.get_mut("vif").map(Spanned::get_mut);
    let Some(DeValue::Array(vifs)) = vifs else { return Ok(()) };
    vifs.iter_mut().try_for_each(|vif| {
        let place = vif.span();
        match vif.get_mut() {
            DeValue::Table(vif) => gather::<Vif>(vif, &place),
            _ => Ok(()),
        }
    })
}

/// Gives a guest an array of one interface, or of none.
fn insert<'a>(
    guest: &mut DeTable<'a>,
    kind: &'static str,
    interface: Option<DeTable<'a>>,
    place: &Range<usize>,
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
    use super::*;

    const LONG: &str = "[[guest]]\nname = \"red\"\nvif = []\n\
                        [[guest.context]]\nnic = \"card0\"\nmac = \"02:00:00:00:00:01\"\n";

    fn guest(text: &str) -> Guest {
        read(text).unwrap().guests.remove(0)
    }

    #[test]
    fn the_only_vif_can_be_written_in_the_guests_table() {
        let short =
            "[[guest]]\nname = \"red\"\nmemory_mib = 8\nqueues = 2\nlimit.egress.mbps = 9\n";
        let long = "[[guest]]\nname = \"red\"\nmemory_mib = 8\n\
                    [[guest.vif]]\nqueues = 2\nlimit = { egress = { mbps = 9 } }\n";
        assert_eq!(guest(short), guest(long));
        assert_eq!((guest(short).vifs[0].queues, guest("[[guest]]\n").vifs.len()), (Some(2), 1));
        let both = "[[guest]]\nname = \"red\"\nqueues = 2\n[[guest.vif]]\nqueues = 3\n";
        let error = read(both).unwrap_err().to_string();
        assert!(
            error.contains("line 3") && error.contains("\"red\": queues is a vif's"),
            "{error}"
        );
    }

    #[test]
    fn the_only_context_can_be_written_in_the_guests_table() {
        let short = "[[guest]]\nname = \"red\"\nnic = \"card0\"\nmac = \"02:00:00:00:00:01\"\n";
        assert_eq!(guest(short), guest(LONG));
        assert_eq!(guest(LONG).contexts.len(), 1);
        let without = LONG.replace("vif = []\n", "");
        assert_eq!(guest(&without), guest(LONG), "a context instead of a vif");
        let beside = LONG.replace("vif = []", "queues = 2");
        assert_eq!(guest(&beside).vifs[0].queues, Some(2));
        let error = read(&LONG.replace("vif = []", "nic = \"card1\"")).unwrap_err();
        assert!(error.to_string().contains("nic is a context's"), "{error}");
    }

    #[test]
    fn faults_are_said_in_words() {
        for (text, said) in [
            ("[[uplink]]\nguard = \"mac\"\n", "[[uplink]] has no key `guard`: frames of everybody"),
            ("[[guest]]\nsocket = \"/x\"\n", "[[guest]] has no key `socket`: a guest's interface"),
            ("[[port]]\ncolour = 1\n", "unknown key `colour`, expected one of mac, "),
            ("[[port]]\nsettings = { mac = 1 }\n", "unknown key `settings`"),
            (
                "[[guest]]\nqueues = \"many\"\n",
                "\"many\" is not a whole number from 0 to 4294967295",
            ),
            ("[[guest]]\ntrunk = 5\n", "5 is not a list"),
            ("[daemon]\n[guest]\nname = \"red\"\n", "two brackets: [[guest]]"),
            ("[[guest]]\ngro = [1]\n", "a list is not true or false"),
            ("[[guest]]\nguard = \"on\"\n", "unknown value `on`, expected one of `addresses`"),
            ("[[guest]]\nlimit = 5\n", "5 is not a table"),
            ("[daemon]\ndirectory = 2026-11-28\n", "2026-11-28 is not text in quotes"),
            ("[daemon]\ndirectory = 5\n", "5 is not text in quotes"),
            ("[[port]]\nguard = 5\n", "5 is not text in quotes"),
            ("[[port]]\nsocket_group = 1.5\n", "1.5 is not a group: write its name in quotes"),
            ("[[port]]\nsocket_group = [\n1 ]\n", "the value is not a group: write its name"),
            ("[daemon]\njoin_group = true\n", "true is not a group: write its name in quotes"),
            (
                "[[guest]]\nqueues = 99999999999999999999999\n",
                "99999999999999999999999 is not a whole number from 0 to 4294967295",
            ),
            (
                "[daemon]\nmetrics = \"localhost:9464\"\n",
                "\"localhost:9464\" is not an address and a port, such as 127.0.0.1:9464",
            ),
            ("[daemon]\nmetrics = 5\n", "5 is not an address and a port, such as 127.0.0.1:9464"),
            ("[daemon]\nworkers = -1\n", "-1 is not a whole number from 0 to "),
            ("[[guest]]\nlimit.egress.mbps = -5\n", "-5 is not a whole number from 0 to "),
            (
                "[daemon]\ncontrol_mode = \"0660\"\n",
                "\"0660\" is not a mode; write it as an octal number, such as 0o660",
            ),
            ("[[port]]\nsocket_mode = 0o1777\n", "0o1777 is not a mode; write it as an octal"),
            ("[daemon]\nrebalance_gain = 300\n", "300 is not a whole number from 1 to 100"),
            ("[daemon]\nrebalance_threshold = 0\n", "0 is not a whole number from 1 to 100"),
            ("[[guest]]\nmulticast_router = 5\n", "5 is not true, false or \"auto\""),
            ("[[nic]]\nprotection = \"iommu\"\n", "\"iommu\" is not \"hypervisor\", \"none\""),
            ("[[uplink]]\nqueues = \"all\"\n", "\"all\" is not \"shared\", \"per-guest\" or a"),
        ] {
            let error = read(text).unwrap_err().to_string();
            assert!(error.contains("line 2") && error.contains(said), "{error}");
        }
    }

    #[test]
    fn a_fault_shows_its_line() {
        let fault = read("[daemon]\nworkers = \"zwölf\" # ö\n").unwrap_err();
        let said = "line 2, column 11\n  |\n2 | workers = \"zwölf\" # ö\n  |           ^^^^^^^\n\
                    \"zwölf\" is not a whole number from 0 to 18446744073709551615";
        assert_eq!(fault.to_string(), said);
        assert!(fault.of_key().starts_with("workers: \"zwölf\" is not a whole number"));
        assert!(read("[daemon\n").unwrap_err().to_string().starts_with("line 1"));
    }
}
