//! What a frontend asks of its hypervisor.

use std::sync::Arc;

use crate::error::Error;
use crate::flip::PageReceiver;
use crate::guest_copy::{CopyForm, GuestCopier};
use crate::hypervisor::EventChannel;
use crate::id::{DomId, EvtchnPort, GrantRef};

/// The services of the hypervisor for a frontend, in a guest.
pub trait Guest: Clone + Send + Sync + 'static {
    /// One end of an event channel.
    type Event: EventChannel;
    /// Pages of this guest's own memory, contiguous in its address space.
    type Pages: std::ops::Deref<Target = shm::Region> + Send + Sync + 'static;

    /// This domain's number.
    fn domid(&self) -> DomId;

    /// Allocates `pages` zeroed pages and grants each to `to`, readable and writable.
    ///
    /// They are zeroed before they are shared: stale data would leak to the backend (XSA-403). The references are in the order of the pages. Dropping the pages revokes the
    /// grants.
    fn share(&self, to: DomId, pages: usize) -> Result<(Self::Pages, Vec<GrantRef>), Error>;

    /// Ends the grant of page number `page` of `pages`, and frees the page for other uses of this
    /// guest's memory. Returns false, and changes nothing, if the other domain has it mapped, or if
    /// this platform frees shared pages only together.
    fn release(&self, pages: &Self::Pages, page: usize) -> bool {
        let _ = (pages, page);
        false
    }

    /// Offers an event channel to `to`. Returns this domain's end and its port.
    fn alloc_unbound(&self, to: DomId) -> Result<(Self::Event, EvtchnPort), Error>;

    /// The receiving end of page flipping, if this platform has it.
    fn page_receiver(&self) -> Option<Arc<dyn PageReceiver>> {
        None
    }

    /// Whether this platform has guest copies.
    fn has_guest_copies(&self) -> bool {
        false
    }

    /// This domain's side of the guest copies that the driver domain `from` calls `id`.
    ///
    /// # Errors
    /// The driver domain has no guest copies of this number and form.
    fn guest_copier(
        &self,
        from: DomId,
        id: u32,
        form: CopyForm,
    ) -> Result<Box<dyn GuestCopier<Self::Pages>>, Error> {
        let _ = (from, id, form);
        Err(Error::Unsupported("guest copies"))
    }
}
