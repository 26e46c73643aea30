//! A whole host in one process: machine, driver domain, guests.

#![allow(dead_code, reason = "each test file uses its part")]

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, Weak, mpsc};
use std::time::Duration;

use datapath::{Config, Datapath, Failure, Port};
use hypervisor::{DomId, Error, Hypervisor, Metered};
use machine::{DRIVER_DOMAIN, Domain, Machine, MachineGuest, MemorySize, toolstack};
use netback::{
    Anonymous, ConnectError, Connection, GrantReuse, GrantUsage, GrantUse, Offered, RxChannel,
    TxChannel, Vif, VifChange, VifError,
};
use netfront::{FlowHash, Frontend, FrontendQueue, Received};
use offload::{Checksum, Features, Gso};
use port::Coalescing;
use shm::Iovec;
use xenstore::Store;

/// The most pages of a queue that are kept mapped: all of a frontend's.
pub const PERSISTENT: u16 = 512;

/// The addresses of the guests that [`Host::pair`] makes, and of everybody.
pub const A: [u8; 6] = [2, 0, 0, 0, 0, 0xa];
pub const B: [u8; 6] = [2, 0, 0, 0, 0, 0xb];
pub const ALL: [u8; 6] = [0xff; 6];

/// A machine that counts operations, once its meter is on.
pub type Platform = Metered<Machine>;

/// The driver domain.
pub struct Host {
    pub machine: Machine,
    pub platform: Platform,
    pub store: Arc<dyn Store>,
    pub datapath: Datapath,
    pub failures: Mutex<mpsc::Receiver<Failure>>,
    pub offered: Offered,
    /// The ledgers, which outlive the backends.
    ledgers: Mutex<BTreeMap<DomId, Arc<Anonymous>>>,
}

/// A guest with a connected interface.
pub struct Guest<H: Hypervisor = Platform> {
    pub domain: Arc<Domain>,
    pub inside: MachineGuest,
    pub frontend: Frontend<MachineGuest>,
    pub queues: Vec<FrontendQueue<MachineGuest>>,
    pub vif: Vif<H>,
    pub port: Arc<Port>,
    grants: Vec<Weak<GrantUse>>,
}

impl<H: Hypervisor> Guest<H> {
    /// How its pages that stay mapped were used so far.
    pub fn grant_usage(&self) -> GrantUsage {
        self.grants.iter().filter_map(Weak::upgrade).map(|grants| grants.usage()).sum()
    }
}

impl Host {
    pub fn new(workers: usize, max_queues: u32) -> Self {
        Self::with_channels(workers, max_queues, TxChannel::Header, RxChannel::Copy)
    }

    /// A host whose backends use these channels.
    pub fn with_channels(workers: usize, max_queues: u32, tx: TxChannel, rx: RxChannel) -> Self {
        let machine = Machine::new();
        let platform = Metered::new(machine.clone());
        let store: Arc<dyn Store> = Arc::new(machine.store().connect(DRIVER_DOMAIN));
        let (sender, failures) = mpsc::channel();
        let config = Config { workers, ..Config::default() };
        let sink = Box::new(move |failure| sender.send(failure).unwrap());
        let datapath = Datapath::start(&config, sink).unwrap();
        let offered = Offered {
            max_queues,
            features: Features::ALL,
            guest_offloads: true,
            split_event_channels: true,
            tx,
            rx,
            persistent_grants: PERSISTENT,
            reuse: GrantReuse::Agreed,
            multicast_control: false,
            coalescing: None,
            completion_delay: None,
        };
        let (failures, ledgers) = (Mutex::new(failures), Mutex::default());
        Self { machine, platform, store, datapath, failures, offered, ledgers }
    }

    /// The same host, whose backends coalesce notifications like this.
    pub fn coalescing(mut self, coalescing: Option<Coalescing>) -> Self {
        self.offered.coalescing = coalescing;
        self
    }

    /// The same host, whose guests may list multicast groups.
    pub fn listing(mut self) -> Self {
        self.offered.multicast_control = true;
        self
    }

    /// The same host, whose backends keep pages mapped like this.
    pub fn reusing(mut self, reuse: GrantReuse) -> Self {
        self.offered.reuse = reuse;
        self
    }

    /// Makes a domain with an interface announced in the store.
    pub fn domain(&self, mac: &str) -> (Arc<Domain>, MachineGuest, Vif<Platform>) {
        self.domain_on(&self.platform, mac)
    }

    /// The same, with a backend on any platform.
    pub fn domain_on<H: Hypervisor>(
        &self,
        platform: &H,
        mac: &str,
    ) -> (Arc<Domain>, MachineGuest, Vif<H>) {
        let exchange_pages = if self.offered.rx == RxChannel::Flip { 512 } else { 0 };
        let size = MemorySize { exchange_pages, ..MemorySize::default() };
        let domain = self.machine.create(size).unwrap();
        let id = domain.id();
        toolstack::create_domain(&*self.store, id, "test").unwrap();
        toolstack::create_vif(&*self.store, id, 0, mac).unwrap();
        let vif = self.adopt_on(platform, id);
        let inside = MachineGuest::inside(&self.machine, &domain).unwrap();
        (domain, inside, vif)
    }

    /// A backend for a domain's interface, the first one or a later one.
    pub fn adopt(&self, id: DomId) -> Vif<Platform> {
        self.adopt_on(&self.platform, id)
    }

    fn adopt_on<H: Hypervisor>(&self, platform: &H, id: DomId) -> Vif<H> {
        let ledgers = self.ledgers.lock().unwrap().entry(id).or_default().clone();
        let path = toolstack::backend_path(id, 0);
        let (platform, store) = (platform.clone(), self.store.clone());
        Vif::adopt(platform, store, &path, self.offered, ledgers).unwrap()
    }

    /// Kills a guest's backend at any point of its work, and starts another one.
    pub fn restart(&self, guest: &mut Guest) -> Connection<Platform> {
        self.datapath.detach(guest.port.id());
        wait_for("the next backend's connection", || {
            guest.vif = self.adopt(guest.domain.id());
            match guest.vif.frontend_changed() {
                Ok(VifChange::Connect(connection)) => {
                    guest.vif.connected().unwrap();
                    Some(connection)
                }
                // A thread that was replaced has the event channels until its turn ends. A process that is killed has nothing.
                Err(VifError::Connect(ConnectError::Hypervisor(Error::BadPort { .. }))) => None,
                other => panic!("{:?}", other.err()),
            }
        })
    }

    /// Makes guests A and B. The switch knows where B is.
    pub fn pair(&self, config: netfront::Config) -> [Guest; 2] {
        let [mut a, mut b] =
            ["02:00:00:00:00:0a", "02:00:00:00:00:0b"].map(|mac| self.guest(mac, config));
        assert!(send(&mut b.queues[0], &frame(ALL, B, 60, 0)));
        await_any(&mut a);
        [a, b]
    }

    /// Makes a guest and connects it. Its frontend runs on another thread.
    pub fn guest(&self, mac: &str, config: netfront::Config) -> Guest {
        self.guest_on(&self.platform, mac, config)
    }

    /// The same, with a backend on any platform.
    pub fn guest_on<H: Hypervisor>(
        &self,
        platform: &H,
        mac: &str,
        config: netfront::Config,
    ) -> Guest<H> {
        let (domain, inside, mut vif) = self.domain_on(platform, mac);
        let guest = inside.clone();
        let store: Arc<dyn Store> = Arc::new(self.machine.store().connect(domain.id()));
        let frontend = std::thread::spawn(move || {
            Frontend::connect(&guest, store, &toolstack::device_path(0), &config).unwrap()
        });
        let connection = self.connect(&mut vif);
        let grants = connection.usage();
        let port = self.carry(domain.id(), connection);
        let (frontend, queues) = frontend.join().unwrap();
        Guest { domain, inside, frontend, queues, vif, port, grants }
    }

    /// Waits for the frontend and adds its queues to the datapath.
    pub fn attach<H: Hypervisor>(&self, vif: &mut Vif<H>, domain: DomId) -> Arc<Port> {
        let connection = self.connect(vif);
        self.carry(domain, connection)
    }

    /// Waits for the frontend.
    pub fn connect<H: Hypervisor>(&self, vif: &mut Vif<H>) -> Connection<H> {
        wait_for("the frontend's connection", || match vif.frontend_changed().unwrap() {
            VifChange::Connect(connection) => {
                vif.connected().unwrap();
                Some(connection)
            }
            _ => None,
        })
    }

    /// Adds a connection to the datapath.
    pub fn carry<H: Hypervisor>(&self, domain: DomId, connection: Connection<H>) -> Arc<Port> {
        let (queues, tasks) = connection.into_port();
        self.datapath.attach(&format!("vif{domain}.0"), queues, tasks)
    }
}

/// How often a wait checks, a millisecond apart, before it fails: far above what a busy machine's workers need, to which this thread's
/// pauses say nothing.
const CHECKS: u32 = 10_000;

/// Waits until `done` holds.
pub fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    wait_for(what, || done().then_some(()));
}

/// Waits until there is a value.
pub fn wait_for<T>(what: &str, mut value: impl FnMut() -> Option<T>) -> T {
    for _ in 0..CHECKS {
        if let Some(value) = value() {
            return value;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("{what} did not happen in {CHECKS} checks");
}

/// An Ethernet frame of `len` bytes with a body that depends on `n`.
pub fn frame(dst: [u8; 6], src: [u8; 6], len: usize, n: u32) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(len);
    bytes.extend(dst);
    bytes.extend(src);
    bytes.extend([0x88, 0xb5]); // local experimental
    bytes.extend(n.to_be_bytes());
    let seed = n as usize;
    bytes.extend((bytes.len()..len).map(|at| (at * 7 + seed).to_le_bytes()[0]));
    bytes.truncate(len);
    bytes
}

/// Puts a frame on a guest's ring.
pub fn send(queue: &mut FrontendQueue<MachineGuest>, bytes: &[u8]) -> bool {
    send_as(queue, bytes, Checksum::Unknown, None)
}

/// The same, with what is left to the backend.
pub fn send_as(
    queue: &mut FrontendQueue<MachineGuest>,
    bytes: &[u8],
    checksum: Checksum,
    gso: Option<Gso>,
) -> bool {
    queue.tx.reclaim().unwrap();
    let mut rest = bytes;
    for place in queue.tx.buffers() {
        let (part, after) = rest.split_at(place.len.min(rest.len()));
        place.region.copy_in(place.offset, part).unwrap();
        rest = after;
    }
    if !rest.is_empty() || !queue.tx.has_room() {
        return false;
    }
    let len = u16::try_from(bytes.len()).unwrap();
    queue.tx.send(len, checksum, gso).unwrap();
    queue.tx.publish();
    true
}

/// Waits for a frame in a guest's first queue.
pub fn await_any(guest: &mut Guest) -> Vec<u8> {
    wait_for("a frame", || receive(&mut guest.queues[0]))
}

/// Takes a frame off a guest's ring.
pub fn receive(queue: &mut FrontendQueue<MachineGuest>) -> Option<Vec<u8>> {
    receive_hashed(queue).map(|(bytes, _)| bytes)
}

/// The same, with its hash.
pub fn receive_hashed(
    queue: &mut FrontendQueue<MachineGuest>,
) -> Option<(Vec<u8>, Option<FlowHash>)> {
    receive_whole(queue).map(|(bytes, received)| (bytes, received.hash))
}

/// The same, with all that the backend says of it.
pub fn receive_whole(queue: &mut FrontendQueue<MachineGuest>) -> Option<(Vec<u8>, Received)> {
    let mut frame = Received::default();
    if !queue.rx.receive(&mut frame).unwrap() {
        return None;
    }
    let mut bytes = Vec::new();
    for fragment in queue.rx.fragments(&frame) {
        let Iovec::Shared { region, offset, len } = fragment else { unreachable!() };
        let mut part = vec![0; len];
        region.copy_out(offset, &mut part).unwrap();
        bytes.extend(part);
    }
    queue.rx.publish();
    Some((bytes, frame))
}
