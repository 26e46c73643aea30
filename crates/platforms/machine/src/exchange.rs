//! The exchange area: pages that the driver domain and one guest transfer to each other.
//!
//! Xen can transfer any page, since it controls all page tables. A process can only map the files
//! it has. So each guest's file has an exchange area behind the ordinary pages, and every page of
//! it has one owner: the driver domain or that guest. No area serves two guests. A guest may keep a
//! page mapped after it gave it back, or map one that it never got. Even then it sees only frames
//! for itself, and only damages those.
//!
//! ```text
//!        surrender (guest's hypercall)            take (zeroed, mmap)
//! guest ───────────────────────────────▶ spare ───────────────────────▶ held
//!   ▲                                      ▲            drop (munmap)     │
//!   │                                      └─────────────────────────────┤
//!   └────────────────────────── transfer (munmap) ───────────────────────┘
//! ```

use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

use hypervisor::{DomId, Error};

use crate::memory::MemorySize;

pub(crate) mod transfer;

/// Who owns each page of a guest's exchange area.
pub(crate) struct Exchange {
    /// The number of the area's first page, within the guest's memory.
    first: u32,
    owners: Mutex<Owners>,
}

struct Owners {
    /// The owner of each page, by its place in the area.
    of: Box<[Owner]>,
    /// The driver domain's pages that it has not mapped, by number.
    spare: Vec<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    DriverDomain,
    Guest,
}

/// How many pages of an exchange area are in which state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExchangeCount {
    /// The driver domain's, not mapped.
    pub spare: usize,
    /// The driver domain's, mapped.
    pub held: usize,
    /// The guest's.
    pub guest: usize,
}

impl Exchange {
    /// An area that belongs to the driver domain.
    pub(crate) fn new(size: MemorySize) -> io::Result<Self> {
        let number = |n| u32::try_from(n).map_err(|_| io::ErrorKind::InvalidInput);
        let first = number(size.pages)?;
        let end = number(size.pages.saturating_add(size.exchange_pages))?;
        // Taken from the end: the page that came back last is most likely in the cache.
        let spare = (first..end).rev().collect();
        let of = vec![Owner::DriverDomain; size.exchange_pages].into();
        Ok(Self { first, owners: Mutex::new(Owners { of, spare }) })
    }

    fn owners(&self) -> MutexGuard<'_, Owners> {
        self.owners.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn place(&self, frame: u32) -> Option<usize> {
        frame.checked_sub(self.first).map(|place| place as usize)
    }

    fn take(&self) -> Option<u32> {
        self.owners().spare.pop()
    }

    fn put_back(&self, frame: u32) {
        self.owners().spare.push(frame);
    }

    /// Makes the guest the owner of a page that the driver domain held.
    fn give(&self, frame: u32) {
        let mut owners = self.owners();
        if let Some(owner) = self.place(frame).and_then(|place| owners.of.get_mut(place)) {
            *owner = Owner::Guest;
        }
    }

    /// Makes the driver domain the owner of pages that the guest gives back. Fails at the first
    /// page that is not the guest's; the pages before it are given back.
    fn surrender(&self, guest: DomId, frames: &[u32]) -> Result<(), Error> {
        let mut owners = self.owners();
        for &frame in frames {
            let place = self.place(frame);
            let owner = place.and_then(|place| owners.of.get_mut(place));
            let owner = owner.filter(|owner| **owner == Owner::Guest);
            *owner.ok_or(Error::NotOwner { dom: guest, frame })? = Owner::DriverDomain;
            owners.spare.push(frame);
        }
        Ok(())
    }

    fn count(&self) -> ExchangeCount {
        let owners = self.owners();
        let guest = owners.of.iter().filter(|owner| **owner == Owner::Guest).count();
        let spare = owners.spare.len();
        ExchangeCount { spare, held: owners.of.len() - spare - guest, guest }
    }
}
