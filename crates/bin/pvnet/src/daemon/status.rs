//! The status that the control socket returns.

use control_socket::{
    Address, Counts, MeterStatus, MulticastStatus, PortKind, PortState, PortStatus, Reason,
};
use datapath::Port;
use hypervisor::Meter;
use switch::NO_VLAN;
use switch::multicast::SnoopingCounts;
use xenstore::XenbusState;

use crate::daemon::back_end::BackEnds;
use crate::daemon::carried::Carried;
use crate::daemon::interfaces::Interfaces;
use crate::daemon::uplinks::PluggedUplink;

/// A guest's port, connected or not, with what it carried in earlier connections; the reason says why it is not.
pub(super) fn guest(
    name: &str,
    domain: u16,
    mac: &str,
    (state, reason): (XenbusState, Option<Reason>),
    port: Option<&Port>,
    carried: &Carried,
) -> PortStatus {
    let state = match state {
        XenbusState::Connected => PortState::Up,
        _ => PortState::Down,
    };
    let status = PortStatus {
        domain: Some(domain),
        mac: Some(mac.to_owned()),
        reason: reason.or_else(|| stalled(port)),
        ..PortStatus::new(name, PortKind::Guest, state)
    };
    carried.describe(status, port)
}

/// An uplink's port. `devices` are the interfaces of the daemon's namespace.
pub(super) fn uplink(uplink: &PluggedUplink, devices: &Interfaces) -> PortStatus {
    let PluggedUplink {
        port,
        wrappers,
        guest_queues,
        failure,
        interface,
        watch,
        back_ends,
        carried,
        ..
    } = uplink;
    let state = if failure.is_some() { PortState::Down } else { PortState::Up };
    let reason = failure.clone().or_else(|| uplink.astray()).or_else(|| stalled(port.as_deref()));
    let guest_queues = guest_queues.as_ref().map(|queues| queues.status()).unwrap_or_default();
    let status = PortStatus {
        reason,
        guest_queues,
        socket_drops: watch.socket_drops(),
        xdp: watch.xdp(),
        refused_connections: back_ends.as_ref().map_or(0, BackEnds::refused),
        device_drops: interface.as_ref().and_then(|interface| interface.drops(devices)),
        ..PortStatus::new(uplink.name(), PortKind::Uplink, state)
    };
    carried.describe(wrappers.describe(status), port.as_deref())
}

/// The reason of a port that is up, and takes no frames.
pub(super) fn stalled(port: Option<&Port>) -> Option<Reason> {
    port.is_some_and(Port::is_stalled).then_some(Reason::Stalled)
}

/// What is known of multicast groups.
pub(super) fn multicast(counts: SnoopingCounts) -> MulticastStatus {
    let SnoopingCounts { groups, members, pruned, refused } = counts;
    MulticastStatus { groups, members, pruned, refused }
}

/// The counts of a meter, for a daemon with these ports.
pub(super) fn meter(meter: &Meter, ports: &[PortStatus]) -> MeterStatus {
    let guests = ports.iter().filter(|port| port.kind == PortKind::Guest);
    MeterStatus {
        on: meter.is_on(),
        counts: Counts::new(|what| meter.count(what)),
        guest_bytes: guests.map(|port| port.ingress.bytes + port.egress.bytes).sum(),
        nanoseconds: meter.nanoseconds(),
    }
}

/// An entry of the switch's table.
pub(super) fn address(entry: &switch::Entry) -> Address {
    let switch::Entry { vlan, mac, port, age, taught } = *entry;
    let vlan = (vlan != NO_VLAN).then_some(vlan);
    Address { mac: mac.to_string(), vlan, port: port.0, age, taught }
}
