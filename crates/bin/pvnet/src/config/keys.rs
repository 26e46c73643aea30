//! All keys of each kind of table.

use control_socket::TableKind;
use schemars::generate::SchemaSettings;
use serde_json::Value;

use super::nic::Context;
use super::port_settings::{PortSettings, SETTINGS, effort_in, keys_of};
use super::table::{Changes, Effort, Table as _};
use super::{Config, Daemon, Guest, Mirror, Nic, PortTable, Switch, Vif, Xen, single_port};

/// What can be written in a table of this kind, each with what it takes to change it. A guest may have the keys of its only interface, first those of
/// a vif.
pub(super) fn keys_in(kind: TableKind) -> Changes {
    match kind {
        TableKind::Daemon => Daemon::KEYS.to_vec(),
        TableKind::Switch => Switch::KEYS.to_vec(),
        TableKind::Xen => Xen::KEYS.to_vec(),
        TableKind::Mirror => Mirror::KEYS.to_vec(),
        TableKind::Nic => Nic::KEYS.to_vec(),
        TableKind::Guest => {
            // The names of these two are those of tables.
            let own = Guest::KEYS.iter().filter(|(key, _)| !["vifs", "contexts"].contains(key));
            own.copied().chain(of_port::<Vif>()).chain(Context::KEYS.iter().copied()).collect()
        }
        TableKind::Uplink | TableKind::Port => {
            single_port!(kind, T => of_port::<T>().collect()).unwrap_or_default()
        }
    }
}

fn of_port<T: PortTable>() -> impl Iterator<Item = (&'static str, Effort)> {
    keys_of::<T>().filter_map(|key| Some((key, effort_in::<T>(key)?)))
}

/// What it takes to change a key of a table of this kind.
pub fn effort(kind: TableKind, key: &str) -> Option<Effort> {
    keys_in(kind).into_iter().find(|(known, _)| *known == key).map(|(_, effort)| effort)
}

/// What a file may have, as a JSON Schema. As in a file, the keys that all ports have are among a port's others, and those of a guest's only
/// interface among the guest's.
pub fn schema() -> Value {
    let settings =
        SchemaSettings::draft2020_12().with(|settings| settings.inline_subschemas = true);
    let mut schema = settings.into_generator().into_root_schema_for::<Config>().to_value();
    schema["title"] = SCHEMA.into();
    for kind in TableKind::ports() {
        let table = &mut schema["properties"][kind.name()]["items"]["properties"];
        if kind == TableKind::Guest {
            put_among(&mut table["vif"]["items"]["properties"], kind);
            // What both have is a vif's.
            for interface in ["context", "vif"] {
                let keys = table[interface]["items"]["properties"].clone();
                if let (Value::Object(table), Value::Object(keys)) = (&mut *table, keys) {
                    table.extend(keys);
                }
            }
        } else {
            put_among(table, kind);
        }
    }
    schema
}

/// The schema's name.
pub const SCHEMA: &str = "pvnet-config/1";

/// Puts the keys that all ports have among the others of a kind, as far as it has them.
fn put_among(table: &mut Value, kind: TableKind) {
    let Some(table) = table.as_object_mut() else { return };
    let has = |key: &str| PortSettings::keys_in(kind).any(|known| known == key);
    if let Value::Object(settings) = table.remove(SETTINGS).unwrap_or_default()["properties"].take()
    {
        table.extend(settings.into_iter().filter(|(key, _)| has(key)));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_key_is_in_the_schema_with_its_words() {
        let schema = schema();
        for kind in TableKind::ALL {
            let table = &schema["properties"][kind.name()];
            let table = table.get("items").unwrap_or(table);
            let mut keys: BTreeSet<_> = keys_in(kind).into_iter().map(|(key, _)| key).collect();
            if kind == TableKind::Guest {
                keys.extend(["vif", "context"]);
            }
            let mut known = BTreeSet::new();
            for (key, described) in table["properties"].as_object().unwrap() {
                let words = described["description"].as_str().unwrap_or_default();
                // Operators follow no links into the code.
                assert!(!words.is_empty() && !words.contains("[`"), "{key} of {kind}: {words}");
                known.insert(&**key);
            }
            assert_eq!((known, &table["additionalProperties"]), (keys, &false.into()), "{kind}");
        }
    }
}
