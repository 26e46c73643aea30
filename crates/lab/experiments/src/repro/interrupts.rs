//! Interrupts of guests and of the driver domain, from the daemon's counters.

use control_socket::Status;
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

/// Interrupts of all contexts of the driver domain, or of all others.
fn of_contexts(status: &Status, of_driver: bool) -> u64 {
    // A context that is named after a guest with a port is a queue that the driver domain keeps for the guest.
    let is_port = |name: &str| status.ports.iter().any(|port| port.name == name);
    let contexts = status.nics.iter().flat_map(|nic| &nic.contexts);
    let chosen = contexts.filter(|context| is_port(&context.guest) == of_driver);
    chosen.map(|context| context.interrupts).sum()
}
