//! The requests of an RX ring: those that wait on it, those that are lent, and those that came back.

use ring::netif::Rx;
use ring::{BackRing, Broken, SharedPage, Slots};
use wire::netif::{RxRequest, RxResponse};

/// An RX ring, some of whose requests may be [lent](Self::lend).
///
/// A lent buffer may come back much later than the next one, so the frontend must accept responses in
/// any order: each names its request by its id. Without lent buffers this is the ring.
pub(super) struct PostedRing<P> {
    ring: BackRing<Rx, P>,
    /// Requests that were lent and came back. They are used before those on the ring.
    returned: Vec<RxRequest>,
    /// None if no buffer is ever lent.
    lent: Option<Box<LentRequests>>,
}

/// The requests that are lent, by the lower bits of their tokens.
struct LentRequests {
    requests: Box<[Option<LentRequest>]>,
    free: Vec<u32>,
    /// Counts what was lent, for tokens that are not used again.
    count: u32,
}

#[derive(Clone, Copy)]
pub(super) struct LentRequest {
    token: u32,
    pub(super) request: RxRequest,
    /// The page's first byte in the lent memory.
    pub(super) offset: u64,
}

impl<P: SharedPage> PostedRing<P> {
    /// Requests of `ring`. They can be lent if `lends`.
    pub(super) fn new(ring: BackRing<Rx, P>, lends: bool) -> Self {
        let lent = lends.then(|| {
            Box::new(LentRequests {
                requests: vec![None; Rx::COUNT as usize].into(),
                free: (0..Rx::COUNT).rev().collect(),
                count: 0,
            })
        });
        Self { ring, returned: Vec::new(), lent }
    }

    /// Whether requests can be lent.
    #[inline]
    pub(super) fn lends(&self) -> bool {
        self.lent.is_some()
    }

    /// How many requests are lent.
    pub(super) fn lent(&self) -> usize {
        self.lent.as_ref().map_or(0, |lent| lent.requests.len() - lent.free.len())
    }

    /// How many requests the frontend can have on the ring that are not lent.
    #[expect(clippy::cast_possible_truncation, reason = "no more than a ring")]
    pub(super) fn unlent(&self) -> u32 {
        Rx::COUNT - self.lent() as u32
    }

    /// How many requests can be used. See [`BackRing::unconsumed`].
    #[inline]
    pub(super) fn unconsumed(&mut self) -> Result<u32, Broken> {
        Ok(self.ring.unconsumed()? + self.returned())
    }

    /// As [`unconsumed`](Self::unconsumed), but always reads the ring.
    pub(super) fn refresh(&mut self) -> Result<u32, Broken> {
        Ok(self.ring.refresh()? + self.returned())
    }

    /// The index after the last request that the frontend has posted.
    pub(super) fn end(&mut self) -> Result<u32, Broken> {
        Ok(self.ring.consumed().wrapping_add(self.ring.refresh()?))
    }

    /// Whether `wanted` requests can be used; asks for an event if not. See [`BackRing::arm_for`].
    pub(super) fn arm_for(&mut self, wanted: u32) -> Result<bool, Broken> {
        self.ring.arm_for(wanted.saturating_sub(self.returned()))
    }

    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "no more than a ring")]
    fn returned(&self) -> u32 {
        self.returned.len() as u32
    }

    #[inline]
    pub(super) fn next(&self) -> RxRequest {
        match self.returned.last() {
            None => self.ring.peek(0),
            Some(request) => *request,
        }
    }

    /// The request that is used `n` requests after the next one. They must be [there](Self::unconsumed).
    #[expect(clippy::cast_possible_truncation, reason = "no more than a ring")]
    pub(super) fn peek(&self, n: u32) -> RxRequest {
        let mut returned = self.returned.iter().rev();
        match returned.nth(n as usize) {
            None => self.ring.peek(n - self.returned.len() as u32),
            Some(request) => *request,
        }
    }

    /// The id that the extra of a frame carries for the request that it uses up: see
    /// [`PacketShape::extras`](super::plan::PacketShape::extras).
    pub(super) fn id_of_extra(&self) -> u16 {
        if self.lends() { self.next().id } else { 0 }
    }

    /// How many requests were taken off the ring.
    #[inline]
    pub(super) fn consumed(&self) -> u32 {
        self.ring.consumed()
    }

    /// How many requests the frontend has posted, as far as is known.
    #[inline]
    pub(super) fn posted(&self) -> u64 {
        self.ring.posted().into()
    }

    /// The next request is used.
    #[inline]
    pub(super) fn consume(&mut self) {
        if self.returned.pop().is_none() {
            self.ring.consume(1);
        }
    }

    /// Writes the next response.
    #[inline]
    pub(super) fn respond(&mut self, response: RxResponse) {
        self.ring.respond(response);
    }

    /// See [`BackRing::has_unpublished`].
    pub(super) fn has_unpublished(&self) -> bool {
        self.ring.has_unpublished()
    }

    /// See [`BackRing::publish`].
    #[must_use = "a frontend that asked for an event and gets none sleeps for ever"]
    pub(super) fn publish(&mut self) -> bool {
        self.ring.publish()
    }

    /// Lends the next request, whose page lies at `offset`. Returns its token.
    pub(super) fn lend(&mut self, offset: u64) -> Option<u32> {
        let request = self.next();
        let lent = self.lent.as_mut()?;
        let place = lent.free.pop()?;
        lent.count = lent.count.wrapping_add(Rx::COUNT);
        let token = lent.count | place;
        lent.requests[place as usize] = Some(LentRequest { token, request, offset });
        self.consume();
        Some(token)
    }

    /// Ends the loan of a frame's requests, all or none, and stores them in `requests`. Returns whether all were lent.
    pub(super) fn redeem(&mut self, tokens: &[u32], requests: &mut Vec<LentRequest>) -> bool {
        requests.clear();
        let Some(lent) = self.lent.as_mut() else { return false };
        if !tokens.iter().all(|token| lent.find(*token).is_some()) {
            return false;
        }
        requests.extend(tokens.iter().filter_map(|token| lent.remove(*token)));
        // A token that is named twice was lent once.
        requests.len() == tokens.len()
    }

    /// Ends loans. The requests are used next. A token of a loan that has ended is ignored.
    pub(super) fn take_back(&mut self, tokens: &[u32]) {
        let Some(lent) = self.lent.as_mut() else { return };
        let requests = tokens.iter().filter_map(|token| lent.remove(*token));
        self.returned.extend(requests.map(|lent| lent.request));
    }
}

impl LentRequests {
    fn find(&self, token: u32) -> Option<&LentRequest> {
        let place = token % Rx::COUNT;
        self.requests[place as usize].as_ref().filter(|lent| lent.token == token)
    }

    fn remove(&mut self, token: u32) -> Option<LentRequest> {
        let place = token % Rx::COUNT;
        let lent = self.requests[place as usize].take_if(|lent| lent.token == token)?;
        self.free.push(place);
        Some(lent)
    }
}
