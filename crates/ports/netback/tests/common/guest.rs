//! A guest as its backend sees it: memory with rings and a grant table, and keys
//! in the store, where the toolstack has announced its interface.

use std::fmt::Display;
use std::ops::{Deref, Range};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hypervisor::{EventChannel, Guest, Hypervisor};
use machine::{DRIVER_DOMAIN, Domain, GuestEvent, Machine, MachineGuest, MemorySize, toolstack};
use netback::{
    Anonymous, Connection, ControlRing, GrantReuse, Offered, RxChannel, TxChannel, Vif, VifChange,
    VifQueue,
};
use offload::Features;
use port::{Body, Coalescing, Egress, Outcome};
use port_testing::{frame, offer};
use rustix::event::{PollFd, PollFlags, Timespec};
use shm::Region;
use wire::netif::{RxRequest, RxResponse};
use xenstore::Store;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Pages of each guest, the first of which is its grant table.
pub const PAGES: u32 = 64;
pub const TX_RING: u32 = 8;
pub const RX_RING: u32 = 9;
pub const CTRL_RING: u32 = 10;
/// A page for a list of grants.
pub const LIST: u32 = 11;
/// The most pages that its backend keeps mapped.
pub const PERSISTENT: u16 = 24;
/// The first page of the header channel, which ends before [`DATA`].
pub const HEADERS: u32 = 16;
/// The first page to send from or receive into; they end before [`PAGES`].
pub const DATA: u32 = 24;
pub const PAGE: usize = 4096;
/// The pages of the buffers of [`Raw::post`].
pub const BUFFERS: u32 = 16;

/// The shared indices.
pub const REQ_PROD: usize = 0;
pub const RSP_PROD: usize = 8;
pub const RSP_EVENT: usize = 12;

/// A guest, from outside: the test writes its memory like the guest's own code could.
pub struct Raw {
    device: Device,
    pub memory: Arc<Region>,
    pub store: Arc<dyn Store>,
    event: Mutex<Option<GuestEvent>>,
    control_event: Mutex<Option<GuestEvent>>,
}

impl Deref for Raw {
    type Target = Device;

    fn deref(&self) -> &Device {
        &self.device
    }
}

impl Raw {
    /// Makes it, with two empty rings that are granted, and every data page granted by the
    /// reference of its number.
    pub fn new(machine: &Machine) -> Self {
        Self::with_exchange(machine, 0)
    }

    /// As [`new`](Self::new), with pages for flipping.
    pub fn with_exchange(machine: &Machine, exchange_pages: usize) -> Self {
        let pages = PAGES as usize;
        let size = MemorySize { pages, grant_pages: 1, exchange_pages, ..MemorySize::default() };
        let device = Device::new(machine, size, "raw", "02:00:00:00:00:01");
        let memory = Region::map(device.inside.memory(), 0, PAGES as usize * PAGE).unwrap();
        let store: Arc<dyn Store> = Arc::new(machine.store().connect(device.domain.id()));
        let (event, control_event) = Default::default();
        let raw = Self { device, memory: Arc::new(memory), store, event, control_event };
        raw.reset();
        raw
    }

    /// Resets it to its state after [`new`](Self::new).
    pub fn reset(&self) {
        self.memory.zero(0, PAGES as usize * PAGE).unwrap();
        [TX_RING, RX_RING, CTRL_RING, LIST].into_iter().chain(HEADERS..PAGES).for_each(|page| {
            self.grant(page, 1, DRIVER_DOMAIN.0, page);
        });
        for ring in [TX_RING, RX_RING, CTRL_RING] {
            self.write(ring, 4, 1u32);
            self.write(ring, 12, 1u32);
        }
    }

    /// Writes a grant entry.
    pub fn grant(&self, gref: u32, flags: u16, domid: u16, frame: u32) {
        let [f, d] = [flags, domid].map(u64::from);
        let word = self.memory.atomic_u64(gref as usize * 8).unwrap();
        word.store(f | d << 16 | u64::from(frame) << 32, Ordering::Release);
    }

    pub fn write(&self, page: u32, offset: usize, value: impl IntoBytes + Immutable) {
        self.memory.write(page as usize * PAGE + offset, value).unwrap();
    }

    pub fn read<T: FromBytes>(&self, page: u32, offset: usize) -> T {
        self.memory.read(page as usize * PAGE + offset).unwrap()
    }

    pub fn slot<T>(index: u32) -> usize {
        64 + (index % 256) as usize * size_of::<T>()
    }

    /// Posts the receive buffers of these indices: the id of each is its number, and its page one of the first [`BUFFERS`].
    pub fn post(&self, indices: Range<u32>) {
        for n in 0..indices.end.wrapping_sub(indices.start) {
            let n = indices.start.wrapping_add(n);
            let id = u16::try_from(n % 256).unwrap();
            let request = RxRequest { id, pad: 0, gref: DATA + n % BUFFERS };
            self.write(RX_RING, Self::slot::<RxRequest>(n), request);
        }
        self.write(RX_RING, REQ_PROD, indices.end);
    }

    /// The response with this index.
    pub fn response(&self, index: u32) -> RxResponse {
        self.read(RX_RING, Self::slot::<RxResponse>(index))
    }

    /// The bytes of a response that lie in this page.
    pub fn received(&self, page: u32, response: RxResponse) -> Vec<u8> {
        let mut bytes = vec![0; usize::try_from(response.status).unwrap()];
        let at = page as usize * PAGE + usize::from(response.offset);
        self.memory.copy_out(at, &mut bytes).unwrap();
        bytes
    }

    /// Delivers a frame of `len` bytes, all header, in a buffer granted by `gref`.
    pub fn deliver(&self, rx: &mut dyn Egress, gref: u32, len: usize) -> Outcome {
        let n = self.read::<u32>(RX_RING, RSP_PROD);
        self.write(RX_RING, Self::slot::<RxRequest>(n), RxRequest { id: 7, pad: 0, gref });
        self.write(RX_RING, REQ_PROD, n + 1);
        let mut bytes = vec![0xc3; len];
        bytes[12..14].copy_from_slice(&[0x88, 0xb5]);
        let regions = [Region::anonymous(PAGE).unwrap()].into();
        offer(rx, Body::Regions(&regions), &frame(&bytes), Duration::ZERO).unwrap()
    }

    /// A copy of all its memory.
    pub fn snapshot(&self) -> Vec<u8> {
        let mut bytes = vec![0; PAGES as usize * PAGE];
        self.memory.copy_out(0, &mut bytes).unwrap();
        bytes
    }

    pub fn key(&self, key: &str, value: impl Display) {
        let path = format!("{}/{key}", toolstack::device_path(0));
        self.store.write(None, &path, &value.to_string()).unwrap();
    }

    /// Offers a header channel, for a backend that uses it.
    pub fn supply_headers(&self) {
        let grefs: Vec<_> = (HEADERS..DATA).map(|page| page.to_string()).collect();
        self.key("tx-header-refs", grefs.join(" "));
    }

    /// A backend for it with the default channels.
    pub fn announce<H: Hypervisor>(&self, hypervisor: H) -> Vif<H> {
        self.announce_by(hypervisor, TxChannel::Header, RxChannel::Copy)
    }

    /// A backend for it with these channels.
    pub fn announce_by<H: Hypervisor>(
        &self,
        hypervisor: H,
        tx: TxChannel,
        rx: RxChannel,
    ) -> Vif<H> {
        self.announce_as(hypervisor, Offered { tx, rx, persistent_grants: PERSISTENT, ..OFFERED })
    }

    /// A backend for it that offers this.
    pub fn announce_as<H: Hypervisor>(&self, hypervisor: H, offered: Offered) -> Vif<H> {
        self.key("request-rx-copy", u32::from(offered.rx.is_copy()));
        self.adopt(hypervisor, offered)
    }

    /// Connects its one queue. The vif can connect it again.
    pub fn connect<H: Hypervisor>(&self, vif: &mut Vif<H>, features: Features) -> VifQueue<H> {
        self.connect_all(vif, features).queues.pop().unwrap()
    }

    /// As [`connect`](Self::connect), with a control ring from here on.
    pub fn connect_with_control<H: Hypervisor>(
        &self,
        vif: &mut Vif<H>,
    ) -> (VifQueue<H>, ControlRing<H>) {
        self.offer_control();
        let mut connection = self.connect_all(vif, Features::ALL);
        (connection.queues.pop().unwrap(), connection.control.unwrap())
    }

    /// Whether the backend has notified it since this was last asked.
    pub fn is_notified(&self) -> bool {
        let event = self.event.lock().unwrap();
        let event = event.as_ref().unwrap();
        let mut poll = [PollFd::new(event, PollFlags::IN)];
        let found = rustix::event::poll(&mut poll, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
        event.take().unwrap();
        found.unwrap() > 0
    }

    /// Sets up a control ring, for a backend that offers it.
    pub fn offer_control(&self) {
        let (event, port) = self.inside.alloc_unbound(DRIVER_DOMAIN).unwrap();
        *self.control_event.lock().unwrap() = Some(event);
        self.key("ctrl-ring-ref", CTRL_RING);
        self.key("event-channel-ctrl", port.0);
    }

    /// Connects its queue and its control ring.
    pub fn connect_all<H: Hypervisor>(
        &self,
        vif: &mut Vif<H>,
        features: Features,
    ) -> Connection<H> {
        self.prepare(features);
        self.key("state", 4);
        match vif.frontend_changed().unwrap() {
            VifChange::Connect(connection) => connection,
            _ => panic!("the keys are there and say Connected"),
        }
    }

    /// Writes the keys of one queue, but no state.
    pub fn prepare(&self, features: Features) {
        let (event, port) = self.inside.alloc_unbound(DRIVER_DOMAIN).unwrap();
        // While the guest holds its end, the backend can notify.
        *self.event.lock().unwrap() = Some(event);
        for (key, value) in [
            ("tx-ring-ref", TX_RING),
            ("rx-ring-ref", RX_RING),
            ("event-channel", port.0),
            ("feature-sg", features.sg.into()),
            ("feature-gso-tcpv4", features.tso_v4.into()),
            ("feature-gso-tcpv6", features.tso_v6.into()),
            ("feature-no-csum-offload", (!features.csum_v4).into()),
            ("feature-ipv6-csum-offload", features.csum_v6.into()),
        ] {
            self.key(key, value);
        }
    }
}

/// What a backend offers, unless a test says otherwise.
pub const OFFERED: Offered = Offered {
    max_queues: 1,
    features: Features::ALL,
    guest_offloads: true,
    split_event_channels: false,
    tx: TxChannel::Header,
    rx: RxChannel::Copy,
    persistent_grants: 0,
    reuse: GrantReuse::Agreed,
    multicast_control: false,
    coalescing: Some(Coalescing::OFF),
    completion_delay: None,
};

/// The domain, and what outlives its backends.
pub struct Device {
    pub domain: Arc<Domain>,
    pub inside: MachineGuest,
    /// The store as the driver domain has it.
    pub driver_store: Arc<dyn Store>,
    ledgers: Arc<Anonymous>,
}

impl Device {
    pub fn new(machine: &Machine, size: MemorySize, name: &str, mac: &str) -> Self {
        let domain = machine.create(size).unwrap();
        let inside = MachineGuest::inside(machine, &domain).unwrap();
        let driver_store: Arc<dyn Store> = Arc::new(machine.store().connect(DRIVER_DOMAIN));
        toolstack::create_domain(&*driver_store, domain.id(), name).unwrap();
        toolstack::create_vif(&*driver_store, domain.id(), 0, mac).unwrap();
        Self { domain, inside, driver_store, ledgers: Arc::default() }
    }

    /// A backend for it. It takes over live rings, if an earlier one has left some.
    pub fn adopt<H: Hypervisor>(&self, hypervisor: H, offered: Offered) -> Vif<H> {
        let path = toolstack::backend_path(self.domain.id(), 0);
        let (store, ledgers) = (self.driver_store.clone(), self.ledgers.clone());
        Vif::adopt(hypervisor, store, &path, offered, ledgers).unwrap()
    }
}
