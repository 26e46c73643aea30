//! A machine whose driver domain grants pools to guests, as on Xen, with a naive table of its grants.

use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hypervisor::guest_copy::GrantedBuffer;
use hypervisor::{
    CopyForm, DmaRange, DomId, Error, EvtchnPort, FrameNumber, GrantMap, GrantRef, GuestCopies,
    GuestCopyCounts, Hypervisor, MappedPages, Meter, PAGE_SIZE, PlainCopies,
};
use machine::{Aperture, Domain, HostEvent, Machine, Mapping};
use shm::Region;
use wire::netif::guest_copy::Directory;
use zerocopy::IntoBytes;

/// Which pages the driver domain grants, by reference. References that are free are used again at once.
#[derive(Clone, Default)]
pub struct GrantTable {
    entries: Arc<Mutex<Vec<Option<Entry>>>>,
}

struct Entry {
    to: DomId,
    memory: Arc<Region>,
    page: usize,
}

impl GrantTable {
    fn grant(&self, to: DomId, memory: &Arc<Region>, page: usize) -> u32 {
        let mut entries = self.entries.lock().unwrap();
        let free = entries.iter().position(Option::is_none).unwrap_or_else(|| {
            entries.push(None);
            entries.len() - 1
        });
        entries[free] = Some(Entry { to, memory: memory.clone(), page });
        u32::try_from(free).unwrap()
    }

    pub fn copy(&self, guest: DomId, gref: u32, offset: usize, len: usize) -> Option<Vec<u8>> {
        let entries = self.entries.lock().unwrap();
        let Entry { to, memory, page } = entries.get(gref as usize)?.as_ref()?;
        let mut bytes = vec![0; len];
        let is_allowed = *to == guest && offset + len <= PAGE_SIZE;
        is_allowed.then(|| memory.copy_out(page * PAGE_SIZE + offset, &mut bytes).unwrap())?;
        Some(bytes)
    }

    /// How many pages are granted.
    pub fn granted(&self) -> usize {
        self.entries.lock().unwrap().iter().flatten().count()
    }
}

/// The machine.
#[derive(Clone)]
pub struct Granting {
    machine: Machine,
    pub table: GrantTable,
    /// Pages of each pool; none if there is no memory.
    pages: Option<usize>,
    /// Counts the pools: each has another mark.
    pools: Arc<Mutex<u8>>,
}

impl Granting {
    pub fn new(machine: &Machine, pages: usize) -> Self {
        let (table, pools) = Default::default();
        Self { machine: machine.clone(), table, pages: Some(pages), pools }
    }

    /// One that can make no pool.
    pub fn without_memory(machine: &Machine) -> Self {
        Self { pages: None, ..Self::new(machine, 0) }
    }
}

struct Pool {
    table: GrantTable,
    grefs: Vec<u32>,
    id: u32,
    pool: Region,
}

impl GuestCopies for Pool {
    fn id(&self) -> u32 {
        self.id
    }

    fn form(&self) -> CopyForm {
        CopyForm::Granted
    }

    fn pool(&self) -> Option<&Region> {
        Some(&self.pool)
    }

    fn grant(&self, _: &mut dyn Iterator<Item = (u16, GrantedBuffer)>) {
        panic!("only pages of the pool are granted");
    }

    fn expire(&self, _: Duration) -> usize {
        0
    }

    fn counts(&self) -> GuestCopyCounts {
        GuestCopyCounts::default()
    }

    fn count_by(&self, _: Arc<Meter>) {}
}

impl Drop for Pool {
    fn drop(&mut self) {
        let mut entries = self.table.entries.lock().unwrap();
        for gref in self.grefs.iter().chain([&self.id]) {
            entries[*gref as usize] = None;
        }
    }
}

impl Hypervisor for Granting {
    type Peer = Arc<Domain>;
    type Mapping = Mapping;
    type Aperture = Aperture;
    type Event = HostEvent;
    type Copies<'a> = PlainCopies<'a, Self::Peer>;

    const RESUMES_GUEST_COPIES: bool = true;

    fn peer(&self, domain: DomId) -> Result<Self::Peer, Error> {
        self.machine.peer(domain)
    }

    fn map(&self, peer: &Self::Peer, grefs: &[GrantRef]) -> Result<Self::Mapping, Error> {
        self.machine.map(peer, grefs)
    }

    fn aperture(&self, peer: &Self::Peer, places: u32) -> Result<Self::Aperture, Error> {
        self.machine.aperture(peer, places)
    }

    fn map_at(&self, aperture: &mut Self::Aperture, batch: &mut [GrantMap]) {
        self.machine.map_at(aperture, batch);
    }

    fn is_current(
        &self,
        peer: &Self::Peer,
        gref: GrantRef,
        frame: FrameNumber,
        writable: bool,
    ) -> bool {
        self.machine.is_current(peer, gref, frame, writable)
    }

    fn unmap(&self, aperture: &mut Self::Aperture, places: Range<u32>) {
        self.machine.unmap(aperture, places);
    }

    fn dma_map<'a>(
        &self,
        peer: &'a Self::Peer,
        mapped: Option<MappedPages<'a>>,
        batch: &mut [DmaRange<'a>],
    ) {
        self.machine.dma_map(peer, mapped, batch);
    }

    fn perform(&self, batch: &mut Self::Copies<'_>) -> bool {
        self.machine.perform(batch)
    }

    fn guest_copies(
        &self,
        peer: &Self::Peer,
        form: CopyForm,
    ) -> Result<Arc<dyn GuestCopies>, Error> {
        assert_eq!(form, CopyForm::Hypercall);
        let pages = self.pages.ok_or(Error::Exhausted("pages"))?;
        let all = Arc::new(Region::anonymous((pages + 1) * PAGE_SIZE).unwrap());
        let grefs: Vec<_> =
            (0..pages).map(|page| self.table.grant(peer.id(), &all, page)).collect();
        let id = self.table.grant(peer.id(), &all, pages);
        let mut mark = self.pools.lock().unwrap();
        *mark += 1;
        let directory = Directory::new([*mark; 16], &grefs);
        all.copy_in(pages * PAGE_SIZE, directory.as_bytes()).unwrap();
        let pool = all.slice(0..pages * PAGE_SIZE).unwrap();
        Ok(Arc::new(Pool { table: self.table.clone(), grefs, id, pool }))
    }

    fn bind_interdomain(&self, peer: &Self::Peer, port: EvtchnPort) -> Result<HostEvent, Error> {
        self.machine.bind_interdomain(peer, port)
    }
}
