//! Fills in the status that the control socket answers with.

use std::sync::Arc;

use control_socket::{
    Address, Counts, MeterStatus, PersistentStatus, PortKind, PortState, PortStatus, Reason,
    Traffic,
};
use datapath::Port;
use hypervisor::{Hypervisor, Meter, XenbusState};
use netback::PersistentGrants;

/// A guest's port, connected or not; `reason` says why it is not.
pub(super) fn guest<H: Hypervisor>(
    name: &str,
    domain: u16,
    mac: &str,
    state: XenbusState,
    reason: Option<Reason>,
    port: Option<&Port<H>>,
) -> PortStatus {
    let stalled = || port.is_some_and(Port::is_stalled).then_some(Reason::Stalled);
    let state = match state {
        XenbusState::Connected => PortState::Up,
        _ => PortState::Down,
    };
    let status = PortStatus {
        domain: Some(domain),
        mac: Some(mac.to_owned()),
        reason: reason.or_else(stalled),
        ..PortStatus::new(name, PortKind::Guest, state)
    };
    match port {
        Some(port) => counted(status, port),
        None => status,
    }
}

/// An uplink's port.
pub(super) fn uplink<H: Hypervisor>(port: &Port<H>) -> PortStatus {
    counted(PortStatus::new(port.name(), PortKind::Uplink, PortState::Up), port)
}

fn counted<H: Hypervisor>(status: PortStatus, port: &Port<H>) -> PortStatus {
    let counts = port.counters().snapshot();
    PortStatus {
        queues: port.queues(),
        ingress: Traffic { frames: counts.rx_frames, bytes: counts.rx_bytes },
        egress: Traffic { frames: counts.tx_frames, bytes: counts.tx_bytes },
        drops: Counts::new(|reason| counts.dropped(reason)),
        ..status
    }
}

/// What a meter shows, of a daemon with these ports.
pub(super) fn meter(meter: &Meter, ports: &[PortStatus]) -> MeterStatus {
    let guests = ports.iter().filter(|port| port.kind == PortKind::Guest);
    MeterStatus {
        on: meter.is_on(),
        counts: Counts::new(|what| meter.count(what)),
        guest_bytes: guests.map(|port| port.ingress.bytes + port.egress.bytes).sum(),
        nanoseconds: meter.nanoseconds(),
    }
}

/// The persistent grants of a guest's queues; none of a guest that uses none.
pub(super) fn persistent_grants<H: Hypervisor>(
    queues: &[Arc<PersistentGrants<H>>],
) -> Option<PersistentStatus> {
    let sum = |of: fn(&PersistentGrants<H>) -> usize| queues.iter().map(|q| of(q)).sum();
    let (mapped, bound) = (sum(PersistentGrants::mapped), sum(PersistentGrants::bound));
    (!queues.is_empty()).then_some(PersistentStatus { mapped, bound })
}

/// An entry of the switch's table.
pub(super) fn address(entry: &switch::Entry) -> Address {
    Address { mac: entry.mac.to_string(), port: entry.port.0, age: entry.age }
}
