//! A driver domain without threads, and its guests in the same process.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use datapath::{Config, Datapath, LockstepWorker, Port};
use hypervisor::{Meter, Metered};
use machine::{DRIVER_DOMAIN, Domain, Machine, MachineGuest, MemorySize, toolstack};
use netback::{Anonymous, GrantReuse, Offered, RxChannel, TxChannel, Vif, VifChange};
use netfront::Frontend;
use offload::Features;
use wire::ethernet::MacAddr;
use xenstore::Store;

use crate::bench::guest::{Guest, text};

/// Pages of a queue that stay mapped: the daemon's default.
const PERSISTENT: u16 = 512;
/// Pages of a domain that change hands.
const EXCHANGED: usize = 512;
/// How long to pause while a frontend connects.
const PAUSE: Duration = Duration::from_micros(200);

/// The driver domain.
pub struct Host {
    pub machine: Metered<Machine>,
    pub datapath: Datapath,
    pub worker: LockstepWorker,
    store: Arc<dyn Store>,
    failure: Arc<Mutex<Option<String>>>,
}

/// A guest and its backend.
pub struct Joined {
    pub guest: Guest,
    pub port: Arc<Port>,
    _domain: Arc<Domain>,
    _vif: Vif<Metered<Machine>>,
}

/// The settings of a guest's interface.
#[derive(Clone, Copy)]
pub struct Interface {
    pub tx: TxChannel,
    pub rx: RxChannel,
    /// Whether it has the header channel, and pages that stay mapped.
    pub fast: bool,
    pub features: Features,
}

impl Default for Interface {
    fn default() -> Self {
        Self { tx: TxChannel::Header, rx: RxChannel::Copy, fast: true, features: Features::ALL }
    }
}

impl Host {
    /// Without guests.
    pub fn new() -> Result<Self, String> {
        let machine = Metered::new(Machine::new());
        let store: Arc<dyn Store> = Arc::new(machine.store().connect(DRIVER_DOMAIN));
        let failure = Arc::<Mutex<Option<String>>>::default();
        let sink = failure.clone();
        let failed = move |failure: datapath::Failure| {
            if let Ok(mut sink) = sink.lock() {
                *sink = Some(failure.reason);
            }
        };
        let (datapath, worker) =
            Datapath::lockstep(&Config::default(), Box::new(failed)).map_err(text)?;
        Ok(Self { machine, datapath, worker, store, failure })
    }

    /// The counters.
    pub fn meter(&self) -> Arc<Meter> {
        self.machine.meter().clone()
    }

    /// Works until there is nothing to do.
    pub fn work(&mut self) -> Result<(), String> {
        if !self.worker.run() {
            return Err("the worker finds no end".into());
        }
        match self.failure.lock().ok().and_then(|mut failure| failure.take()) {
            Some(reason) => Err(reason),
            None => Ok(()),
        }
    }

    /// Connects a guest with one interface.
    pub fn join(&mut self, number: u8, interface: Interface) -> Result<Joined, String> {
        let exchange_pages = if interface.rx == RxChannel::Flip { EXCHANGED } else { 0 };
        let size = MemorySize { exchange_pages, ..MemorySize::default() };
        let domain = self.machine.create(size).map_err(text)?;
        let (id, mac) = (domain.id(), MacAddr([2, 0, 0, 0, 0, number]));
        toolstack::create_domain(&*self.store, id, "generator").map_err(text)?;
        toolstack::create_vif(&*self.store, id, 0, &mac.to_string()).map_err(text)?;
        let offered = Offered {
            max_queues: 1,
            features: Features::ALL,
            guest_offloads: true,
            split_event_channels: true,
            tx: interface.tx,
            rx: interface.rx,
            persistent_grants: if interface.fast { PERSISTENT } else { 0 },
            reuse: GrantReuse::Agreed,
            multicast_control: false,
            coalescing: None,
            completion_delay: None,
        };
        let (machine, store) = (self.machine.clone(), self.store.clone());
        let ledgers = Arc::new(Anonymous::default());
        let path = toolstack::backend_path(id, 0);
        let mut vif = Vif::adopt(machine, store, &path, offered, ledgers).map_err(text)?;

        let inside = MachineGuest::inside(&self.machine, &domain).map_err(text)?;
        let store: Arc<dyn Store> = Arc::new(self.machine.store().connect(id));
        let config = netfront::Config {
            header_channel: interface.fast,
            persistent_grants: interface.fast,
            features: interface.features,
            ..netfront::Config::default()
        };
        let guest = inside.clone();
        let connect = move || {
            Frontend::connect(&guest, store, &toolstack::device_path(0), &config).map_err(text)
        };
        let connecting = std::thread::spawn(connect);
        let mut port = None;
        while !connecting.is_finished() {
            if let VifChange::Connect(connection) = vif.frontend_changed().map_err(text)? {
                let (queues, tasks) = connection.into_port();
                port = Some(self.datapath.attach(&format!("generator-{number}"), queues, tasks));
                vif.connected().map_err(text)?;
            }
            self.work()?;
            std::thread::sleep(PAUSE);
        }
        let (frontend, queues) = connecting.join().map_err(|_| "a frontend panicked")??;
        let queue = queues.into_iter().next().ok_or("no queue")?;
        let port = port.ok_or("the frontend did not connect")?;
        self.datapath.teach(port.id(), mac).map_err(text)?;
        let guest = Guest { frontend, queue, machine: inside, mac };
        Ok(Joined { guest, port, _domain: domain, _vif: vif })
    }
}
