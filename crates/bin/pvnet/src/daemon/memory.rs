//! The status of the mappings of guests' memory.

use std::collections::HashSet;

use control_socket::{MemoryStatus, Status, View};
use hypervisor::{DomId, Hypervisor, PAGE_SIZE};
use machine::{AddressSpace, Coverage, Domain, Machine};
use shm::PageSize;

/// Adds each guest's memory to the first of its ports in a status, or else of its contexts.
pub(super) fn measure(status: &mut Status, machine: &Machine) {
    let daemon = AddressSpace::of_self().ok();
    let mut measured = HashSet::new();
    let ports = status.ports.iter_mut().map(|port| (port.domain, &mut port.memory));
    let contexts = status.nics.iter_mut().flat_map(|nic| &mut nic.contexts);
    let contexts = contexts.map(|context| (context.domain, &mut context.memory));
    for (domain, shown) in ports.chain(contexts) {
        let first = domain.filter(|id| measured.insert(*id));
        let domain = first.and_then(|id| machine.peer(DomId(id)).ok());
        *shown = domain.map(|domain| memory(&domain, daemon.as_ref()));
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
