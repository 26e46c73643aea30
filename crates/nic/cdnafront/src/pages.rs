//! The memory that a context's owner shares with the card, and the mailbox protocol.

use std::any::Any;
use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering, fence};

use cdna::{
    Descriptor, Direction, Events, Mailbox, RxCompletion, Status, completion, context, ring,
};
use hypervisor::PAGE_SIZE;
use shm::{OutOfBounds, Region};

/// Whether a card that sleeps is woken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wake {
    /// Its doorbell is rung.
    IfAsleep,
    /// It reads the mailboxes when it wakes for something else.
    No,
}

/// The pages of one assignment of a context, and the card's doorbell.
#[derive(Debug)]
pub struct Pages {
    context: Region,
    rings: Region,
    completion: Region,
    doorbell: OwnedFd,
}

impl Pages {
    /// The context page (writable), the ring pages (writable only if this domain writes them) and the
    /// completion page (read-only). The doorbell is an eventfd.
    ///
    /// # Errors
    /// A region is too short.
    pub fn new(
        context: Region,
        rings: Region,
        completion: Region,
        doorbell: OwnedFd,
    ) -> Result<Self, OutOfBounds> {
        // Checked once here, so that no access below can fail.
        context.address(0, context::PAGE_LEN)?;
        rings.address(0, ring::RINGS_LEN)?;
        completion.address(0, completion::PAGE_LEN)?;
        Ok(Self { context, rings, completion, doorbell })
    }

    /// The context's state; none if the card wrote something else.
    #[must_use]
    pub fn status(&self) -> Option<Status> {
        Status::from_word(word(&self.completion, completion::STATUS).load(Ordering::Acquire))
    }

    /// Writes mailboxes, announces them in one event, and rings the doorbell if the card sleeps.
    #[inline]
    pub(crate) fn post<const N: usize>(&self, values: [(Mailbox, u32); N], wake: Wake) {
        let mut events = Events::NONE;
        for (mailbox, value) in values {
            // What was written before, such as descriptors, is visible with it.
            word(&self.context, mailbox.offset()).store(value, Ordering::Release);
            events = events | mailbox.event();
        }
        word(&self.context, context::EVENTS).fetch_or(events.word(), Ordering::SeqCst);
        // The card sets its sleep word before its final check of the events.
        fence(Ordering::SeqCst);
        let is_asleep = || word(&self.completion, completion::ASLEEP).load(Ordering::Relaxed) != 0;
        if wake == Wake::IfAsleep && is_asleep() {
            // The counter is full only if the card never wakes.
            let _ = rustix::io::write(&self.doorbell, &1u64.to_ne_bytes());
        }
    }

    /// The card's consumer index. Completions read after it are at least as new.
    #[inline]
    pub(crate) fn consumer(&self, direction: Direction) -> u32 {
        word(&self.completion, completion::consumer(direction)).load(Ordering::Acquire)
    }

    /// The completion of an RX descriptor, read once.
    #[inline]
    #[expect(clippy::expect_used, reason = "new() checked the length")]
    pub(crate) fn rx_completion(&self, index: u32) -> RxCompletion {
        self.completion.read(completion::offset(index)).expect("in the completion page")
    }

    /// Writes a descriptor into the slot of an index.
    #[inline]
    #[expect(clippy::expect_used, reason = "new() checked the length")]
    pub(crate) fn write(&self, direction: Direction, index: u32, descriptor: Descriptor) {
        self.rings.write(ring::offset(direction, index), descriptor).expect("in the ring pages");
    }
}

#[inline]
#[expect(clippy::expect_used, reason = "all offsets are constants within a page, and aligned")]
fn word(region: &Region, offset: usize) -> &AtomicU32 {
    region.atomic_u32(offset).expect("in the page")
}

/// Pages of TX buffers. At most half of them are in use, so that a page can rest after it was unmapped.
pub const TX_PAGES: usize = 512;
/// Pages of RX buffers: twice a ring, for the same reason, and for frames that the switch still has.
pub const RX_PAGES: usize = 512;

/// Pages of this domain with consecutive machine addresses.
#[derive(Clone)]
pub struct Memory {
    regions: Arc<[Region]>,
    /// The machine address of the first byte.
    address: u64,
    /// What returns the pages to the domain.
    _keep: Arc<dyn Any + Send + Sync>,
}

impl Memory {
    /// The first `pages` pages of `region`, whose first byte has the machine address `address`, a page's. `keep` is dropped when
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
