//! All keys of each kind of table.

use control_socket::TableKind;

use super::nic::Context;
use super::port_settings::{effort_in, keys_of};
use super::table::{Changes, Effort, Table as _};
use super::{Daemon, Guest, Mirror, Nic, PortTable, Switch, Vif, Xen, single_port};

/// What can be written in a table of this kind, each with what it takes to change it. A guest may have the keys of its only interface.
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
            let mut keys: Changes = own.copied().chain(of_port::<Vif>()).collect();
            let of_context = Context::KEYS.iter();
            let further = of_context.filter(|(key, _)| keys.iter().all(|(known, _)| known != key));
            keys.extend(further.copied().collect::<Vec<_>>());
            keys
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
