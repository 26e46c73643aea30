//! A domain with an interface that the toolstack has announced in the store.

use std::sync::Arc;

use hypervisor::Hypervisor;
use machine::{DRIVER_DOMAIN, Domain, Machine, MachineGuest, MemorySize, toolstack};
use netback::{Anonymous, GrantReuse, Offered, RxChannel, TxChannel, Vif};
use offload::Features;
use port::Coalescing;
use xenstore::Store;

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
