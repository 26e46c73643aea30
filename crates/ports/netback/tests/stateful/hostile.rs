//! The hostile guest: what it writes, and its interface as the daemon has it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use machine::{Machine, toolstack};
use netback::{Vif, VifChange};
use offload::Features;
use wire::netif::{CtrlRequest, GrefMapping, RxRequest, TxRequest, keys};
use xenstore::XenbusState;

use crate::common::guest::{
    CTRL_RING, DATA, HEADERS, LIST, PAGE, PAGES, REQ_PROD, RSP_PROD, RX_RING, Raw, TX_RING,
};
use crate::common::tampered::Tampered;
use crate::friend::{Backend, SECRET};

/// Its rings, and the bytes of a slot of each.
const RINGS: [(u32, usize); 3] = [(TX_RING, 12), (RX_RING, 8), (CTRL_RING, 16)];
/// The first of the data pages that are received into; those before it are sent from.
const RX_DATA: u32 = DATA + (PAGES - DATA) / 2;

/// Keys that it writes.
const KEYS: [&str; 12] = [
    keys::TX_RING_REF,
    keys::RX_RING_REF,
    keys::EVENT_CHANNEL,
    keys::EVENT_CHANNEL_TX,
    keys::EVENT_CHANNEL_RX,
    keys::MULTI_QUEUE_NUM_QUEUES,
    keys::REQUEST_RX_COPY,
    keys::TX_HEADER_REFS,
    keys::FEATURE_SG,
    keys::CTRL_RING_REF,
    keys::EVENT_CHANNEL_CTRL,
    "queue-0/tx-ring-ref",
];

/// What the guest writes in one step.
pub enum Write {
    /// A frame of one page, by the rules: to whom, and its length.
    Frame { to: [u8; 6], page: u8, size: u16 },
    /// Buffers to receive into, by the rules.
    Buffers(u8),
    /// A control request with a list, by the rules but for the kind and the number of entries.
    Ask { kind: u8, entries: u16 },
    /// Bytes of a slot: of which ring, its number, a reference that is likely to be granted, the rest.
    Slot { ring: u8, index: u8, gref: u8, rest: [u8; 8] },
    /// Entries of the list: the first one's number, and the reference and flags of each.
    List { first: u8, entries: Vec<[u8; 2]> },
    /// An entry of its grant table.
    Grant { gref: u8, entry: [u8; 8] },
    /// Bytes of a page that is no ring.
    Bytes { page: u8, offset: u16, bytes: Vec<u8> },
    /// `req_prod` of a ring: so far beyond the last response.
    ReqProd { ring: u8, ahead: u16 },
    /// Any index of a ring: any value, or one near zero.
    Index { ring: u8, at: u8, value: [u8; 4] },
    /// A key in the store.
    Key { key: u8, value: u16 },
    /// Its state; above 8, nonsense.
    State(u8),
}

/// The guest as its own code sees it.
pub struct Inside {
    pub raw: Raw,
    /// The highest `req_prod` of each ring since it connected.
    published: [AtomicU32; 3],
    /// Whether it has written, or has let others write, an index that the backend owns.
    forged: AtomicBool,
}

impl Inside {
    pub fn write(&self, write: &Write) {
        let raw = &self.raw;
        match write {
            Write::Frame { to, page, size } => {
                let gref = DATA + u32::from(*page) % (RX_DATA - DATA);
                let header = [*to, [2, 0, 0, 0, 0, 0x66]].concat();
                raw.memory.copy_in(gref as usize * PAGE, &header).unwrap();
                let next = self.next(0);
                let slot = TxRequest { gref, offset: 0, flags: 0, id: 1, size: *size };
                raw.write(TX_RING, Raw::slot::<TxRequest>(next), slot);
                self.publish(0, next.wrapping_add(1));
            }
            Write::Buffers(count) => {
                let first = self.next(1);
                let answered: u32 = raw.read(RX_RING, RSP_PROD);
                let room = 256u32.saturating_sub(first.wrapping_sub(answered));
                let end = first.wrapping_add(room.min((*count).into()));
                for n in 0..end.wrapping_sub(first) {
                    let n = first.wrapping_add(n);
                    let request =
                        RxRequest { id: 1, pad: 0, gref: RX_DATA + n % (PAGES - RX_DATA) };
                    raw.write(RX_RING, Raw::slot::<RxRequest>(n), request);
                }
                self.publish(1, end);
            }
            Write::Ask { kind, entries } => {
                let next = self.next(2);
                let (kind, data) = (u16::from(*kind) % 12, [0, LIST, u32::from(*entries)]);
                let slot = 64 + (next % 128) as usize * 16;
                raw.write(CTRL_RING, slot, CtrlRequest { id: 1, kind, data });
                self.publish(2, next.wrapping_add(1));
            }
            Write::Slot { ring, index, gref, rest } => {
                let (ring, len) = RINGS[usize::from(*ring) % 3];
                let at = 64 + usize::from(*index) % (4032 / len) * len;
                let gref = u32::from(*gref);
                let gref = if gref < PAGES { gref } else { gref << 24 };
                // Frames and lists may then be written over its own rings.
                let list = u32::from_le_bytes([rest[4], rest[5], rest[6], rest[7]]);
                self.note_own_ring(gref);
                self.note_own_ring(list);
                match ring {
                    RX_RING => raw.write(ring, at, [u32::from(rest[0]), gref]),
                    _ => {
                        raw.write(ring, at, gref);
                        raw.write(ring, at + 4, *rest);
                    }
                }
            }
            Write::List { first, entries } => {
                for (n, [gref, flags]) in (usize::from(*first)..).zip(entries) {
                    let gref = DATA + u32::from(*gref) % (PAGES + 4 - DATA);
                    let flags = u16::from(*flags % 3);
                    raw.write(LIST, n % 512 * 8, GrefMapping { gref, flags, status: 0 });
                }
            }
            Write::Grant { gref, entry } => {
                self.note_own_ring(u32::from_le_bytes([entry[4], entry[5], entry[6], entry[7]]));
                raw.write(0, usize::from(*gref) % 64 * 8, *entry);
            }
            Write::Bytes { page, offset, bytes } => {
                let page = HEADERS + u32::from(*page) % (PAGES - HEADERS);
                let at = usize::from(*offset) % (PAGE - bytes.len());
                raw.memory.copy_in(page as usize * PAGE + at, bytes).unwrap();
            }
            Write::ReqProd { ring, ahead } => {
                let ring = usize::from(*ring) % 3;
                let answered: u32 = raw.read(RINGS[ring].0, RSP_PROD);
                self.publish(ring, answered.wrapping_add((*ahead).into()));
            }
            Write::Index { ring, at, value } => {
                self.forged.store(true, Ordering::Relaxed);
                let at = usize::from(*at) % 4 * 4;
                raw.write(RINGS[usize::from(*ring) % 3].0, at, *value);
            }
            Write::Key { key, value } => {
                let text = match value % 8 {
                    0 => "abc".to_owned(),
                    1..5 => (value / 8 % 80).to_string(),
                    _ => value.to_string(),
                };
                raw.key(KEYS[usize::from(*key) % KEYS.len()], text);
            }
            Write::State(0) => self.remove("state"),
            Write::State(state) => raw.key("state", state),
        }
    }

    /// Notes that a backend may write to this page for the guest, which may be one of its rings.
    fn note_own_ring(&self, page: u32) {
        if RINGS.iter().any(|(ring, _)| *ring == page) {
            self.forged.store(true, Ordering::Relaxed);
        }
    }

    /// The next request of ring `ring`.
    fn next(&self, ring: usize) -> u32 {
        self.raw.read(RINGS[ring].0, REQ_PROD)
    }

    fn publish(&self, ring: usize, index: u32) {
        self.published[ring].fetch_max(index, Ordering::Relaxed);
        self.raw.write(RINGS[ring].0, REQ_PROD, index);
    }

    fn remove(&self, key: &str) {
        // It may have none.
        let _ = self.raw.store.remove(None, &format!("{}/{key}", toolstack::device_path(0)));
    }

    /// Asserts that there are no more answers than requests, and that nothing of others arrived.
    pub fn check(&self) {
        if !self.forged.load(Ordering::Relaxed) {
            for ((ring, _), published) in RINGS.iter().zip(&self.published) {
                let answered: u32 = self.raw.read(*ring, RSP_PROD);
                assert!(answered <= published.load(Ordering::Relaxed), "answered twice");
            }
        }
        let bytes = self.raw.snapshot();
        let mut starts = bytes.iter().enumerate().filter(|(_, byte)| **byte == SECRET[0]);
        assert!(!starts.any(|(at, _)| bytes[at..].starts_with(&SECRET)), "it has what is secret");
    }
}

/// The guest and its interface.
pub struct Hostile {
    pub inside: Arc<Inside>,
    hypervisor: Tampered,
    /// The vif, until it is removed.
    vif: Option<Vif<Tampered>>,
    pub backend: Option<Backend>,
}

impl Hostile {
    pub fn new(machine: &Machine, hypervisor: &Tampered) -> Self {
        let raw = Raw::new(machine);
        let vif = Some(raw.announce(hypervisor.clone()));
        let published = [const { AtomicU32::new(0) }; 3];
        let inside = Arc::new(Inside { raw, published, forged: AtomicBool::new(false) });
        Self { inside, hypervisor: hypervisor.clone(), vif, backend: None }
    }

    /// Starts over like an honest driver, which must succeed whatever was before.
    pub fn start_over(&mut self, headers: bool, control: bool) {
        self.backend = None;
        // Like the toolstack for a new device.
        self.set_online(true);
        self.inside.raw.key("state", 1);
        self.announce();
        self.drive();
        let raw = &self.inside.raw;
        raw.reset();
        KEYS.iter().for_each(|key| self.inside.remove(key));
        self.inside.published.iter().for_each(|published| published.store(0, Ordering::Relaxed));
        self.inside.forged.store(false, Ordering::Relaxed);
        raw.prepare(Features::ALL);
        raw.key(keys::REQUEST_RX_COPY, 1);
        if headers {
            raw.supply_headers();
        }
        if control {
            raw.offer_control();
        }
        raw.key("state", 4);
        self.drive();
        assert!(self.backend.is_some(), "an honest driver is kept out");
    }

    /// The daemon's reactions to changed keys, until there are none left.
    pub fn drive(&mut self) {
        for _ in 0..4 {
            let Some(vif) = &mut self.vif else { return };
            match vif.frontend_changed() {
                Ok(VifChange::None) => return,
                Ok(VifChange::Connect(connection)) => {
                    assert!(self.backend.is_none(), "connected twice");
                    self.backend = Some(Backend::new(connection));
                    vif.connected().unwrap();
                }
                Ok(VifChange::Remove) => {
                    self.backend = None;
                    self.check_unmapped();
                    if let Some(vif) = self.vif.take() {
                        vif.remove().unwrap();
                    }
                }
                Ok(VifChange::Disconnect) | Err(_) => self.disable(),
            }
            self.check_state();
        }
        panic!("it never comes to rest");
    }

    /// The daemon drops the connection of a guest that broke the protocol.
    pub fn disable(&mut self) {
        self.backend = None;
        self.check_unmapped();
        if let Some(vif) = &mut self.vif {
            vif.disconnected().unwrap();
        }
    }

    /// The daemon was killed, and another one starts. Of a removed vif it finds nothing.
    pub fn restart(&mut self) {
        if self.vif.is_some() {
            self.announce();
        }
    }

    fn announce(&mut self) {
        self.backend = None;
        self.check_unmapped();
        self.vif = Some(self.inside.raw.announce(self.hypervisor.clone()));
    }

    /// Writes what only the toolstack may: whether the interface is to stay.
    pub fn set_online(&self, is_online: bool) {
        let path = format!("{}/online", self.backend_path());
        let online = u8::from(is_online).to_string();
        self.inside.raw.driver_store.write(None, &path, &online).unwrap();
    }

    fn backend_path(&self) -> String {
        toolstack::backend_path(self.inside.raw.domain.id(), 0)
    }

    /// Asserts that the store says that it is connected exactly when it is.
    fn check_state(&self) {
        let path = format!("{}/state", self.backend_path());
        let state = XenbusState::parse(&self.inside.raw.store.read(None, &path).unwrap());
        // A frontend that reconfigures is connected.
        let says = [XenbusState::Connected, XenbusState::Reconfigured].map(Some).contains(&state);
        assert_eq!(says, self.backend.is_some(), "the store says {state:?}");
    }

    /// Asserts that no page of it stays mapped without a connection.
    pub fn check_unmapped(&self) {
        assert_eq!(self.inside.raw.domain.pinned(), 0, "a grant stays mapped");
    }
}
