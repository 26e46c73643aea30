//! Machines without a machine, whose front-end keeps the log of inflight descriptors: it connects again after the daemon was killed, and
//! tells the next one where the rings began, and not where they are.

use std::collections::VecDeque;
use std::fs::File;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use shm::{PageSize, Region};
use vhost::vhost_user::message::VhostUserInflight;
use vhost::vhost_user::{Frontend, VhostUserFrontend as _, VhostUserProtocolFeatures};
use vhost::{VhostBackend as _, VhostUserMemoryRegionInfo, VringConfigData};
use virtqueue::driver::{Driver, Offered};
use virtqueue::{Layout, Options, RingAddresses};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

use super::testbed::LIMIT;

/// Entries of a ring.
const SIZE: u16 = 256;
/// Bytes of the memory, which is one region: rings, and the buffers of both, each in a place of its own.
const LEN: usize = 2 << 20;
const RING_LEN: usize = 0x1_0000;
const BUFFERS: [usize; 2] = [0x4_0000, 0x10_0000];
const PLACE: usize = 2048;
const GUEST: u64 = 1 << 32;
const USER: u64 = 0x7f00_0000_0000;
/// Metadata before each frame, bytes of a frame, and where it has its number.
const METADATA: usize = 12;
const FRAME: usize = 64;
const NUMBER: usize = METADATA + 16;
/// `VIRTIO_NET_F_MRG_RXBUF`, `VHOST_USER_F_PROTOCOL_FEATURES`, `VIRTIO_F_VERSION_1` and `VIRTIO_F_RING_PACKED`.
const FEATURES: u64 = 1 << 15 | 1 << 30 | 1 << 32;
const RING_PACKED: u64 = 1 << 34;

/// A ring, and what was offered there and has not come back: ids, and the places of the buffers.
struct Ring {
    driver: Driver,
    offered: VecDeque<(u16, usize)>,
    count: usize,
    kick: EventFd,
    call: EventFd,
}

impl Ring {
    /// The place of the next buffer. None while the ring is full.
    fn next_place(&self, index: usize) -> Option<usize> {
        let is_free = self.offered.len() < usize::from(SIZE) / 2;
        is_free.then(|| BUFFERS[index] + self.count % usize::from(SIZE) * PLACE)
    }

    /// Offers the buffer at a place, in parts of these lengths.
    fn offer(&mut self, place: usize, lens: &[usize], writable: bool) {
        let mut address = GUEST + place as u64;
        let part = |len: &usize| {
            let len = u32::try_from(*len).unwrap();
            address += u64::from(len);
            Offered { address: address - u64::from(len), len, writable }
        };
        let parts: Vec<_> = lens.iter().map(part).collect();
        let id = self.driver.offer(&parts, None).expect("half of the ring is free");
        self.offered.push_back((id, place));
        self.count += 1;
    }

    fn publish(&mut self) {
        self.driver.publish();
        // The daemon may sleep, or be away.
        self.kick.write(1).unwrap();
    }

    /// What came back: its place. Each chain comes back once, and in order.
    fn take(&mut self) -> Option<usize> {
        let used = self.driver.take()?;
        let (id, place) = self.offered.pop_front().expect("a chain that was not offered");
        assert_eq!(used.id, id, "out of order, or twice");
        Some(place)
    }
}

/// A machine with one pair of rings.
pub struct Machine {
    socket: PathBuf,
    mac: [u8; 6],
    layout: Layout,
    file: OwnedFd,
    memory: Region,
    rings: [Ring; 2],
    front_end: Option<Frontend>,
    log: Option<(VhostUserInflight, File)>,
}

/// Offsets of a ring's parts.
fn at(index: usize) -> RingAddresses {
    let descriptors = (index * RING_LEN) as u64;
    RingAddresses { descriptors, driver: descriptors + 0x4000, device: descriptors + 0x6000 }
}

impl Machine {
    pub fn boot(socket: &Path, mac: [u8; 6], layout: Layout) -> Self {
        let file = shm::create_memfd("machine", LEN / 4096, PageSize::Small).unwrap();
        let whole = Arc::new(Region::map(&file, 0, LEN).unwrap());
        let memory = whole.slice(0..LEN).unwrap();
        let options = Options { layout, event_idx: false, indirect: false };
        let rings = [0, 1].map(|index| Ring {
            driver: Driver::new(&memory, at(index), SIZE, options),
            offered: VecDeque::new(),
            count: 0,
            kick: EventFd::new(EFD_NONBLOCK).unwrap(),
            call: EventFd::new(EFD_NONBLOCK).unwrap(),
        });
        let socket = socket.to_owned();
        Self { socket, mac, layout, file, memory, rings, front_end: None, log: None }
    }

    /// Connects, as at the first time: only the log knows more.
    pub fn connect(&mut self) {
        self.front_end = None;
        let mut front_end = Frontend::connect(&self.socket, 2).unwrap();
        let packed = if self.layout == Layout::Packed { RING_PACKED } else { 0 };
        let wanted = FEATURES | packed;
        front_end.set_owner().unwrap();
        assert_eq!(wanted & !front_end.get_features().unwrap(), 0, "it is not offered");
        let protocol = VhostUserProtocolFeatures::MQ | VhostUserProtocolFeatures::INFLIGHT_SHMFD;
        assert!(front_end.get_protocol_features().unwrap().contains(protocol));
        front_end.set_protocol_features(protocol).unwrap();
        front_end.set_features(wanted).unwrap();
        let (log, file) = self.log.get_or_insert_with(|| {
            front_end.get_inflight_fd(&VhostUserInflight::new(0, 0, 2, SIZE)).unwrap()
        });
        front_end.set_inflight_fd(log, file.as_raw_fd()).unwrap();
        let region = VhostUserMemoryRegionInfo {
            guest_phys_addr: GUEST,
            memory_size: LEN as u64,
            userspace_addr: USER,
            mmap_offset: 0,
            mmap_handle: self.file.as_raw_fd(),
        };
        front_end.set_mem_table(&[region]).unwrap();
        for index in 0..2 {
            self.describe(&front_end, index);
            front_end.set_vring_enable(index, true).unwrap();
        }
        self.front_end = Some(front_end);
    }

    fn describe(&self, front_end: &Frontend, index: usize) {
        let RingAddresses { descriptors, driver, device } = at(index);
        let config = VringConfigData {
            queue_max_size: SIZE,
            queue_size: SIZE,
            flags: 0,
            desc_table_addr: USER + descriptors,
            used_ring_addr: USER + device,
            avail_ring_addr: USER + driver,
            log_addr: None,
        };
        let base = if self.layout == Layout::Packed { 0x8000 } else { 0 };
        front_end.set_vring_num(index, SIZE).unwrap();
        front_end.set_vring_base(index, base).unwrap();
        front_end.set_vring_addr(index, &config).unwrap();
        front_end.set_vring_call(index, &self.rings[index].call).unwrap();
        front_end.set_vring_kick(index, &self.rings[index].kick).unwrap();
    }

    /// Posts buffers, and sends frames with the numbers from `next` on, as many as there is room for. Every other one is two
    /// descriptors.
    fn offer(&mut self, to: Option<([u8; 6], &mut u64)>) {
        let [rx, tx] = &mut self.rings;
        while let Some(place) = rx.next_place(0) {
            rx.offer(place, &[PLACE], true);
        }
        rx.publish();
        let Some((to, next)) = to else { return };
        while let Some(place) = tx.next_place(1) {
            let mut bytes = [0; METADATA + FRAME];
            let frame = &mut bytes[METADATA..];
            frame[..6].copy_from_slice(&to);
            frame[6..12].copy_from_slice(&self.mac);
            frame[12..14].copy_from_slice(&[0x88, 0xb5]);
            bytes[NUMBER..NUMBER + 8].copy_from_slice(&next.to_le_bytes());
            self.memory.copy_in(place, &bytes).unwrap();
            match *next % 2 {
                0 => tx.offer(place, &[METADATA + FRAME], false),
                _ => tx.offer(place, &[METADATA, FRAME], false),
            }
            *next += 1;
        }
        tx.publish();
    }

    /// The number of the next frame that came.
    fn receive(&mut self) -> Option<u64> {
        let place = self.rings[0].take()?;
        Some(u64::from_le(self.memory.read(place + NUMBER).unwrap()))
    }
}

/// Frames from one machine to another.
pub struct Stream {
    pub from: Machine,
    pub to: Machine,
    next: u64,
    /// The number of the first frame that has not come.
    expected: u64,
    /// How many came again. They were delivered, but not answered, when the daemon was killed.
    pub repeated: u64,
}

impl Stream {
    pub fn new(from: Machine, to: Machine) -> Self {
        Self { from, to, next: 0, expected: 0, repeated: 0 }
    }

    /// Carries this many more frames. None is missing.
    pub fn carry(&mut self, frames: u64) {
        let (end, began) = (self.expected + frames, Instant::now());
        while self.expected < end {
            self.to.offer(None);
            self.from.offer(Some((self.to.mac, &mut self.next)));
            self.take();
            assert!(began.elapsed() < LIMIT, "frame {} does not come", self.expected);
        }
    }

    fn take(&mut self) {
        while self.from.rings[1].take().is_some() {}
        while let Some(number) = self.to.receive() {
            assert!(number <= self.expected, "frame {number} in place of {}", self.expected);
            self.repeated += u64::from(number < self.expected);
            self.expected = self.expected.max(number + 1);
        }
    }

    /// Takes all that is on its way: every chain comes back that was sent.
    pub fn finish(&mut self) {
        let began = Instant::now();
        while self.expected < self.next || !self.from.rings[1].offered.is_empty() {
            self.to.offer(None);
            self.take();
            assert!(began.elapsed() < LIMIT, "{} of {} came", self.expected, self.next);
        }
    }
}
