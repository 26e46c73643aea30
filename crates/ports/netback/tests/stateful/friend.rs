//! An honest guest, with the frontend that guests run.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hypervisor::Guest;
use machine::{DRIVER_DOMAIN, Machine, MachineGuest, MemorySize, SharedPages, toolstack};
use netback::{Offered, Vif, VifChange};
use netfront::{Config, Frontend, FrontendQueue};
use offload::Checksum;
use shm::Iovec;
use xenstore::Store;

use crate::common::guest::{Device, OFFERED};
use crate::common::tampered::Tampered;

/// Bytes that only honest guests have, in their memory and in the frames between them.
pub const SECRET: [u8; 16] = *b"not for a third.";
/// An EtherType for experiments.
const ETHERTYPE: [u8; 2] = [0x88, 0xb5];
/// Pages of its memory.
const PAGES: usize = 2048;
/// What its backend offers.
const OFFER: Offered = Offered { split_event_channels: true, persistent_grants: 512, ..OFFERED };
/// Far above what a connection takes.
const LIMIT: Duration = Duration::from_secs(20);

/// The backend's ends of a vif's rings.
pub struct Backend {
    pub queue: netback::VifQueue<Tampered>,
    pub control: Option<netback::ControlRing<Tampered>>,
}

impl Backend {
    pub fn new(connection: netback::Connection<Tampered>) -> Self {
        let netback::Connection { mut queues, control, .. } = connection;
        Self { queue: queues.pop().expect("one queue"), control }
    }
}

/// The guest.
pub struct Friend {
    mac: [u8; 6],
    hypervisor: Tampered,
    device: Device,
    vif: Vif<Tampered>,
    _frontend: Frontend<MachineGuest>,
    queue: FrontendQueue<MachineGuest>,
    /// A page full of the secret, which it sends to nobody.
    page: SharedPages,
    /// Frames to the other honest guest: how often each arrived.
    sent: Vec<u32>,
    /// Since then every frame arrives at most once.
    certain: usize,
}

impl Friend {
    /// Makes the guest and connects it.
    pub fn new(machine: &Machine, hypervisor: &Tampered, number: u8) -> (Self, Backend) {
        let mac = [2, 0, 0, 0, 0, number];
        let size = MemorySize { pages: PAGES, grant_pages: 4, ..MemorySize::default() };
        let text = format!("02:00:00:00:00:{number:02x}");
        let device = Device::new(machine, size, "friend", &text);
        let (page, _) = device.inside.share(DRIVER_DOMAIN, 1).unwrap();
        (0..4096).step_by(16).for_each(|at| page.copy_in(at, &SECRET).unwrap());

        let mut vif = device.adopt(hypervisor.clone(), OFFER);
        let own: Arc<dyn Store> = Arc::new(machine.store().connect(device.domain.id()));
        let inside = device.inside.clone();
        let connecting = std::thread::spawn(move || {
            Frontend::connect(&inside, own, &toolstack::device_path(0), &Config::default()).unwrap()
        });
        let mut backend = connect(&mut vif);
        while !connecting.is_finished() {
            // It asks for persistent grants.
            let control = backend.control.as_mut().expect("a control ring");
            if !port::Task::step(control).unwrap() {
                std::thread::yield_now();
            }
        }
        let (frontend, mut queues) = connecting.join().unwrap();
        let queue = queues.pop().expect("one queue");
        let hypervisor = hypervisor.clone();
        let (sent, certain) = (Vec::new(), 0);
        let friend =
            Self { mac, hypervisor, device, vif, _frontend: frontend, queue, page, sent, certain };
        (friend, backend)
    }

    pub fn mac(&self) -> [u8; 6] {
        self.mac
    }

    /// A backend that takes over the live rings of one that was killed.
    pub fn restart(&mut self) -> Backend {
        self.vif = self.device.adopt(self.hypervisor.clone(), OFFER);
        connect(&mut self.vif)
    }

    /// A backend of this or of the other honest guest was killed: frames may arrive twice.
    pub fn expect_copies(&mut self) {
        self.certain = self.sent.len();
    }

    /// Sends a frame of at least 60 bytes, if there is room. To the other honest guest it has a number and the secret.
    pub fn send(&mut self, to: [u8; 6], len: u16, is_secret: bool) {
        let mut bytes = [to, self.mac].concat();
        bytes.extend(ETHERTYPE);
        if is_secret {
            bytes.extend(self.numbered(self.sent.len()));
        }
        bytes.resize(len.max(60).into(), 0x5c);
        self.queue.tx.reclaim().expect("its backend keeps to the protocol");
        let mut rest = &bytes[..];
        for place in self.queue.tx.buffers() {
            let (part, after) = rest.split_at(place.len.min(rest.len()));
            place.region.copy_in(place.offset, part).unwrap();
            rest = after;
        }
        if !rest.is_empty() || !self.queue.tx.has_room() {
            return;
        }
        let len = u16::try_from(bytes.len()).unwrap();
        self.queue.tx.send(len, Checksum::Unknown, None).unwrap();
        self.queue.tx.publish();
        if is_secret {
            self.sent.push(0);
        }
    }

    fn numbered(&self, number: usize) -> Vec<u8> {
        [&SECRET[..], &(number as u64).to_be_bytes()].concat()
    }

    /// The frames that have come.
    pub fn receive(&mut self) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        let mut frame = netfront::Received::default();
        while self.queue.rx.receive(&mut frame).expect("its backend keeps to the protocol") {
            let mut bytes = Vec::new();
            for fragment in self.queue.rx.fragments(&frame) {
                let Iovec::Shared { region, offset, len } = fragment else { unreachable!() };
                let mut part = vec![0; len];
                region.copy_out(offset, &mut part).unwrap();
                bytes.extend(part);
            }
            self.queue.rx.publish();
            frames.push(bytes);
        }
        frames
    }

    /// Notes that the other honest guest got this frame, which has the secret.
    pub fn arrived(&mut self, bytes: &[u8]) {
        let number = bytes[30..38].first_chunk().map_or(0, |number| u64::from_be_bytes(*number));
        let number = usize::try_from(number).unwrap();
        assert_eq!(bytes[14..38], self.numbered(number), "a frame was changed");
        assert!(bytes[38..].iter().all(|byte| *byte == 0x5c), "a frame was changed");
        self.sent[number] += 1;
        assert!(number < self.certain || self.sent[number] == 1, "a frame arrived twice");
    }

    /// Whether the last frame to the other honest guest has arrived.
    pub fn last_arrived(&self) -> bool {
        self.sent.last().is_none_or(|count| *count > 0)
    }

    /// Asserts that nobody has written to the page that it keeps.
    pub fn check(&self) {
        let mut bytes = [0; 4096];
        self.page.copy_out(0, &mut bytes).unwrap();
        assert!(bytes.as_chunks().0.iter().all(|chunk| *chunk == SECRET), "a page was written");
    }
}

/// Waits for the frontend.
fn connect(vif: &mut Vif<Tampered>) -> Backend {
    let start = Instant::now();
    loop {
        if let VifChange::Connect(connection) = vif.frontend_changed().unwrap() {
            vif.connected().unwrap();
            return Backend::new(connection);
        }
        assert!(start.elapsed() < LIMIT, "the frontend does not connect");
        std::thread::yield_now();
    }
}
