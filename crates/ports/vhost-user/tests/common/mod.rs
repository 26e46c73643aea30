//! A virtual machine in a test: a front-end that sends messages byte by byte, and a driver in its memory.

#![allow(dead_code, reason = "each test file uses a part of it")]

use std::fs::File;
use std::io::{IoSlice, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use hypervisor::Meter;
use offload::Features;
use port::{Broken, Budget, Offer, Outcome, Queue, Received, WINDOW};
use rustix::event::{EventfdFlags, eventfd};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use shm::{PageSize, Region};
use vhost_user::{Device, DeviceOptions, Session};
use virtqueue::driver::{Driver, Offered, Table};
use virtqueue::{Layout, Options, RingAddresses};

/// Messages of vhost-user.
pub mod message {
    pub const GET_FEATURES: u32 = 1;
    pub const SET_FEATURES: u32 = 2;
    pub const SET_OWNER: u32 = 3;
    pub const SET_MEM_TABLE: u32 = 5;
    pub const SET_VRING_NUM: u32 = 8;
    pub const SET_VRING_ADDR: u32 = 9;
    pub const SET_VRING_BASE: u32 = 10;
    pub const GET_VRING_BASE: u32 = 11;
    pub const SET_VRING_KICK: u32 = 12;
    pub const SET_VRING_CALL: u32 = 13;
    pub const GET_PROTOCOL_FEATURES: u32 = 15;
    pub const SET_PROTOCOL_FEATURES: u32 = 16;
    pub const GET_QUEUE_NUM: u32 = 17;
    pub const SET_VRING_ENABLE: u32 = 18;
    pub const RESET_DEVICE: u32 = 34;
    pub const GET_MAX_MEM_SLOTS: u32 = 36;
    pub const ADD_MEM_REG: u32 = 37;
    pub const REM_MEM_REG: u32 = 38;
}

pub const CSUM: u64 = 1;
pub const GUEST_CSUM: u64 = 1 << 1;
pub const GUEST_TSO4: u64 = 1 << 7;
pub const HOST_TSO4: u64 = 1 << 11;
pub const MRG_RXBUF: u64 = 1 << 15;
pub const INDIRECT_DESC: u64 = 1 << 28;
pub const EVENT_IDX: u64 = 1 << 29;
pub const PROTOCOL_FEATURES: u64 = 1 << 30;
pub const VERSION_1: u64 = 1 << 32;
pub const RING_PACKED: u64 = 1 << 34;
/// The protocol feature by which a front-end asks for answers.
pub const PROTOCOL_REPLY_ACK: u64 = 1 << 3;
/// What a Linux guest accepts.
pub const LINUX: u64 = CSUM
    | GUEST_CSUM
    | GUEST_TSO4
    | HOST_TSO4
    | MRG_RXBUF
    | INDIRECT_DESC
    | EVENT_IDX
    | PROTOCOL_FEATURES
    | VERSION_1;

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

/// What a session serves, seen by a test.
#[derive(Default)]
pub struct Served {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    queues: Option<Vec<Queue>>,
    starts: usize,
    stops: Vec<String>,
}

const LIMIT: Duration = Duration::from_secs(20);

impl Served {
    /// Waits until the rings have been started so many times, and takes them.
    pub fn started(&self, times: usize) -> Vec<Queue> {
        let state = self.state.lock().unwrap();
        let waited = self.changed.wait_timeout_while(state, LIMIT, |state| state.starts < times);
        let (mut state, timeout) = waited.unwrap();
        assert!(!timeout.timed_out(), "the rings were not started {times} times");
        state.queues.take().unwrap()
    }

    pub fn put(&self, queues: Vec<Queue>) {
        self.state.lock().unwrap().queues = Some(queues);
    }

    pub fn starts(&self) -> usize {
        self.state.lock().unwrap().starts
    }

    pub fn stops(&self) -> Vec<String> {
        self.state.lock().unwrap().stops.clone()
    }
}

impl Device for Served {
    fn start(&self, queues: Vec<Queue>) {
        let mut state = self.state.lock().unwrap();
        state.queues = Some(queues);
        state.starts += 1;
        self.changed.notify_all();
    }

    fn stop(&self, why: &str) {
        let mut state = self.state.lock().unwrap();
        state.queues = None;
        state.stops.push(why.to_owned());
    }
}

/// A front-end's end of a session.
pub struct FrontEnd {
    pub socket: UnixStream,
    pub served: Arc<Served>,
    session: Option<JoinHandle<String>>,
}

impl FrontEnd {
    pub fn new(queues: u16) -> Self {
        let (socket, theirs) = UnixStream::pair().unwrap();
        socket.set_read_timeout(Some(LIMIT)).unwrap();
        let served = Arc::<Served>::default();
        let options = DeviceOptions { queues, packed: true, offloads: Features::ALL };
        let session = Session::new(options, served.clone(), Arc::new(Meter::default())).unwrap();
        let session = std::thread::spawn(move || session.run(theirs));
        Self { socket, served, session: Some(session) }
    }

    /// Sends bytes and descriptors.
    pub fn raw(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(32))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            assert!(ancillary.push(SendAncillaryMessage::ScmRights(fds)));
        }
        // A session that has ended takes nothing more.
        let _ = sendmsg(&self.socket, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL);
    }

    /// Sends a message.
    pub fn send(&self, request: u32, payload: &[u8], fds: &[BorrowedFd<'_>]) {
        let size = u32::try_from(payload.len()).unwrap();
        let header = [request, 1, size].map(u32::to_le_bytes).concat();
        self.raw(&header, fds);
        if !payload.is_empty() {
            self.raw(payload, &[]);
        }
    }

    pub fn send_u64(&self, request: u32, value: u64) {
        self.send(request, &value.to_le_bytes(), &[]);
    }

    pub fn send_state(&self, request: u32, index: u32, value: u32) {
        self.send(request, &[index, value].map(u32::to_le_bytes).concat(), &[]);
    }

    /// The payload of the next reply.
    pub fn reply(&mut self) -> Vec<u8> {
        let mut header = [0; 12];
        self.socket.read_exact(&mut header).unwrap();
        let size = u32::from_le_bytes(header[8..].try_into().unwrap());
        let mut payload = vec![0; size as usize];
        self.socket.read_exact(&mut payload).unwrap();
        payload
    }

    pub fn ask_u64(&mut self, request: u32) -> u64 {
        self.send(request, &[], &[]);
        u64::from_le_bytes(self.reply().try_into().unwrap())
    }

    /// Waits until all messages have been read.
    pub fn sync(&mut self) {
        self.ask_u64(message::GET_FEATURES);
    }

    /// Sends the table of the guest's memory: guest address, length, front-end's address, offset.
    pub fn memory(&self, parts: &[[u64; 4]], fds: &[BorrowedFd<'_>]) {
        let mut payload = Vec::new();
        payload.extend(u32::try_from(parts.len()).unwrap().to_le_bytes());
        payload.extend([0; 4]);
        parts.iter().flatten().for_each(|value| payload.extend(value.to_le_bytes()));
        self.send(message::SET_MEM_TABLE, &payload, fds);
    }

    /// Describes a ring whose parts are at these offsets.
    pub fn ring(&self, index: u32, size: u32, at: RingAddresses, base: u32) {
        self.send_state(message::SET_VRING_NUM, index, size);
        self.send_state(message::SET_VRING_BASE, index, base);
        let mut payload = [index, 0].map(u32::to_le_bytes).concat();
        for address in [at.descriptors, at.device, at.driver, 0] {
            payload.extend(address.to_le_bytes());
        }
        self.send(message::SET_VRING_ADDR, &payload, &[]);
    }

    pub fn doorbell(&self, request: u32, index: u64, fd: impl AsFd) {
        self.send(request, &index.to_le_bytes(), &[fd.as_fd()]);
    }

    /// Why the session ended.
    pub fn end(mut self) -> String {
        let _ = self.socket.shutdown(std::net::Shutdown::Both);
        self.session.take().unwrap().join().unwrap()
    }

    /// Waits until the session ends because of what it was sent.
    pub fn ended(mut self) -> String {
        let why = self.session.take().unwrap().join().unwrap();
        let _ = self.socket.shutdown(std::net::Shutdown::Both);
        why
    }
}

/// A virtual machine with one pair of rings.
pub struct Vm {
    pub front: FrontEnd,
    pub file: File,
    pub memory: Region,
    pub rx: Driver,
    pub tx: Driver,
    pub features: u64,
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

    /// The same in this memory.
    pub fn boot_in(features: u64, file: OwnedFd) -> Self {
        let whole = Arc::new(Region::map(&file, 0, LEN).unwrap());
        let memory = whole.slice(0..LEN).unwrap();
        let drivers =
            [0, 1].map(|ring| Driver::new(&memory, ring_at(0, ring), SIZE, options(features)));
        let [rx, tx] = drivers;
        let events = || [new_eventfd(), new_eventfd()];
        let vm = Self {
            front: FrontEnd::new(1),
            file: file.into(),
            memory,
            rx,
            tx,
            features,
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
            self.front.ring(index, SIZE.into(), ring_at(USER, ring), base);
            self.front.doorbell(message::SET_VRING_CALL, index.into(), &self.calls[ring]);
            self.front.doorbell(message::SET_VRING_KICK, index.into(), &self.kicks[ring]);
            self.front.send_state(message::SET_VRING_ENABLE, index, 1);
        }
    }

    pub fn header_len(&self) -> usize {
        if self.features & (VERSION_1 | MRG_RXBUF) != 0 { 12 } else { 10 }
    }

    /// Posts `count` buffers of `len` bytes.
    pub fn post(&mut self, count: usize, len: u32) {
        for _ in 0..count {
            let at = RX_DATA as u64 + self.rx_buffers.len() as u64 % 1024 * 2048;
            let buffer = Offered { address: GUEST + at, len, writable: true };
            let Some(id) = self.rx.offer(&[buffer], None) else { break };
            self.rx_buffers.push((id, at, len));
        }
        self.rx.publish();
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

/// Moves what one queue has to another one, as a worker does. Returns frames and malformed packets received, and the
/// outcome of each frame.
pub fn pass(from: &mut Queue, to: &mut Queue) -> Result<(Received, Vec<Outcome>), Broken> {
    pass_at(from, to, Duration::ZERO)
}

pub fn pass_at(
    from: &mut Queue,
    to: &mut Queue,
    now: Duration,
) -> Result<(Received, Vec<Outcome>), Broken> {
    let mut received = Received::default();
    from.ingress.receive(&mut Budget::default(), &mut received)?;
    let mut outcomes = [Outcome::Waiting; WINDOW];
    let mut seen = Vec::new();
    let mut result = Ok(());
    from.ingress.with_body(&mut |body| {
        let window = from.ingress.window();
        let order = window.order();
        let mut offers: Vec<_> = order.iter().map(|slot| Offer::new(window.frame(*slot))).collect();
        result = to.egress.deliver(body, &mut offers, now);
        for (slot, offer) in order.iter().zip(&offers) {
            outcomes[usize::from(*slot)] = offer.outcome;
            seen.push(offer.outcome);
        }
    });
    result?;
    from.ingress.finish(&outcomes);
    Ok((received, seen))
}

/// Metadata that says nothing.
pub fn plain(vm: &Vm) -> Vec<u8> {
    vec![0; vm.header_len()]
}

/// A TCP segment over IPv4 with `payload` bytes and without checksums.
pub fn tcp(payload: usize) -> Vec<u8> {
    let mut bytes = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0, 0x45, 0];
    bytes.extend(u16::try_from(40 + payload).unwrap_or(0).to_be_bytes());
    bytes.extend([0, 0, 0, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    bytes.extend([0, 1, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0x50, 0x10, 0, 0, 0, 0, 0, 0]);
    bytes.extend((0..payload).map(|n| (n % 251).to_le_bytes()[0]));
    bytes
}

/// The metadata of such a frame to be segmented.
pub fn tso(vm: &Vm, size: u16) -> Vec<u8> {
    let mut bytes = plain(vm);
    (bytes[0], bytes[1]) = (1, 1);
    for (at, value) in [(2, 54u16), (4, size), (6, 34), (8, 16)] {
        bytes[at..at + 2].copy_from_slice(&value.to_le_bytes());
    }
    bytes
}

/// Whether the guest was notified since the last time.
pub fn was_notified(fd: &OwnedFd) -> bool {
    rustix::io::read(fd, &mut [0; 8]).is_ok()
}
