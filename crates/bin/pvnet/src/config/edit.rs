//! Changes of the configuration by commands, on its tables.

use control_socket::Change;
use toml::{Table, Value};

use super::guest::vif_name;
use super::overrides::{EVERY_GUEST, tables_with, value_of};
use super::shorthand;

/// The kinds of tables that are ports, or have some.
pub(super) const KINDS: [&str; 3] = ["guest", "uplink", "port"];
/// The kind of tables that are mirrors.
pub(super) const MIRROR: &str = "mirror";

/// Applies a command to the tables of a configuration. Returns the names of the ports that it concerns. `served` are ports of
/// guests that need no table in the configuration: those of a Xen host. Such a guest gets one, with the settings that it has.
///
/// # Errors
/// A sentence for an operator: a name is in use, or unknown, or a key is.
pub fn edit(tables: &mut Table, change: &Change, served: &[String]) -> Result<Vec<String>, String> {
    match change {
        Change::Reload { .. } => Err("a reload is no change of the tables".to_owned()),
        Change::Add { toml } => add(tables, toml),
        Change::Delete { name } => delete(tables, name).map(|()| vec![name.clone()]),
        Change::DeleteMirror { name } => delete_mirror(tables, name).map(|()| vec![name.clone()]),
        Change::Set { name, set: values, unset } => {
            set(tables, name, values, unset, served).map(|()| vec![name.clone()])
        }
    }
}

fn add(tables: &mut Table, text: &str) -> Result<Vec<String>, String> {
    let fragment: Table = shorthand::read(text).map_err(|error| error.to_string())?;
    let mut names = Vec::new();
    for (kind, value) in fragment {
        let new = match value {
            Value::Array(new) if KINDS.contains(&kind.as_str()) || kind == MIRROR => new,
            _ => {
                return Err(format!(
                    "[[guest]], [[uplink]], [[port]] and [[mirror]] can be added, not {kind}"
                ));
            }
        };
        for table in &new {
            let name = name_of(table).ok_or_else(|| nameless(&kind, table))?;
            if all_names(tables).any(|other| other == name) || names.iter().any(|n| n == name) {
                let hint = if kind == MIRROR { "" } else { "; `pvnet port set` changes it" };
                return Err(format!("the name {name:?} is in use{hint}"));
            }
            names.push(name.to_owned());
        }
        let place = tables.entry(kind).or_insert_with(|| Value::Array(Vec::new()));
        if let Value::Array(place) = place {
            place.extend(new);
        }
    }
    if names.is_empty() {
        return Err("there is nothing to add".to_owned());
    }
    Ok(names)
}

fn delete_mirror(tables: &mut Table, name: &str) -> Result<(), String> {
    let mirrors = tables.get_mut(MIRROR).and_then(Value::as_array_mut);
    let Some(mirrors) = mirrors else { return Err("there is no mirror".to_owned()) };
    let before = mirrors.len();
    mirrors.retain(|table| name_of(table) != Some(name));
    if mirrors.len() < before {
        return Ok(());
    }
    let known: Vec<_> = mirrors.iter().filter_map(name_of).collect();
    Err(format!("no mirror {name:?} (there are: {})", known.join(", ")))
}

fn delete(tables: &mut Table, name: &str) -> Result<(), String> {
    for kind in KINDS {
        let Some(Value::Array(array)) = tables.get_mut(kind) else { continue };
        let before = array.len();
        array.retain(|table| name_of(table) != Some(name));
        if array.len() < before {
            return Ok(());
        }
        let further = array.iter().find_map(|table| {
            let guest = name_of(table).filter(|_| kind == "guest")?;
            let vifs = table.get("vif").and_then(Value::as_array).map_or(0, Vec::len);
            (1..).take(vifs).any(|handle| vif_name(guest, handle) == name).then_some(guest)
        });
        if let Some(guest) = further {
            return Err(format!(
                "{name:?} is an interface of guest {guest:?}, whose interfaces come and go together; change its table in \
                 the configuration"
            ));
        }
    }
    Err(unknown(tables, name))
}

fn set(
    tables: &mut Table,
    name: &str,
    values: &[(String, String)],
    unset: &[String],
    served: &[String],
) -> Result<(), String> {
    if values.is_empty() && unset.is_empty() {
        return Err("there is nothing to set: KEY=VALUE".to_owned());
    }
    if !has(tables, name) && served.iter().any(|served| served == name) {
        write_out(tables, name);
    }
    for (key, value) in values {
        let path: Vec<_> = key.split('.').map(str::trim).collect();
        let table = table_with(tables, name, path[0])?;
        insert(table, &path, value_of(value)).map_err(|()| format!("{key}: not a key"))?;
    }
    for key in unset {
        let path: Vec<_> = key.split('.').map(str::trim).collect();
        let table = table_with(tables, name, path[0])?;
        remove(table, &path).ok_or_else(|| format!("{key} is not set on {name:?}"))?;
    }
    Ok(())
}

/// Gives a guest of a Xen host a table: as `*` has it.
fn write_out(tables: &mut Table, name: &str) {
    let place = tables.entry("guest").or_insert_with(|| Value::Array(Vec::new()));
    let Value::Array(guests) = place else { return };
    let every = guests.iter().find(|table| name_of(table) == Some(EVERY_GUEST)).cloned();
    let silent = || {
        let mut table = Table::new();
        table.insert("vif".to_owned(), Value::Array(vec![Value::Table(Table::new())]));
        Value::Table(table)
    };
    let mut table = every.unwrap_or_else(silent);
    if let Value::Table(table) = &mut table {
        table.insert("name".to_owned(), Value::String(name.to_owned()));
    }
    guests.push(table);
}

/// The table of this name that has such a key.
fn table_with<'a>(tables: &'a mut Table, name: &str, key: &str) -> Result<&'a mut Table, String> {
    if key == "name" {
        return Err("a port keeps its name; delete it and add another".to_owned());
    }
    let missing = match has(tables, name) {
        true => format!("{key} is not a key of {name:?}"),
        false => unknown(tables, name),
    };
    let mut found = tables_with(tables, key).into_iter();
    let found = found.find_map(|(other, _, table)| (other == name).then_some(table));
    found.ok_or(missing)
}

fn insert(table: &mut Table, path: &[&str], value: Value) -> Result<(), ()> {
    match path {
        [] | ["", ..] => Err(()),
        [key] => {
            table.insert((*key).to_owned(), value);
            Ok(())
        }
        [key, rest @ ..] => {
            let inner = table.entry(*key).or_insert_with(|| Value::Table(Table::new()));
            insert(inner.as_table_mut().ok_or(())?, rest, value)
        }
    }
}

fn remove(table: &mut Table, path: &[&str]) -> Option<Value> {
    match path {
        [] => None,
        [key] => table.remove(*key),
        [key, rest @ ..] => remove(table.get_mut(*key)?.as_table_mut()?, rest),
    }
}

fn name_of(table: &Value) -> Option<&str> {
    table.get("name")?.as_str()
}

/// Why a table has no name.
fn nameless(kind: &str, table: &Value) -> String {
    match table.get("name") {
        None => format!("a [[{kind}]] has no name"),
        Some(name) => {
            format!("the name of a [[{kind}]] is a string, and {name} is none: name = \"{kind}1\"")
        }
    }
}

/// The names of all tables that have one.
fn all_names(tables: &Table) -> impl Iterator<Item = &str> {
    let arrays = tables.values().filter_map(Value::as_array);
    arrays.flatten().filter_map(name_of)
}

/// Whether a port has this name.
fn has(tables: &mut Table, name: &str) -> bool {
    // All ports have this key.
    tables_with(tables, "limit").iter().any(|(other, ..)| other == name)
}

fn unknown(tables: &Table, name: &str) -> String {
    let known: Vec<_> = all_names(tables).collect();
    format!("no port {name:?} in the configuration (there are: {})", known.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    const CONFIG: &str = "[[guest]]\nname = \"red\"\nmac = \"02:00:00:00:00:01\"\n\
                          [[guest]]\nname = \"two\"\n[[guest.vif]]\nmac = \"02:00:00:00:00:02\"\n\
                          [[guest.vif]]\nmac = \"02:00:00:00:00:03\"\n\
                          [[uplink]]\nname = \"up\"\ntap = \"up0\"\n";

    fn edited(change: &Change) -> Result<(Config, Vec<String>), String> {
        let mut tables = shorthand::read(CONFIG).unwrap();
        let names = edit(&mut tables, change, &[])?;
        Config::of_tables(&tables).map(|config| (config, names))
    }

    fn setting(name: &str, set: &[(&str, &str)], unset: &[&str]) -> Result<Config, String> {
        let text = |text: &&str| (*text).to_owned();
        let set = set.iter().map(|(key, value)| (text(key), text(value))).collect();
        let unset = unset.iter().map(text).collect();
        edited(&Change::Set { name: name.to_owned(), set, unset }).map(|(config, _)| config)
    }

    fn adding(toml: &str) -> Result<(Config, Vec<String>), String> {
        edited(&Change::Add { toml: toml.to_owned() })
    }

    #[test]
    fn ports_are_added_with_their_shorthands() {
        let (config, names) =
            adding("[[guest]]\nname = \"blue\"\nmac = \"02:00:00:00:00:09\"\nqueues = 2\n")
                .unwrap();
        assert_eq!((names, config.guests.len()), (vec!["blue".to_owned()], 3));
        assert_eq!(config.guests[2].vifs[0].queues, Some(2));
        for (text, said) in [
            ("", "nothing to add"),
            ("[[uplink]]\ntap = \"x\"\n", "has no name"),
            ("[[guest]]\nname = 5\n", "is a string, and 5 is none"),
            ("[[uplink]]\nname = \"red\"\ntap = \"x\"\n", "\"red\" is in use"),
            ("[daemon]\nworkers = 2\n", "not daemon"),
            ("[[uplink]]\nname = \"x\"\ncolour = 1\n", "colour"),
            ("[[uplink]]\nname = \"x\"\n", "tap is missing"),
            ("[[uplink]\n", "line 1"),
            ("[[guest]]\nname = \"x\"\nmac = \"02:00:00:00:00:01\"\n", "given twice"),
        ] {
            let error = adding(text).unwrap_err();
            assert!(error.contains(said), "{text}: {error}");
        }
    }

    #[test]
    fn ports_are_deleted_by_name() {
        let delete = |name: &str| edited(&Change::Delete { name: name.to_owned() });
        assert_eq!(delete("red").unwrap().0.guests.len(), 1);
        assert_eq!(delete("two").unwrap().0.guests.len(), 1);
        assert!(delete("up").unwrap().0.uplinks.is_empty());
        assert!(delete("two.1").unwrap_err().contains("interface of guest \"two\""));
        assert!(delete("blue").unwrap_err().contains("there are: red, two, up"));
    }

    #[test]
    fn mirrors_come_and_go() {
        let mut tables = shorthand::read(CONFIG).unwrap();
        let add = |name: &str| Change::Add {
            toml: format!("[[mirror]]\nname = \"{name}\"\nfrom = [\"red\"]\nto = \"up\"\n"),
        };
        let delete = |name: &str| Change::DeleteMirror { name: name.to_owned() };
        assert!(edit(&mut tables, &delete("span"), &[]).unwrap_err().contains("no mirror"));
        assert_eq!(edit(&mut tables, &add("span"), &[]).unwrap(), ["span"]);
        assert_eq!(Config::of_tables(&tables).unwrap().mirrors.len(), 1);
        let error = edit(&mut tables, &add("red"), &[]).unwrap_err();
        assert!(error.contains("\"red\" is in use"), "{error}");
        let error = edit(&mut tables, &delete("red"), &[]).unwrap_err();
        assert!(error.contains("there are: span"), "no port is removed: {error}");
        edit(&mut tables, &delete("span"), &[]).unwrap();
        assert!(Config::of_tables(&tables).unwrap().mirrors.is_empty());
    }

    #[test]
    fn keys_are_set_where_they_belong() {
        let config = setting("two.1", &[("limit.egress.mbps", "8")], &[]).unwrap();
        let limits: Vec<_> = config.guests[1].vifs.iter().map(|vif| vif.limit.egress).collect();
        assert_eq!(limits[0].bytes_per_second, None);
        assert_eq!(limits[1].bytes_per_second, Some(1_000_000));
        assert_eq!(setting("red", &[("memory_mib", "8")], &[]).unwrap().guests[0].memory_mib, 8);
        assert!(!setting("up", &[("enabled", "false")], &[]).unwrap().uplinks[0].enabled);
        assert_eq!(
            setting("red", &[("guard", "off"), ("queues", "2")], &["queues"]).unwrap().guests[0]
                .vifs[0]
                .queues,
            None
        );
        for (name, key, value, said) in [
            ("blue", "limit", "{}", "no port \"blue\""),
            ("red", "colour", "1", "`colour`"),
            ("red", "colour", "1", "its interface's keys: mac, addresses, queues"),
            ("red", "name", "x", "keeps its name"),
            ("red", "limit.colour", "1", "colour"),
            ("red", "limit..x", "1", "not a key"),
            ("red", "guard.x", "1", "guard"),
            ("red", "queues", "many", "queues"),
            ("two.1", "memory_mib", "8", "memory_mib is not a key of \"two.1\""),
        ] {
            let error = setting(name, &[(key, value)], &[]).unwrap_err();
            assert!(error.contains(said), "{key}: {error}");
        }
        assert!(setting("red", &[], &[]).unwrap_err().contains("nothing to set"));
        assert!(setting("red", &[], &["queues"]).unwrap_err().contains("not set on \"red\""));
    }

    #[test]
    fn a_guest_of_a_xen_host_gets_the_settings_of_every_guest() {
        let text = "[daemon]\nplatform = \"xen\"\n[[guest]]\nname = \"*\"\nqueues = 2\n";
        let change = |name: &str| Change::Set {
            name: name.to_owned(),
            set: vec![("limit.egress.mbps".to_owned(), "8".to_owned())],
            unset: Vec::new(),
        };
        let mut tables = shorthand::read(text).unwrap();
        let served = ["web".to_owned()];
        edit(&mut tables, &change("web"), &served).unwrap();
        let config = Config::of_tables(&tables).unwrap();
        let web = config.guest("web").unwrap();
        assert_eq!((web.vifs[0].queues, web.vifs[0].limit.egress.is_unlimited()), (Some(2), false));
        assert!(config.guest("other").unwrap().vifs[0].limit.egress.is_unlimited());
        assert!(edit(&mut tables, &change("db"), &served).is_err());
    }
}
