//! The balloon: a guest gives memory back to the hypervisor, and takes it back.
//!
//! Large changes go by blocks of 2 MiB and keep the large mappings of all others; only changes
//! below a block break one (proposed by Menon et al. 2006, §5.4.2).

use std::sync::{MutexGuard, PoisonError};

use hypervisor::{Error, PAGE_SIZE};

use super::MachineGuest;
use super::state::Inner;
use crate::memory::repopulate;

/// Why a guest's memory does not reach the target.
#[derive(Debug, thiserror::Error)]
pub enum BalloonError {
    /// The target is more than the guest's full memory.
    #[error(
        "{asked} KiB are more than the guest's {most} KiB: ask for less, or give it more \
             memory where it is configured"
    )]
    TooMuch {
        /// KiB of the target.
        asked: usize,
        /// KiB of its full memory.
        most: usize,
    },
    /// Too little is free. The guest gave up all that it could.
    #[error(
        "not enough free memory in the guest: it keeps {kept} KiB, not {asked} KiB, because the \
             rest is in use or in a 2 MiB block with pages in use; ask for {kept} KiB or more, \
             or go on in steps below 2048 KiB, which break blocks"
    )]
    InUse {
        /// KiB of the target.
        asked: usize,
        /// KiB it has.
        kept: usize,
    },
    /// The hypervisor refused.
    #[error(transparent)]
    Refused(#[from] Error),
}

fn kib(pages: usize) -> usize {
    pages * PAGE_SIZE / 1024
}

impl MachineGuest {
    /// The ordinary pages that this guest has now, its grant table included.
    #[must_use]
    pub fn reservation(&self) -> usize {
        self.inner.size.pages - self.inner.free().frames.out()
    }

    /// Gives up ordinary pages, or takes some back, until the guest has `target`.
    pub fn set_reservation(&self, target: usize) -> Result<(), BalloonError> {
        let _ballooning = self.inner.ballooning();
        let most = self.inner.size.pages;
        let more = target.checked_sub(self.reservation());
        match more {
            _ if target > most => {
                return Err(BalloonError::TooMuch { asked: kib(target), most: kib(most) });
            }
            Some(more) => self.inner.take_back(more)?,
            None => self.inner.give_up(self.reservation() - target)?,
        }
        match self.reservation() {
            kept if kept > target => {
                Err(BalloonError::InUse { asked: kib(target), kept: kib(kept) })
            }
            _ => Ok(()),
        }
    }
}

impl Inner {
    fn ballooning(&self) -> MutexGuard<'_, ()> {
        self.ballooning.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn give_up(&self, count: usize) -> Result<(), Error> {
        let chosen = self.free().frames.give_up(count);
        let mut refused = Ok(());
        for pages in chosen {
            if refused.is_ok() {
                refused = self.calls.decrease_reservation(pages.clone());
            }
            if refused.is_err() {
                self.free().frames.returned(pages);
            }
        }
        refused
    }

    fn take_back(&self, count: usize) -> Result<(), Error> {
        let wanted = self.free().frames.wanted(count);
        for pages in wanted {
            self.calls.increase_reservation(pages.clone())?;
            let whole = self.free().frames.returned(pages);
            for block in whole {
                repopulate(self.size, &self.memory, block);
            }
        }
        Ok(())
    }
}
