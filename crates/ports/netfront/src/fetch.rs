//! Responses taken off an RX ring ahead of their frames, so that a batch of them needs one hypercall.

use std::collections::VecDeque;

use arrayvec::ArrayVec;
use hypervisor::guest_copy::{GUEST_COPIES_PER_HYPERCALL, GuestCopier, GuestCopy};
use hypervisor::{Guest, PAGE_SIZE};
use ring::netif::Rx;
use ring::{FrontRing, RegionPage};
use wire::netif::extra::ExtraInfo;
use wire::netif::guest_copy::GUEST_COPY;
use wire::netif::{RxResponse, rx_flags, status};

use crate::buffers::Buffers;
use crate::{Fault, RING_LEN};

/// A frame at the start of every page would share a handful of cache sets with all others.
const CACHE_OFFSET_STEP: usize = 64;
/// The longest bytes that get an offset. Offsets are below half a page.
const SHORT_MAX: u16 = 2048;

/// Copies what the backend grants, and holds the responses until their frames are taken.
pub(crate) struct Fetcher<G: Guest> {
    copier: Box<dyn GuestCopier<G::Pages>>,
    /// Private copies of responses, with their ring indices. Their bytes are in this guest's pages.
    fetched: VecDeque<(u32, RxResponse)>,
    /// The next response's slot holds an extra.
    in_extras: bool,
}

impl<G: Guest> Fetcher<G> {
    pub(crate) fn new(copier: Box<dyn GuestCopier<G::Pages>>) -> Self {
        Self { copier, fetched: VecDeque::with_capacity(RING_LEN), in_extras: false }
    }

    /// Responses whose slots must not be posted again yet.
    #[inline]
    pub(crate) fn held(&self) -> u32 {
        // At most a ring.
        u32::try_from(self.fetched.len()).unwrap_or(u32::MAX)
    }

    /// The next response and its index.
    // Inlined, it would slow down the guests that copy nothing.
    #[inline(never)]
    pub(crate) fn next(
        &mut self,
        ring: &mut FrontRing<Rx, RegionPage<G::Pages>>,
        buffers: &Buffers<G>,
    ) -> Result<Option<(u32, RxResponse)>, Fault> {
        if self.fetched.is_empty() {
            match buffers.pages() {
                Some(pages) => self.fetch(ring, pages)?,
                None => return Ok(ring.take()?),
            }
        }
        Ok(self.fetched.pop_front())
    }

    /// Takes the responses that wait, and copies what they grant: as much as one hypercall does.
    fn fetch(
        &mut self,
        ring: &mut FrontRing<Rx, RegionPage<G::Pages>>,
        pages: &G::Pages,
    ) -> Result<(), Fault> {
        let mut copies = ArrayVec::<GuestCopy, GUEST_COPIES_PER_HYPERCALL>::new();
        let mut copied = ArrayVec::<usize, GUEST_COPIES_PER_HYPERCALL>::new();
        while !copies.is_full()
            && let Some((index, mut response)) = ring.take()?
        {
            if self.in_extras {
                let info: ExtraInfo = zerocopy::transmute!(response);
                self.in_extras = info.more();
            } else {
                self.in_extras = response.flags & rx_flags::EXTRA_INFO != 0;
                if let Some(copy) = granted(index, response) {
                    copies.push(copy);
                    copied.push(self.fetched.len());
                    // A part of a page.
                    response.offset = u16::try_from(copy.to % PAGE_SIZE).unwrap_or(u16::MAX);
                }
            }
            self.fetched.push_back((index, response));
        }
        if copies.is_empty() {
            return Ok(());
        }
        self.copier.copy(pages, &mut copies);
        for (copy, at) in copies.iter().zip(copied) {
            if let (false, Some((_, response))) = (copy.done, self.fetched.get_mut(at)) {
                response.status = status::ERROR;
            }
        }
        Ok(())
    }
}

/// The copy of the bytes that a response grants, to its slot's page. None if it has no such bytes, or
/// more than a page.
fn granted(index: u32, response: RxResponse) -> Option<GuestCopy> {
    let RxResponse { id: number, offset, flags, status } = response;
    let len = u16::try_from(status).ok().filter(|len| (1..=PAGE_SIZE).contains(&(*len).into()))?;
    let slot = index as usize % RING_LEN;
    let within = if len <= SHORT_MAX { slot % 32 * CACHE_OFFSET_STEP } else { 0 };
    let copy = GuestCopy { number, offset, len, to: slot * PAGE_SIZE + within, done: false };
    (flags & GUEST_COPY != 0).then_some(copy)
}
