//! The guest's side of guest copies.

use std::sync::Arc;

use hypervisor::guest_copy::{
    CopyForm, GRANTED_BUFFERS, GUEST_COPIES_PER_HYPERCALL, GuestCopier, GuestCopy,
};
use hypervisor::{Error, PAGE_SIZE};
use shm::Region;

use super::state::Inner;
use super::{MachineGuest, SharedPages};
use crate::guest_copy::Request;

/// Has the hypervisor copy.
struct ByHypercall {
    guest: Arc<Inner>,
    id: u32,
}

/// Copies out of the pool.
struct Mapped {
    pool: Region,
}

impl MachineGuest {
    /// See [`Guest::guest_copier`](hypervisor::Guest::guest_copier).
    pub(super) fn copier(
        &self,
        id: u32,
        form: CopyForm,
    ) -> Result<Box<dyn GuestCopier<SharedPages>>, Error> {
        Ok(match form {
            CopyForm::Hypercall => Box::new(ByHypercall { guest: self.inner.clone(), id }),
            CopyForm::Mapped => {
                let file = self.inner.calls.open_pool(id)?;
                let pool = Region::map_read_only(file, 0, GRANTED_BUFFERS * PAGE_SIZE);
                Box::new(Mapped { pool: pool.map_err(Error::os("map the pool"))? })
            }
            CopyForm::Granted => return Err(Error::Unsupported("granted pools")),
        })
    }
}

impl GuestCopier<SharedPages> for ByHypercall {
    fn copy(&mut self, pages: &SharedPages, batch: &mut [GuestCopy]) {
        for some in batch.chunks_mut(GUEST_COPIES_PER_HYPERCALL) {
            let request = |copy: &GuestCopy| {
                let page = pages.first + copy.to / PAGE_SIZE;
                Request {
                    number: copy.number,
                    offset: copy.offset,
                    len: copy.len,
                    // A number that is too large is no page of this guest.
                    page: u32::try_from(page).unwrap_or(u32::MAX),
                    // Below a page.
                    page_offset: u16::try_from(copy.to % PAGE_SIZE).unwrap_or(u16::MAX),
                }
            };
            let requests: Vec<_> = some.iter().map(request).collect();
            // If the hypervisor has gone, nothing was copied.
            let done = self.guest.calls.copy_granted(self.id, &requests).unwrap_or(0);
            for (n, copy) in some.iter_mut().enumerate() {
                copy.done = done & 1 << n != 0;
            }
        }
    }
}

impl GuestCopier<SharedPages> for Mapped {
    fn copy(&mut self, pages: &SharedPages, batch: &mut [GuestCopy]) {
        for copy in batch {
            let from = usize::from(copy.number) * PAGE_SIZE + usize::from(copy.offset);
            let len = copy.len.into();
            let copied = Region::copy_between(&self.pool, from, pages, copy.to, len);
            copy.done = copied.is_ok();
        }
    }
}
