//! Pools of pages that the driver domain grants to a guest, which copies out of them.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use hypervisor::guest_copy::{CopyForm, GrantedBuffer, GuestCopies, GuestCopyCounts};
use hypervisor::{Error, GrantRef, Meter};
use shm::Region;
use wire::netif::guest_copy::{Directory, Mark};
use zerocopy::IntoBytes as _;

use crate::peer::Peer;
use crate::shared_pages::SharedPages;
use crate::sys::gntalloc::Access;

/// A pool: pages that are granted read-only to one guest, and the page that lists them.
///
/// They never have another user. The kernel gives zeroed pages, and takes them back once this
/// process and Xen have ended their use.
pub(crate) struct GrantedPool {
    pages: SharedPages,
    /// The directory's grant reference.
    id: GrantRef,
    _directory: SharedPages,
}

impl GrantedPool {
    /// Grants `pages` zeroed pages to `guest`.
    pub(crate) fn new(gntalloc: &Arc<OwnedFd>, guest: Peer, pages: usize) -> Result<Self, Error> {
        let grant = |pages| SharedPages::new(gntalloc, guest, pages, Access::ReadOnly);
        let ((pages, grefs), (directory, ids)) = (grant(pages)?, grant(1)?);
        let grefs: Vec<u32> = grefs.iter().map(|gref| gref.0).collect();
        let listed = Directory::new(random_mark().map_err(Error::os("random bytes"))?, &grefs);
        let wrong = |_| Error::Exhausted("pages");
        directory.copy_in(0, listed.as_bytes()).map_err(wrong)?;
        Ok(Self { pages, id: ids[0], _directory: directory })
    }
}

fn random_mark() -> io::Result<Mark> {
    let mut mark = Mark::default();
    File::open("/dev/urandom")?.read_exact(&mut mark)?;
    Ok(mark)
}

impl GuestCopies for GrantedPool {
    /// The directory's grant reference.
    fn id(&self) -> u32 {
        self.id.0
    }

    fn form(&self) -> CopyForm {
        CopyForm::Granted
    }

    fn pool(&self) -> Option<&Region> {
        Some(&self.pages)
    }

    /// Only pages of the pool are granted.
    fn grant(&self, batch: &mut dyn Iterator<Item = (u16, GrantedBuffer)>) {
        batch.for_each(drop);
    }

    /// The guest holds nothing but its pool.
    fn expire(&self, _: Duration) -> usize {
        0
    }

    /// Xen does not say what a guest copies.
    fn counts(&self) -> GuestCopyCounts {
        GuestCopyCounts::default()
    }

    fn count_by(&self, _: Arc<Meter>) {}
}
