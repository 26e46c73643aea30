//! The hypervisor's services for the driver domain.

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hypervisor::{
    CopyStatus, Dest, DomId, Error, GrantCopy, GrantRef, Hypervisor, PAGE_SIZE, Port, Source,
};
use shm::Region;

use crate::domain::{Access, Domain, MemorySize, Pins};
use crate::event::{GuestEvent, HostEvent, pair};
use crate::store::StoreHub;

/// The driver domain's number.
pub const DRIVER_DOMAIN: DomId = DomId(0);
/// Event channels one guest may have open.
const PORTS_MAX: usize = 256;

/// The embedded hypervisor.
#[derive(Clone)]
pub struct Machine {
    inner: Arc<Inner>,
}

struct Inner {
    store: StoreHub,
    domains: Mutex<Domains>,
}

#[derive(Default)]
struct Domains {
    by_id: HashMap<DomId, Entry>,
    last: u16,
}

struct Entry {
    domain: Arc<Domain>,
    /// Channels the guest offered to the driver domain and nobody has bound yet, by port.
    offered: HashMap<Port, HostEvent>,
    ports: u32,
}

impl Default for Machine {
    fn default() -> Self {
        Self::new()
    }
}

impl Machine {
    /// A machine with no domain but the driver domain.
    #[must_use]
    pub fn new() -> Self {
        Self { inner: Arc::new(Inner { store: StoreHub::new(), domains: Mutex::default() }) }
    }

    /// The machine's store.
    #[must_use]
    pub fn store(&self) -> &StoreHub {
        &self.inner.store
    }

    fn domains(&self) -> MutexGuard<'_, Domains> {
        self.inner.domains.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a domain with fresh memory. Numbers are not used again before they wrap.
    pub fn create(&self, size: MemorySize) -> Result<Arc<Domain>, Error> {
        let mut domains = self.domains();
        let id = domains.next_id().ok_or(Error::Exhausted("domain numbers"))?;
        let domain = Domain::new(id, size).map_err(Error::os("guest memory"))?;
        let domain = Arc::new(domain);
        let entry = Entry { domain: domain.clone(), offered: HashMap::new(), ports: 0 };
        domains.by_id.insert(id, entry);
        Ok(domain)
    }

    /// Ends a domain: its grants are refused from now on, its offers withdrawn. Its memory is
    /// freed when the last mapping and peer of it are dropped.
    pub fn destroy(&self, id: DomId) {
        if let Some(entry) = self.domains().by_id.remove(&id) {
            entry.domain.kill();
        }
    }

    /// The domains there are.
    #[must_use]
    pub fn list(&self) -> Vec<DomId> {
        let mut ids: Vec<_> = self.domains().by_id.keys().copied().collect();
        ids.sort_unstable();
        ids
    }

    /// A guest offers an event channel to the driver domain.
    pub(crate) fn alloc_unbound(&self, guest: DomId) -> Result<(GuestEvent, Port), Error> {
        let mut domains = self.domains();
        let entry = domains.by_id.get_mut(&guest).ok_or(Error::NoDomain(guest))?;
        if entry.offered.len() >= PORTS_MAX {
            return Err(Error::Exhausted("event channels"));
        }
        let (host, theirs) = pair().map_err(Error::os("event channel"))?;
        entry.ports += 1;
        let port = Port(entry.ports);
        entry.offered.insert(port, host);
        Ok((theirs, port))
    }
}

impl Domains {
    fn next_id(&mut self) -> Option<DomId> {
        // 0x7FF0 and above are special (DOMID_SELF, DOMID_IO, ...).
        for _ in 0..0x7FF0 {
            self.last = if self.last >= 0x7FEF { 1 } else { self.last + 1 };
            let id = DomId(self.last);
            if !self.by_id.contains_key(&id) {
                return Some(id);
            }
        }
        None
    }
}

/// Pages of a guest in the driver domain's address space.
pub struct Mapping {
    region: Region,
    /// Dropped after the region: pages are unmapped before the guest may take them back.
    _pins: Pins,
}

impl Deref for Mapping {
    type Target = Region;

    fn deref(&self) -> &Region {
        &self.region
    }
}

/// One side of a copy, resolved and checked.
enum Side<'a> {
    Region(&'a Region, usize),
    Bytes(&'a [u8]),
}

/// A granted range must not leave its page.
#[inline]
fn within_page(offset: u16, len: u16) -> bool {
    usize::from(offset) + usize::from(len) <= PAGE_SIZE
}

#[inline]
fn granted(peer: &Domain, gref: GrantRef, offset: u16, len: u16, access: Access) -> Option<usize> {
    let page = peer.check(DRIVER_DOMAIN, gref, access).ok()?;
    within_page(offset, len).then_some(page + usize::from(offset))
}

#[inline]
fn source<'a>(from: &'a Source<'_, Arc<Domain>>, len: u16) -> Option<Side<'a>> {
    match from {
        Source::Grant { peer, gref, offset } => {
            let at = granted(peer, *gref, *offset, len, Access::Read)?;
            Some(Side::Region(peer.memory(), at))
        }
        Source::Mapped { region, offset } => Some(Side::Region(region, *offset)),
        Source::Private(bytes) => bytes.get(..len.into()).map(Side::Bytes),
    }
}

fn perform(op: &mut GrantCopy<'_, Arc<Domain>>) -> CopyStatus {
    let len = usize::from(op.len);
    let Some(from) = source(&op.source, op.len) else { return CopyStatus::BadSource };
    let (to, at) = match &mut op.dest {
        Dest::Grant { peer, gref, offset } => {
            match granted(peer, *gref, *offset, op.len, Access::Write) {
                Some(at) => (peer.memory(), at),
                None => return CopyStatus::BadDest,
            }
        }
        Dest::Mapped { region, offset } => (*region, *offset),
        Dest::Private(bytes) => {
            let Some(bytes) = bytes.get_mut(..len) else { return CopyStatus::BadDest };
            return match from {
                Side::Region(region, at) => {
                    okay_or(region.copy_out(at, bytes), CopyStatus::BadSource)
                }
                Side::Bytes(source) => {
                    bytes.copy_from_slice(source);
                    CopyStatus::Okay
                }
            };
        }
    };
    match from {
        Side::Region(region, offset) => {
            okay_or(Region::copy_between(region, offset, to, at, len), CopyStatus::BadDest)
        }
        Side::Bytes(bytes) => okay_or(to.copy_in(at, bytes), CopyStatus::BadDest),
    }
}

#[inline]
fn okay_or<E>(result: Result<(), E>, fault: CopyStatus) -> CopyStatus {
    result.map_or(fault, |()| CopyStatus::Okay)
}

impl Hypervisor for Machine {
    type Peer = Arc<Domain>;
    type Mapping = Mapping;
    type Event = HostEvent;

    fn peer(&self, domain: DomId) -> Result<Self::Peer, Error> {
        let domains = self.domains();
        domains.by_id.get(&domain).map(|e| e.domain.clone()).ok_or(Error::NoDomain(domain))
    }

    fn map(&self, peer: &Self::Peer, grefs: &[GrantRef]) -> Result<Self::Mapping, Error> {
        let (pins, places) = Pins::new(peer, DRIVER_DOMAIN, grefs)?;
        let region = Region::map_scattered(peer.fd(), &places, PAGE_SIZE)
            .map_err(Error::os("map granted pages"))?;
        Ok(Mapping { region, _pins: pins })
    }

    #[inline]
    fn copy(&self, batch: &mut [GrantCopy<'_, Self::Peer>]) {
        for op in batch {
            op.status = perform(op);
        }
    }

    fn bind_interdomain(&self, peer: &Self::Peer, port: Port) -> Result<Self::Event, Error> {
        let bad = Error::BadPort { dom: peer.id(), port };
        let mut domains = self.domains();
        let entry = domains.by_id.get_mut(&peer.id()).ok_or(Error::NoDomain(peer.id()))?;
        entry.offered.remove(&port).ok_or(bad)
    }
}
