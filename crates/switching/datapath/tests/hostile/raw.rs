//! A frontend without rules: it writes its guest's memory, grant table, rings and keys directly.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use datapath::Port;
use hypervisor::{EventChannel, Guest};
use machine::{DRIVER_DOMAIN, Domain, GuestEvent, MachineGuest, toolstack};
use netback::{Vif, VifChange, VifError};
use shm::Region;
use wire::netif::extra::{Extra, ExtraInfo};
use wire::netif::{RxRequest, RxResponse, TxRequest, TxResponse, tx_flags};
use xenstore::{Store, XenbusState};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::common::{Host, Platform, wait_until};

/// Its address, as the toolstack knows it.
pub const MAC: [u8; 6] = [2, 0, 0, 0, 0, 0x66];

// Pages of its memory. A page is granted by the reference of the same number, until a test
// changes it. They are above the pages that `MachineGuest::share` uses.
pub const TX_RING: u32 = 1000;
pub const RX_RING: u32 = 1001;
/// 256 pages to send from.
pub const DATA: u32 = 1024;
/// 256 pages to receive into.
pub const BUFFERS: u32 = DATA + RING;

/// Slots of either ring.
pub const RING: u32 = 256;
pub const PAGE: usize = 4096;
const HEADER_LEN: usize = 64;
const REQ_PROD: usize = 0;
const RSP_PROD: usize = 8;
const TX_SLOT: usize = 12;
const RX_SLOT: usize = 8;

/// `GTF_permit_access` and `GTF_readonly`.
pub const PERMIT: u16 = 1;
pub const READ_ONLY: u16 = PERMIT | 4;

/// Raw access to all of a guest's memory.
#[derive(Clone)]
pub struct Memory(Arc<Region>);

impl Memory {
    fn of(domain: &Domain, inside: &MachineGuest) -> Self {
        Self(Arc::new(Region::map(inside.memory(), 0, domain.size().pages * PAGE).unwrap()))
    }

    pub fn write(&self, page: u32, offset: usize, bytes: &[u8]) {
        self.0.copy_in(page as usize * PAGE + offset, bytes).unwrap();
    }

    pub fn read(&self, page: u32, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.0.copy_out(page as usize * PAGE, &mut bytes).unwrap();
        bytes
    }

    /// Writes a grant entry.
    pub fn grant(&self, gref: u32, flags: u16, domid: u16, frame: u32) {
        let [f, d] = [flags, domid].map(u64::from);
        let word = self.0.atomic_u64(gref as usize * 8).unwrap();
        word.store(f | d << 16 | u64::from(frame) << 32, Ordering::Release);
    }

    pub fn grant_own(&self, page: u32) {
        self.grant(page, PERMIT, DRIVER_DOMAIN.0, page);
    }

    fn index(&self, ring: u32, at: usize) -> &std::sync::atomic::AtomicU32 {
        self.0.atomic_u32(ring as usize * PAGE + at).unwrap()
    }

    pub fn set_req_prod(&self, ring: u32, value: u32) {
        self.index(ring, REQ_PROD).store(value, Ordering::Release);
    }

    pub fn rsp_prod(&self, ring: u32) -> u32 {
        self.index(ring, RSP_PROD).load(Ordering::Acquire)
    }

    pub fn write_slot(&self, ring: u32, index: u32, value: impl IntoBytes + Immutable) {
        self.0.write(slot(ring, index, size_of_val(&value)), value).unwrap();
    }

    /// The bytes in a response's slot.
    pub fn read_slot<T: FromBytes>(&self, ring: u32, index: u32) -> T {
        let len = if ring == TX_RING { TX_SLOT } else { RX_SLOT };
        self.0.read(slot(ring, index, len)).unwrap()
    }
}

fn slot(ring: u32, index: u32, len: usize) -> usize {
    ring as usize * PAGE + HEADER_LEN + (index % RING) as usize * len
}

/// The hostile guest.
pub struct Hostile {
    pub domain: Arc<Domain>,
    pub inside: MachineGuest,
    pub memory: Memory,
    pub store: Arc<dyn Store>,
    pub vif: Vif<Platform>,
    /// The connection, if there is one.
    pub port: Option<Arc<Port>>,
    pub event: Option<GuestEvent>,
    tx_prod: u32,
    tx_cons: u32,
}

impl Hostile {
    /// A guest with memory, grants and a vif that waits for its frontend.
    pub fn new(host: &Host) -> Self {
        let (domain, inside, vif) = host.domain("02:00:00:00:00:66");
        let memory = Memory::of(&domain, &inside);
        let store: Arc<dyn Store> = Arc::new(host.machine.store().connect(domain.id()));
        [TX_RING, RX_RING].into_iter().chain(DATA..BUFFERS + RING).for_each(|page| {
            memory.grant_own(page);
        });
        let (port, event) = (None, None);
        Self { domain, inside, memory, store, vif, port, event, tx_prod: 0, tx_cons: 0 }
    }

    pub fn key(&self, key: &str, value: &str) {
        self.store.write(None, &format!("{}/{key}", toolstack::device_path(0)), value).unwrap();
    }

    pub fn enter(&self, state: XenbusState) {
        self.key("state", &state.to_string());
    }

    /// Writes empty rings, a valid set of keys, and all buffers on the RX ring.
    pub fn prepare(&mut self) {
        for ring in [TX_RING, RX_RING] {
            self.memory.write(ring, 0, &[0; PAGE]);
            // An event at every publication, as SHARED_RING_INIT sets it.
            self.memory.write(ring, 4, &1u32.to_le_bytes());
            self.memory.write(ring, 12, &1u32.to_le_bytes());
        }
        (self.tx_prod, self.tx_cons) = (0, 0);
        for n in 0..RING {
            self.memory.write_slot(RX_RING, n, buffer(n, BUFFERS + n));
        }
        self.memory.set_req_prod(RX_RING, RING);
        let (event, port) = self.inside.alloc_unbound(DRIVER_DOMAIN).unwrap();
        self.event = Some(event);
        for (key, value) in [
            ("tx-ring-ref", TX_RING),
            ("rx-ring-ref", RX_RING),
            ("event-channel", port.0),
            ("multi-queue-num-queues", 1),
            ("request-rx-copy", 1),
            ("feature-sg", 1),
            ("feature-gso-tcpv4", 1),
        ] {
            self.key(key, &value.to_string());
        }
        // Another driver may have left these.
        self.remove_key("event-channel-tx");
        self.remove_key("event-channel-rx");
    }

    /// Removes a key, if it exists.
    pub fn remove_key(&self, key: &str) {
        let _ = self.store.remove(None, &format!("{}/{key}", toolstack::device_path(0)));
    }

    /// Prepares, and connects.
    pub fn connect(&mut self, host: &Host) {
        self.prepare();
        self.connect_prepared(host);
    }

    pub fn connect_prepared(&mut self, host: &Host) {
        self.enter(XenbusState::Connected);
        self.drive(host).unwrap();
        assert!(self.port.is_some());
    }

    /// Runs the daemon's reactions to changed keys, until there are none left.
    pub fn drive(&mut self, host: &Host) -> Result<(), VifError> {
        loop {
            match self.vif.frontend_changed() {
                Ok(VifChange::None) => return Ok(()),
                Ok(VifChange::Connect(connection)) => {
                    let (queues, tasks) = connection.into_port();
                    self.port = Some(host.datapath.attach("hostile", queues, tasks));
                    self.vif.connected()?;
                }
                Ok(VifChange::Disconnect | VifChange::Remove) => {
                    self.detach(host);
                    return Ok(());
                }
                Err(error) => {
                    self.detach(host);
                    return Err(error);
                }
            }
        }
    }

    /// Removes the vif from the switch. Nothing of the guest is held afterwards.
    pub fn detach(&mut self, host: &Host) {
        if let Some(port) = self.port.take() {
            host.datapath.detach(port.id());
        }
        assert_eq!(self.domain.pinned(), 0, "a grant stays mapped");
        self.vif.disconnected().unwrap();
    }

    /// Puts slots on the TX ring unchecked, and notifies.
    pub fn send(&mut self, slots: &[TxRequest]) {
        for slot in slots {
            self.memory.write_slot(TX_RING, self.tx_prod, *slot);
            self.tx_prod = self.tx_prod.wrapping_add(1);
        }
        self.memory.set_req_prod(TX_RING, self.tx_prod);
        self.ring();
    }

    pub fn ring(&self) {
        self.event.as_ref().unwrap().notify().unwrap();
    }

    /// The answers that have come since the last call.
    pub fn answers(&mut self) -> Vec<TxResponse> {
        let end = self.memory.rsp_prod(TX_RING);
        let answers = self.tx_cons..end;
        self.tx_cons = end;
        answers.map(|n| self.memory.read_slot(TX_RING, n)).collect()
    }

    /// Waits for `count` answers.
    pub fn await_answers(&mut self, count: usize) -> Vec<TxResponse> {
        let mut answers = Vec::new();
        wait_until(&format!("{count} answers"), || {
            answers.extend(self.answers());
            answers.len() >= count
        });
        assert_eq!(answers.len(), count, "{answers:?}");
        answers
    }

    /// The response in the slot of RX request `n`.
    pub fn received(&self, n: u32) -> RxResponse {
        self.memory.read_slot(RX_RING, n)
    }

    /// Whether its pages hold these bytes anywhere.
    pub fn holds(&self, bytes: &[u8]) -> bool {
        let pages = (BUFFERS + RING - TX_RING) as usize;
        let memory = self.memory.read(TX_RING, pages * PAGE);
        // Most pages lack the first byte, for which the library's optimised search looks.
        (0..memory.len()).step_by(PAGE).any(|at| {
            let end = memory.len().min(at + PAGE + bytes.len() - 1);
            let page = &memory[at..end];
            page.contains(&bytes[0]) && page.windows(bytes.len()).any(|window| window == bytes)
        })
    }
}

pub fn buffer(n: u32, gref: u32) -> RxRequest {
    RxRequest { id: (n % RING).try_into().unwrap(), pad: 0, gref }
}

/// A TX request of `size` bytes in data page `page`, which is also its id.
pub fn slot_of(page: u32, offset: u16, size: u16, flags: u16) -> TxRequest {
    TxRequest { gref: DATA + page, offset, flags, id: page.try_into().unwrap(), size }
}

/// A chain of `count` slots with `size` bytes each.
pub fn chain(count: u16, size: u16) -> Vec<TxRequest> {
    let slot =
        |n: u16| slot_of(n.into(), 0, size, if n + 1 < count { tx_flags::MORE_DATA } else { 0 });
    let mut slots: Vec<_> = (0..count).map(slot).collect();
    slots[0].size = count * size;
    slots
}

/// A packet of one fragment with extras after it.
pub fn with_extras(size: u16, flags: u16, extras: &[ExtraInfo]) -> Vec<TxRequest> {
    let mut slots = vec![slot_of(0, 0, size, flags | tx_flags::EXTRA_INFO)];
    slots.extend(extras.iter().map(ExtraInfo::to_tx_slot));
    slots
}

/// An extra, valid or not.
pub fn extra(extra: Extra, more: bool) -> ExtraInfo {
    extra.encode(more).unwrap()
}
