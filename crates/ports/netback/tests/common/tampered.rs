//! A machine on which the guest acts between any two of the backend's reads of its memory: the
//! fastest possible adversary, and a deterministic one.

use std::ops::{Deref, Range};
use std::sync::{Arc, Mutex};

use hypervisor::{
    CopyStatus, DmaRange, DomId, Error, EvtchnPort, FrameNumber, GrantMap, GrantRef, Hypervisor,
    MappedPages, PlainCopies,
};
use machine::{Aperture, HostEvent, Machine, Mapping};
use shm::Region;

/// The guest's action, repeated.
pub type Act = Box<dyn FnMut() + Send>;

#[derive(Clone)]
pub struct Tampered {
    machine: Machine,
    act: Arc<Mutex<Act>>,
}

impl Tampered {
    pub fn new(machine: &Machine) -> Self {
        Self { machine: machine.clone(), act: Arc::new(Mutex::new(Box::new(|| ()))) }
    }

    /// Sets the guest's action.
    pub fn set(&self, act: impl FnMut() + Send + 'static) {
        *self.act.lock().unwrap() = Box::new(act);
    }

    fn act(&self) {
        self.act.lock().unwrap()();
    }
}

/// Mapped pages that the guest changes before every access.
pub struct Watched<M> {
    inner: M,
    hypervisor: Tampered,
}

impl<M: Deref<Target = Region>> Deref for Watched<M> {
    type Target = Region;

    fn deref(&self) -> &Region {
        self.hypervisor.act();
        &self.inner
    }
}

impl Hypervisor for Tampered {
    type Peer = <Machine as Hypervisor>::Peer;
    type Mapping = Watched<Mapping>;
    type Aperture = Watched<Aperture>;
    type Event = HostEvent;
    type Copies<'a> = PlainCopies<'a, Self::Peer>;

    const UNPINNED_MAPPINGS: bool = true;
    const DMA_REACHES_UNMAPPED: bool = true;

    fn peer(&self, domain: DomId) -> Result<Self::Peer, Error> {
        self.machine.peer(domain)
    }

    fn map(&self, peer: &Self::Peer, grefs: &[GrantRef]) -> Result<Self::Mapping, Error> {
        Ok(Watched { inner: self.machine.map(peer, grefs)?, hypervisor: self.clone() })
    }

    fn aperture(&self, peer: &Self::Peer, places: u32) -> Result<Self::Aperture, Error> {
        Ok(Watched { inner: self.machine.aperture(peer, places)?, hypervisor: self.clone() })
    }

    fn map_at(&self, aperture: &mut Self::Aperture, batch: &mut [GrantMap]) {
        for op in batch {
            self.act();
            self.machine.map_at(&mut aperture.inner, std::slice::from_mut(op));
        }
        self.act();
    }

    fn is_current(
        &self,
        peer: &Self::Peer,
        gref: GrantRef,
        frame: FrameNumber,
        writable: bool,
    ) -> bool {
        self.act();
        self.machine.is_current(peer, gref, frame, writable)
    }

    fn unmap(&self, aperture: &mut Self::Aperture, places: Range<u32>) {
        self.machine.unmap(&mut aperture.inner, places);
    }

    fn dma_map<'a>(
        &self,
        peer: &'a Self::Peer,
        mapped: Option<MappedPages<'a>>,
        batch: &mut [DmaRange<'a>],
    ) {
        self.machine.dma_map(peer, mapped, batch);
        self.act();
    }

    fn perform(&self, batch: &mut Self::Copies<'_>) -> bool {
        for op in &mut batch.copies {
            self.act();
            self.machine.copy(std::slice::from_mut(op));
        }
        self.act();
        batch.copies.iter().all(|op| op.status == CopyStatus::Okay)
    }

    fn bind_interdomain(&self, peer: &Self::Peer, port: EvtchnPort) -> Result<HostEvent, Error> {
        self.machine.bind_interdomain(peer, port)
    }
}

/// A small random generator: an adversary needs far more choices than a strategy's value could hold.
#[derive(Clone)]
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: u32) -> u32 {
        u32::try_from(self.next() % u64::from(n)).unwrap()
    }

    pub fn below16(&mut self, n: u16) -> u16 {
        u16::try_from(self.below(n.into())).unwrap()
    }

    pub fn one_in(&mut self, n: u32) -> bool {
        self.below(n) == 0
    }
}
