//! Rings of an AF_XDP socket, which the kernel shares (`linux/if_xdp.h`).

use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{Ordering, fence};

use rustix::net::xdp::XdpRingOffset;
use shm::Region;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// `XDP_RING_NEED_WAKEUP`: the kernel does not look at the ring until it is notified.
const NEED_WAKEUP: u32 = 1;

/// Where a ring is, and how long it is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    /// What to map of the socket: `XDP_PGOFF_*`, `XDP_UMEM_PGOFF_*`.
    pub(super) at: u64,
    /// Where the parts of the ring are in that.
    pub(super) offsets: XdpRingOffset,
    /// Descriptors; a power of two.
    pub(super) size: u32,
}

/// One ring, of which we are one side.
#[derive(Debug)]
struct Ring {
    memory: Region,
    producer: usize,
    consumer: usize,
    flags: Option<usize>,
    descriptors: usize,
    size: u32,
    /// Our side's index.
    index: u32,
}

impl Ring {
    fn map<T>(socket: impl AsFd, place: Place) -> io::Result<Self> {
        let Place { at, offsets, size } = place;
        // Offsets in a mapping of a few pages.
        let offset = |offset| usize::try_from(offset).map_err(io::Error::other);
        let [producer, consumer, descriptors] =
            [offset(offsets.producer)?, offset(offsets.consumer)?, offset(offsets.desc)?];
        let flags = offsets.flags.map(offset).transpose()?;
        let memory = Region::map(socket, at, descriptors + size as usize * size_of::<T>())?;
        Ok(Self { memory, producer, consumer, flags, descriptors, size, index: 0 })
    }

    /// Where the descriptor of our index is.
    fn next<T>(&self) -> usize {
        self.descriptors + (self.index % self.size) as usize * size_of::<T>()
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

    /// Publishes our index of a ring whose other side may want to be [notified](Self::needs_wakeup).
    fn announce(&self, index: usize) {
        self.publish(index);
        // The kernel sets its flag and then reads our index. If we read the flag before the index can be seen, both could
        // miss the other's, and nobody would check again.
        fence(Ordering::SeqCst);
    }

    /// Whether the kernel wants a notification of what is in the ring.
    fn needs_wakeup(&self) -> bool {
        self.flags.is_some_and(|flags| self.load(flags) & NEED_WAKEUP != 0)
    }
}

/// Rings that we fill.
impl Ring {
    /// Adds a descriptor. The caller never adds more than there is room for.
    fn push<T: IntoBytes + Immutable>(&mut self, descriptor: T) {
        if self.memory.write(self.next::<T>(), descriptor).is_ok() {
            self.index = self.index.wrapping_add(1);
        }
    }

    /// Whether the kernel has taken all that was published.
    fn is_consumed(&self) -> bool {
        self.load(self.consumer) == self.index
    }
}

/// Rings that the kernel fills.
impl Ring {
    fn is_empty(&self) -> bool {
        self.load(self.producer) == self.index
    }

    /// Takes the next descriptor. The kernel may use its place again.
    fn take<T: FromBytes>(&mut self) -> Option<T> {
        if self.is_empty() {
            return None;
        }
        let descriptor = self.memory.read(self.next::<T>()).ok()?;
        self.index = self.index.wrapping_add(1);
        self.publish(self.consumer);
        Some(descriptor)
    }
}

/// A frame in the socket's memory (`struct xdp_desc`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub(super) struct Descriptor {
    /// The frame's first byte.
    pub(super) address: u64,
    pub(super) len: u32,
    options: u32,
}

impl Descriptor {
    /// A contiguous frame.
    pub(super) fn new(address: u64, len: u32) -> Self {
        Self { address, len, options: 0 }
    }
}

/// The ring by which the kernel gets buffers: their addresses in the socket's memory.
#[derive(Debug)]
pub(super) struct FillRing(Ring);

impl FillRing {
    pub(super) fn map(socket: impl AsFd, place: Place) -> io::Result<Self> {
        Ring::map::<u64>(socket, place).map(Self)
    }

    /// Adds a buffer. The caller never adds more than there is room for: those that the kernel has are at most the ring's size.
    pub(super) fn push(&mut self, address: u64) {
        self.0.push(address);
    }

    /// The kernel sees what was added.
    pub(super) fn publish(&self) {
        self.0.announce(self.0.producer);
    }

    /// Whether a driver has run out of buffers, and waits for a notification of those in the ring.
    pub(super) fn needs_wakeup(&self) -> bool {
        self.0.needs_wakeup() && !self.0.is_consumed()
    }

    /// How many buffers the kernel has not taken.
    pub(super) fn len(&self) -> u32 {
        self.0.index.wrapping_sub(self.0.load(self.0.consumer))
    }

    /// What a driver that runs out of buffers does, or one that has some again.
    #[cfg(test)]
    pub(super) fn set_needs_wakeup(&self, needs: bool) {
        self.0.memory.write(self.0.flags.unwrap(), u32::from(needs)).unwrap();
    }
}

/// The ring by which the kernel gives buffers back, with frames.
#[derive(Debug)]
pub(super) struct RxRing(Ring);

impl RxRing {
    pub(super) fn map(socket: impl AsFd, place: Place) -> io::Result<Self> {
        Ring::map::<Descriptor>(socket, place).map(Self)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Takes the next frame.
    pub(super) fn take(&mut self) -> Option<Descriptor> {
        self.0.take()
    }
}

/// The ring of frames to send.
#[derive(Debug)]
pub(super) struct TxRing(Ring);

impl TxRing {
    pub(super) fn map(socket: impl AsFd, place: Place) -> io::Result<Self> {
        Ring::map::<Descriptor>(socket, place).map(Self)
    }

    /// Adds a frame. The caller never adds more than there is room for: its buffers are at most the ring's size.
    pub(super) fn push(&mut self, frame: Descriptor) {
        self.0.push(frame);
    }

    /// The kernel sees what was added.
    pub(super) fn publish(&self) {
        self.0.announce(self.0.producer);
    }

    /// Where the kernel is.
    pub(super) fn position(&self) -> u32 {
        self.0.load(self.0.consumer)
    }

    /// Whether frames are in it that the kernel does not look at until it is notified.
    pub(super) fn needs_wakeup(&self) -> bool {
        self.0.needs_wakeup() && !self.0.is_consumed()
    }
}

/// The ring by which the kernel gives back the buffers of frames that were sent.
#[derive(Debug)]
pub(super) struct CompletionRing(Ring);

impl CompletionRing {
    pub(super) fn map(socket: impl AsFd, place: Place) -> io::Result<Self> {
        Ring::map::<u64>(socket, place).map(Self)
    }

    /// Takes the address of the next buffer.
    pub(super) fn take(&mut self) -> Option<u64> {
        self.0.take()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::os::fd::OwnedFd;

    use proptest::prelude::*;
    use shm::PageSize;

    use super::*;

    const SIZE: u32 = 8;
    const PLACE: Place = Place {
        at: 0,
        offsets: XdpRingOffset { producer: 0, consumer: 64, desc: 256, flags: Some(128) },
        size: SIZE,
    };

    /// A ring's memory, and the kernel's view of it.
    fn memory() -> (OwnedFd, Region) {
        let file = shm::create_memfd("ring", 1, PageSize::Small).unwrap();
        let kernel = Region::map(&file, 0, 4096).unwrap();
        (file, kernel)
    }

    /// Has both indices begin anywhere: they wrap.
    fn begin(memory: &Region, index: u32) {
        memory.write(0, index).unwrap();
        memory.write(64, index).unwrap();
    }

    fn word(memory: &Region, at: usize) -> u32 {
        memory.atomic_u32(at).unwrap().load(Ordering::Acquire)
    }

    proptest! {
        /// The kernel gets each frame once and in order, and only what is published.
        #[test]
        fn the_kernel_sees_what_is_published(start: u32, steps in prop::collection::vec(0u8..4, 1..200)) {
            let (file, kernel) = memory();
            let mut ring = TxRing::map(&file, PLACE).unwrap();
            let (mut position, mut number) = (start, 0);
            ring.0.index = start;
            begin(&kernel, start);
            let (mut pending, mut published) = (VecDeque::new(), VecDeque::new());
            for step in steps {
                match step {
                    0 | 1 if pending.len() + published.len() < SIZE as usize => {
                        number += 1;
                        ring.push(Descriptor::new(number * 4096, 60));
                        pending.push_back(number * 4096);
                    }
                    2 => {
                        ring.publish();
                        published.append(&mut pending);
                    }
                    _ if word(&kernel, 0) != position => {
                        let at = 256 + (position % SIZE) as usize * 16;
                        prop_assert_eq!(kernel.read::<u64>(at).ok(), published.pop_front());
                        position = position.wrapping_add(1);
                        kernel.write(64, position).unwrap();
                    }
                    _ => prop_assert!(published.is_empty() || step < 2),
                }
                prop_assert_eq!(ring.position(), position);
                prop_assert!(!ring.needs_wakeup());
                kernel.write(128, 1u32).unwrap();
                prop_assert_eq!(ring.needs_wakeup(), !(pending.is_empty() && published.is_empty()));
                kernel.write(128, 0u32).unwrap();
            }
        }

        /// Each address that the kernel returns is taken once and in order.
        #[test]
        fn what_the_kernel_returns_is_taken_once(start: u32, steps in prop::collection::vec(any::<bool>(), 1..200)) {
            let (file, kernel) = memory();
            let mut ring = CompletionRing::map(&file, PLACE).unwrap();
            ring.0.index = start;
            begin(&kernel, start);
            let (mut position, mut waiting) = (start, VecDeque::new());
            for is_kernels in steps {
                if is_kernels && position.wrapping_sub(word(&kernel, 64)) < SIZE {
                    let address = u64::from(position) << 12;
                    kernel.write(256 + (position % SIZE) as usize * 8, address).unwrap();
                    position = position.wrapping_add(1);
                    kernel.write(0, position).unwrap();
                    waiting.push_back(address);
                } else {
                    prop_assert_eq!(ring.take(), waiting.pop_front());
                }
            }
        }
    }
}
