//! The status that the control socket returns.

use control_socket::{Address, Counts, MeterStatus, MulticastStatus, PortKind, PortStatus};
use hypervisor::Meter;
use switch::NO_VLAN;
use switch::multicast::SnoopingCounts;

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
