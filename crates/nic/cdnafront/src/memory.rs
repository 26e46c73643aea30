//! The memory of a ring's buffers.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use hypervisor::PAGE_SIZE;
use shm::{OutOfBounds, Region};

/// Pages of TX buffers. At most half of them are in use, so that a page that must rest after it was unmapped does.
pub const TX_PAGES: usize = 512;
/// Pages of RX buffers: twice a ring, for the same reason, and for frames that the switch still has.
pub const RX_PAGES: usize = 512;

/// Pages of this domain with consecutive machine addresses.
#[derive(Clone)]
pub struct Memory {
    /// One region.
    regions: Arc<[Region]>,
    /// The machine address of the first byte.
    address: u64,
    /// What returns the pages to the domain.
    _keep: Arc<dyn Any + Send + Sync>,
}

impl Memory {
    /// The first `pages` pages of `region`, whose first byte has this machine address, a page's. `keep` is dropped when
    /// the card no longer uses the pages.
    ///
    /// # Errors
    /// The region is shorter.
    pub fn new(
        region: Region,
        pages: usize,
        address: u64,
        keep: impl Any + Send + Sync,
    ) -> Result<Self, OutOfBounds> {
        region.address(0, pages * PAGE_SIZE)?;
        Ok(Self { regions: [region].into(), address, _keep: Arc::new(keep) })
    }

    #[inline]
    pub(crate) fn region(&self) -> &Region {
        &self.regions[0]
    }

    /// The same, for readers of bodies.
    pub(crate) fn regions(&self) -> &Arc<[Region]> {
        &self.regions
    }

    /// The machine address of a page.
    #[inline]
    pub(crate) fn address(&self, page: usize) -> u64 {
        self.address + (page * PAGE_SIZE) as u64
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory").field("address", &self.address).finish_non_exhaustive()
    }
}
