//! The frontend's end: writes requests, takes responses.

use std::marker::PhantomData;

use crate::back::offset;
use crate::{Broken, Index, SharedPage, Slots, must_notify};

/// The frontend's end of a ring.
#[derive(Debug)]
pub struct FrontRing<S, P> {
    page: P,
    /// Requests written, perhaps not yet published.
    req_prod_pvt: u32,
    /// Requests published.
    req_prod: u32,
    /// The last `rsp_prod` that was checked.
    rsp_prod: u32,
    rsp_cons: u32,
    slots: PhantomData<S>,
}

impl<S: Slots, P: SharedPage> FrontRing<S, P> {
    /// Initialises the page (`SHARED_RING_INIT`, then `FRONT_RING_INIT`). Only a frontend does.
    pub fn init(page: P) -> Self {
        page.store(Index::ReqProd, 0);
        page.store(Index::RspProd, 0);
        page.store(Index::ReqEvent, 1);
        page.store(Index::RspEvent, 1);
        Self { page, req_prod_pvt: 0, req_prod: 0, rsp_prod: 0, rsp_cons: 0, slots: PhantomData }
    }

    /// The ring's page.
    pub fn page(&self) -> &P {
        &self.page
    }

    /// How many free slots the ring has.
    #[inline]
    pub fn free(&self) -> u32 {
        S::COUNT - self.req_prod_pvt.wrapping_sub(self.rsp_cons)
    }

    /// Writes the next request. The backend sees it after [`publish`](Self::publish).
    ///
    /// The caller keeps within [`free`](Self::free).
    #[inline]
    pub fn request(&mut self, request: S::Request) {
        debug_assert!(self.free() > 0, "no room for a request");
        self.page.write_slot(offset::<S>(self.req_prod_pvt), request);
        self.req_prod_pvt = self.req_prod_pvt.wrapping_add(1);
    }

    /// The index of the next request. A backend answers RX requests in the same slot.
    #[inline]
    pub fn next_index(&self) -> u32 {
        self.req_prod_pvt
    }

    /// Publishes the requests written so far. Returns whether the backend must be notified.
    #[inline]
    #[must_use = "a backend that asked for an event and gets none sleeps for ever"]
    pub fn publish(&mut self) -> bool {
        let old = self.req_prod;
        if old == self.req_prod_pvt {
            return false;
        }
        self.req_prod = self.req_prod_pvt;
        self.page.store(Index::ReqProd, self.req_prod);
        // See BackRing::publish: the other side stores its event index, then checks.
        self.page.full_barrier();
        must_notify(old, self.req_prod, self.page.load(Index::ReqEvent))
    }

    /// The requests without a response that was taken, published or not, and their indices. A backend may have begun to write
    /// responses over them.
    pub fn outstanding(&self) -> impl Iterator<Item = (u32, S::Request)> {
        let count = self.req_prod_pvt.wrapping_sub(self.rsp_cons);
        (0..count).map(|n| {
            let index = self.rsp_cons.wrapping_add(n);
            (index, self.page.read_slot(offset::<S>(index)))
        })
    }

    /// How many responses wait. Reads the shared index only if no response is known.
    #[inline]
    pub fn unconsumed(&mut self) -> Result<u32, Broken> {
        match self.rsp_prod.wrapping_sub(self.rsp_cons) {
            0 => self.refresh(),
            known => Ok(known),
        }
    }

    /// How many responses wait. Always reads the shared index.
    ///
    /// The frontend does not trust the backend: more responses than outstanding requests, or an
    /// index that went back, is refused (CVE-2025-37820, and Linux's checks since 5.16).
    #[inline]
    pub fn refresh(&mut self) -> Result<u32, Broken> {
        let rsp_prod = self.page.load(Index::RspProd);
        let waiting = rsp_prod.wrapping_sub(self.rsp_cons);
        let outstanding = self.req_prod.wrapping_sub(self.rsp_cons);
        let known = self.rsp_prod.wrapping_sub(self.rsp_cons);
        if waiting > outstanding || waiting < known {
            return Err(Broken::ResponseOverflow {
                rsp_prod,
                rsp_cons: self.rsp_cons,
                outstanding,
            });
        }
        self.rsp_prod = rsp_prod;
        Ok(waiting)
    }

    /// Takes the next response and its index, if there is one.
    #[inline]
    pub fn take(&mut self) -> Result<Option<(u32, S::Response)>, Broken> {
        if self.unconsumed()? == 0 {
            return Ok(None);
        }
        let index = self.rsp_cons;
        let response = self.page.read_slot(offset::<S>(index));
        self.rsp_cons = index.wrapping_add(1);
        Ok(Some((index, response)))
    }

    /// Asks for an event at the next response and checks again. Returns whether responses wait
    /// already, in which case the caller must not sleep (`RING_FINAL_CHECK_FOR_RESPONSES`).
    pub fn arm(&mut self) -> Result<bool, Broken> {
        if self.rsp_prod != self.rsp_cons {
            return Ok(true);
        }
        self.page.store(Index::RspEvent, self.rsp_cons.wrapping_add(1));
        self.page.full_barrier();
        Ok(self.refresh()? > 0)
    }
}
