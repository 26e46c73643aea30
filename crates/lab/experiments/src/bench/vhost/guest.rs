//! A virtual machine without a machine: memory, rings, and the vhost-user front-end that describes them.

use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use shm::{PageSize, Region};
use vhost::vhost_user::{Frontend, VhostUserFrontend as _, VhostUserProtocolFeatures};
use vhost::{VhostBackend as _, VhostUserMemoryRegionInfo, VringConfigData};
use virtqueue::burst::{Buffers, BurstDriver};
use virtqueue::{Layout, RingAddresses};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

use crate::bench::guest::text;

/// Entries of a ring: what QEMU and DPDK have by default.
const RING: u16 = 256;
/// The offset of a frame's number: behind the Ethernet header, at a multiple of 8.
const NUMBER: usize = 16;
/// Bytes of the header before each frame.
const HEADER: usize = HEADER_LEN as usize;
const HEADER_LEN: u32 = 12;
/// A frame begins at a cache line and its header ends there, as in DPDK's buffers.
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
/// The guest's addresses do not begin at zero, and differ from those of the front-end.
const GUEST: u64 = 1 << 32;
const USER: u64 = 0x7f00_0000_0000;

/// Features: `VIRTIO_F_VERSION_1`, `VHOST_USER_F_PROTOCOL_FEATURES`, `VIRTIO_NET_F_MRG_RXBUF`, `VIRTIO_F_RING_PACKED`,
/// `VIRTIO_F_IN_ORDER`.
const VERSION_1: u64 = 1 << 32;
const PROTOCOL_FEATURES: u64 = 1 << 30;
const MRG_RXBUF: u64 = 1 << 15;
const RING_PACKED: u64 = 1 << 34;
const IN_ORDER: u64 = 1 << 35;

/// What the front-end accepts with this layout: of a split ring what Linux accepts, of a packed ring what DPDK's
/// vectorised driver needs.
fn features(layout: Layout) -> u64 {
    let layout = match layout {
        Layout::Split => MRG_RXBUF,
        Layout::Packed => RING_PACKED | IN_ORDER,
    };
    VERSION_1 | PROTOCOL_FEATURES | layout
}

/// A guest with one queue.
pub struct Guest {
    pub rx: BurstDriver,
    pub tx: BurstDriver,
    pub memory: Region,
    kicks: [EventFd; 2],
    // The session and what it refers to.
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

fn addresses(base: u64, index: usize) -> RingAddresses {
    let at = base + ring(index) as u64;
    RingAddresses { descriptors: at, driver: at + DRIVER_AT, device: at + DEVICE_AT }
}

impl Guest {
    /// Connects to the back-end at `socket`, within `limit`.
    pub fn connect(socket: &Path, layout: Layout, limit: Duration) -> Result<Self, String> {
        let len = (buffers(2) + STRIDE).next_multiple_of(PageSize::Huge.bytes());
        let file = shm::create_memfd("vhost-guest", len / PageSize::Small.bytes(), PageSize::Huge);
        let file = file.map_err(text)?;
        let whole = Arc::new(Region::map_aligned(&file, 0, len).map_err(text)?);
        // Without large pages it takes small ones.
        let _ = whole.populate_huge(0..len);
        let memory = whole.slice(0..len).map_err(text)?;
        let driver = |index: usize| {
            let offset = buffers(index);
            let (address, stride) = (GUEST + offset as u64, u32::try_from(STRIDE).unwrap_or(0));
            let buffers = Buffers { offset, address, stride, are_writable: index == 0 };
            BurstDriver::new(&memory, addresses(0, index), RING, layout, buffers)
        };
        let (mut rx, tx) = (driver(0), driver(1));
        rx.offer(RING, BUFFER);
        let eventfd = || EventFd::new(EFD_NONBLOCK).map_err(text);
        let (kicks, calls) = ([eventfd()?, eventfd()?], [eventfd()?, eventfd()?]);
        let mut front_end = connect(socket, limit)?;
        let wanted = features(layout);
        front_end.set_owner().map_err(text)?;
        let missing = wanted & !front_end.get_features().map_err(text)?;
        if missing != 0 {
            return Err(format!("the back-end lacks the features {missing:#x}"));
        }
        let protocol = front_end.get_protocol_features().map_err(text)?;
        let protocol = protocol & VhostUserProtocolFeatures::MQ;
        front_end.set_protocol_features(protocol).map_err(text)?;
        front_end.set_features(wanted).map_err(text)?;
        let region = VhostUserMemoryRegionInfo {
            guest_phys_addr: GUEST,
            memory_size: len as u64,
            userspace_addr: USER,
            mmap_offset: 0,
            mmap_handle: file.as_raw_fd(),
        };
        front_end.set_mem_table(&[region]).map_err(text)?;
        for (index, (kick, call)) in kicks.iter().zip(&calls).enumerate() {
            let at = addresses(USER, index);
            let config = VringConfigData {
                queue_max_size: RING,
                queue_size: RING,
                flags: 0,
                desc_table_addr: at.descriptors,
                used_ring_addr: at.device,
                avail_ring_addr: at.driver,
                log_addr: None,
            };
            // The position of a packed ring has the lap's wrap counter in its highest bit.
            let base = if layout == Layout::Packed { 0x8000 } else { 0 };
            front_end.set_vring_num(index, RING).map_err(text)?;
            front_end.set_vring_base(index, base).map_err(text)?;
            front_end.set_vring_addr(index, &config).map_err(text)?;
            front_end.set_vring_call(index, call).map_err(text)?;
            front_end.set_vring_kick(index, kick).map_err(text)?;
        }
        for index in 0..2 {
            front_end.set_vring_enable(index, true).map_err(text)?;
        }
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
            self.memory.write(at, first + u64::from(n)).map_err(text)?;
        }
        if self.tx.offer(count, u32::from(len) + HEADER_LEN) {
            self.kick(1)?;
        }
        Ok(())
    }

    /// Takes back the buffers of frames that were sent.
    #[inline]
    pub fn reclaim(&mut self) -> Result<(), String> {
        while self.tx.take().map_err(text)?.is_some() {}
        Ok(())
    }

    /// Takes a frame's number and its length. Its buffer is posted again by [`post`](Self::post).
    #[inline]
    pub fn receive(&mut self) -> Result<Option<(u64, u32)>, String> {
        let Some(returned) = self.rx.take().map_err(text)? else { return Ok(None) };
        let number = self.memory.read(returned.offset + HEADER + NUMBER).map_err(text)?;
        Ok(Some((number, returned.written.saturating_sub(HEADER_LEN))))
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

/// Connects to a socket whose back-end may still start.
fn connect(socket: &Path, limit: Duration) -> Result<Frontend, String> {
    let end = Instant::now() + limit;
    loop {
        match Frontend::connect(socket, 2) {
            Ok(front_end) => return Ok(front_end),
            Err(error) if Instant::now() > end => {
                return Err(format!("{}: {error}", socket.display()));
            }
            Err(_) => std::thread::sleep(Duration::from_millis(20)),
        }
    }
}
