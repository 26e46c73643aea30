//! What `pvnet status` tells of a guest's memory.

use hypervisor::{DomId, Hypervisor, PAGE_SIZE};
use machine::{AddressSpace, Coverage, Domain, Machine};
use serde::{Deserialize, Serialize};
use shm::PageSize;

use crate::daemon::status::Status;

/// A guest's memory.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MemoryStatus {
    /// Bytes of ordinary memory it has now: what it got less what it has given up.
    pub reservation: u64,
    /// Whether it shall have pages of 2 MiB.
    pub huge_pages: bool,
    /// As this daemon has it mapped; none if that can not be told.
    pub daemon: Option<View>,
    /// As the guest's process has it mapped; none if that can not be told.
    pub guest: Option<View>,
}

/// What large pages map of a guest's memory in one process.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct View {
    /// Bytes that pages of 2 MiB map.
    pub large: u64,
    /// Bytes of memory.
    pub total: u64,
}

impl From<Coverage> for View {
    fn from(Coverage { large, total }: Coverage) -> Self {
        Self { large, total }
    }
}

impl From<View> for Coverage {
    fn from(View { large, total }: View) -> Self {
        Self { large, total }
    }
}

/// Adds each guest's memory to a status.
pub(super) fn measure(status: &mut Status, machine: &Machine) {
    let daemon = AddressSpace::of_self().ok();
    for port in &mut status.ports {
        let domain = port.domain.and_then(|id| machine.peer(DomId(id)).ok());
        port.memory = domain.map(|domain| memory(&domain, daemon.as_ref()));
    }
}

fn memory(domain: &Domain, daemon: Option<&AddressSpace>) -> MemoryStatus {
    let size = domain.size();
    let process = domain.process().and_then(|process| AddressSpace::of_process(process).ok());
    let view = |space| View::from(domain.coverage(space));
    MemoryStatus {
        reservation: ((size.pages - domain.pages_out()) * PAGE_SIZE) as u64,
        huge_pages: size.page_size == PageSize::Huge,
        daemon: daemon.map(view),
        guest: process.as_ref().map(view),
    }
}
