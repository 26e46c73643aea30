//! The status that the control socket returns.

use control_socket::{
    Address, BatchStatus, Counts, Histogram, Learning, LockWaits, MeterStatus, MulticastStatus,
    PortKind, PortState, PortStatus, Reason, Traffic,
};
use datapath::Port;
use hypervisor::Meter;
use switch::NO_VLAN;
use switch::multicast::SnoopingCounts;
use xenstore::XenbusState;

use crate::daemon::interfaces::Interfaces;
use crate::daemon::uplinks::PluggedUplink;

/// A guest's port, connected or not; `reason` says why it is not.
pub(super) fn guest(
    name: &str,
    domain: u16,
    mac: &str,
    state: XenbusState,
    reason: Option<Reason>,
    port: Option<&Port>,
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
    match port {
        Some(port) => counted(status, port),
        None => status,
    }
}

/// An uplink's port. `devices` are the interfaces of the daemon's namespace.
pub(super) fn uplink(uplink: &PluggedUplink, devices: &Interfaces) -> PortStatus {
    let PluggedUplink { port, wrappers, guest_queues, failure, interface, watch, .. } = uplink;
    let state = if failure.is_some() { PortState::Down } else { PortState::Up };
    let reason = failure.clone().or_else(|| uplink.astray()).or_else(|| stalled(port.as_deref()));
    let guest_queues = guest_queues.as_ref().map(|queues| queues.status()).unwrap_or_default();
    let status = PortStatus {
        reason,
        guest_queues,
        socket_drops: watch.socket_drops(),
        xdp: watch.xdp(),
        device_drops: interface.as_ref().and_then(|interface| interface.drops(devices)),
        ..PortStatus::new(uplink.name(), PortKind::Uplink, state)
    };
    let status = wrappers.describe(status);
    match port {
        Some(port) => counted(status, port),
        None => status,
    }
}

/// The reason of a port that is up, and takes no frames.
pub(super) fn stalled(port: Option<&Port>) -> Option<Reason> {
    port.is_some_and(Port::is_stalled).then_some(Reason::Stalled)
}

/// Adds what a port has carried.
pub(super) fn counted(status: PortStatus, port: &Port) -> PortStatus {
    let counts = port.counters().snapshot();
    let datapath::LockWaits { count, time } = port.lock_waits();
    PortStatus {
        queues: port.queues(),
        guest_hash: port.is_steered_by_guest(),
        ingress: Traffic { frames: counts.ingress_frames, bytes: counts.ingress_bytes },
        egress: Traffic { frames: counts.egress_frames, bytes: counts.egress_bytes },
        gso_checksum_fixups: port.gso_checksum_fixups(),
        lock_waits: LockWaits {
            count,
            nanoseconds: u64::try_from(time.as_nanos()).unwrap_or(u64::MAX),
        },
        learning: learning(counts.learning),
        drops: Counts::new(|reason| counts.dropped(reason)),
        batches: batches(&port.batches()),
        ..status
    }
}

fn batches(counts: &datapath::BatchCounts) -> BatchStatus {
    BatchStatus {
        ingress_frames: histogram(&counts.ingress_frames),
        egress_frames: histogram(&counts.egress_frames),
        nanoseconds: histogram(&counts.nanoseconds),
        worker_nanoseconds: counts.worker_nanoseconds,
    }
}

fn histogram(distribution: &datapath::Distribution) -> Histogram {
    let buckets = distribution.buckets.iter().copied().filter(|(bound, _)| *bound < u64::MAX);
    Histogram { count: distribution.count(), sum: distribution.sum, buckets: buckets.collect() }
}

/// What became of the source addresses of frames.
pub(super) fn learning(counts: switch::LearningCounts) -> Learning {
    let switch::LearningCounts { moves, refused_moves, refused_addresses } = counts;
    Learning { moves, refused_moves, refused_addresses }
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
