//! A machine on which the guest acts between any two of the backend's looks at its memory: the
//! fastest adversary there can be, and one that does the same thing every time.

use std::ops::Deref;
use std::sync::{Arc, Mutex};

use hypervisor::{DomId, Error, GrantCopy, GrantRef, GrantTransfer, Hypervisor, Port};
use machine::{HostEvent, Machine, Mapping};
use shm::Region;

/// What the guest does, over and over.
pub type Act = Box<dyn FnMut() + Send>;

#[derive(Clone)]
pub struct Tampered {
    machine: Machine,
    act: Arc<Mutex<Act>>,
}

impl Tampered {
    pub fn new(machine: &Machine) -> Self {
        Self { machine: machine.clone(), act: Arc::new(Mutex::new(Box::new(|| ()))) }
    }

    /// From now on the guest does this.
    pub fn set(&self, act: impl FnMut() + Send + 'static) {
        *self.act.lock().unwrap() = Box::new(act);
    }

    fn act(&self) {
        self.act.lock().unwrap()();
    }
}

/// A mapping that the guest changes before every access.
pub struct Watched {
    inner: Mapping,
    hypervisor: Tampered,
}

impl Deref for Watched {
    type Target = Region;

    fn deref(&self) -> &Region {
        self.hypervisor.act();
        &self.inner
    }
}

impl Hypervisor for Tampered {
    type Peer = <Machine as Hypervisor>::Peer;
    type Mapping = Watched;
    type Event = HostEvent;
    type Page = <Machine as Hypervisor>::Page;

    fn peer(&self, domain: DomId) -> Result<Self::Peer, Error> {
        self.machine.peer(domain)
    }

    fn map(&self, peer: &Self::Peer, grefs: &[GrantRef]) -> Result<Watched, Error> {
        Ok(Watched { inner: self.machine.map(peer, grefs)?, hypervisor: self.clone() })
    }

    fn copy(&self, batch: &mut [GrantCopy<'_, Self::Peer>]) {
        for op in batch {
            self.act();
            self.machine.copy(std::slice::from_mut(op));
        }
        self.act();
    }

    fn bind_interdomain(&self, peer: &Self::Peer, port: Port) -> Result<HostEvent, Error> {
        self.machine.bind_interdomain(peer, port)
    }

    fn take_page(&self, peer: &Self::Peer) -> Result<Self::Page, Error> {
        self.machine.take_page(peer)
    }

    fn transfer(&self, batch: &mut [GrantTransfer<'_, Self::Peer, Self::Page>]) {
        self.machine.transfer(batch);
    }
}
