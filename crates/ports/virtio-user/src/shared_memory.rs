//! The memory that the back-end sees: rings, and buffers of this crate.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::fs::{FallocateFlags, fallocate};
use shm::{PageSize, Region};
use virtqueue::RingAddresses;
use virtqueue::burst::Buffers;

/// Addresses of the memory, as the back-end knows them: the first one that descriptors use, and the first one that rings are
/// described by. Nothing of this process is there.
pub(crate) const GUEST: u64 = 1 << 32;
pub(crate) const USER: u64 = 1 << 40;

const PAGE: usize = PageSize::Small.bytes();

/// Bytes of a buffer, both an odd number of cache lines, so that the first lines of all buffers do not fall into the same few
/// sets of a cache: for a part of a frame, of which sixteen hold the longest one, and for a whole frame.
pub(crate) const PART: u32 = 65 * 64;
pub(crate) const WHOLE: u32 = 1025 * 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RingShape {
    /// Entries, a power of two.
    pub(crate) size: u16,
    /// Bytes of each buffer.
    pub(crate) buffer: u32,
    /// Whether the back-end writes to them.
    pub(crate) are_writable: bool,
}

/// Where a ring and its buffers lie.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ring {
    /// Offsets in the memory.
    pub(crate) at: RingAddresses,
    pub(crate) size: u16,
    pub(crate) buffers: Buffers,
}

/// The memory, all zero at first. When it is dropped, its pages are freed.
#[derive(Debug)]
pub(crate) struct SharedMemory {
    pub(crate) file: OwnedFd,
    pub(crate) region: Region,
    pub(crate) rings: Vec<Ring>,
}

impl SharedMemory {
    /// Memory for rings of these shapes. A page takes memory when it is touched.
    pub(crate) fn new(shapes: &[RingShape]) -> io::Result<Self> {
        let mut end = 0;
        let rings = shapes.iter().map(|shape| place(*shape, &mut end)).collect();
        let file = shm::create_memfd("virtio-user", end / PAGE, PageSize::Small)?;
        let whole = Arc::new(Region::map(&file, 0, end)?);
        let region = whole.slice(0..end)?;
        Ok(Self { file, region, rings })
    }
}

impl Drop for SharedMemory {
    /// A back-end that keeps the file, and connects again and again, must not keep pages that were charged to this process.
    fn drop(&mut self) {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        // It can only fail for want of memory, and then the pages stay until the back-end closes the file.
        let _ = fallocate(&self.file, flags, 0, self.region.len() as u64);
    }
}

/// Places a ring behind `end`, each of its parts in pages that no other part is in.
fn place(shape: RingShape, end: &mut usize) -> Ring {
    let RingShape { size, buffer, are_writable } = shape;
    let mut take = |len: usize| {
        let start = *end;
        *end += len.next_multiple_of(PAGE);
        start
    };
    let entries = usize::from(size);
    // What a split ring needs is enough for a packed one.
    let [descriptors, driver, device] =
        [16 * entries, 6 + 2 * entries, 6 + 8 * entries].map(|len| take(len) as u64);
    let offset = take(entries * buffer as usize);
    let address = GUEST + offset as u64;
    let buffers = Buffers { offset, address, stride: buffer, are_writable };
    Ring { at: RingAddresses { descriptors, driver, device }, size, buffers }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_back_end_that_keeps_the_file_keeps_no_pages() {
        let memory =
            SharedMemory::new(&[RingShape { size: 64, buffer: PART, are_writable: true }]).unwrap();
        let kept = memory.file.try_clone().unwrap();
        let blocks = || rustix::fs::fstat(&kept).unwrap().st_blocks;
        memory.region.write(PAGE, 1u8).unwrap();
        assert!(blocks() > 0);
        drop(memory);
        assert_eq!(blocks(), 0);
    }

    #[test]
    fn rings_and_buffers_share_no_page() {
        let shape = |size, are_writable| RingShape { size, buffer: PART, are_writable };
        let memory = SharedMemory::new(&[shape(64, true), shape(256, false)]).unwrap();
        let mut starts: Vec<_> = memory
            .rings
            .iter()
            .flat_map(|Ring { at, buffers, .. }| {
                [at.descriptors, at.driver, at.device, buffers.offset as u64]
            })
            .collect();
        assert!(starts.iter().all(|start| start.is_multiple_of(PAGE as u64)));
        starts.dedup();
        assert_eq!((starts.len(), starts.is_sorted()), (8, true));
        let Ring { buffers, size, .. } = memory.rings[1];
        let end = buffers.offset + usize::from(size) * PART as usize;
        assert!(end <= memory.region.len() && end + PAGE > memory.region.len());
        assert!(
            16 * PART as usize >= port::FRAME_MAX + 12 && WHOLE as usize >= port::FRAME_MAX + 12
        );
    }
}
