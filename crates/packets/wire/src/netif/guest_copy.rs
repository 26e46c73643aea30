//! Guest copies: the guest copies received bytes out of the driver domain's memory.
//!
//! An extension of pvnet (Santos et al. 2008, §4.1, have the idea but no format). A backend that
//! writes `feature-rx-guest-copy` also offers `feature-rx-copy`. A frontend that writes
//! `request-rx-guest-copy` posts buffers as for copies, and reads `rx-guest-copies` of each queue
//! once the backend is Connected: how it copies (`hypercall`, `mapped` or `granted`), a space, and the
//! number of the queue's granted buffers. A response with the flag [`GUEST_COPY`] then has, instead of
//! bytes in the request's page, the number of a granted buffer in `id`, and the bytes' place there in
//! `offset` and `status`. The frontend copies them to the request's page. All other responses are
//! as without this: frames from other guests are copied by the backend.
//!
//! The frontend has copied when it posts the next request in the slot. A hypercall uses up what it
//! copies, so no further acknowledgement is needed.
//!
//! With `granted`, the number in the store is the grant reference of a [`Directory`], which has the
//! references of a pool's pages, all of them read-only. The `id` of a response is the page's index there.
//! The backend writes to a page again once the slot of its response was posted again.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Flag of an [`RxResponse`](super::RxResponse) whose bytes the guest must copy. The highest bit:
/// `netif.h` counts from the lowest.
pub const GUEST_COPY: u16 = 1 << 15;

/// The most pages of a pool: as many as a directory has room for.
pub const POOL_PAGES_MAX: usize = (4096 - size_of::<Mark>() - size_of::<u32>()) / size_of::<u32>();

/// What no other directory begins with. It is random, so a page of another pool cannot pass for this one.
pub type Mark = [u8; 16];

/// The page that describes a pool.
///
/// A backend that ends, ends its grants, and another may get the same references for other pages. So a
/// frontend copies the mark once more after each batch: if it is the same, the pool was there all the
/// time, and the bytes are those that the responses meant.
#[derive(Clone, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Directory {
    mark: Mark,
    pages: u32,
    grefs: [u32; POOL_PAGES_MAX],
}

const _: () = assert!(size_of::<Directory>() == 4096);

impl Directory {
    /// Describes a pool of pages with these grant references. Those beyond [`POOL_PAGES_MAX`] are left out.
    #[must_use]
    pub fn new(mark: Mark, grefs: &[u32]) -> Self {
        let mut this = Self { mark, pages: 0, grefs: [0; POOL_PAGES_MAX] };
        for (place, gref) in this.grefs.iter_mut().zip(grefs) {
            *place = *gref;
            this.pages += 1;
        }
        this
    }

    /// The mark, and the references by page. None if no backend wrote it: a page of zeros, or with more
    /// pages than there is room for.
    #[must_use]
    pub fn read(&self) -> Option<(Mark, &[u32])> {
        let pages = usize::try_from(self.pages).ok()?;
        let grefs = self.grefs.get(..pages)?;
        let is_marked = self.mark != Mark::default();
        is_marked.then_some((self.mark, grefs))
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::*;

    #[test]
    fn a_directory_says_which_pages_there_are() {
        let grefs: Vec<u32> = (0..2000).map(|n| n * 70_001).collect();
        for pages in [0, 1, 256, POOL_PAGES_MAX] {
            let directory = Directory::new([7; 16], &grefs[..pages]);
            let bytes: [u8; 4096] = zerocopy::transmute!(directory);
            let directory = Directory::read_from_bytes(&bytes).unwrap();
            assert_eq!(directory.read(), Some(([7; 16], &grefs[..pages])));
        }
        let directory = Directory::new([7; 16], &grefs);
        assert_eq!(directory.read().unwrap().1.len(), POOL_PAGES_MAX);
    }

    #[test]
    fn a_page_that_is_no_directory_is_refused() {
        let page = |byte: u8| Directory::read_from_bytes(&[byte; 4096]).unwrap();
        assert_eq!(page(0).read(), None, "a fresh page of another pool");
        assert_eq!(page(0xFF).read(), None, "more pages than there is room for");
    }
}
