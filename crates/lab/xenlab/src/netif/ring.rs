//! Raw access to a ring's page, without checks.

use std::marker::PhantomData;

use hypervisor::{DomId, GrantRef, Guest as _};
use ring::{HEADER_LEN, Index, RegionPage, SharedPage as _, Slots};
use xen::{SharedPages, XenGuest};

use super::device::Outcome;

/// One ring, shared with the backend.
pub struct Ring<S> {
    page: RegionPage<SharedPages>,
    gref: GrantRef,
    slots: PhantomData<S>,
}

impl<S: Slots> Ring<S> {
    /// Shares a page and initialises an empty ring in it.
    pub fn new(guest: &XenGuest, backend: DomId) -> Outcome<Self> {
        let (page, grefs) = guest.share(backend, 1)?;
        let (page, gref) = (RegionPage::new(page)?, grefs[0]);
        // Asks for an event at the first publication, as SHARED_RING_INIT does.
        page.store(Index::ReqEvent, 1);
        page.store(Index::RspEvent, 1);
        Ok(Self { page, gref, slots: PhantomData })
    }

    /// The page's grant reference.
    pub fn gref(&self) -> GrantRef {
        self.gref
    }

    /// The backend's producer index.
    pub fn rsp_prod(&self) -> u32 {
        self.page.load(Index::RspProd)
    }

    /// Publishes requests, and asks for an event at the next response.
    pub fn publish(&self, req_prod: u32) {
        self.page.store(Index::RspEvent, self.rsp_prod().wrapping_add(1));
        self.page.store(Index::ReqProd, req_prod);
        self.page.full_barrier();
    }

    /// Whether there are responses from `cons` on. If not, asks for an event at the next one.
    pub fn has_responses(&self, cons: u32) -> bool {
        self.page.store(Index::RspEvent, cons.wrapping_add(1));
        self.page.full_barrier();
        self.rsp_prod() != cons
    }

    /// Writes request `index`.
    pub fn request(&self, index: u32, request: S::Request) {
        self.page.write_slot(offset::<S>(index), request);
    }

    /// Writes the backend's producer index.
    pub fn forge_rsp_prod(&self, rsp_prod: u32) {
        self.page.store(Index::RspProd, rsp_prod);
        self.page.full_barrier();
    }

    /// Writes a response into slot `index`, as the backend does.
    pub fn forge_response(&self, index: u32, response: S::Response) {
        self.page.write_slot(offset::<S>(index), response);
    }

    /// Reads response `index`.
    pub fn response(&self, index: u32) -> S::Response {
        self.page.read_slot(offset::<S>(index))
    }
}

fn offset<S: Slots>(index: u32) -> usize {
    HEADER_LEN + (index % S::COUNT) as usize * S::SLOT_LEN
}
