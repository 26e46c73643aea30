//! The ports of the daemon, whatever they are made of.
//!
//! A [`PluggedPort`] is what the control thread has of each: a [`Record`], the same for all, and a [`Source`](source::Source), where its queues come
//! from. A source serves what happens to it, and answers with the [`Transition`] that follows; it attaches and detaches nothing after it
//! was opened.

mod back_end;
pub(super) mod device;
mod front_end;
pub(super) mod guest_queues;
mod plugged;
pub(super) mod port_event;
mod record;
mod source;
mod suspicion;
mod uplink;
mod uplink_device;
mod uplink_queues;
pub(super) mod vif;
mod virtual_machine;
mod xdp_queues;

use control_socket::TableKind;

use crate::config::Config;
use crate::daemon::error::Error;

pub(super) use plugged::PluggedPort;
pub(super) use port_event::{PortEvent, PortId, Transition};
pub(super) use record::{Address, Host, Record};
pub(super) use source::{Agreed, Needs};

/// The tables of a configuration whose ports the daemon opens itself, those first that it opens before it gives up its rights.
pub(super) const TABLES: [TableKind; 2] = [TableKind::Uplink, TableKind::Port];

/// The ports of the tables of one kind, to be opened; or only that of this name. Those of guests come with the guests.
///
/// # Errors
/// Keys of a table do not fit together, which was checked when the configuration was read.
pub(super) fn of_tables(
    config: &Config,
    table: TableKind,
    name: Option<&str>,
) -> Result<Vec<PluggedPort>, Error> {
    let is_wanted = |own: &str| name.is_none_or(|name| name == own);
    match table {
        TableKind::Uplink => {
            let wanted = config.uplinks.iter().filter(|uplink| is_wanted(&uplink.name));
            wanted.map(|uplink| uplink::closed(uplink, config)).collect()
        }
        TableKind::Port => {
            let wanted = config.ports.iter().filter(|port| is_wanted(&port.name));
            wanted.map(|port| virtual_machine::closed(port, config)).collect()
        }
        TableKind::Guest
        | TableKind::Daemon
        | TableKind::Switch
        | TableKind::Xen
        | TableKind::Mirror
        | TableKind::Nic => Ok(Vec::new()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// None is forgotten when the daemon starts.
    #[test]
    fn all_ports_but_guests_are_opened() {
        let opened = TableKind::ports().filter(|kind| *kind != TableKind::Guest);
        assert!(opened.eq(TABLES));
    }
}
