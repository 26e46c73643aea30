//! Receiving.

#![expect(
    clippy::cast_possible_truncation,
    reason = "page numbers and lengths here are bounded by the ring or a page"
)]

use std::sync::Arc;

use arrayvec::ArrayVec;
use hypervisor::guest_copy::{CopierCounts, GuestCopier};
use hypervisor::{EventChannel, GrantRef, Guest, PAGE_SIZE};
use offload::{Checksum, Gso};
use ring::netif::Rx;
use ring::{FrontRing, RegionPage};
use shm::Iovec;
use wire::netif::extra::{Extra, ExtraInfo};
use wire::netif::{HashKind, NR_SLOTS_MIN, RxRequest, RxResponse, rx_flags};

use crate::buffers::Buffers;
use crate::fetch::{Fetcher, Opener};
use crate::{Fault, RING_LEN};

/// A received frame; [`RxQueue::fragments`] returns its bytes. The caller may reuse one value for
/// all frames.
#[derive(Clone, Debug, Default)]
pub struct Received {
    fragments: ArrayVec<Fragment, NR_SLOTS_MIN>,
    /// Bytes of the whole frame.
    pub len: usize,
    /// The state of the transport checksum.
    pub checksum: Checksum,
    /// Set for an unsegmented frame.
    pub gso: Option<Gso>,
    /// Its hash, if the backend [was asked](crate::ControlRing::set_hash) for it.
    pub hash: Option<FlowHash>,
}

/// The hash of a frame, with the key that the backend was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowHash {
    /// What it covers.
    pub kind: HashKind,
    /// The hash.
    pub value: u32,
}

/// A part of a frame in one slot's page.
#[derive(Clone, Copy, Debug)]
struct Fragment {
    slot: usize,
    offset: u16,
    len: u16,
}

/// An RX ring and its receive buffers.
pub struct RxQueue<G: Guest> {
    ring: FrontRing<Rx, RegionPage<G::Pages>>,
    event: Arc<G::Event>,
    buffers: Buffers<G>,
    /// Copies what the backend grants, if it grants received frames.
    fetcher: Option<Fetcher<G>>,
    errors: u64,
    /// Whether one of them came since buffers were last posted.
    has_failed_frames: bool,
    /// Set if the backend answers in any order. Otherwise a response lies in its request's slot.
    any_order: Option<Unposted>,
}

/// The buffers that are not posted. A buffer's number is the id of its request.
struct Unposted {
    free: Vec<u16>,
    is_posted: Box<[bool; RING_LEN]>,
}

impl Unposted {
    fn new() -> Self {
        Self { free: (0..RING_LEN as u16).rev().collect(), is_posted: Box::new([false; RING_LEN]) }
    }

    fn post(&mut self) -> Option<u16> {
        let id = self.free.pop()?;
        self.is_posted[usize::from(id)] = true;
        Some(id)
    }

    /// The backend has answered a request. Its buffer is posted again with the next ones.
    fn answered(&mut self, id: u16) -> Result<usize, Fault> {
        let posted = self.is_posted.get_mut(usize::from(id)).filter(|is_posted| **is_posted);
        *posted.ok_or(Fault::UnknownId(id))? = false;
        self.free.push(id);
        Ok(id.into())
    }
}

impl<G: Guest> RxQueue<G> {
    pub(crate) fn new(
        ring: FrontRing<Rx, RegionPage<G::Pages>>,
        event: Arc<G::Event>,
        buffers: Buffers<G>,
        any_order: bool,
    ) -> Self {
        let any_order = any_order.then(Unposted::new);
        let mut queue = Self {
            ring,
            event,
            buffers,
            fetcher: None,
            errors: 0,
            has_failed_frames: false,
            any_order,
        };
        queue.post(u32::MAX);
        queue
    }

    /// Copies what the backend grants from now on. `open` opens another copier if this one becomes stale.
    pub(crate) fn copy_by(&mut self, copier: Box<dyn GuestCopier<G::Pages>>, open: Opener<G>) {
        self.fetcher = Some(Fetcher::new(copier, open));
    }

    /// What this guest has copied out of the driver domain's memory.
    pub fn copied(&self) -> CopierCounts {
        self.fetcher.as_ref().map(Fetcher::done).unwrap_or_default()
    }

    /// The next response and its index, with its bytes in this guest's pages.
    #[inline(always)]
    fn take(&mut self) -> Result<Option<(u32, RxResponse)>, Fault> {
        let Some(fetcher) = &mut self.fetcher else { return Ok(self.ring.take()?) };
        match self.buffers.pages() {
            Some(pages) => fetcher.next(&mut self.ring, pages),
            None => Ok(self.ring.take()?),
        }
    }

    /// The event channel of this ring.
    pub fn event(&self) -> &Arc<G::Event> {
        &self.event
    }

    /// The bytes of a frame that was [received](Self::receive) and not yet given back.
    pub fn fragments<'a>(&'a self, frame: &'a Received) -> impl Iterator<Item = Iovec<'a>> {
        frame.fragments.iter().filter_map(|fragment| {
            let (region, start) = self.buffers.page(fragment.slot)?;
            let offset = start + usize::from(fragment.offset);
            Some(Iovec::Shared { region, offset, len: fragment.len.into() })
        })
    }

    /// The references of buffers that are granted once.
    pub fn grefs(&self) -> &[GrantRef] {
        self.buffers.grefs()
    }

    /// Frames that came with an error instead of data, since the last call.
    pub fn take_errors(&mut self) -> u64 {
        std::mem::take(&mut self.errors)
    }

    /// Whether frames came with an error since the last [`publish`](Self::publish).
    #[inline]
    pub fn has_failed_frames(&self) -> bool {
        self.has_failed_frames
    }

    /// Posts buffers in free slots, `most` at most.
    #[inline(always)]
    fn post(&mut self, most: u32) {
        let held = self.fetcher.as_ref().map_or(0, Fetcher::held);
        // Of the ring's slots, those without a request are free.
        let posted = RING_LEN as u32 - self.ring.free();
        let count = self.buffers.count().saturating_sub(posted + held).min(most);
        match (&self.any_order, &self.buffers) {
            // Usually each slot keeps its page.
            (None, Buffers::Shared { grefs, .. }) => {
                for _ in 0..count {
                    let slot = self.ring.next_index() as usize % RING_LEN;
                    self.ring.request(request(slot, grefs[slot]));
                }
            }
            _ => self.post_each(count),
        }
    }

    /// Posts `count` buffers, each of which may be any one.
    #[inline(never)]
    fn post_each(&mut self, count: u32) {
        for _ in 0..count {
            let slot = match &mut self.any_order {
                None => Some(self.ring.next_index() as usize % RING_LEN),
                Some(unposted) => unposted.post().map(usize::from),
            };
            let Some(slot) = slot else { break };
            let Some(gref) = self.buffers.offer(slot) else { break };
            self.ring.request(request(slot, gref));
        }
    }

    /// Gives back the buffers of all frames received so far, and notifies the backend if it waits
    /// for some.
    #[inline]
    pub fn publish(&mut self) {
        self.publish_some(u32::MAX);
    }

    /// As [`publish`](Self::publish), but posts `most` buffers at most. The other slots stay empty.
    #[inline]
    pub fn publish_some(&mut self, most: u32) {
        self.has_failed_frames = false;
        self.buffers.give_back();
        self.post(most);
        if self.ring.publish() {
            // This fails if the backend is gone, which the store reports.
            let _ = self.event.notify();
        }
    }

    /// Stores the next frame in `frame`. Returns whether there was one. Its bytes stay where
    /// they are until [`publish`](Self::publish).
    #[inline]
    pub fn receive(&mut self, frame: &mut Received) -> Result<bool, Fault> {
        while let Some((index, first)) = self.take()? {
            if self.collect(index, first, frame)? {
                return Ok(true);
            }
            self.errors += 1;
            self.has_failed_frames = true;
        }
        Ok(false)
    }

    /// Collects the fragments of the frame that starts with `first`. Returns false for a frame with
    /// an error.
    #[inline]
    fn collect(
        &mut self,
        index: u32,
        first: RxResponse,
        frame: &mut Received,
    ) -> Result<bool, Fault> {
        frame.fragments.clear();
        frame.len = 0;
        frame.checksum = checksum(first.flags);
        (frame.gso, frame.hash) = (None, None);
        let mut sound = self.push(index, first, frame)?;
        if first.flags & rx_flags::EXTRA_INFO != 0 {
            self.take_extras(frame)?;
        }
        let mut more = first.flags & rx_flags::MORE_DATA != 0;
        while more {
            let (index, next) = self.take()?.ok_or(Fault::Unfinished)?;
            sound &= self.push(index, next, frame)?;
            more = next.flags & rx_flags::MORE_DATA != 0;
        }
        Ok(sound)
    }

    fn take_extras(&mut self, frame: &mut Received) -> Result<(), Fault> {
        loop {
            let (_, slot) = self.take()?.ok_or(Fault::Unfinished)?;
            let info: ExtraInfo = zerocopy::transmute!(slot);
            let extra = Extra::decode(&info)?;
            match extra {
                Extra::Gso { size, kind, .. } => {
                    frame.gso = Some(Gso { kind: kind.into(), size: size.get() });
                }
                Extra::Hash { kind, value, .. } => frame.hash = Some(FlowHash { kind, value }),
                _ => {}
            }
            // Each extra uses a request up. One that does not say which would leave a free slot and no free buffer.
            match (&mut self.any_order, extra) {
                (None, _) => {}
                (Some(unposted), Extra::Gso { features, .. }) => {
                    unposted.answered(features)?;
                }
                (Some(_), _) => return Err(Fault::UnnamedRequest),
            }
            if !info.more() {
                return Ok(());
            }
        }
    }

    /// Asks for an event at the next frame. Returns whether some wait already.
    pub fn arm(&mut self) -> Result<bool, Fault> {
        let held = self.fetcher.as_ref().is_some_and(|fetcher| fetcher.held() > 0);
        Ok(held || self.ring.arm()?)
    }

    /// Adds a fragment. Returns whether it has data: a frame with an empty fragment, or with
    /// too many fragments, is dropped.
    #[inline]
    fn push(
        &mut self,
        index: u32,
        response: RxResponse,
        frame: &mut Received,
    ) -> Result<bool, Fault> {
        let slot = match &mut self.any_order {
            None => index as usize % RING_LEN,
            Some(unposted) => unposted.answered(response.id)?,
        };
        let len = u16::try_from(response.status).unwrap_or(0);
        if len == 0 {
            return Ok(false);
        }
        let offset = response.offset;
        if usize::from(offset) + usize::from(len) > PAGE_SIZE {
            return Err(Fault::CrossesPage { offset, len });
        }
        frame.len += usize::from(len);
        let fits = frame.fragments.try_push(Fragment { slot, offset, len }).is_ok();
        Ok(self.buffers.arrived(slot) && fits)
    }
}

#[inline]
fn request(slot: usize, gref: GrantRef) -> RxRequest {
    // A slot is below RING_LEN.
    RxRequest { id: slot as u16, pad: 0, gref: gref.0 }
}

#[inline]
fn checksum(flags: u16) -> Checksum {
    let is_set = |flag| flags & flag != 0;
    Checksum::from_flags(is_set(rx_flags::CSUM_BLANK), is_set(rx_flags::DATA_VALIDATED))
}
