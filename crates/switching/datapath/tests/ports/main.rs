//! The datapath between ports that are not netback, and between those and guests.

#[path = "../common/mod.rs"]
mod common;

mod apart;
mod arm;
mod batches;
mod changes;
mod device;
mod fairness;
mod faults;
mod floods;
mod in_flight;
mod lateness;
mod lists;
mod memory;
mod mirrors;
mod moves;
mod multicast;
mod pairs;
mod parts;
mod placement;
mod polling;
mod prediction;
mod rebalance;
mod receiver;
mod rewrap;
mod sleepers;
mod stations;
mod steering;
mod storms;
mod swapped;
mod teardown;
mod vlans;
mod waiting;

use std::sync::{Arc, Mutex, mpsc};

use datapath::{Config, Datapath, Failure, LockstepWorker, Port, PortMemory, PortParts};
use port::{Egress, Ingress, Queue};
use port_testing::Sender;
use switch::MacAddr;

use common::ALL;
use device::Device;
use receiver::Receiver;

/// The address of the station on port `n`.
fn mac(n: u8) -> [u8; 6] {
    [2, 0, 0, 0, 1, n]
}

/// A switch without guests.
struct Switch {
    datapath: Datapath,
    failures: Mutex<mpsc::Receiver<Failure>>,
}

impl Switch {
    fn new(workers: usize) -> Self {
        Self::with(&Config { workers, ..Config::default() })
    }

    fn with(config: &Config) -> Self {
        let (sender, failures) = mpsc::channel();
        let sink = Box::new(move |failure| sender.send(failure).unwrap());
        let datapath = Datapath::start(config, sink).unwrap();
        Self { datapath, failures: Mutex::new(failures) }
    }
}

/// A datapath whose worker has a turn when the test says so.
fn lockstep() -> (Datapath, LockstepWorker) {
    Datapath::lockstep(&Config::default(), Box::new(|failure| panic!("{failure:?}"))).unwrap()
}

/// A test port, and what the test holds of its two sides.
struct Plugged<E> {
    port: Arc<Port>,
    mac: [u8; 6],
    sender: Sender,
    egress: E,
}

/// Attaches a port with one queue, and teaches the switch its address.
fn plug<E>(
    datapath: &Datapath,
    n: u8,
    ingress: (Sender, Box<dyn Ingress>),
    egress: (E, Box<dyn Egress>),
) -> Plugged<E> {
    plug_with(datapath, n, PortMemory::default(), ingress, egress)
}

/// The same with such memory.
fn plug_with<E>(
    datapath: &Datapath,
    n: u8,
    memory: PortMemory,
    ingress: (Sender, Box<dyn Ingress>),
    egress: (E, Box<dyn Egress>),
) -> Plugged<E> {
    let plugged = attach(datapath, n, memory, ingress, egress);
    refresh(datapath);
    plugged
}

/// The same, also where no worker runs.
fn attach<E>(
    datapath: &Datapath,
    n: u8,
    memory: PortMemory,
    (sender, ingress): (Sender, Box<dyn Ingress>),
    (handle, egress): (E, Box<dyn Egress>),
) -> Plugged<E> {
    let queues = vec![Queue { ingress, egress }];
    let name = format!("port{n}");
    let parts = PortParts { queues, memory, ..PortParts::default() };
    let port = datapath.attach_member(&name, parts, None);
    datapath.teach(port.id(), MacAddr(mac(n))).unwrap();
    Plugged { port, mac: mac(n), sender, egress: handle }
}

/// Waits until every worker knows the ports that there are now. A worker in the middle of a round
/// drops a frame for a port that was attached after the round began.
fn refresh(datapath: &Datapath) {
    // Who removes a queue checks all ports. There are enough queues for every worker to have one.
    let queue = |_| Queue { ingress: Sender::new().1, egress: Receiver::new().1 };
    let queues = (0..16 * datapath.workers()).map(queue).collect();
    datapath.detach(datapath.attach("none", queues, Vec::new()).id());
}

/// A port that takes frames at once.
fn plain(datapath: &Datapath, n: u8) -> Plugged<Receiver> {
    plug(datapath, n, Sender::new(), Receiver::new())
}

/// A port whose device finishes frames when the test says so.
fn slow(datapath: &Datapath, n: u8) -> Plugged<Device> {
    plug(datapath, n, Sender::new(), Device::new())
}
