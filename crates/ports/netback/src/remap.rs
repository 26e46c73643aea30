//! TX by remapping: all pages of a packet are mapped until it has been sent.

use std::ops::Range;

use arrayvec::ArrayVec;
use frame::{FRAGMENTS_MAX, Frame, Place, WINDOW, Window};
use hypervisor::{
    GrantMap, GrantRef, Granted, Hypervisor, MapStatus, MappedAt, MappedPages, PAGE_SIZE,
};
use shm::Region;

/// The packets in hand, each mapped at its window slot's places.
pub(crate) struct Remapped<H: Hypervisor> {
    aperture: H::Aperture,
    /// What is mapped at each place.
    grefs: Box<[Option<GrantRef>]>,
    /// How many pages are mapped for each slot.
    mapped: [u8; WINDOW],
}

impl<H: Hypervisor> Remapped<H> {
    /// Reserves address space for a window of packets of `peer`.
    pub(crate) fn new(hypervisor: &H, peer: &H::Peer) -> Result<Self, hypervisor::Error> {
        let places = WINDOW * FRAGMENTS_MAX;
        let aperture = hypervisor.aperture(peer, u32::try_from(places).unwrap_or(u32::MAX))?;
        Ok(Self { aperture, grefs: vec![None; places].into(), mapped: [0; WINDOW] })
    }

    /// Maps the frames in `fresh` and copies their headers; from then on their fragments lie in the
    /// aperture. Returns the slots of frames whose memory cannot be read.
    pub(crate) fn map_all(&mut self, hypervisor: &H, window: &mut Window, fresh: u64) -> u64 {
        let mut unreadable = 0;
        for (slot, frame) in window.in_slots(fresh) {
            let mapped = self.map(hypervisor, slot, frame) && copy_header(&self.aperture, frame);
            unreadable |= u64::from(!mapped) << slot;
        }
        unreadable
    }

    /// Maps one frame's pages, one per fragment. Returns whether all of them were mapped.
    fn map(&mut self, hypervisor: &H, slot: u8, frame: &mut Frame) -> bool {
        // Unmapping a place whose mapping failed has no effect.
        self.mapped[usize::from(slot)] = u8::try_from(frame.fragments.len()).unwrap_or(u8::MAX);
        let mut ops = ArrayVec::<GrantMap, FRAGMENTS_MAX>::new();
        for (place, fragment) in places(slot, FRAGMENTS_MAX).zip(&mut frame.fragments) {
            let Place::Grant(granted) = &mut fragment.place else { return false };
            granted.mapped = MappedAt::new(place);
            self.grefs[usize::from(place)] = Some(granted.gref);
            ops.push(GrantMap::new(place.into(), granted.gref));
        }
        hypervisor.map_at(&mut self.aperture, &mut ops);
        ops.iter().all(|op| op.status == MapStatus::Okay)
    }

    pub(crate) fn pages(&self) -> MappedPages<'_> {
        MappedPages { region: &self.aperture, grefs: &self.grefs, frames: None }
    }

    pub(crate) fn unmap(&mut self, hypervisor: &H, slot: u8) {
        let pages = std::mem::take(&mut self.mapped[usize::from(slot)]);
        let places = places(slot, pages.into());
        self.grefs[usize::from(places.start)..usize::from(places.end)].fill(None);
        hypervisor.unmap(&mut self.aperture, places.start.into()..places.end.into());
    }
}

/// Copies the header of a frame whose fragments are mapped. This is its only read, because the guest can
/// still write to these pages.
pub(crate) fn copy_header(mapped_at: &Region, frame: &mut Frame) -> bool {
    let mut rest = &mut frame.bytes[..usize::from(frame.header_len)];
    for fragment in &frame.fragments {
        let len = rest.len().min(fragment.len.into());
        let (part, after) = rest.split_at_mut(len);
        let Place::Grant(Granted { offset, mapped: Some(mapped), .. }) = fragment.place else {
            return false;
        };
        let page = usize::from(mapped.get()) * PAGE_SIZE;
        if mapped_at.copy_out(page + usize::from(offset), part).is_err() {
            return false;
        }
        rest = after;
    }
    true
}

/// The first `count` places of a slot.
#[expect(clippy::cast_possible_truncation, reason = "at most WINDOW * FRAGMENTS_MAX")]
fn places(slot: u8, count: usize) -> Range<u16> {
    let first = (usize::from(slot) * FRAGMENTS_MAX) as u16;
    first..first + count as u16
}
