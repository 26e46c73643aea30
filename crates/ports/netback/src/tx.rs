//! The transmit side of a queue: frames from the guest.

use std::sync::Arc;
use std::time::Instant;

use hypervisor::{Counted, EventChannel, Hypervisor, PAGE_SIZE};
use offload::{Checksum, Gso};
use port::{
    Armed, Body, Broken, Budget, Event, Frame, Ingress, Outcome, Outcomes, Received, WINDOW, Window,
};
use ring::netif::Tx;
use ring::{BackRing, RegionPage, SharedPage};
use wire::netif::{TxRequest, TxResponse, status, tx_flags};

use crate::completions::Completions;
use crate::headers::{PacketAccess, is_cut};
use crate::multicast::{ListChange, MulticastList};
use crate::request::{FRAME_MIN, Fault, Packet, Requests, fragment};
use crate::{EventRing, GrantUse};

/// A TX ring and the frames taken off it that are not yet answered.
pub struct TxQueue<H: Hypervisor> {
    ring: BackRing<Tx, RegionPage<H::Mapping>>,
    event: Arc<H::Event>,
    access: PacketAccess<H>,
    window: Window,
    /// The response for the frame in each slot of the window.
    pending: Box<[PendingResponse]>,
    /// The groups that the frontend wants, if it may say so.
    list: Option<Arc<MulticastList>>,
    completions: Completions,
}

/// The requests that made up a frame, to be answered when the frame is done with.
#[derive(Clone, Debug, Default)]
struct PendingResponse {
    /// Where on the ring the first of them lies.
    index: u32,
    requests: Requests,
}

impl<H: Hypervisor> Ingress for TxQueue<H> {
    fn event(&self) -> Arc<dyn Event> {
        self.event.clone()
    }

    fn window(&self) -> &Window {
        &self.window
    }

    fn has_work(&mut self) -> bool {
        !self.window.is_empty() || !matches!(self.ring.unconsumed(), Ok(0))
    }

    /// Takes packets off the ring and fetches their headers in one batch.
    ///
    /// A ring's worth of slots at most, by the budget: the frontend could put packets that are
    /// refused behind each other without end.
    fn receive(&mut self, budget: &mut Budget, received: &mut Received) -> Result<(), Broken> {
        self.receive_frames(budget, received).map_err(Broken::new)
    }

    /// Whether all requests were taken that it knows of. Where it is armed now, it checks for others.
    fn is_drained(&self) -> bool {
        self.ring.posted() == self.ring.consumed()
    }

    fn with_body(&self, work: &mut dyn FnMut(Body<'_>)) {
        self.access.with_body(work);
    }

    /// Answers the frames that are done with, and keeps the others. The frontend is notified once,
    /// if it asked.
    fn finish(&mut self, outcomes: &Outcomes) {
        let Self { access, window, ring, pending, .. } = self;
        window.retain(|slot, frame| {
            let status = match outcomes[usize::from(slot)] {
                Outcome::Waiting | Outcome::Partial { .. } | Outcome::InFlight(_) => return true,
                Outcome::Delivered => status::OKAY,
                Outcome::Dropped(_) => status::DROPPED,
                Outcome::SourceFault => status::ERROR,
            };
            // Before the answer: after it the guest may take its pages back.
            access.release(slot, frame);
            pending[usize::from(slot)].answer(ring, status);
            false
        });
        self.publish();
    }

    fn arm(&mut self) -> Result<Armed, Broken> {
        // With a full window, no request can be taken before a frame in hand is done with.
        if !self.window.is_full() && self.ring.arm().map_err(Broken::new)? {
            return Ok(Armed::Ready);
        }
        Ok(self.announce_late().map_or(Armed::Asleep, Armed::AsleepPast))
    }
}

impl<H: Hypervisor> TxQueue<H> {
    pub(crate) fn new(
        EventRing { ring, event }: EventRing<Tx, H>,
        access: PacketAccess<H>,
        completions: Completions,
    ) -> Self {
        let pending = vec![PendingResponse::default(); WINDOW].into();
        Self { ring, event, access, window: Window::new(), pending, list: None, completions }
    }

    /// Changes this list as the frontend says.
    pub(crate) fn keep_list(&mut self, list: Arc<MulticastList>) {
        self.list = Some(list);
    }

    /// Whether headers come beside the ring.
    pub(crate) fn has_header_pages(&self) -> bool {
        self.access.has_header_pages()
    }

    /// How pages of packets that stay mapped are used, if some may.
    pub(crate) fn usage(&self) -> Option<&Arc<GrantUse>> {
        self.access.usage()
    }

    /// Wakes the frontend.
    pub(crate) fn notify(&self) {
        // A frontend that is gone cannot be notified; its domain's end detaches the vif.
        let _ = self.event.notify();
    }

    fn receive_frames(
        &mut self,
        budget: &mut Budget,
        received: &mut Received,
    ) -> Result<(), Fault> {
        let mut fresh = 0u64;
        self.access.prefetch(self.ring.consumed(), self.ring.unconsumed()?);
        // A copy, which stays in registers.
        let mut left = *budget;
        while !self.window.is_full() && !left.is_spent() {
            let present = self.ring.unconsumed()?;
            if present == 0 {
                break;
            }
            let first = self.ring.peek(0);
            let header = first.size.min(self.access.header_max());
            let slot = match is_whole(first, header) {
                true => self.take_whole(first, header, &mut left),
                false => self.take_chain(first, present, &mut left, received)?,
            };
            fresh |= slot.map_or(0, |slot| 1 << slot);
        }
        *budget = left;
        if fresh != 0 {
            let unreadable = self.access.fetch_headers(&mut self.window, fresh);
            self.check(fresh, unreadable, received);
        }
        Ok(())
    }

    /// Takes a packet of one slot. Returns its place in the window.
    #[inline]
    fn take_whole(
        &mut self,
        request: TxRequest,
        header: u16,
        budget: &mut Budget,
    ) -> Option<usize> {
        let (slot, frame) = self.window.push()?;
        let index = self.ring.consumed();
        budget.charge(1, request.size.into());
        describe(frame, request.size, request.flags, None);
        frame.header_len = self.access.private_len(request.size);
        self.access.read_header_page(index, frame);
        self.ring.consume(1);
        frame.fragments.clear();
        let body = TxRequest { size: request.size - header, ..request };
        if body.size > 0 {
            frame.fragments.push(fragment(body));
        }
        let pending = &mut self.pending[slot];
        pending.index = index;
        pending.requests.ids.clear();
        pending.requests.ids.push(request.id);
        pending.requests.extras = 0;
        Some(slot)
    }

    /// Takes a packet of any shape, whose first slot has been read already. Returns its place in
    /// the window unless it was refused.
    fn take_chain(
        &mut self,
        first: TxRequest,
        present: u32,
        budget: &mut Budget,
        received: &mut Received,
    ) -> Result<Option<usize>, Fault> {
        let Some((slot, frame)) = self.window.push() else { return Ok(None) };
        let (ring, pending) = (&self.ring, &mut self.pending[slot]);
        pending.index = ring.consumed();
        let read = |n| if n == 0 { first } else { ring.peek(n) };
        let (header_max, fragments) = (self.access.header_max(), &mut frame.fragments);
        let packet = Packet::parse(present, header_max, read, fragments, &mut pending.requests);
        let packet = match packet {
            Ok(packet) => packet,
            Err(fault) => {
                self.window.undo_push();
                return Err(fault);
            }
        };
        self.ring.consume(packet.slots);
        // Its headers, and so its segments, are not known yet.
        budget.charge(packet.slots, packet.len.into());
        if packet.refused || packet.list_change.is_some() {
            let changed = packet.list_change.is_some_and(|change| self.change_list(change));
            received.requests += u64::from(changed);
            received.malformed += u64::from(!changed);
            let status = if changed { status::OKAY } else { status::ERROR };
            self.pending[slot].answer(&mut self.ring, status);
            self.window.undo_push();
            return Ok(None);
        }
        describe(frame, packet.len, packet.flags, packet.gso);
        let first = frame.fragments.first().map_or(0, |fragment| fragment.len);
        frame.header_len = match packet.gso {
            Some(_) => self.access.private_len_before_segments(packet.len, first),
            None => self.access.private_len(packet.len),
        };
        self.access.read_header_page(pending.index, frame);
        Ok(Some(slot))
    }

    /// Changes the list of groups. Returns whether that was done: a frontend that may not, or whose list is full, gets an error.
    fn change_list(&self, change: ListChange) -> bool {
        self.list.as_ref().is_some_and(|list| list.change(change))
    }

    /// Parses the fresh frames' headers; those that are unsound are answered and released.
    fn check(&mut self, fresh: u64, unreadable: u64, received: &mut Received) {
        let (mut bad, mut unparsed) = (unreadable, fresh & !unreadable);
        loop {
            let mut cut = 0;
            for (slot, frame) in self.window.in_slots(unparsed) {
                if !parse_headers(frame, received) {
                    *if is_cut(frame) { &mut cut } else { &mut bad } |= 1 << slot;
                }
            }
            if cut == 0 {
                break;
            }
            bad |= self.access.complete_headers(&mut self.window, cut);
            unparsed = cut & !bad;
        }
        if bad != 0 {
            let Self { access, window, ring, pending, .. } = self;
            window.retain(|slot, frame| {
                let is_bad = bad & (1 << slot) != 0;
                if is_bad {
                    access.release(slot, frame);
                    pending[usize::from(slot)].answer(ring, status::ERROR);
                }
                !is_bad
            });
            received.malformed += u64::from(bad.count_ones());
        }
        received.fresh += (fresh & !bad).count_ones() as usize;
    }

    /// Publishes the answers.
    fn publish(&mut self) {
        if !self.ring.has_unpublished() {
            return;
        }
        if self.completions.held_since().is_some_and(|since| !self.ring.is_awaited(since)) {
            self.completions.were_seen();
        }
        let since = self.ring.published();
        let is_asked = self.ring.publish();
        let is_last = self.window.is_empty();
        if self.completions.published(since, self.ring.published(), is_asked, is_last) {
            self.notify();
        } else {
            self.access.hypervisor().note(Counted::Suppressed, 1);
        }
    }

    /// Announces answers that were held back, if it is time and the guest has not found them. Otherwise returns when it will be time.
    fn announce_late(&mut self) -> Option<Instant> {
        let since = self.completions.held_since()?;
        if !self.ring.is_awaited(since) {
            self.completions.were_seen();
            return None;
        }
        let due = self.completions.due(Instant::now());
        if due.is_none() {
            self.notify();
        }
        due
    }
}

/// Whether a request is a sound packet on its own, as nearly every one is. `header` of its bytes
/// are not in its page.
#[inline]
fn is_whole(request: TxRequest, header: u16) -> bool {
    let chained = request.flags & (tx_flags::MORE_DATA | tx_flags::EXTRA_INFO) != 0;
    let end = usize::from(request.offset) + usize::from(request.size - header);
    !chained && request.size >= FRAME_MIN && end <= PAGE_SIZE
}

/// Fills in what the requests say but the fragments and how much is private.
#[inline]
fn describe(frame: &mut Frame, len: u16, flags: u16, gso: Option<Gso>) {
    let flag = |bit| flags & bit != 0;
    frame.len = len.into();
    frame.gso = gso;
    frame.checksum =
        Checksum::from_flags(flag(tx_flags::CSUM_BLANK), flag(tx_flags::DATA_VALIDATED));
}

/// Parses the private header and checks it against what the frontend asked for. From here on
/// offloads and ports can rely on the frame.
#[inline]
fn parse_headers(frame: &mut Frame, received: &mut Received) -> bool {
    if frame.parse_headers().is_err() {
        return false;
    }
    let headers = &frame.headers;
    match (frame.checksum, frame.gso) {
        (Checksum::Partial, Some(gso)) => gso.fits(headers),
        (_, Some(gso)) => gso.fits(headers) && blank_checksum(frame, received),
        (Checksum::Partial, None) => headers.checksum_location().is_some(),
        (_, None) => true,
    }
}

/// Makes the checksum of an unsegmented frame a blank one, in the private header: each segment gets its own in any case. Some frontends leave
/// segmentation to the backend and do not say that the checksum is blank; Linux's netback repairs and counts them too.
#[cold]
fn blank_checksum(frame: &mut Frame, received: &mut Received) -> bool {
    let header = &mut frame.bytes[..usize::from(frame.header_len)];
    if offload::blank_checksum(header, frame.len as usize, &frame.headers).is_err() {
        return false;
    }
    frame.checksum = Checksum::Partial;
    received.gso_checksum_fixups += 1;
    true
}

impl PendingResponse {
    #[inline(always)]
    fn answer<P: SharedPage>(&self, ring: &mut BackRing<Tx, P>, status: i16) {
        // One request without an extra is what nearly every packet is.
        match (&*self.requests.ids, self.requests.extras) {
            ([id], 0) => ring.answer(self.index, TxResponse { id: *id, status }),
            (ids, extras) => answer(ring, self.index, ids, extras, status),
        }
    }
}

/// One response per request, from `index` on: the status for each fragment, NULL for each extra.
/// All of a packet's in one go: a backend that is killed leaves no packet half answered.
#[inline(never)]
fn answer<P: SharedPage>(
    ring: &mut BackRing<Tx, P>,
    index: u32,
    ids: &[u16],
    extras: u8,
    status: i16,
) {
    let responses = ids.iter().map(|id| TxResponse { id: *id, status });
    // Right after the first, as Linux's netback does.
    let null = TxResponse { id: 0, status: status::NULL };
    let extras = std::iter::repeat_n(null, extras.into());
    ring.answer_each(index, responses.clone().take(1).chain(extras).chain(responses.skip(1)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_whole_packet_has_an_ethernet_header_and_stays_in_its_page() {
        let whole = |offset, size, flags, header| {
            is_whole(TxRequest { gref: 0, offset, flags, id: 0, size }, header)
        };
        assert_eq!([13, 14].map(|size| whole(0, size, 0, 0)), [false, true]);
        assert_eq!([4037, 4036, u16::MAX].map(|at| whole(at, 60, 0, 0)), [false, true, false]);
        assert_eq!([4097, 4096].map(|size| whole(0, size, 0, 0)), [false, true]);
        assert!(whole(4000, 100 + 96, 0, 100), "the supplied header is not in the page");
        assert!(!whole(4000, 100 + 97, 0, 100));
        for flag in [tx_flags::MORE_DATA, tx_flags::EXTRA_INFO] {
            assert!(!whole(0, 60, flag, 0));
        }
    }
}
