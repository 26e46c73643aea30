//! The call page: how a guest calls the hypervisor about one context.
//!
//! The guest writes the call, notifies the hypervisor and waits for the answer. The hypervisor copies the
//! call once and uses the copy, so a guest that changes the page meanwhile changes nothing. It writes the answer's serial
//! number last.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Bytes of a call page.
pub const PAGE_LEN: usize = 4096;
/// Where the [`Header`] lies.
pub const HEADER: usize = 0;
/// Where the entries lie: [`Descriptor`](crate::Descriptor)s or [`MapEntry`]s.
pub const ENTRIES: usize = 16;
/// The most entries of a call.
pub const ENTRIES_MAX: usize = 64;
/// Bytes of an entry.
pub const ENTRY_LEN: usize = 16;
/// Where the [`Answer`] lies.
pub const ANSWER: usize = 2048;

const _: () = assert!(ENTRIES + ENTRIES_MAX * ENTRY_LEN <= ANSWER);
const _: () = assert!(size_of::<Header>() == ENTRIES && size_of::<MapEntry>() == ENTRY_LEN);

/// What a guest asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Operation {
    /// Put descriptors on the TX ring. Their sequence numbers are ignored.
    EnqueueTx = 1,
    /// Put descriptors on the RX ring.
    EnqueueRx = 2,
    /// Map pages in the context's IOMMU table.
    Map = 3,
    /// Unmap pages.
    Unmap = 4,
}

impl Operation {
    /// The operation of this number.
    #[must_use]
    pub const fn from_number(number: u32) -> Option<Self> {
        match number {
            1 => Some(Self::EnqueueTx),
            2 => Some(Self::EnqueueRx),
            3 => Some(Self::Map),
            4 => Some(Self::Unmap),
            _ => None,
        }
    }
}

/// The head of a call.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Header {
    /// An [`Operation`].
    pub operation: u32,
    /// Entries, at most [`ENTRIES_MAX`].
    pub count: u32,
    /// The guest's number for this call, which the answer repeats.
    pub serial: u32,
    /// 0.
    pub reserved: u32,
}

/// Consecutive pages to be mapped or unmapped.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct MapEntry {
    /// The first machine page. Ignored for unmapping.
    pub machine_page: u64,
    /// The first page, counted from the table's first.
    pub page: u32,
    /// How many pages.
    pub pages: u16,
    /// [`MAY_READ`](Self::MAY_READ) and [`MAY_WRITE`](Self::MAY_WRITE). Ignored for unmapping.
    pub permission: u16,
}

impl MapEntry {
    /// The card may read: for frames to be sent.
    pub const MAY_READ: u16 = 1;
    /// The card may write: for frames to be received.
    pub const MAY_WRITE: u16 = 2;
}

/// The hypervisor's answer.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Answer {
    /// The number of the call that this answers.
    pub serial: u32,
    /// 0: done. Otherwise why nothing was done.
    pub status: u32,
    /// Of an enqueue: the new producer index. Of a refused call: the first bad entry, or
    /// [`NO_ENTRY`](Self::NO_ENTRY).
    pub value: u32,
    /// 0.
    pub reserved: u32,
}

impl Answer {
    /// The call as a whole was refused.
    pub const NO_ENTRY: u32 = u32::MAX;
}
