//! Interrupts of guests and of the driver domain, from the daemon's counters.

use control_socket::{PortKind, Status};
use hypervisor::Counted;

/// Notifications and virtual interrupts of guests between two readings.
pub fn of_guests(before: &Status, after: &Status) -> u64 {
    let events = (after.meter.counts - before.meter.counts).of(Counted::Notifications);
    events + of_contexts(after, false).saturating_sub(of_contexts(before, false))
}

/// Virtual interrupts of the driver domain's contexts between two readings.
pub fn of_driver(before: &Status, after: &Status) -> u64 {
    of_contexts(after, true).saturating_sub(of_contexts(before, true))
}

/// Interrupts of all contexts of uplinks, or of all others.
fn of_contexts(status: &Status, of_uplinks: bool) -> u64 {
    let is_uplink = |name: &str| {
        let named = status.ports.iter().find(|port| port.name == name);
        named.is_some_and(|port| port.kind == PortKind::Uplink)
    };
    let contexts = status.nics.iter().flat_map(|nic| &nic.contexts);
    let chosen = contexts.filter(|context| is_uplink(&context.guest) == of_uplinks);
    chosen.map(|context| context.interrupts).sum()
}
