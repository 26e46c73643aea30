//! The backend's end: takes requests, writes responses.

use std::marker::PhantomData;

use crate::page::HEADER_LEN;
use crate::{Broken, Index, SharedPage, Slots, must_notify};

/// The backend's end of a ring.
#[derive(Debug)]
pub struct BackRing<S, P> {
    page: P,
    /// The last `req_prod` that was checked. The shared word is read again only past it.
    req_prod: u32,
    req_cons: u32,
    /// Responses written, perhaps not yet published.
    rsp_prod_pvt: u32,
    /// Responses published.
    rsp_prod: u32,
    slots: PhantomData<S>,
}

impl<S: Slots, P: SharedPage> BackRing<S, P> {
    /// Attaches to a ring the frontend has initialised, or to one that an earlier backend left.
    ///
    /// Never initialises: a live frontend would lose what it has in flight. Work starts from
    /// the shared `rsp_prod`, so requests taken by an earlier backend but not answered by it
    /// are served again.
    pub fn attach(page: P) -> Result<Self, Broken> {
        let rsp_prod = page.load(Index::RspProd);
        let mut ring = Self {
            page,
            req_prod: rsp_prod,
            req_cons: rsp_prod,
            rsp_prod_pvt: rsp_prod,
            rsp_prod,
            slots: PhantomData,
        };
        ring.refresh()?;
        Ok(ring)
    }

    /// The page the ring lives in.
    pub fn page(&self) -> &P {
        &self.page
    }

    /// How many requests wait to be taken. Reads the shared index only when none are known of.
    #[inline]
    pub fn unconsumed(&mut self) -> Result<u32, Broken> {
        match self.req_prod.wrapping_sub(self.req_cons) {
            0 => self.refresh(),
            known => Ok(known),
        }
    }

    /// How many requests wait to be taken, by a fresh look at the shared index.
    ///
    /// The index is a guest's word: one that runs more than a ring ahead of what was answered
    /// would make the backend take slots twice, or loop for ever (XSA-39).
    /// One that goes back would take away what the caller was told of.
    #[inline]
    pub fn refresh(&mut self) -> Result<u32, Broken> {
        let req_prod = self.page.load(Index::ReqProd);
        if req_prod.wrapping_sub(self.rsp_prod_pvt) > S::COUNT {
            return Err(Broken::RequestOverflow {
                req_prod,
                rsp_prod: self.rsp_prod_pvt,
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
    /// [`unconsumed`](Self::unconsumed) must have announced.
    #[inline]
    pub fn peek(&self, ahead: u32) -> S::Request {
        self.page.read_slot(offset::<S>(self.req_cons.wrapping_add(ahead)))
    }

    /// The index of the next request to take.
    #[inline]
    pub fn consumed(&self) -> u32 {
        self.req_cons
    }

    /// Counts `n` requests as taken.
    #[inline]
    pub fn consume(&mut self, n: u32) {
        debug_assert!(n <= self.req_prod.wrapping_sub(self.req_cons));
        self.req_cons = self.req_cons.wrapping_add(n);
    }

    /// Takes the next request, if one is known or has come.
    #[inline]
    pub fn take(&mut self) -> Result<Option<S::Request>, Broken> {
        if self.unconsumed()? == 0 {
            return Ok(None);
        }
        let request = self.peek(0);
        self.consume(1);
        Ok(Some(request))
    }

    /// Requests taken and not yet answered.
    #[inline]
    pub fn owed(&self) -> u32 {
        self.req_cons.wrapping_sub(self.rsp_prod_pvt)
    }

    /// Writes the next response. The frontend sees it after [`publish`](Self::publish).
    #[inline]
    pub fn respond(&mut self, response: S::Response) {
        debug_assert!(self.owed() > 0, "a response without a request");
        self.page.write_slot(offset::<S>(self.rsp_prod_pvt), response);
        self.rsp_prod_pvt = self.rsp_prod_pvt.wrapping_add(1);
    }

    /// Whether responses wait to be published.
    #[inline]
    pub fn has_unpublished(&self) -> bool {
        self.rsp_prod != self.rsp_prod_pvt
    }

    /// Publishes the responses written so far; answers whether the frontend must be notified.
    #[inline]
    #[must_use = "a frontend that asked for an event and gets none sleeps for ever"]
    pub fn publish(&mut self) -> bool {
        let old = self.rsp_prod;
        if !self.has_unpublished() {
            return false;
        }
        self.rsp_prod = self.rsp_prod_pvt;
        self.page.store(Index::RspProd, self.rsp_prod);
        // The frontend writes rsp_event and then looks at rsp_prod; here it is the other way
        // round. Without the barrier both could miss the other's write.
        self.page.full_barrier();
        must_notify(old, self.rsp_prod, self.page.load(Index::RspEvent))
    }

    /// Asks for an event at the next request and looks again: answers whether requests wait
    /// already, in which case the caller must not sleep (`RING_FINAL_CHECK_FOR_REQUESTS`).
    pub fn arm(&mut self) -> Result<bool, Broken> {
        self.arm_for(1)
    }

    /// As [`arm`](Self::arm), for a consumer that needs `wanted` requests at once (an RX ring
    /// and a frame of several slots): the event is asked for one past what is there now, since
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
