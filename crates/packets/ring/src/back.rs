//! The backend's end: takes requests, writes responses.

use crate::ledger::Ledger;
use crate::{Broken, HEADER_LEN, Index, SharedPage, Slots, must_notify};

/// The backend's end of a ring.
///
/// Requests may be answered in any order. Their responses are published in the order of the
/// requests, so that the slots from `rsp_prod` on hold requests only. After a backend is killed at
/// any moment, another one can [resume](Self::resume).
#[derive(Debug)]
pub struct BackRing<S, P> {
    page: P,
    ledger: Ledger<S>,
    /// The last `req_prod` that was checked. The shared word is read again only past it.
    req_prod: u32,
    req_cons: u32,
    /// All requests before this one are answered, though perhaps not published.
    answered: u32,
    early: Early,
    /// Responses published.
    rsp_prod: u32,
}

/// The slots of requests that were answered before an earlier request, as a bit set.
#[derive(Debug)]
struct Early {
    slots: Box<[u64]>,
    count: u32,
}

impl Early {
    fn new(slots: u32) -> Self {
        Self { slots: vec![0; slots.div_ceil(64) as usize].into(), count: 0 }
    }

    fn insert(&mut self, slot: u32) {
        self.slots[(slot / 64) as usize] |= 1 << (slot % 64);
        self.count += 1;
    }

    /// Removes a slot. Returns whether it was in the set.
    fn remove(&mut self, slot: u32) -> bool {
        let word = &mut self.slots[(slot / 64) as usize];
        let found = *word & 1 << (slot % 64) != 0;
        *word &= !(1 << (slot % 64));
        self.count -= u32::from(found);
        found
    }
}

impl<S: Slots, P: SharedPage> BackRing<S, P> {
    /// Attaches to a ring that the frontend has just initialised. The ledger starts empty.
    ///
    /// Does not initialise the ring: the frontend has done so, and may have posted requests.
    pub fn attach(page: P, ledger: Ledger<S>) -> Result<Self, Broken> {
        ledger.reset();
        Self::start(page, ledger)
    }

    /// Continues a ring that an earlier backend left at any moment, with its ledger.
    ///
    /// Completes an interrupted publication and starts after it: requests that the earlier backend
    /// took but did not answer are served again. The earlier backend may have died before its last
    /// notification, so the caller must notify the frontend.
    ///
    /// The guest can write the indices. A ledger that does not fit them is not used.
    pub fn resume(page: P, ledger: Ledger<S>) -> Result<Self, Broken> {
        let mut ring = Self::start(page, ledger)?;
        let requests = ring.req_prod.wrapping_sub(ring.rsp_prod);
        let interrupted = ring.ledger.interrupted(ring.rsp_prod);
        match interrupted.filter(|end| end.wrapping_sub(ring.rsp_prod) <= requests) {
            Some(end) => {
                (ring.req_cons, ring.answered) = (end, end);
                // The caller notifies in any case.
                let _ = ring.publish();
            }
            None => ring.ledger.reset(),
        }
        Ok(ring)
    }

    /// Starts from the shared `rsp_prod`.
    fn start(page: P, ledger: Ledger<S>) -> Result<Self, Broken> {
        let rsp_prod = page.load(Index::RspProd);
        let mut ring = Self {
            page,
            ledger,
            req_prod: rsp_prod,
            req_cons: rsp_prod,
            answered: rsp_prod,
            early: Early::new(S::COUNT),
            rsp_prod,
        };
        ring.refresh()?;
        Ok(ring)
    }

    /// The ring's page.
    pub fn page(&self) -> &P {
        &self.page
    }

    /// How many requests wait. Reads the shared index only if no request is known.
    #[inline]
    pub fn unconsumed(&mut self) -> Result<u32, Broken> {
        match self.req_prod.wrapping_sub(self.req_cons) {
            0 => self.refresh(),
            known => Ok(known),
        }
    }

    /// How many requests wait. Always reads the shared index.
    ///
    /// The guest writes the index. One more than a ring ahead of `rsp_prod` would make the backend
    /// take slots twice, or loop for ever (XSA-39). One that goes back would withdraw requests that
    /// the caller already knows.
    #[inline]
    pub fn refresh(&mut self) -> Result<u32, Broken> {
        let req_prod = self.page.load(Index::ReqProd);
        if req_prod.wrapping_sub(self.rsp_prod) > S::COUNT {
            return Err(Broken::RequestOverflow {
                req_prod,
                rsp_prod: self.rsp_prod,
                slots: S::COUNT,
            });
        }
        let waiting = req_prod.wrapping_sub(self.req_cons);
        let known = self.req_prod.wrapping_sub(self.req_cons);
        if waiting > S::COUNT || waiting < known {
            return Err(Broken::RequestsBackwards { before: self.req_prod, now: req_prod });
        }
        self.req_prod = req_prod;
        Ok(waiting)
    }

    /// A private copy of the request `ahead` places after the next one, which
    /// [`unconsumed`](Self::unconsumed) must have counted.
    #[inline]
    pub fn peek(&self, ahead: u32) -> S::Request {
        self.page.read_slot(offset::<S>(self.req_cons.wrapping_add(ahead)))
    }

    /// The index of the next request to take.
    #[inline]
    pub fn consumed(&self) -> u32 {
        self.req_cons
    }

    /// The index after the last request that is known.
    #[inline]
    pub fn posted(&self) -> u32 {
        self.req_prod
    }

    /// Counts `n` requests as taken.
    #[inline]
    pub fn consume(&mut self, n: u32) {
        debug_assert!(n <= self.req_prod.wrapping_sub(self.req_cons));
        self.req_cons = self.req_cons.wrapping_add(n);
    }

    /// Takes the next request, if there is one.
    #[inline]
    pub fn take(&mut self) -> Result<Option<S::Request>, Broken> {
        if self.unconsumed()? == 0 {
            return Ok(None);
        }
        let request = self.peek(0);
        self.consume(1);
        Ok(Some(request))
    }

    /// How many requests were taken and not yet answered.
    #[inline]
    pub fn unanswered(&self) -> u32 {
        self.req_cons.wrapping_sub(self.answered).wrapping_sub(self.early.count)
    }

    /// Answers request `index`, which was taken and is not answered yet. The frontend sees the
    /// response after the first [`publish`](Self::publish) at which all earlier requests are
    /// answered too.
    ///
    /// The caller answers all requests of one packet before the next publication.
    #[inline]
    pub fn answer(&mut self, index: u32, response: S::Response) {
        debug_assert!(
            index.wrapping_sub(self.answered) < self.req_cons.wrapping_sub(self.answered),
            "a response without a request"
        );
        self.ledger.keep(index, response);
        if index == self.answered {
            self.answered = index.wrapping_add(1);
            if self.early.count > 0 {
                self.catch_up();
            }
        } else {
            self.answer_early(index);
        }
    }

    /// Answers the requests from `index` on, in order, as [`answer`](Self::answer) does each.
    #[inline]
    pub fn answer_each(&mut self, index: u32, responses: impl Iterator<Item = S::Response>) {
        if index != self.answered || self.early.count > 0 {
            return self.answer_each_early(index, responses);
        }
        // Not a loop, which would ask of each response in which part of a chain it is.
        responses.for_each(|response| {
            self.ledger.keep(self.answered, response);
            self.answered = self.answered.wrapping_add(1);
        });
        debug_assert!(
            self.answered.wrapping_sub(index) <= self.req_cons.wrapping_sub(index),
            "a response without a request"
        );
    }

    /// Answers requests of which some are answered before earlier ones.
    #[cold]
    fn answer_each_early(&mut self, index: u32, responses: impl Iterator<Item = S::Response>) {
        for (n, response) in (0..).zip(responses) {
            self.answer(index.wrapping_add(n), response);
        }
    }

    /// Notes that a request was answered before an earlier one.
    #[cold]
    fn answer_early(&mut self, index: u32) {
        self.early.insert(index & (S::COUNT - 1));
    }

    /// Moves `answered` past requests that were answered early.
    #[cold]
    fn catch_up(&mut self) {
        while self.early.remove(self.answered & (S::COUNT - 1)) {
            self.answered = self.answered.wrapping_add(1);
        }
    }

    /// Answers the next request in order.
    #[inline]
    pub fn respond(&mut self, response: S::Response) {
        self.answer(self.answered, response);
    }

    /// Whether there are responses to publish.
    #[inline]
    pub fn has_unpublished(&self) -> bool {
        self.rsp_prod != self.answered
    }

    /// Publishes the responses to all requests before the first unanswered one.
    /// Returns whether the frontend must be notified.
    #[inline]
    #[must_use = "a frontend that asked for an event and gets none sleeps for ever"]
    pub fn publish(&mut self) -> bool {
        let (old, new) = (self.rsp_prod, self.answered);
        if old == new {
            return false;
        }
        self.ledger.begin(old, new);
        let mut index = old;
        while index != new {
            self.page.write_slot(offset::<S>(index), self.ledger.kept(index));
            index = index.wrapping_add(1);
        }
        self.page.store(Index::RspProd, new);
        self.rsp_prod = new;
        // The frontend writes rsp_event and then reads rsp_prod; this side does the reverse.
        // Without the barrier both could miss the other's write. The barrier also keeps later
        // responses out of the ledger while these may still be needed there.
        self.page.full_barrier();
        must_notify(old, new, self.page.load(Index::RspEvent))
    }

    /// Responses published.
    pub fn published(&self) -> u32 {
        self.rsp_prod
    }

    /// Whether the frontend still waits for an event for one of the responses published since `since`. A frontend that polls asks for a later one.
    #[must_use]
    pub fn is_awaited(&self, since: u32) -> bool {
        must_notify(since, self.rsp_prod, self.page.load(Index::RspEvent))
    }

    /// Asks for an event at the next request and checks again. Returns whether requests wait
    /// already, in which case the caller must not sleep (`RING_FINAL_CHECK_FOR_REQUESTS`).
    pub fn arm(&mut self) -> Result<bool, Broken> {
        self.arm_for(1)
    }

    /// As [`arm`](Self::arm), for a consumer that needs `wanted` requests at once (an RX ring
    /// and a frame of several slots). Asks for an event one past the present index, since
    /// `req_cons + 1` may have passed already and would never fire.
    pub fn arm_for(&mut self, wanted: u32) -> Result<bool, Broken> {
        let known = self.req_prod.wrapping_sub(self.req_cons);
        if known >= wanted {
            return Ok(true);
        }
        self.page.store(Index::ReqEvent, self.req_prod.wrapping_add(1));
        self.page.full_barrier();
        Ok(self.refresh()? >= wanted)
    }
}

#[inline]
pub(crate) fn offset<S: Slots>(index: u32) -> usize {
    HEADER_LEN + (index & (S::COUNT - 1)) as usize * S::SLOT_LEN
}
