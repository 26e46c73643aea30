//! The status of the mappings of guests' memory.

use std::collections::HashSet;

use control_socket::{MemoryStatus, Status, View};
use hypervisor::{DomId, Hypervisor, PAGE_SIZE};
use machine::{AddressSpace, Coverage, Domain, Machine};
use shm::PageSize;

/// Adds each guest's memory to the first of its ports in a status.
pub(super) fn measure(status: &mut Status, machine: &Machine) {
    let daemon = AddressSpace::of_self().ok();
    let mut measured = HashSet::new();
    for port in &mut status.ports {
        let first = port.domain.filter(|id| measured.insert(*id));
        let domain = first.and_then(|id| machine.peer(DomId(id)).ok());
        port.memory = domain.map(|domain| memory(&domain, daemon.as_ref()));
    }
}

fn memory(domain: &Domain, daemon: Option<&AddressSpace>) -> MemoryStatus {
    let size = domain.size();
    let process = domain.process().and_then(|process| AddressSpace::of_process(process).ok());
    let view = |space| {
        let Coverage { large, total } = domain.coverage(space);
        View { large, total }
    };
    MemoryStatus {
        reservation: ((size.pages - domain.pages_out()) * PAGE_SIZE) as u64,
        huge_pages: size.page_size == PageSize::Huge,
        daemon: daemon.map(view),
        guest: process.as_ref().map(view),
    }
}
