//! Page flipping: pages that change their owner (`GNTTABOP_transfer`).
//!
//! The backend takes a page, fills it and transfers it to an entry of the guest's grant table. The
//! guest claims the page (which also maps it) and later gives it back. Not every platform can do
//! this, so both ends ask for it: [`Hypervisor::page_transfer`](crate::Hypervisor::page_transfer)
//! and [`Guest::page_receiver`](crate::Guest::page_receiver).

use std::any::Any;
use std::ops::Deref;

use shm::Region;

use crate::error::Error;
use crate::id::{DomId, GrantRef};

/// A page that can change its owner, mapped in this domain's address space. Dropping it unmaps it.
pub trait FlipPage: Any + Deref<Target = Region> + Send + Sync {}

impl<T: Any + Deref<Target = Region> + Send + Sync> FlipPage for T {}

/// The backend's side: gives pages to the domains `P`.
pub trait PageTransfer<P>: Send + Sync {
    /// Takes a zeroed page that can be transferred to `peer`. Dropping it returns it to the pool.
    ///
    /// The page is zeroed each time: the bytes after a short frame must not show an earlier
    /// frame (the class of XSA-403).
    ///
    /// # Errors
    /// [`Error::Exhausted`] while `peer` holds all pages of its pool.
    fn take_page(&self, peer: &P) -> Result<Box<dyn FlipPage>, Error>;

    /// Transfers a batch of pages; each operation gets a status.
    ///
    /// A transferred page has left this domain's address space when this returns, and its new
    /// owner can use it. A refused one stays in its operation, with its bytes.
    fn transfer(&self, batch: &mut [GrantTransfer<'_, P>]);
}

/// The guest's side: accepts pages.
pub trait PageReceiver: Send + Sync {
    /// Offers `from` a place for one page. The reference names the entry that accepts it.
    ///
    /// # Errors
    /// [`Error::Exhausted`] when all places are offered or hold a page.
    fn accept_transfer(&self, from: DomId) -> Result<(Box<dyn TransferSlot>, GrantRef), Error>;

    /// Gives all dropped pages back to the domain that they came from, many in one hypercall.
    ///
    /// # Errors
    /// [`Error::Gone`] if the hypervisor is gone.
    fn surrender(&self) -> Result<(), Error>;
}

/// A place for one page from another domain. Dropping it withdraws the offer.
pub trait TransferSlot: Send + Sync {
    /// Maps the page that came; none if none has come yet.
    ///
    /// Dropping the page unmaps it. Its owner changes with the next
    /// [`surrender`](PageReceiver::surrender).
    ///
    /// # Errors
    /// [`Error::BadGrant`] if the page was claimed before.
    fn claim(&mut self) -> Result<Option<Box<dyn FlipPage>>, Error>;
}

/// How one transfer of a batch ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransferStatus {
    /// Done: the page is the peer's.
    Okay,
    /// The peer's entry accepts no page from this domain, or has accepted one already: the
    /// peer is at fault (`GNTST_bad_gntref`).
    BadGrant,
    /// There is no page, or the page is meant for another domain: the caller is at fault
    /// (`GNTST_bad_page`).
    BadPage,
}

/// One page that changes its owner.
pub struct GrantTransfer<'a, P> {
    /// The new owner.
    pub peer: &'a P,
    /// The entry of the peer's table that accepts the page. An entry accepts one page.
    pub gref: GrantRef,
    /// The page. A transfer takes it; a refused transfer leaves it here.
    pub page: Option<Box<dyn FlipPage>>,
    /// Written by the hypervisor.
    pub status: TransferStatus,
}

impl<'a, P> GrantTransfer<'a, P> {
    /// An operation not yet performed.
    #[inline]
    pub fn new(peer: &'a P, gref: GrantRef, page: Box<dyn FlipPage>) -> Self {
        Self { peer, gref, page: Some(page), status: TransferStatus::Okay }
    }
}
