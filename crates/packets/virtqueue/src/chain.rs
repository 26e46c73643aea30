//! A chain of buffers, as a ring names it.

use arrayvec::ArrayVec;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::memory::{Buffer, GuestMemory};

/// The most buffers of a chain in each direction. Linux's drivers use up to 19 in one.
pub const CHAIN_MAX: usize = 64;
/// The most descriptors of a chain in its ring, and of those in its table. Empty ones make no buffer, but whoever serves the
/// ring reads each.
pub const DESCRIPTORS_MAX: u16 = 256;

/// `VIRTQ_DESC_F_*`: flags of a descriptor, in both layouts.
pub(crate) mod flag {
    pub(crate) const NEXT: u16 = 1;
    pub(crate) const WRITE: u16 = 2;
    pub(crate) const INDIRECT: u16 = 4;
}

/// Bytes of a descriptor, in both layouts.
pub(crate) const DESCRIPTOR_LEN: usize = 16;

/// A descriptor: of a split ring, or of an indirect table. That of a packed ring has the buffer's id in place of
/// the flags, and the flags in place of `next`.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct Descriptor {
    pub(crate) address: u64,
    pub(crate) len: u32,
    pub(crate) flags: u16,
    pub(crate) next: u16,
}

/// A chain that consists of one buffer, in one region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Single {
    /// Its number, for [`Queue::complete`](crate::Queue::complete).
    pub index: u16,
    /// Its buffer.
    pub buffer: Buffer,
}

/// Whether a descriptor with these flags is a chain of one buffer that the device may write, or read.
#[inline]
pub(crate) fn is_single(flags: u16, is_writable: bool) -> bool {
    let wanted = if is_writable { flag::WRITE } else { 0 };
    flags & (flag::NEXT | flag::WRITE | flag::INDIRECT) == wanted
}

/// Why a chain cannot be used. It is returned to the driver unused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// A buffer does not lie in the guest's memory.
    #[error("a buffer outside of the guest's memory")]
    Outside,
    /// It has more than [`CHAIN_MAX`] buffers in one direction.
    #[error("more than {CHAIN_MAX} buffers")]
    TooManyBuffers,
    /// A buffer for the device to read comes after one for it to write.
    #[error("a readable buffer behind a writable one")]
    Order,
}

/// A chain that the driver made available.
#[derive(Clone, Debug, Default)]
pub struct Chain {
    /// Its number, for [`Queue::complete`](crate::Queue::complete).
    pub index: u16,
    /// What the device may read.
    pub readable: ArrayVec<Buffer, CHAIN_MAX>,
    /// What the device may write.
    pub writable: ArrayVec<Buffer, CHAIN_MAX>,
    /// Bytes of all readable buffers.
    pub readable_len: u64,
    /// Bytes of all writable buffers.
    pub writable_len: u64,
    /// The descriptors that were read for it: empty ones, and those of a chain that cannot be used, too.
    pub descriptors: u16,
    /// Set if it cannot be used; its buffers are then incomplete.
    pub fault: Option<Fault>,
}

impl Chain {
    /// A chain without buffers, to be filled.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    #[inline]
    pub(crate) fn clear(&mut self) {
        self.readable.clear();
        self.writable.clear();
        (self.readable_len, self.writable_len, self.descriptors) = (0, 0, 0);
        self.fault = None;
    }

    /// Adds the bytes of a descriptor: one buffer for each region that they lie in.
    #[inline]
    pub(crate) fn add(&mut self, memory: &GuestMemory, address: u64, len: u32, flags: u16) {
        // At most DESCRIPTORS_MAX in the ring, and as many in a table.
        self.descriptors += 1;
        if self.fault.is_none()
            && let Err(fault) = self.try_add(memory, address, len, flags & flag::WRITE != 0)
        {
            self.fault = Some(fault);
        }
    }

    #[inline]
    fn try_add(
        &mut self,
        memory: &GuestMemory,
        mut address: u64,
        mut len: u32,
        writable: bool,
    ) -> Result<(), Fault> {
        let (buffers, sum) = match writable {
            true => (&mut self.writable, &mut self.writable_len),
            false if self.writable_len > 0 => return Err(Fault::Order),
            false => (&mut self.readable, &mut self.readable_len),
        };
        // At most CHAIN_MAX lengths of 32 bits.
        *sum += u64::from(len);
        while len > 0 {
            let (index, offset, left) = memory.find(address).ok_or(Fault::Outside)?;
            let run = u32::try_from(left).unwrap_or(u32::MAX).min(len);
            // At most RANGES_MAX regions.
            let region = u16::try_from(index).unwrap_or(u16::MAX);
            let buffer = Buffer { region, offset, len: run };
            buffers.try_push(buffer).map_err(|_| Fault::TooManyBuffers)?;
            len -= run;
            address = address.checked_add(run.into()).ok_or(Fault::Outside)?;
        }
        Ok(())
    }
}
