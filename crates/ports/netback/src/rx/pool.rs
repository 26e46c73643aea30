//! Pages of the driver domain that a device fills and the guest copies from, in place of its buffers.

use std::collections::VecDeque;
use std::time::Duration;

use arrayvec::ArrayVec;
use hypervisor::{Counted, GuestCopies, Hypervisor, PAGE_SIZE};
use port::{DropReason, Frame, LENT_MAX, LentBuffer, Offer, Outcome, Wanted};
use ring::Slots as _;
use ring::netif::Rx;
use shm::Region;
use wire::netif::guest_copy::{GUEST_COPY, POOL_PAGES_MAX};
use wire::netif::{RxResponse, rx_flags};

use super::plan::PacketShape;
use super::slots::Slots;
use crate::request::Fault;

/// Tokens of one page are this far apart.
const STRIDE: u32 = 1024;
/// Bytes of a page.
#[expect(clippy::cast_possible_truncation, reason = "4096")]
const PAGE_LEN: u32 = PAGE_SIZE as u32;

const _: () = assert!(POOL_PAGES_MAX < STRIDE as usize);

/// The pages of one frame, and one more for its extra.
type FramePages = ArrayVec<u16, LENT_MAX>;

/// A pool that a queue lends.
///
/// A page is free, or lent, or the guest's: named by a response, until the guest has posted the slot of
/// that response again. A guest that never does so keeps its pages, and its frames are copied.
pub(super) struct PoolLending {
    id: u64,
    region: Region,
    free: Vec<u16>,
    /// The token of each page that is lent.
    lent: Box<[Option<u32>]>,
    /// How many those are.
    count: usize,
    /// Tokens that were given, times [`STRIDE`].
    given: u32,
    /// Pages that responses name, each with the index of its response, in order.
    named: VecDeque<(u32, u16)>,
    /// Responses before this one name pages of an earlier backend's pool. While the guest may still
    /// copy one of them, nothing is lent: the same grant reference may be another page's by now.
    after: Option<u32>,
}

impl PoolLending {
    /// Lends the pages of `copies`; none if it has no pool that can be shared. `id` is the lender's number. `after`
    /// is the index of the first response, on a ring that an earlier backend has left.
    pub(super) fn new(copies: &dyn GuestCopies, id: u64, after: Option<u32>) -> Option<Self> {
        let region = copies.pool()?.share()?;
        let pages = u16::try_from(region.len() / PAGE_SIZE).ok()?;
        let lent = vec![None; pages.into()].into();
        let free = (0..pages).rev().collect();
        Some(Self { id, region, free, lent, count: 0, given: 0, named: VecDeque::new(), after })
    }

    /// The number of this lender.
    pub(super) fn id(&self) -> u64 {
        self.id
    }

    /// The pages.
    pub(super) fn region(&self) -> &Region {
        &self.region
    }

    /// How many pages are lent.
    pub(super) fn lent(&self) -> usize {
        self.count
    }

    /// Lends free pages.
    pub(super) fn lend<H: Hypervisor>(
        &mut self,
        slots: &mut Slots<H>,
        wanted: Wanted,
        lent: &mut Vec<LentBuffer>,
    ) -> Result<(), Fault> {
        let end = slots.ring.end()?;
        // The slot of the last response before `first` is posted again.
        if self.after.is_some_and(|first| end.wrapping_sub(first) < Rx::COUNT) {
            return Ok(());
        }
        self.after = None;
        self.reclaim(end);
        for _ in 0..wanted.buffers {
            let Some(page) = self.free.pop() else { break };
            self.given = self.given.wrapping_add(STRIDE);
            let token = self.given | u32::from(page);
            self.lent[usize::from(page)] = Some(token);
            self.count += 1;
            lent.push(LentBuffer { token, offset: u64::from(page) * u64::from(PAGE_LEN) });
        }
        Ok(())
    }

    /// Frees the pages that the guest has copied: request `end` is the next that it will post, and it posts
    /// a slot again only when it needs the slot's response no more.
    fn reclaim(&mut self, end: u32) {
        while let Some((index, page)) = self.named.front().copied()
            && end.wrapping_sub(index) > Rx::COUNT
        {
            self.named.pop_front();
            self.free.push(page);
        }
    }

    /// Takes back pages. A token of a loan that has ended is ignored.
    pub(super) fn take_back(&mut self, tokens: &[u32]) {
        for token in tokens {
            if let Some(page) = self.page(*token) {
                self.end(page);
                self.free.push(page);
            }
        }
    }

    /// The page that is lent with this token.
    fn page(&self, token: u32) -> Option<u16> {
        let page = u16::try_from(token % STRIDE).ok()?;
        let lent = self.lent.get(usize::from(page))?;
        (*lent == Some(token)).then_some(page)
    }

    /// Ends a loan.
    fn end(&mut self, page: u16) {
        self.lent[usize::from(page)] = None;
        self.count -= 1;
    }

    /// Hands over the pages in which a frame lies: the guest copies them.
    pub(super) fn deliver<H: Hypervisor>(
        &mut self,
        slots: &mut Slots<H>,
        offer: &mut Offer<'_>,
        now: Duration,
    ) -> Result<(), Fault> {
        let shape = slots.shape_of(offer.frame);
        offer.outcome = match self.pages(offer.frame) {
            None => Outcome::SourceFault,
            Some(_) if shape.is_scattered() && !slots.features.sg => {
                Outcome::Dropped(DropReason::TooLarge)
            }
            Some(_) if !slots.has_room(shape.slots())? => slots.without_room(now),
            Some(pages) => self.hand_over(slots, offer.frame, shape, &pages),
        };
        Ok(())
    }

    /// The pages of a frame, all of them lent.
    fn pages(&self, frame: &Frame) -> Option<FramePages> {
        let pages: FramePages =
            frame.lent.tokens.iter().map(|token| self.page(*token)).collect::<Option<_>>()?;
        (pages.len() >= frame.len.div_ceil(PAGE_LEN) as usize).then_some(pages)
    }

    /// Writes the header, which was read privately, before the body, and then the responses. The caller has
    /// checked that there are slots for them.
    fn hand_over<H: Hypervisor>(
        &mut self,
        slots: &mut Slots<H>,
        frame: &Frame,
        shape: PacketShape,
        pages: &FramePages,
    ) -> Outcome {
        let begin = frame.lent.offset;
        let start = pages.first().map_or(0, |page| usize::from(*page) * PAGE_SIZE);
        let start = start + usize::from(begin);
        if !frame.lent.has_header && self.region.copy_in(start, frame.header()).is_err() {
            return Outcome::SourceFault;
        }
        let PacketShape { len, flags, .. } = shape;
        let (data, rest) = pages.split_at(len.div_ceil(PAGE_LEN) as usize);
        pages.iter().for_each(|page| self.end(*page));
        // An extra has a slot, and no bytes.
        self.free.extend(rest);
        let mut extras = shape.extras(0);
        for (n, page) in (0..).zip(data) {
            // At most a page.
            let size = i16::try_from((len - n * PAGE_LEN).min(PAGE_LEN)).unwrap_or(0);
            let more = if (n + 1) * PAGE_LEN < len { rx_flags::MORE_DATA } else { 0 };
            let announced = if extras.is_empty() { 0 } else { rx_flags::EXTRA_INFO };
            let flags = if n == 0 { flags } else { 0 } | more | announced | GUEST_COPY;
            self.named.push_back((slots.ring.consumed(), *page));
            slots.ring.consume();
            let offset = if n == 0 { begin } else { 0 };
            slots.ring.respond(RxResponse { id: *page, offset, flags, status: size });
            for info in std::mem::take(&mut extras) {
                slots.ring.consume();
                slots.ring.respond(zerocopy::transmute!(info));
            }
        }
        slots.hypervisor.note(Counted::BuffersGranted, data.len() as u64);
        Outcome::Delivered
    }
}
