//! A guest without a virtual machine: memory, rings, and the vhost-user front-end that describes them.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use shm::{PageSize, Region};
use vhost::vhost_user::Frontend;
use virtqueue::burst::{Buffers, BurstDriver};
use virtqueue::{Layout, RingAddresses};
use vmm_sys_util::eventfd::EventFd;

use crate::bench::guest::text;
use crate::bench::virtio::{Description, GUEST, connect, eventfds};

/// Entries of a ring: the default of QEMU and DPDK.
const RING: u16 = 256;
/// The offset of a frame's number: behind the Ethernet header, at a multiple of 8.
const NUMBER: usize = 16;
/// Bytes of the header before each frame.
const HEADER: usize = HEADER_LEN as usize;
const HEADER_LEN: u32 = 12;
/// A frame begins at a cache line, where its header ends, as in DPDK's buffers.
const FRAME: usize = 128;
/// Bytes from one buffer to the next: an odd number of cache lines, so that the first lines of all buffers do not fall
/// into the same few sets of a cache.
const STRIDE: usize = 37 * 64;
/// Bytes of a buffer for a received frame, with its header.
const BUFFER: u32 = 2048;
/// Bytes for a ring's parts, which begin at these offsets.
const RING_LEN: usize = 0x4000;
const DRIVER_AT: u64 = 0x2000;
const DEVICE_AT: u64 = 0x3000;

/// Features: `VIRTIO_NET_F_MRG_RXBUF`, `VIRTIO_F_RING_PACKED`, `VIRTIO_F_IN_ORDER`.
const MRG_RXBUF: u64 = 1 << 15;
const RING_PACKED: u64 = 1 << 34;
const IN_ORDER: u64 = 1 << 35;

/// The features that the front-end accepts: with split rings those of Linux, with packed rings those that DPDK's
/// vectorised driver needs.
fn features(layout: Layout) -> u64 {
    match layout {
        Layout::Split => MRG_RXBUF,
        Layout::Packed => RING_PACKED | IN_ORDER,
    }
}

/// A guest with one queue.
pub struct Guest {
    pub rx: BurstDriver,
    pub tx: BurstDriver,
    pub memory: Region,
    kicks: [EventFd; 2],
    // These keep the session.
    _front_end: Frontend,
    _calls: [EventFd; 2],
    _file: OwnedFd,
}

/// A ring's first byte in the memory.
fn ring(index: usize) -> usize {
    index * RING_LEN
}

/// The first byte, in the memory, of a ring's first buffer.
fn buffers(index: usize) -> usize {
    2 * RING_LEN + index * usize::from(RING) * STRIDE + FRAME - HEADER
}

/// The offsets of a ring's parts.
fn addresses(index: usize) -> RingAddresses {
    let at = ring(index) as u64;
    RingAddresses { descriptors: at, driver: at + DRIVER_AT, device: at + DEVICE_AT }
}

impl Guest {
    /// Connects to the back-end at `socket`, within `limit`.
    pub fn connect(socket: &Path, layout: Layout, limit: Duration) -> Result<Self, String> {
        let len = (buffers(2) + STRIDE).next_multiple_of(PageSize::Huge.bytes());
        let file = shm::create_memfd("vhost-guest", len / PageSize::Small.bytes(), PageSize::Huge);
        let file = file.map_err(text)?;
        let whole = Arc::new(Region::map_aligned(&file, 0, len).map_err(text)?);
        // If there are no large pages, small ones do.
        let _ = whole.populate_huge(0..len);
        let memory = whole.slice(0..len).map_err(text)?;
        let driver = |index: usize| {
            let offset = buffers(index);
            let (address, stride) = (GUEST + offset as u64, u32::try_from(STRIDE).unwrap_or(0));
            let buffers = Buffers { offset, address, stride, are_writable: index == 0 };
            let driver = BurstDriver::new(&memory, addresses(index), RING, layout, buffers);
            driver.in_order(features(layout) & IN_ORDER != 0)
        };
        let (mut rx, tx) = (driver(0), driver(1));
        // There is no back-end to be notified yet.
        let _ = rx.offer(RING, BUFFER);
        let (kicks, calls) = (eventfds()?, eventfds()?);
        let mut front_end = Frontend::from_stream(connect(socket, limit)?, 2);
        let description = Description {
            features: features(layout),
            memory: &file,
            memory_len: len,
            size: RING,
            layout,
            rings: [addresses(0), addresses(1)],
            kicks: &kicks,
            calls: &calls,
        };
        description.send(&mut front_end)?;
        let (_front_end, _calls, _file) = (front_end, calls, file);
        Ok(Self { rx, tx, memory, kicks, _front_end, _calls, _file })
    }

    /// Writes a frame into every buffer to be sent: its addresses and an EtherType for experiments.
    pub fn fill(&self, to: [u8; 6], from: [u8; 6]) -> Result<(), String> {
        let mut frame = [0; HEADER + 14];
        frame[HEADER..HEADER + 6].copy_from_slice(&to);
        frame[HEADER + 6..HEADER + 12].copy_from_slice(&from);
        frame[HEADER + 12..].copy_from_slice(&[0x88, 0xb5]);
        (0..usize::from(RING))
            .try_for_each(|n| self.memory.copy_in(buffers(1) + n * STRIDE, &frame).map_err(text))
    }

    /// Sends `count` frames of `len` bytes with the numbers from `first` on. The ring must have room for them.
    #[inline]
    pub fn send(&mut self, first: u64, count: u16, len: u16) -> Result<(), String> {
        for n in 0..count {
            let at = self.tx.buffer(n) + HEADER + NUMBER;
            self.memory.write_words::<_, 8>(at, first + u64::from(n)).map_err(text)?;
        }
        if self.tx.offer(count, u32::from(len) + HEADER_LEN) {
            self.kick(1)?;
        }
        Ok(())
    }

    /// Takes back the buffers of frames that were sent.
    #[inline]
    pub fn reclaim(&mut self) -> Result<(), String> {
        self.tx.recycle(RING, |_| ()).map(drop).map_err(text)
    }

    /// Takes up to `most` frames, and shows the number and the length of each to `each`. Returns how many there were.
    /// [`post`](Self::post) posts their buffers again.
    #[inline]
    pub fn receive(&mut self, most: u16, mut each: impl FnMut(u64, u32)) -> Result<u16, String> {
        let Self { rx, memory, .. } = self;
        let taken = rx.recycle(most, |returned| {
            let number = memory.read_words::<_, 8>(returned.offset + HEADER + NUMBER);
            // All buffers lie in the memory.
            each(number.unwrap_or(u64::MAX), returned.written.saturating_sub(HEADER_LEN));
        });
        taken.map_err(text)
    }

    /// Posts the buffers of all frames that were taken.
    #[inline]
    pub fn post(&mut self) -> Result<(), String> {
        let count = self.rx.free();
        if count > 0 && self.rx.offer(count, BUFFER) {
            self.kick(0)?;
        }
        Ok(())
    }

    fn kick(&self, ring: usize) -> Result<(), String> {
        self.kicks[ring].write(1).map_err(text)
    }
}
