//! Rings of an AF_XDP socket, which the kernel shares (`linux/if_xdp.h`).

use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;

use rustix::net::xdp::XdpRingOffset;
use shm::Region;

/// One ring, of which we are one side.
#[derive(Debug)]
struct Ring {
    memory: Region,
    producer: usize,
    consumer: usize,
    descriptors: usize,
    size: u32,
    /// Our side's index.
    index: u32,
}

impl Ring {
    fn map(
        socket: impl AsFd,
        at: u64,
        offsets: XdpRingOffset,
        size: u32,
        descriptor: usize,
    ) -> io::Result<Self> {
        // Offsets in a mapping of a few pages.
        let place = |offset| usize::try_from(offset).map_err(io::Error::other);
        let [producer, consumer, descriptors] =
            [place(offsets.producer)?, place(offsets.consumer)?, place(offsets.desc)?];
        let memory = Region::map(socket, at, descriptors + size as usize * descriptor)?;
        Ok(Self { memory, producer, consumer, descriptors, size, index: 0 })
    }

    /// Where the descriptor of an index is.
    fn place(&self, index: u32, descriptor: usize) -> usize {
        self.descriptors + (index % self.size) as usize * descriptor
    }

    fn load(&self, index: usize) -> u32 {
        // Within the mapping. The acquire goes with the kernel's release after its write of the descriptors.
        self.memory.atomic_u32(index).map_or(self.index, |index| index.load(Ordering::Acquire))
    }

    /// Publishes our index.
    fn publish(&self, index: usize) {
        if let Ok(index) = self.memory.atomic_u32(index) {
            index.store(self.index, Ordering::Release);
        }
    }
}

/// The ring by which the kernel gets buffers: their addresses in the socket's memory.
#[derive(Debug)]
pub(super) struct FillRing(Ring);

impl FillRing {
    pub(super) fn map(
        socket: impl AsFd,
        at: u64,
        offsets: XdpRingOffset,
        size: u32,
    ) -> io::Result<Self> {
        Ring::map(socket, at, offsets, size, size_of::<u64>()).map(Self)
    }

    /// Adds a buffer. The caller never adds more than there is room for: those that the kernel has are at most the ring's size.
    pub(super) fn push(&mut self, address: u64) {
        let at = self.0.place(self.0.index, size_of::<u64>());
        if self.0.memory.write(at, address).is_ok() {
            self.0.index = self.0.index.wrapping_add(1);
        }
    }

    /// The kernel sees what was added.
    pub(super) fn publish(&self) {
        self.0.publish(self.0.producer);
    }
}

/// A frame that the kernel has put into a buffer (`struct xdp_desc`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Descriptor {
    /// The frame's first byte in the socket's memory.
    pub(super) address: u64,
    pub(super) len: u32,
}

/// The ring by which the kernel gives buffers back, with frames.
#[derive(Debug)]
pub(super) struct RxRing(Ring);

impl RxRing {
    const DESCRIPTOR: usize = 16;

    pub(super) fn map(
        socket: impl AsFd,
        at: u64,
        offsets: XdpRingOffset,
        size: u32,
    ) -> io::Result<Self> {
        Ring::map(socket, at, offsets, size, Self::DESCRIPTOR).map(Self)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.load(self.0.producer) == self.0.index
    }

    /// Takes the next frame.
    pub(super) fn take(&mut self) -> Option<Descriptor> {
        if self.is_empty() {
            return None;
        }
        let at = self.0.place(self.0.index, Self::DESCRIPTOR);
        let address = self.0.memory.read(at).ok()?;
        let len = self.0.memory.read(at + 8).ok()?;
        self.0.index = self.0.index.wrapping_add(1);
        self.0.publish(self.0.consumer);
        Some(Descriptor { address, len })
    }
}
