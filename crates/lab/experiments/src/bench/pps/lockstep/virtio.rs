//! The path between two virtual machines, whose drivers are in this process.

use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};

use offload::Features;
use port::Queue;
use shm::{PageSize, Region};
use vhost::vhost_user::Frontend;
use vhost_user::{Device, DeviceOptions, Session};
use virtqueue::driver::{Driver, Offered};
use virtqueue::{Layout, Options, RingAddresses};
use vmm_sys_util::eventfd::EventFd;
use wire::ethernet::MacAddr;

use super::frames::Sample;
use super::host::Host;
use super::window::{Counts, Path, Size, batch, carry};
use crate::bench::guest::text;
use crate::bench::vhost::session::{Description, GUEST, eventfds};

/// What a Linux guest accepts: checksums and TSO both ways, mergeable buffers, indirect tables, event indices.
const FEATURES: u64 = 1 | 1 << 1 | 1 << 7 | 1 << 11 | 1 << 15 | 1 << 28 | 1 << 29;
/// Bytes of the guest's memory.
const LEN: usize = 8 << 20;
/// Entries of a ring.
const SIZE: u16 = 256;
/// Offsets in the memory: the rings, buffers to receive into, the frame to send.
const RINGS: [usize; 2] = [0, 0x1_0000];
const RX_DATA: usize = 1 << 20;
const TX_DATA: usize = 4 << 20;
const PAGE: usize = 4096;
/// Bytes of the metadata before a frame.
const HEADER: usize = 12;

/// Takes the queues when they can be served.
#[derive(Default)]
struct Served(Mutex<Option<Vec<Queue>>>);

impl Device for Served {
    fn start(&self, queues: Vec<Queue>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(queues);
    }

    fn stop(&self, _: &str) {}
}

/// A virtual machine with a pair of rings.
struct Machine {
    /// It keeps the session.
    _front_end: Frontend,
    memory: Region,
    rx: Driver,
    tx: Driver,
    calls: [EventFd; 2],
    kicks: [EventFd; 2],
    mac: MacAddr,
}

/// The parts of a ring, from this offset of its first byte.
fn ring_at(start: u64) -> RingAddresses {
    RingAddresses { descriptors: start, driver: start + 0x4000, device: start + 0x6000 }
}

impl Machine {
    /// Boots one and attaches it to the host.
    fn boot(host: &mut Host, number: u8) -> Result<Self, String> {
        let file = shm::create_memfd("vm", LEN / PAGE, PageSize::Small).map_err(text)?;
        let whole = Arc::new(Region::map(&file, 0, LEN).map_err(text)?);
        let memory = whole.slice(0..LEN).map_err(text)?;
        let options = Options { layout: Layout::Split, event_idx: true, indirect: true };
        let [rx, tx] = RINGS.map(|ring| Driver::new(&memory, ring_at(ring as u64), SIZE, options));
        let (socket, theirs) = UnixStream::pair().map_err(text)?;
        let served = Arc::<Served>::default();
        let device = DeviceOptions { queues: 1, packed: true, offloads: Features::ALL };
        let session = Session::new(device, served.clone(), host.meter()).map_err(text)?;
        std::thread::spawn(move || session.run(theirs));
        let mac = MacAddr([2, 0, 0, 0, 0, number]);
        let (calls, kicks) = (eventfds()?, eventfds()?);
        let description = Description {
            features: FEATURES,
            memory: &file,
            memory_len: LEN,
            size: SIZE,
            layout: Layout::Split,
            rings: RINGS.map(|ring| ring_at(ring as u64)),
            kicks: &kicks,
            calls: &calls,
        };
        let mut front_end = Frontend::from_stream(socket, 2);
        description.send(&mut front_end)?;
        let machine = Self { _front_end: front_end, memory, rx, tx, calls, kicks, mac };
        let queues = loop {
            let started = served.0.lock().unwrap_or_else(PoisonError::into_inner).take();
            match started {
                Some(queues) => break queues,
                None => std::thread::yield_now(),
            }
        };
        let port = host.datapath.attach(&format!("vm-{number}"), queues, Vec::new());
        host.datapath.teach(port.id(), mac).map_err(text)?;
        Ok(machine)
    }

    /// Posts buffers of a page each, as many as there is room for.
    fn post(&mut self) -> Result<(), String> {
        let len = u32::try_from(PAGE).map_err(text)?;
        let mut place = 0;
        loop {
            let address = GUEST + (RX_DATA + place * PAGE) as u64;
            let buffer = Offered { address, len, writable: true };
            if self.rx.offer(&[buffer], None).is_none() {
                break;
            }
            place += 1;
        }
        self.kick(0)
    }

    /// Shows the device what was offered, and notifies it if it wants that.
    fn kick(&mut self, ring: usize) -> Result<(), String> {
        let driver = if ring == 0 { &mut self.rx } else { &mut self.tx };
        if driver.publish() {
            self.kicks[ring].write(1).map_err(text)?;
        }
        Ok(())
    }

    /// Notifications since the last call.
    fn notifications(&self) -> u64 {
        // Without any, a read would wait.
        self.calls.iter().map(|call| call.read().unwrap_or(0)).sum()
    }
}

/// Two virtual machines, one of which sends.
pub struct Pair {
    host: Host,
    sender: Machine,
    receiver: Machine,
    size: Size,
    /// The buffers of the frame that is sent.
    chain: Vec<Offered>,
}

impl Pair {
    /// Connects them.
    pub fn new(size: Size) -> Result<Self, String> {
        let mut host = Host::new()?;
        let sender = Machine::boot(&mut host, 1)?;
        let mut receiver = Machine::boot(&mut host, 2)?;
        receiver.post()?;
        let sample = Sample::new(sender.mac, receiver.mac, size);
        let bytes = [&sample.vnet_header()[..], &[0, 0], &sample.bytes].concat();
        // The metadata has a buffer, as in Linux, and each page of the frame has one.
        sender.memory.copy_in(TX_DATA, &bytes).map_err(text)?;
        let buffer = |at: usize, len: usize| {
            let address = GUEST + (TX_DATA + at) as u64;
            Offered { address, len: u32::try_from(len).unwrap_or(0), writable: false }
        };
        let mut chain = vec![buffer(0, HEADER)];
        let mut at = HEADER;
        while at < bytes.len() {
            let len = PAGE.min(bytes.len() - at);
            chain.push(buffer(at, len));
            at += len;
        }
        Ok(Self { host, sender, receiver, size, chain })
    }
}

impl Path for Pair {
    fn turn(&mut self, frames: u64) -> Result<u64, String> {
        let sender = &mut self.sender;
        while sender.tx.take().is_some() {}
        for _ in 0..frames {
            sender.tx.offer(&self.chain, None).ok_or("no room")?;
        }
        sender.kick(1)?;
        self.host.work()?;
        let mut bytes = 0;
        while let Some(used) = self.receiver.rx.take() {
            bytes += u64::from(used.written);
        }
        self.receiver.post()?;
        // The first of a frame's buffers has the metadata.
        Ok(bytes / (self.size.bytes() + HEADER) as u64)
    }

    fn batch(&self) -> u64 {
        batch(self.size)
    }

    fn count(&mut self, frames: u64) -> Result<Counts, String> {
        let notified = |pair: &Self| pair.sender.notifications() + pair.receiver.notifications();
        notified(self);
        let meter = self.host.meter();
        let counts = Counts::of(&meter, || carry(self, frames))?;
        Ok(Counts { notifications: notified(self), ..counts })
    }
}
