//! The hypervisor's services for the driver domain.

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hypervisor::flip::{FlipPage, GrantTransfer, PageTransfer};
use hypervisor::guest_copy::{CopyForm, GuestCopies};
use hypervisor::{
    CopyStatus, Dest, DmaHold, DmaRange, DomId, Error, EvtchnPort, FrameNumber, GrantCopy,
    GrantMap, GrantRef, Hypervisor, MappedGrants, MappedPages, PAGE_SIZE, PlainCopies, Source,
};
use shm::{Iovec, Region};

use crate::aperture::{Aperture, frame_at};
use crate::dma::pages::MachinePages;
use crate::domain::{DRIVER_DOMAIN, Domain, Pins};
use crate::event::{GuestEvent, HostEnd, HostEvent, pair};
use crate::exchange::transfer::{ExchangePage, transfer};
use crate::grant_table::Access;
use crate::guest_copy::{QueueCopies, Request, hypercall};
use crate::memory::MemorySize;
use crate::share::Share;
use crate::store::StoreHub;

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
    by_id: HashMap<DomId, JoinedDomain>,
    last: u16,
    machine_pages: MachinePages,
}

struct JoinedDomain {
    domain: Arc<Domain>,
    /// The most channels.
    channels_max: usize,
    /// Channels the guest offered to the driver domain, bound or not, by port.
    channels: HashMap<EvtchnPort, Arc<HostEnd>>,
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
        self.create_within(size, Share::default())
    }

    /// As [`create`](Self::create), for a domain that takes no more than `share` of this process's
    /// limits.
    pub fn create_within(&self, size: MemorySize, share: Share) -> Result<Arc<Domain>, Error> {
        let (id, first) = {
            let mut domains = self.domains();
            let id = domains.next_id().ok_or(Error::Exhausted("domain numbers"))?;
            (id, domains.machine_pages.allot(size))
        };
        // Without the lock: populating large pages takes long.
        let domain = Domain::new(id, size, share, first).map_err(Error::os("guest memory"))?;
        let domain = Arc::new(domain);
        let (channels_max, channels) = (share.channels, HashMap::new());
        let entry = JoinedDomain { domain: domain.clone(), channels_max, channels, ports: 0 };
        self.domains().by_id.insert(id, entry);
        Ok(domain)
    }

    /// Ends a domain: from now on its grants are refused, and its offers are withdrawn. Its memory
    /// is freed when the last mapping and peer of it are dropped.
    pub fn destroy(&self, id: DomId) {
        if let Some(entry) = self.domains().by_id.remove(&id) {
            entry.domain.kill();
        }
    }

    /// All domains.
    #[must_use]
    pub fn list(&self) -> Vec<DomId> {
        let mut ids: Vec<_> = self.domains().by_id.keys().copied().collect();
        ids.sort_unstable();
        ids
    }

    /// A guest offers an event channel to the driver domain.
    pub(crate) fn alloc_unbound(&self, guest: DomId) -> Result<(GuestEvent, EvtchnPort), Error> {
        let mut domains = self.domains();
        let entry = domains.by_id.get_mut(&guest).ok_or(Error::NoDomain(guest))?;
        entry.channels.retain(|_, channel| !channel.is_abandoned());
        if entry.channels.len() >= entry.channels_max {
            return Err(Error::Exhausted("event channels"));
        }
        let (host, theirs) = pair().map_err(Error::os("event channel"))?;
        entry.ports += 1;
        let port = EvtchnPort(entry.ports);
        entry.channels.insert(port, host);
        Ok((theirs, port))
    }

    /// A guest gives pages back to the driver domain.
    pub(crate) fn surrender(&self, guest: DomId, frames: &[u32]) -> Result<(), Error> {
        self.peer(guest)?.surrender(frames)
    }

    /// A guest copies out of buffers that the driver domain grants to it. Returns a bit for each copy
    /// that was done.
    pub(crate) fn copy_granted(
        &self,
        guest: DomId,
        id: u32,
        requests: &[Request],
    ) -> Result<u64, Error> {
        let guest = self.peer(guest)?;
        guest.check_ready()?;
        let copies = guest.copies().find(id).ok_or(Error::Unsupported("guest copies"))?;
        Ok(hypercall::copy(&copies, &guest, requests))
    }

    pub(crate) fn pool(&self, guest: DomId, id: u32) -> Result<Arc<QueueCopies>, Error> {
        let copies = self.peer(guest)?.copies().find(id);
        let pooled = copies.filter(|copies| copies.pool_file().is_some());
        pooled.ok_or(Error::Unsupported("pool"))
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

/// The first byte of a granted range in its owner's memory, after its grant and bounds are checked.
#[inline(always)]
fn granted(peer: &Domain, gref: GrantRef, offset: u16, len: u16, access: Access) -> Option<usize> {
    let within_page = usize::from(offset) + usize::from(len) <= PAGE_SIZE;
    let page = peer.check(DRIVER_DOMAIN, gref, access).ok()?;
    within_page.then_some(page + usize::from(offset))
}

/// Where the bytes of a shared source are, after its grant and bounds are checked.
#[inline(always)]
fn source<'a>(source: &Source<'a, Arc<Domain>>, len: u16) -> Option<(&'a Region, usize)> {
    match *source {
        Source::Grant { peer, gref, offset } => {
            Some((peer.memory(), granted(peer, gref, offset, len, Access::Read)?))
        }
        Source::MappedGrant { pages, place, offset } if pages.frame(place).is_some() => {
            unpinned(pages, place, (offset, len), Access::Read)
        }
        _ => source.mapped(),
    }
}

/// Where bytes of an unpinned page are. The grant is checked at this use, as if the page were not
/// mapped. If the grant names another page by now, the bytes are in that page.
// Inlined, it would slow down all other copies.
#[inline(never)]
fn unpinned<'a>(
    pages: &'a MappedGrants<'a, Arc<Domain>>,
    place: u16,
    (offset, len): (u16, u16),
    access: Access,
) -> Option<(&'a Region, usize)> {
    let start = granted(pages.peer, pages.at(place)?, offset, len, access)?;
    if pages.frame(place) == Some(frame_at(start)) {
        return Some((pages.pages.region, usize::from(place) * PAGE_SIZE + usize::from(offset)));
    }
    Some((pages.peer.memory(), start))
}

/// See [`source`].
#[inline(always)]
fn dest<'a>(dest: &Dest<'a, Arc<Domain>>, len: u16) -> Option<(&'a Region, usize)> {
    match *dest {
        Dest::Grant { peer, gref, offset } => {
            Some((peer.memory(), granted(peer, gref, offset, len, Access::Write)?))
        }
        Dest::MappedGrant { pages, place, offset } if pages.frame(place).is_some() => {
            unpinned(pages, place, (offset, len), Access::Write)
        }
        _ => dest.mapped(),
    }
}

#[inline]
fn perform(op: &mut GrantCopy<'_, Arc<Domain>>) -> CopyStatus {
    use CopyStatus::{BadDest, BadSource};
    let len = usize::from(op.len);
    if let Source::Private(bytes) = op.source {
        let Some(bytes) = bytes.get(..len) else { return BadSource };
        return write(&mut op.dest, bytes, op.len);
    }
    let Some((from, start)) = source(&op.source, op.len) else { return BadSource };
    let copied = if let Dest::Private(place) = &mut op.dest {
        let Some(place) = place.get_mut(..len) else { return BadDest };
        from.copy_out(start, place)
    } else {
        let Some((to, at)) = dest(&op.dest, op.len) else { return BadDest };
        Region::copy_between(from, start, to, at, len)
    };
    okay_or(copied, BadSource)
}

/// A copy out of private memory: `len` bytes, all of `bytes`.
#[inline]
fn write(to: &mut Dest<'_, Arc<Domain>>, bytes: &[u8], len: u16) -> CopyStatus {
    use CopyStatus::{BadDest, Okay};
    if let Dest::Private(place) = to {
        let Some(place) = place.get_mut(..bytes.len()) else { return BadDest };
        place.copy_from_slice(bytes);
        return Okay;
    }
    let Some((to, at)) = dest(to, len) else { return BadDest };
    okay_or(to.copy_in(at, bytes), BadDest)
}

#[inline]
fn okay_or<E>(result: Result<(), E>, fault: CopyStatus) -> CopyStatus {
    result.map_or(fault, |()| CopyStatus::Okay)
}

impl Hypervisor for Machine {
    type Peer = Arc<Domain>;
    type Mapping = Mapping;
    type Aperture = Aperture;
    type Event = HostEvent;
    type Copies<'a> = PlainCopies<'a, Self::Peer>;

    const UNPINNED_MAPPINGS: bool = true;
    const DMA_REACHES_UNMAPPED: bool = true;

    fn peer(&self, domain: DomId) -> Result<Self::Peer, Error> {
        let domains = self.domains();
        domains.by_id.get(&domain).map(|e| e.domain.clone()).ok_or(Error::NoDomain(domain))
    }

    fn map(&self, peer: &Self::Peer, grefs: &[GrantRef]) -> Result<Self::Mapping, Error> {
        peer.check_ready()?;
        let (pins, places) = Pins::new(peer, DRIVER_DOMAIN, grefs)?;
        let region = Region::alias_scattered(peer.memory(), &places, PAGE_SIZE)
            .map_err(Error::os("map granted pages"))?;
        Ok(Mapping { region, _pins: pins })
    }

    fn aperture(&self, peer: &Self::Peer, places: u32) -> Result<Self::Aperture, Error> {
        Aperture::new(peer, places)
    }

    fn map_at(&self, aperture: &mut Self::Aperture, batch: &mut [GrantMap]) {
        for op in batch {
            op.status = aperture.map(op);
        }
    }

    #[inline]
    fn is_current(
        &self,
        peer: &Self::Peer,
        gref: GrantRef,
        frame: FrameNumber,
        writable: bool,
    ) -> bool {
        let access = if writable { Access::Write } else { Access::Read };
        peer.check(DRIVER_DOMAIN, gref, access).is_ok_and(|start| frame_at(start) == frame)
    }

    fn unmap(&self, aperture: &mut Self::Aperture, places: std::ops::Range<u32>) {
        aperture.unmap(places);
    }

    /// The machine has every guest's memory mapped, and devices read it there. A second mapping of
    /// a page needs no other address.
    fn dma_map<'a>(
        &self,
        peer: &'a Self::Peer,
        _: Option<MappedPages<'a>>,
        batch: &mut [DmaRange<'a>],
    ) {
        let region = peer.memory();
        for DmaRange { from, len, address } in batch {
            *address = granted(peer, from.gref, from.offset, *len, Access::Read)
                .map(|offset| Iovec::Shared { region, offset, len: usize::from(*len) });
        }
    }

    fn dma_hold(&self, peer: &Self::Peer) -> Option<DmaHold> {
        Some(DmaHold::new(peer.clone()))
    }

    fn dma_region(&self, peer: &Self::Peer) -> Option<Region> {
        peer.memory().share()
    }

    #[inline]
    fn dma_page(&self, peer: &Self::Peer, gref: GrantRef) -> Option<u64> {
        granted(peer, gref, 0, 0, Access::Write).map(|page| page as u64)
    }

    #[inline]
    fn perform(&self, batch: &mut Self::Copies<'_>) -> bool {
        // Prefetched, so that the cache misses of a batch overlap.
        for op in &batch.copies {
            if let Source::Grant { peer, gref, offset } = op.source {
                peer.prefetch(gref, offset, Access::Read);
            } else if let Some((region, offset)) = op.source.mapped() {
                region.prefetch(offset);
            }
            if let Dest::Grant { peer, gref, offset } = op.dest {
                peer.prefetch(gref, offset, Access::Write);
            } else if let Some((region, offset)) = op.dest.mapped() {
                region.prefetch_for_write(offset);
            }
        }
        let mut all_done = true;
        for op in &mut batch.copies {
            op.status = perform(op);
            all_done &= op.status == CopyStatus::Okay;
        }
        all_done
    }

    fn page_transfer(&self) -> Option<Arc<dyn PageTransfer<Self::Peer>>> {
        Some(Arc::new(self.clone()))
    }

    fn guest_copies(
        &self,
        peer: &Self::Peer,
        form: CopyForm,
    ) -> Result<Arc<dyn GuestCopies>, Error> {
        peer.check_ready()?;
        Ok(peer.copies().make(peer.id(), form)?)
    }

    fn bind_interdomain(&self, peer: &Self::Peer, port: EvtchnPort) -> Result<Self::Event, Error> {
        let bad = Error::BadPort { dom: peer.id(), port };
        let mut domains = self.domains();
        let entry = domains.by_id.get_mut(&peer.id()).ok_or(Error::NoDomain(peer.id()))?;
        entry.channels.get_mut(&port).and_then(HostEnd::bind).ok_or(bad)
    }
}

impl PageTransfer<Arc<Domain>> for Machine {
    fn take_page(&self, peer: &Arc<Domain>) -> Result<Box<dyn FlipPage>, Error> {
        Ok(Box::new(ExchangePage::take(peer)?))
    }

    fn transfer(&self, batch: &mut [GrantTransfer<'_, Arc<Domain>>]) {
        for op in batch {
            op.status = transfer(op);
        }
    }
}
