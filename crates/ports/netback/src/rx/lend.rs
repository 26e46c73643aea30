//! Buffers of a guest that a device fills before the switch sees the frame.

use hypervisor::{Counted, DmaHold, GrantRef, Hypervisor, PAGE_SIZE};
use port::{Frame, LENT_MAX, LentBuffer, Offer, Outcome, Wanted};
use shm::Region;
use wire::netif::{RxResponse, rx_flags, status};

use crate::request::Fault;

use super::plan::{Extras, PacketShape};
use super::posted::LentRequest;
use super::slots::Slots;

/// Buffers that are not lent, for the frames that others send to the guest.
pub(super) const RESERVE: u32 = 32;

/// What a queue lends its buffers with.
pub(super) struct Lending {
    id: u64,
    /// The guest's memory.
    region: Region,
    /// Keeps lent pages in place.
    hold: Option<DmaHold>,
    /// The requests in which the present frame lies.
    requests: Vec<LentRequest>,
}

impl Lending {
    /// Lends buffers in `region`. `id` is the lender's number.
    pub(super) fn new(region: Region, id: u64) -> Self {
        Self { id, region, hold: None, requests: Vec::with_capacity(LENT_MAX) }
    }

    /// The number of this lender.
    pub(super) fn id(&self) -> u64 {
        self.id
    }

    /// Lends posted buffers. One whose grant does not permit it is answered with an error.
    pub(super) fn lend<H: Hypervisor>(
        &mut self,
        slots: &mut Slots<H>,
        wanted: Wanted,
        lent: &mut Vec<LentBuffer>,
    ) -> Result<(), Fault> {
        let mut left = slots.ring.refresh()?.saturating_sub(RESERVE);
        if wanted.held && left > 0 && self.hold.is_none() {
            // Before the grants are checked: a page that is given up in between is refused.
            self.hold = slots.hypervisor.dma_hold(slots.to.peer());
        }
        for _ in 0..wanted.buffers {
            if left == 0 {
                break;
            }
            left -= 1;
            let request = slots.ring.next();
            let gref = GrantRef(request.gref);
            let Some(offset) = slots.hypervisor.dma_page(slots.to.peer(), gref) else {
                slots.ring.consume();
                let (id, status) = (request.id, status::ERROR);
                slots.ring.respond(RxResponse { id, offset: 0, flags: 0, status });
                continue;
            };
            let Some(token) = slots.ring.lend(offset) else { break };
            lent.push(LentBuffer { token, offset });
        }
        self.release_hold(slots);
        slots.publish_at_once();
        Ok(())
    }

    /// Takes back buffers without a frame.
    pub(super) fn take_back<H: Hypervisor>(&mut self, slots: &mut Slots<H>, tokens: &[u32]) {
        slots.ring.take_back(tokens);
        self.release_hold(slots);
    }

    fn release_hold<H: Hypervisor>(&mut self, slots: &Slots<H>) {
        if slots.ring.lent() == 0 {
            self.hold = None;
        }
    }

    /// Hands over the buffers in which a frame lies.
    pub(super) fn deliver<H: Hypervisor>(&mut self, slots: &mut Slots<H>, offer: &mut Offer<'_>) {
        let frame = offer.frame;
        if !slots.ring.redeem(&frame.lent.tokens, &mut self.requests) {
            offer.outcome = Outcome::SourceFault;
            return;
        }
        let is_whole = frame.lent.has_header || self.write_header(frame);
        respond(slots, frame, &self.requests, is_whole);
        offer.outcome = if is_whole { Outcome::Delivered } else { Outcome::SourceFault };
        slots.hypervisor.note(Counted::DirectFrames, 1);
        self.release_hold(slots);
    }

    /// Writes the header, which was read privately, before the body.
    fn write_header(&self, frame: &Frame) -> bool {
        let first = self.requests.first().and_then(|first| usize::try_from(first.offset).ok());
        first.is_some_and(|first| self.region.copy_in(first, frame.header()).is_ok())
    }
}

/// Bytes of a page.
#[expect(clippy::cast_possible_truncation, reason = "4096")]
const PAGE_LEN: u32 = PAGE_SIZE as u32;

/// Writes the responses of a frame: all its pages but the last one are full.
fn respond<H: Hypervisor>(
    slots: &mut Slots<H>,
    frame: &Frame,
    requests: &[LentRequest],
    is_whole: bool,
) {
    let shape = slots.shape_of(frame);
    let PacketShape { len, flags, .. } = shape;
    let pages = frame.len.div_ceil(PAGE_LEN) as usize;
    let ids = || requests.iter().map(|lent| lent.request.id);
    let extras = ids().nth(pages).map_or(Extras::new(), |id| shape.extras(id));
    for (n, id) in (0..).zip(ids().take(pages)) {
        let size = len.saturating_sub(n * PAGE_LEN).min(PAGE_LEN);
        let more = if (n + 1) * PAGE_LEN < len { rx_flags::MORE_DATA } else { 0 };
        // A page's length fits.
        let status = if is_whole { size as i16 } else { status::ERROR };
        if n > 0 {
            slots.ring.respond(RxResponse { id, offset: 0, flags: more, status });
            continue;
        }
        let announced = if extras.is_empty() { 0 } else { rx_flags::EXTRA_INFO };
        let flags = flags | more | announced;
        slots.ring.respond(RxResponse { id, offset: frame.lent.offset, flags, status });
        for info in &extras {
            slots.ring.respond(zerocopy::transmute!(*info));
        }
    }
}
