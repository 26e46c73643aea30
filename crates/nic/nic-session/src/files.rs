//! The files of one assignment of a context: who maps which, and how they are sealed.
//!
//! | file | guest | daemon | card |
//! | --- | --- | --- | --- |
//! | context page | writes | | writes |
//! | ring pages | writes, or reads if the daemon writes | writes | reads |
//! | completion page | reads | writes | writes |
//! | doorbell (an eventfd) | rings | | polls |
//! | table, only with an IOMMU | | writes | reads |
//!
//! They are new at each assignment: a guest that lost a context writes into memory that nobody reads.
//!
//! A file that is sealed against future writes can no longer be mapped writable, and nobody can make holes in it: a hole would make the
//! next one who touches it wait. So everybody who writes a file maps it before it is sealed. The ring pages that the daemon writes and
//! the table are sealed at once; the completion page when the card has mapped it, before the guest gets it; what the guest writes when
//! the guest has mapped it, before the card serves the context.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use cdna::message::Protection;
use cdna::{completion, context, ring};
use rustix::event::{EventfdFlags, eventfd};
use shm::{PageSize, Region, create_sealable_memfd, seal_future_writes};

const PAGE: usize = PageSize::Small.bytes();

/// The files as the daemon made them, and its own mappings.
#[derive(Debug)]
pub struct Files {
    context: OwnedFd,
    ring_pages: OwnedFd,
    completion_page: OwnedFd,
    doorbell: OwnedFd,
    table_file: Option<OwnedFd>,
    rings: Arc<Region>,
    completion: Arc<Region>,
    table: Option<Arc<Region>>,
}

impl Files {
    /// Fresh files, for rings whose first descriptors have the index `start`. With an IOMMU the table
    /// has `table_len` bytes.
    ///
    /// # Errors
    /// The system's.
    pub fn create(protection: Protection, start: u32, table_len: usize) -> io::Result<Self> {
        let file = |name: &str, len: usize| {
            create_sealable_memfd(name, len.div_ceil(PAGE), PageSize::Small)
        };
        let context = file("pvnet-context", context::PAGE_LEN)?;
        let ring_pages = file("pvnet-rings", ring::RINGS_LEN)?;
        let completion_page = file("pvnet-completions", completion::PAGE_LEN)?;
        let rings = Region::map(&ring_pages, 0, ring::RINGS_LEN)?;
        for direction in [cdna::Direction::Tx, cdna::Direction::Rx] {
            rings.write(direction.start(), ring::initial(start))?;
        }
        if protection == Protection::Hypervisor {
            seal_future_writes(&ring_pages)?;
        }
        let completion = Region::map(&completion_page, 0, completion::PAGE_LEN)?;
        completion.write(completion::TX_CONSUMER, start)?;
        completion.write(completion::RX_CONSUMER, start)?;
        let (mut table_file, mut table) = (None, None);
        if protection == Protection::Iommu {
            let file = file("pvnet-iommu", table_len)?;
            table = Some(Arc::new(Region::map(&file, 0, table_len)?));
            seal_future_writes(&file)?;
            table_file = Some(file);
        }
        // The card only polls it, edge-triggered: a guest that fills the counter loses its own events only.
        let doorbell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let (rings, completion) = (Arc::new(rings), Arc::new(completion));
        Ok(Self {
            context,
            ring_pages,
            completion_page,
            doorbell,
            table_file,
            rings,
            completion,
            table,
        })
    }

    /// The ring pages, as the daemon writes them.
    #[must_use]
    pub fn rings(&self) -> &Arc<Region> {
        &self.rings
    }

    /// The completion page.
    #[must_use]
    pub fn completion(&self) -> &Arc<Region> {
        &self.completion
    }

    /// The IOMMU's table, if there is one.
    #[must_use]
    pub fn table(&self) -> Option<&Arc<Region>> {
        self.table.as_ref()
    }

    /// The descriptors for the card.
    #[must_use]
    pub fn for_card(&self) -> Vec<BorrowedFd<'_>> {
        let Self { context, ring_pages, completion_page, doorbell, table_file, .. } = self;
        let files = [context, ring_pages, completion_page, doorbell].into_iter();
        files.chain(table_file).map(AsFd::as_fd).collect()
    }

    /// The descriptors for the guest. The card must have mapped its files.
    ///
    /// # Errors
    /// The completion page cannot be sealed.
    pub fn for_guest(&self) -> io::Result<[BorrowedFd<'_>; 4]> {
        seal(&self.completion_page)?;
        let Self { context, ring_pages, completion_page, doorbell, .. } = self;
        Ok([context, ring_pages, completion_page, doorbell].map(AsFd::as_fd))
    }

    /// The guest has mapped its files: seals those that it writes.
    ///
    /// # Errors
    /// The system's.
    pub fn mapped(&self) -> io::Result<()> {
        seal(&self.context)?;
        seal(&self.ring_pages)
    }
}

/// Seals a file, if it is not yet.
fn seal(file: &OwnedFd) -> io::Result<()> {
    let seals = rustix::fs::fcntl_get_seals(file)?;
    match seals.contains(rustix::fs::SealFlags::FUTURE_WRITE) {
        true => Ok(()),
        false => seal_future_writes(file),
    }
}

/// The files as the card mapped them.
#[derive(Debug)]
pub struct CardFiles {
    /// The context page.
    pub context: Region,
    /// The ring pages, readable only.
    pub rings: Region,
    /// The completion page.
    pub completion: Arc<Region>,
    /// The doorbell.
    pub doorbell: OwnedFd,
    /// The IOMMU's table, readable only.
    pub table: Option<Arc<Region>>,
}

impl CardFiles {
    /// Maps the files that came with a [`Prepare`](crate::message::ToCard::Prepare).
    ///
    /// # Errors
    /// The system's, or descriptors are missing.
    pub fn map(files: Vec<OwnedFd>) -> io::Result<Self> {
        let mut files = files.into_iter();
        let mut next = || files.next().ok_or(io::ErrorKind::InvalidData);
        let context = Region::map(next()?, 0, context::PAGE_LEN)?;
        let rings = Region::map_read_only(next()?, 0, ring::RINGS_LEN)?;
        let completion = Arc::new(Region::map(next()?, 0, completion::PAGE_LEN)?);
        let doorbell = next()?;
        let table = files.next().map(|file| {
            let len = usize::try_from(rustix::fs::fstat(&file)?.st_size).unwrap_or(0);
            Region::map_read_only(&file, 0, len).map(Arc::new)
        });
        Ok(Self { context, rings, completion, doorbell, table: table.transpose()? })
    }
}

/// The files as the guest mapped them.
#[derive(Debug)]
pub struct GuestFiles {
    /// The context page.
    pub context: Region,
    /// The ring pages; readable only if the daemon writes them.
    pub rings: Region,
    /// The completion page, readable only.
    pub completion: Region,
    /// The card's doorbell.
    pub doorbell: OwnedFd,
}

impl GuestFiles {
    pub(crate) fn map(protection: Protection, files: [OwnedFd; 4]) -> io::Result<Self> {
        let [context, rings, completion, doorbell] = files;
        let map_rings = match protection {
            Protection::Hypervisor => Region::map_read_only,
            Protection::None | Protection::Iommu => Region::map,
        };
        Ok(Self {
            context: Region::map(context, 0, context::PAGE_LEN)?,
            rings: map_rings(rings, 0, ring::RINGS_LEN)?,
            completion: Region::map_read_only(completion, 0, completion::PAGE_LEN)?,
            doorbell,
        })
    }
}

#[cfg(test)]
mod tests {
    use cdna::{Descriptor, Direction, Flags};

    use super::*;

    fn owned(files: &[BorrowedFd<'_>]) -> Vec<OwnedFd> {
        files.iter().map(|file| file.try_clone_to_owned().unwrap()).collect()
    }

    #[test]
    fn each_side_maps_what_it_may() {
        for protection in [Protection::None, Protection::Hypervisor, Protection::Iommu] {
            let files = Files::create(protection, 7, 3 * PAGE).unwrap();
            let card = CardFiles::map(owned(&files.for_card())).unwrap();
            let guests = owned(&files.for_guest().unwrap()).try_into().unwrap();
            let guest = GuestFiles::map(protection, guests).unwrap();
            files.mapped().unwrap();
            // The guest's mailbox reaches the card, the card's index all others.
            guest.context.write(0, 5u32).unwrap();
            assert_eq!(card.context.read(0), Ok(5u32));
            card.completion.write(completion::RX_CONSUMER, 9u32).unwrap();
            assert_eq!(guest.completion.read(completion::RX_CONSUMER), Ok(9u32));
            assert_eq!(files.completion().read(completion::TX_CONSUMER), Ok(7u32));
            let at = ring::offset(Direction::Rx, 7);
            let descriptor = Descriptor::buffer(7, 4096, 9, Flags::NONE);
            files.rings().write(at, descriptor).unwrap();
            assert_eq!(card.rings.read(at), Ok(descriptor));
            assert_eq!(guest.rings.read(at), Ok(descriptor));
            assert_eq!(card.table.is_some(), protection == Protection::Iommu);
            if let (Some(ours), Some(theirs)) = (files.table(), &card.table) {
                ours.write(2 * PAGE, 3u64).unwrap();
                assert_eq!(theirs.read(2 * PAGE), Ok(3u64));
            }
        }
    }

    #[test]
    fn a_guest_can_map_no_more_than_it_may_and_make_no_holes() {
        use rustix::fs::{FallocateFlags, fallocate};
        for protection in [Protection::None, Protection::Hypervisor, Protection::Iommu] {
            let files = Files::create(protection, 0, PAGE).unwrap();
            let [context, rings, completion, _] = files.for_guest().unwrap();
            let is_hypervisor = protection == Protection::Hypervisor;
            assert_eq!(Region::map(rings, 0, PAGE).is_err(), is_hypervisor);
            assert!(Region::map(completion, 0, PAGE).is_err());
            files.mapped().unwrap();
            for file in [context, rings, completion] {
                let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                assert!(fallocate(file, flags, 0, PAGE as u64).is_err());
                assert!(
                    Region::map(file, 0, PAGE).is_err() && rustix::io::write(file, b"x").is_err()
                );
            }
        }
    }

    #[test]
    fn missing_files_are_an_error() {
        let files = Files::create(Protection::None, 0, 0).unwrap();
        assert!(CardFiles::map(owned(&files.for_card()[..3])).is_err());
    }
}
