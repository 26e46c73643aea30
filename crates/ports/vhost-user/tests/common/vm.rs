//! A virtual machine with one pair of rings, a driver in its memory, and the metadata of its frames.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use port::Queue;
use rustix::event::{EventfdFlags, eventfd};
use shm::{PageSize, Region};
use virtqueue::driver::{Driver, Offered, Table};
use virtqueue::{Layout, Options, RingAddresses};

use super::front_end::FrontEnd;
use super::protocol::{EVENT_IDX, MRG_RXBUF, RING_PACKED, VERSION_1, message};

/// Bytes of the guest's memory, which is one region.
pub const LEN: usize = 8 << 20;
/// Where the front-end has it.
pub const USER: u64 = 0x7f12_0000_0000;
/// Where the guest has it.
pub const GUEST: u64 = 1 << 32;
/// Entries of a ring.
pub const SIZE: u16 = 256;
/// Offsets in the memory: the rings, buffers to receive into, buffers to send from, indirect tables.
pub const RINGS: [usize; 2] = [0, 0x10_000];
pub const RX_DATA: usize = 1 << 20;
pub const TX_DATA: usize = 4 << 20;
pub const TABLES: usize = 7 << 20;

/// A virtual machine with one pair of rings.
pub struct Vm {
    pub front: FrontEnd,
    pub file: File,
    pub memory: Region,
    pub rx: Driver,
    pub tx: Driver,
    pub features: u64,
    size: u16,
    pub calls: [OwnedFd; 2],
    pub kicks: [OwnedFd; 2],
    rx_buffers: Vec<(u16, u64, u32)>,
    sent: u64,
}

pub fn ring_at(base: u64, ring: usize) -> RingAddresses {
    let start = base + RINGS[ring] as u64;
    RingAddresses { descriptors: start, driver: start + 0x4000, device: start + 0x6000 }
}

pub fn options(features: u64) -> Options {
    Options {
        layout: if features & RING_PACKED != 0 { Layout::Packed } else { Layout::Split },
        event_idx: features & EVENT_IDX != 0,
        indirect: true,
    }
}

/// An indirect table at this offset of the memory.
pub fn table_at(offset: u64) -> Table {
    Table { offset, address: GUEST + offset }
}

pub fn new_eventfd() -> OwnedFd {
    eventfd(0, EventfdFlags::NONBLOCK).unwrap()
}

impl Vm {
    /// Boots: negotiates features and describes its rings. They are started at some moment after this.
    pub fn boot(features: u64) -> Self {
        Self::boot_in(features, shm::create_memfd("vm", LEN / 4096, PageSize::Small).unwrap())
    }

    /// The same with rings of this size.
    pub fn boot_small(features: u64, size: u16) -> Self {
        let memory = shm::create_memfd("vm", LEN / 4096, PageSize::Small).unwrap();
        Self::boot_sized(features, size, memory, FrontEnd::new(1))
    }

    /// The same in this memory.
    pub fn boot_in(features: u64, file: OwnedFd) -> Self {
        Self::boot_with(features, file, FrontEnd::new(1))
    }

    /// The same with this front-end.
    pub fn boot_with(features: u64, file: OwnedFd, front: FrontEnd) -> Self {
        Self::boot_sized(features, SIZE, file, front)
    }

    /// The same with rings of this size.
    pub fn boot_sized(features: u64, size: u16, file: OwnedFd, front: FrontEnd) -> Self {
        let own = file.try_clone().unwrap();
        Self::boot_of(features, size, &own, file, front)
    }

    /// The same, whose guest has memory of its `own`, and shares `file`.
    pub fn boot_apart(features: u64, own: &OwnedFd, file: OwnedFd, front: FrontEnd) -> Self {
        Self::boot_of(features, SIZE, own, file, front)
    }

    fn boot_of(features: u64, size: u16, own: &OwnedFd, file: OwnedFd, front: FrontEnd) -> Self {
        let whole = Arc::new(Region::map(own, 0, LEN).unwrap());
        let memory = whole.slice(0..LEN).unwrap();
        let drivers =
            [0, 1].map(|ring| Driver::new(&memory, ring_at(0, ring), size, options(features)));
        let [rx, tx] = drivers;
        let events = || [new_eventfd(), new_eventfd()];
        let vm = Self {
            front,
            file: file.into(),
            memory,
            rx,
            tx,
            features,
            size,
            calls: events(),
            kicks: events(),
            rx_buffers: Vec::new(),
            sent: 0,
        };
        vm.front.send(message::SET_OWNER, &[], &[]);
        vm.front.send_u64(message::SET_FEATURES, features);
        vm.send_memory();
        vm.start([0; 2].map(|_| if features & RING_PACKED != 0 { 0x8000 } else { 0 }));
        vm
    }

    pub fn send_memory(&self) {
        self.front.memory(&[[GUEST, LEN as u64, USER, 0]], &[self.file.as_fd()]);
    }

    /// Starts the rings at these positions.
    pub fn start(&self, positions: [u32; 2]) {
        for (index, base) in [0u32, 1].into_iter().zip(positions) {
            let ring = index as usize;
            self.front.ring(index, self.size.into(), ring_at(USER, ring), base);
            self.front.doorbell(message::SET_VRING_CALL, index.into(), &self.calls[ring]);
            self.front.doorbell(message::SET_VRING_KICK, index.into(), &self.kicks[ring]);
            self.front.send_state(message::SET_VRING_ENABLE, index, 1);
        }
    }

    /// Announces chains in both rings.
    pub fn kick(&self) {
        for kick in &self.kicks {
            rustix::io::write(kick, &1u64.to_ne_bytes()).unwrap();
        }
    }

    pub fn header_len(&self) -> usize {
        if self.features & (VERSION_1 | MRG_RXBUF) != 0 { 12 } else { 10 }
    }

    /// Posts `count` buffers of `len` bytes. Returns whether the device must be notified.
    pub fn post(&mut self, count: usize, len: u32) -> bool {
        for _ in 0..count {
            let at = RX_DATA as u64 + self.rx_buffers.len() as u64 % 1024 * 2048;
            if !self.offer(at, len) {
                break;
            }
        }
        self.rx.publish()
    }

    /// Posts buffers at these offsets of the memory, of these lengths.
    pub fn post_at(&mut self, buffers: &[(usize, u32)]) {
        for (at, len) in buffers {
            assert!(self.offer(*at as u64, *len), "no free descriptors");
        }
        self.rx.publish();
    }

    /// Offers a buffer. Returns whether there was a descriptor for it.
    fn offer(&mut self, at: u64, len: u32) -> bool {
        let buffer = Offered { address: GUEST + at, len, writable: true };
        let id = self.rx.offer(&[buffer], None);
        self.rx_buffers.extend(id.map(|id| (id, at, len)));
        id.is_some()
    }

    /// Posts one buffer of 64 KiB and a bit, in pages.
    pub fn post_large(&mut self) {
        let at = RX_DATA as u64;
        let pages: Vec<_> = (0..17)
            .map(|n| Offered { address: GUEST + at + n * 4096, len: 4096, writable: true })
            .collect();
        let id = self.rx.offer(&pages, Some(table_at(TABLES as u64 + 0x8000)));
        self.rx_buffers.push((id.unwrap(), at, 17 * 4096));
        self.rx.publish();
    }

    /// Sends a frame: metadata and frame in buffers of these lengths, the rest in the last one.
    pub fn send(&mut self, metadata: &[u8], frame: &[u8], cuts: &[usize], indirect: bool) {
        let bytes = [metadata, frame].concat();
        let at = TX_DATA + usize::try_from(self.sent % 16).unwrap() * (128 << 10);
        self.memory.copy_in(at, &bytes).unwrap();
        let mut buffers = Vec::new();
        let mut start = 0;
        for end in cuts.iter().copied().chain([bytes.len()]) {
            let end = end.min(bytes.len());
            if end > start {
                buffers.push(Offered {
                    address: GUEST + (at + start) as u64,
                    len: u32::try_from(end - start).unwrap(),
                    writable: false,
                });
            }
            start = end.max(start);
        }
        let table = indirect.then_some(TABLES as u64 + self.sent % 16 * 1024);
        let id = self.tx.offer(&buffers, table.map(table_at));
        assert!(id.is_some(), "no free descriptors");
        self.sent += 1;
        self.tx.publish();
    }

    /// The next frame that came: its metadata and its bytes.
    pub fn receive(&mut self) -> Option<(Vec<u8>, Vec<u8>)> {
        let (mut bytes, mut chains) = (Vec::new(), 1);
        let mut taken = 0;
        while taken < chains {
            let used = self.rx.take()?;
            let place = self.rx_buffers.iter().rposition(|(id, _, _)| *id == used.id).unwrap();
            let (_, at, len) = self.rx_buffers[place];
            assert!(used.written <= len, "more than the buffer holds");
            let mut part = vec![0; used.written as usize];
            self.memory.copy_out(usize::try_from(at).unwrap(), &mut part).unwrap();
            if taken == 0 && self.features & MRG_RXBUF != 0 {
                chains = usize::from(u16::from_le_bytes([part[10], part[11]]));
            }
            bytes.extend(part);
            taken += 1;
        }
        let frame = bytes.split_off(self.header_len());
        Some((bytes, frame))
    }

    pub fn served(&self, times: usize) -> Queue {
        self.front.served.started(times).remove(0)
    }
}

/// Whether the guest was notified since the last time.
pub fn was_notified(fd: &OwnedFd) -> bool {
    rustix::io::read(fd, &mut [0; 8]).is_ok()
}

/// Metadata that says nothing.
pub fn plain(vm: &Vm) -> Vec<u8> {
    vec![0; vm.header_len()]
}

/// The metadata of a TCP segment over IPv4 that is to be segmented.
pub fn tso(vm: &Vm, size: u16) -> Vec<u8> {
    let mut bytes = plain(vm);
    (bytes[0], bytes[1]) = (1, 1);
    for (at, value) in [(2, 54u16), (4, size), (6, 34), (8, 16)] {
        bytes[at..at + 2].copy_from_slice(&value.to_le_bytes());
    }
    bytes
}

/// The same over IPv6.
pub fn tso_v6(vm: &Vm, size: u16) -> Vec<u8> {
    let mut bytes = tso(vm, size);
    bytes[1] = 4;
    for (at, value) in [(2, 74u16), (6, 54)] {
        bytes[at..at + 2].copy_from_slice(&value.to_le_bytes());
    }
    bytes
}

/// The metadata of a datagram that is to be segmented, whose UDP header begins at `start`.
pub fn uso(vm: &Vm, start: u16, size: u16) -> Vec<u8> {
    let mut bytes = plain(vm);
    (bytes[0], bytes[1]) = (1, 5);
    for (at, value) in [(2, start + 8), (4, size), (6, start), (8, 6)] {
        bytes[at..at + 2].copy_from_slice(&value.to_le_bytes());
    }
    bytes
}
