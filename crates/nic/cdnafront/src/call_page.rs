//! A guest's calls by a page that it shares with the hypervisor ([`cdna::call`]).

use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

use arrayvec::ArrayVec;
use cdna::call::{
    ANSWER, Answer, ENTRIES, ENTRIES_MAX, HEADER, Header, MapEntry, Operation, PAGE_LEN,
};
use cdna::{Descriptor, Direction};
use shm::{OutOfBounds, Region};
use zerocopy::IntoBytes;

/// How the two ends of a call page notify each other.
pub trait CallEvents: Send {
    /// Notifies the hypervisor of a call.
    ///
    /// # Errors
    /// The hypervisor is gone.
    fn notify(&mut self) -> Result<(), CallError>;

    /// Waits for a notification of the hypervisor. It may return without one.
    ///
    /// # Errors
    /// The hypervisor is gone.
    fn wait(&mut self) -> Result<(), CallError>;
}

/// A call page. Each clone is a handle of the same page, for one call at a time.
#[derive(Clone)]
pub struct CallPage(Arc<Mutex<Caller>>);

struct Caller {
    page: Region,
    events: Box<dyn CallEvents>,
    /// The machine page of the first entry of the context's translation table.
    first_page: u64,
    /// The number of the last call.
    serial: u32,
}

impl CallPage {
    /// The caller's side of a page that is zero. `first_page` is the number of the domain's first machine page.
    ///
    /// # Errors
    /// The region is too short.
    pub fn new(
        page: Region,
        first_page: u64,
        events: impl CallEvents + 'static,
    ) -> Result<Self, OutOfBounds> {
        page.address(0, PAGE_LEN)?;
        let caller = Caller { page, events: Box::new(events), first_page, serial: 0 };
        Ok(Self(Arc::new(Mutex::new(caller))))
    }

    fn call(
        &self,
        call: impl FnOnce(&mut Caller) -> Result<(), CallError>,
    ) -> Result<(), CallError> {
        call(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Caller {
    /// Makes a call and waits for its answer.
    fn call(
        &mut self,
        operation: Operation,
        count: usize,
        entries: &[u8],
    ) -> Result<(), CallError> {
        self.serial = self.serial.wrapping_add(1);
        let (operation, serial) = (operation as u32, self.serial);
        let count = u32::try_from(count).map_err(|_| CallError::Gone)?;
        let outside = |_| CallError::Gone;
        self.page.copy_in(ENTRIES, entries).map_err(outside)?;
        let header = Header { operation, count, serial, reserved: 0 };
        self.page.write(HEADER, header).map_err(outside)?;
        self.events.notify()?;
        let answered = self.page.atomic_u32(ANSWER).map_err(outside)?;
        while answered.load(Ordering::Acquire) != serial {
            self.events.wait()?;
        }
        let answer: Answer = self.page.read(ANSWER).map_err(outside)?;
        match answer.status {
            0 => Ok(()),
            status => {
                let at = Some(answer.value).filter(|entry| *entry != Answer::NO_ENTRY);
                let at = at.map_or(String::new(), |entry| format!(" at entry {entry}"));
                Err(CallError::Refused(format!("status {status}{at}")))
            }
        }
    }

    fn map_call(
        &mut self,
        operation: Operation,
        pages: &[Range<u64>],
        permission: u16,
    ) -> Result<(), CallError> {
        let mut entries = ArrayVec::<MapEntry, BATCH>::new();
        for range in pages {
            let unknown = || CallError::Refused("pages of another domain".to_owned());
            let first = range.start.checked_sub(self.first_page).ok_or_else(unknown)?;
            let entry = MapEntry {
                machine_page: range.start,
                page: u32::try_from(first).map_err(|_| unknown())?,
                pages: u16::try_from(range.end - range.start).map_err(|_| unknown())?,
                permission,
            };
            entries.try_push(entry).map_err(|_| unknown())?;
        }
        self.call(operation, entries.len(), entries.as_slice().as_bytes())
    }
}

impl Hypercalls for CallPage {
    fn enqueue(&mut self, direction: Direction, batch: &[Descriptor]) -> Result<(), CallError> {
        let operation = match direction {
            Direction::Tx => Operation::EnqueueTx,
            Direction::Rx => Operation::EnqueueRx,
        };
        self.call(|caller| caller.call(operation, batch.len(), batch.as_bytes()))
    }

    fn map(&mut self, direction: Direction, pages: &[Range<u64>]) -> Result<(), CallError> {
        let permission = match direction {
            Direction::Tx => MapEntry::MAY_READ,
            Direction::Rx => MapEntry::MAY_WRITE,
        };
        self.call(|caller| caller.map_call(Operation::Map, pages, permission))
    }

    fn unmap(&mut self, pages: &[Range<u64>]) -> Result<(), CallError> {
        self.call(|caller| caller.map_call(Operation::Unmap, pages, 0))
    }
}

/// Descriptors, or ranges of pages, per call at most.
pub const BATCH: usize = ENTRIES_MAX;

/// The hypervisor did not do what a call asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// It refused.
    #[error("the hypervisor refused: {0}")]
    Refused(String),
    /// The context, or the hypervisor, is gone.
    #[error("the context is gone")]
    Gone,
}

/// The hypervisor's calls about one context. Each ring has a handle.
pub trait Hypercalls: Send {
    /// Puts descriptors into a ring that only the hypervisor can write. They are at most [`BATCH`], and
    /// their indices are consecutive. The hypervisor writes the sequence numbers.
    ///
    /// # Errors
    /// No descriptor was put into the ring.
    fn enqueue(&mut self, direction: Direction, batch: &[Descriptor]) -> Result<(), CallError>;

    /// Maps pages of this domain for the card: to be read for [`Direction::Tx`], to be written for
    /// [`Direction::Rx`]. They are given by their machine page numbers, in at most [`BATCH`] ranges. Each is
    /// mapped at its machine address.
    ///
    /// # Errors
    /// No page was mapped.
    fn map(&mut self, direction: Direction, pages: &[Range<u64>]) -> Result<(), CallError>;

    /// Unmaps pages, which are given in the same way.
    ///
    /// # Errors
    /// No page was unmapped.
    fn unmap(&mut self, pages: &[Range<u64>]) -> Result<(), CallError>;
}
