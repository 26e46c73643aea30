//! Guest copies: the driver domain grants received bytes to a guest, which copies them.
//!
//! The reverse of a guest's grants, for one RX queue (Santos et al. 2008, §4.1). In the form
//! [`Hypercall`](CopyForm::Hypercall) the driver domain grants bytes of any of its buffers under a
//! number, and the guest has the hypervisor copy them, on the guest's account. The copy uses up the
//! grant and acknowledges it. In the form [`Mapped`](CopyForm::Mapped) the driver domain puts the
//! bytes into a pool that only this guest has mapped, read-only. In the form
//! [`Granted`](CopyForm::Granted) it grants the pages of such a pool once, and the guest has the
//! hypervisor copy out of them.
//!
//! Only bytes of the driver domain can be granted, never those that another guest grants to it
//! (XSA-226).

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use shm::Region;

use crate::meter::Meter;

/// Numbers of a queue's granted buffers, and pages of a [`Mapped`](CopyForm::Mapped) pool: one for each slot of an RX ring.
pub const GRANTED_BUFFERS: usize = 256;
/// The most copies of one hypercall.
pub const GUEST_COPIES_PER_HYPERCALL: usize = 64;

/// Who copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyForm {
    /// The hypervisor, in a hypercall of the guest.
    Hypercall,
    /// The guest, out of a pool that it has mapped.
    Mapped,
    /// The hypervisor, in a hypercall of the guest, out of a pool whose pages are granted to it.
    Granted,
}

impl fmt::Display for CopyForm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Hypercall => "hypercall",
            Self::Mapped => "mapped",
            Self::Granted => "granted",
        })
    }
}

impl FromStr for CopyForm {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        match text {
            "hypercall" => Ok(Self::Hypercall),
            "mapped" => Ok(Self::Mapped),
            "granted" => Ok(Self::Granted),
            _ => Err(()),
        }
    }
}

/// Bytes of the driver domain that a guest may copy. The memory stays as it is until this is
/// dropped.
#[derive(Debug)]
pub struct GrantedBuffer {
    /// The memory.
    pub memory: Arc<Region>,
    /// The first byte.
    pub offset: usize,
    /// How many bytes, at most a page.
    pub len: u16,
}

/// The driver domain's side of one RX queue. When it is dropped, all grants end.
pub trait GuestCopies: Send + Sync {
    /// The number by which the guest finds its side: unique within the guest.
    fn id(&self) -> u32;

    /// Who copies.
    fn form(&self) -> CopyForm;

    /// The pool of pages; none in the form [`CopyForm::Hypercall`]. In the form
    /// [`CopyForm::Granted`] the region can be [shared](Region::share).
    fn pool(&self) -> Option<&Region>;

    /// Grants each buffer under its number, below [`GRANTED_BUFFERS`]. An earlier grant of the same
    /// number that was not copied is revoked.
    fn grant(&self, batch: &mut dyn Iterator<Item = (u16, GrantedBuffer)>);

    /// Revokes grants older than `limit`. Returns how many. A copy that has begun is finished.
    fn expire(&self, limit: Duration) -> usize;

    /// What has happened so far.
    fn counts(&self) -> GuestCopyCounts;

    /// Makes `meter` count the guest's copies from now on.
    fn count_by(&self, meter: Arc<Meter>);
}

/// What has happened at one or more RX queues with guest copies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GuestCopyCounts {
    /// Buffers that are granted now and not copied yet.
    pub granted: u64,
    /// Grants that expired before the guest copied.
    pub expired: u64,
    /// Hypercalls of the guest.
    pub hypercalls: u64,
    /// Copies that these hypercalls did.
    pub copies: u64,
    /// Bytes that these hypercalls copied.
    pub bytes: u64,
    /// Copies that were refused: not granted, or to a page that is not the guest's.
    pub refused: u64,
}

impl std::iter::Sum for GuestCopyCounts {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |sum, one| Self {
            granted: sum.granted + one.granted,
            expired: sum.expired + one.expired,
            hypercalls: sum.hypercalls + one.hypercalls,
            copies: sum.copies + one.copies,
            bytes: sum.bytes + one.bytes,
            refused: sum.refused + one.refused,
        })
    }
}

/// One copy that a guest wants: within one page on its side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GuestCopy {
    /// The number of the granted buffer, or the page of the pool.
    pub number: u16,
    /// First byte in it.
    pub offset: u16,
    /// How many bytes.
    pub len: u16,
    /// Where they go: a byte of the guest's pages.
    pub to: usize,
    /// Whether they were copied. Written by the copier.
    pub done: bool,
}

/// The guest's side of one RX queue, which copies into pages `P`.
pub trait GuestCopier<P>: Send {
    /// Does a batch of copies; each gets its result.
    fn copy(&mut self, pages: &P, batch: &mut [GuestCopy]);

    /// Whether the memory that it copies from has gone, so that the last batch was not done. The driver
    /// domain may offer other memory by now, which needs another copier.
    fn is_stale(&self) -> bool {
        false
    }

    /// What it has done so far.
    fn done(&self) -> CopierCounts {
        CopierCounts::default()
    }
}

/// What a guest's copier has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CopierCounts {
    /// Copies that succeeded.
    pub copies: u64,
    /// Hypercalls.
    pub hypercalls: u64,
}
