//! Interfaces that a toolstack creates and removes, as on Xen. The toolstack and the frontend are played by the test.

use std::time::Instant;

use control_socket::{IgnoredKey, PortState, PortStatus, TableKind, Traffic};
use datapath::{Cause, Datapath};
use host::TempDir;
use hypervisor::{DomId, Meter, Metered};
use machine::Machine;
use machine::toolstack::create_domain;
use netback::{Anonymous, CLOSED_FOR, Offered, VifError};
use port::Outcome;
use port_testing::{FakeEgress, Sender};
use xenstore::{Store, VifNodes};

use super::*;
use crate::config::Config;
use crate::daemon::backends::{Backends, VifId};
use crate::daemon::limits::Limits;
use crate::daemon::platform::{Backend, Platform, VifBackend};
use crate::daemon::ports::of_tables;
use crate::daemon::reach::Reach;

/// The driver domain and the guest's.
const OWN: DomId = DomId(5);
const GUEST: DomId = DomId(7);
const ID: VifId = VifId { domain: GUEST, handle: 0 };

/// A machine whose guests a toolstack makes, as a Xen host's.
struct FakeXen {
    machine: Metered<Machine>,
    store: Arc<dyn Store>,
    backends: Backends,
}

impl Platform for FakeXen {
    fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    fn backends(&self) -> &Backends {
        &self.backends
    }

    fn meter(&self) -> &Arc<Meter> {
        self.machine.meter()
    }

    fn adopt(&self, id: VifId, offered: Offered) -> Result<Box<dyn Backend>, VifError> {
        let (path, ledgers) = (self.backends.path(id), Arc::new(Anonymous::default()));
        VifBackend::adopt(self.machine.clone(), self.store.clone(), &path, offered, ledgers)
    }

    fn watch_for_guests(
        &self,
        _: Arc<Limits>,
        _: mpsc::Sender<Event>,
    ) -> Result<Box<dyn FnOnce()>, crate::daemon::error::Error> {
        Ok(Box::new(|| ()))
    }

    fn keeps_guests(&self) -> bool {
        true
    }

    fn ends_with_its_node(&self) -> bool {
        true
    }

    fn set_memory(&self, _: &str, _: DomId, _: usize) -> Result<(), String> {
        Ok(())
    }
}

/// A driver domain with a daemon, and a toolstack.
struct World {
    control: Control,
    platform: Arc<FakeXen>,
    toolstack: Box<dyn Store>,
    nodes: VifNodes,
    folder: TempDir,
}

impl World {
    fn new(config: &str) -> Self {
        let machine = Metered::new(Machine::new());
        let store: Arc<dyn Store> = Arc::new(machine.store().connect(OWN));
        let toolstack: Box<dyn Store> = Box::new(machine.store().connect(DomId(0)));
        let backends = Backends::new(OWN, "vif");
        let platform = Arc::new(FakeXen { machine, store, backends });
        create_domain(&*toolstack, OWN, "driver").unwrap();
        platform.backends.watch(&*platform.store).unwrap();
        let folder = TempDir::new().unwrap();
        let control = daemon(&platform, config, &folder);
        let (kind, domain) = ("vif".to_owned(), GUEST);
        let nodes = VifNodes { backend: OWN, kind, domain, handle: 0 };
        Self { control, platform, toolstack, nodes, folder }
    }

    /// Has the daemon follow all changes of the store.
    fn settle(&mut self) {
        while let Some(event) = self.platform.store.event().unwrap() {
            self.control.store_changed(&event);
        }
    }

    fn write(&mut self, key: &str, value: &str) {
        let path = format!("{}/{key}", self.nodes.backend_path());
        self.toolstack.write(None, &path, value).unwrap();
        self.settle();
    }

    fn port(&mut self) -> PortStatus {
        self.control.status().ports.remove(0)
    }

    fn state(&self) -> Option<String> {
        self.toolstack.read(None, &format!("{}/state", self.nodes.backend_path())).ok()
    }
}

fn daemon(platform: &Arc<FakeXen>, config: &str, folder: &TempDir) -> Control {
    let config = format!("[daemon]\nplatform = \"xen\"\n{config}");
    let config = Config::parse(&config).unwrap();
    let datapath = Datapath::start(&datapath::Config::default(), Box::new(|_| ())).unwrap();
    let (events, _) = mpsc::channel();
    let (limits, reach) = (Arc::new(Limits::of_this_process()), Reach::everywhere());
    let (platform, front_ends) = (platform.clone(), Arc::default());
    let host = Host { config, platform, datapath, limits, front_ends, events, reach };
    Control::new(host, String::new(), Vec::new(), PortsLastUp::open(folder.path()))
}

#[test]
fn a_rate_of_the_toolstack_is_the_limit_of_what_the_guest_sends() {
    let rate = |port: &PortStatus| port.limit?.ingress?.bytes_per_second;
    let mut world = World::new("[[guest]]\nname = \"*\"\nlimit = { egress = { mbps = 8 } }\n");
    world.nodes.create(&*world.toolstack, "02:00:00:00:00:01").unwrap();
    world.settle();
    assert_eq!(rate(&world.port()), None);
    for (text, expected) in [("6250,50000", Some(125_000)), ("12500,50000", Some(250_000))] {
        world.write("rate", text);
        let port = world.port();
        assert_eq!((rate(&port), port.toolstack.rate), (expected, true));
        assert!(port.limit.unwrap().egress.is_some() && port.toolstack.ignored.is_empty());
    }
    world.write("rate", "fast");
    let port = world.port();
    assert_eq!((rate(&port), port.toolstack.rate), (None, false));
    assert_eq!(port.toolstack.ignored[0].value, "fast");

    // One that is there when the interface comes, and a configuration that comes first.
    for (config, rates, is_used) in [
        ("", Some(125_000), true),
        ("[[guest]]\nname = \"*\"\nlimit = { ingress = { mbps = 8 } }\n", Some(1_000_000), false),
    ] {
        let mut world = World::new(config);
        world.nodes.create(&*world.toolstack, "02:00:00:00:00:01").unwrap();
        world.write("rate", "6250,50000");
        let port = world.port();
        assert_eq!((rate(&port), port.toolstack.rate), (rates, is_used));
        let why = |ignored: &IgnoredKey| ignored.why.contains("limit.ingress");
        assert_eq!(port.toolstack.ignored.iter().any(why), !is_used);
    }
}

/// `xl network-detach` fails if the nodes go before libxl has read the state.
#[test]
fn the_toolstack_sees_that_an_interface_is_closed_before_it_is_gone() {
    for is_started_anew in [false, true] {
        let mut world = World::new("");
        world.nodes.create(&*world.toolstack, "02:00:00:00:00:01").unwrap();
        world.settle();
        assert_eq!(world.state().as_deref(), Some("2"));
        world.nodes.ask_to_close(&*world.toolstack).unwrap();
        let frontend = format!("{}/state", world.nodes.frontend_path());
        world.toolstack.write(None, &frontend, "6").unwrap();
        world.settle();
        assert!(world.control.ports.is_empty());
        world.control.remove_closed(false);
        assert_eq!(world.state().as_deref(), Some("6"));
        if is_started_anew {
            world.control = daemon(&world.platform, "", &world.folder);
            world.control.discover_all();
        }
        let (store, backends) = (world.platform.store.clone(), &world.platform.backends);
        world.control.closed.remove_due(&*store, backends, Instant::now());
        assert_eq!(world.state().as_deref(), Some("6"), "{is_started_anew}");
        let later = Instant::now() + CLOSED_FOR;
        world.control.closed.remove_due(&*store, backends, later);
        assert_eq!(world.state(), None, "{is_started_anew}");
        // The next interface of this number is served.
        world.nodes.create(&*world.toolstack, "02:00:00:00:00:02").unwrap();
        world.settle();
        assert_eq!(world.state().as_deref(), Some("2"));
        assert!(world.control.ports.contains_key(&PortId::Vif(ID)));
    }
}

/// A series that falls is a start of the daemon to Prometheus.
#[test]
fn the_counters_of_an_interface_go_on_from_connection_to_connection() {
    let mut world = World::new("");
    world.nodes.create(&*world.toolstack, "02:00:00:00:00:01").unwrap();
    world.settle();
    for connection in 1..=3 {
        let (sender, ingress) = Sender::new();
        let egress = Box::new(FakeEgress::new(|_, _| Ok(Outcome::Delivered)));
        world.control.connect(PortId::Vif(ID), vec![port::Queue { ingress, egress }], Vec::new());
        sender.send([2; 60]);
        let start = Instant::now();
        while world.port().ingress.frames < connection {
            assert!(start.elapsed().as_secs() < 20, "{:?}", world.port().ingress);
        }
        world.control.disconnect(PortId::Vif(ID), Reason::FrontendClosed);
        let Traffic { frames, bytes } = world.port().ingress;
        assert_eq!((frames, bytes), (connection, 60 * connection));
    }
}

/// Whatever it is made of.
#[test]
fn a_port_gets_its_address_when_the_one_that_had_it_goes() {
    let World { mut control, .. } = World::new("");
    let table = |name: &str| {
        format!(
            "[[port]]\nname = \"{name}\"\nkind = \"vhost-user\"\nsocket = \"/{name}\"\n\
             mac = \"02:00:00:00:00:09\"\n"
        )
    };
    let config = Config::parse(&["first", "second"].map(table).concat()).unwrap();
    let ports = of_tables(&config, TableKind::Port, None).unwrap();
    let ids: Vec<_> = ports.iter().map(|port| port.record.identity.id).collect();
    for port in ports {
        let id = port.record.identity.id;
        control.ports.insert(id, port);
        let (_sender, ingress) = Sender::new();
        let egress = Box::new(FakeEgress::new(|_, _| Ok(Outcome::Delivered)));
        let queues = vec![port::Queue { ingress, egress }];
        control.serve_port(id, PortEvent::Ready { queues, agreed: None });
    }
    let reasons = |control: &mut Control| {
        let ports = control.status().ports.into_iter();
        ports.map(|port| (port.state, port.reason)).collect::<Vec<_>>()
    };
    let taken = Some(Reason::AddressTaken("first".to_owned()));
    assert_eq!(reasons(&mut control), [(PortState::Up, None), (PortState::Up, taken)]);
    control.serve_port(ids[0], PortEvent::Gone(Reason::Stopping));
    let gone = (PortState::Down, Some(Reason::Stopping));
    assert_eq!(reasons(&mut control), [gone, (PortState::Up, None)]);
    let [entry] = &control.host.datapath.addresses()[..] else { panic!() };
    assert!(entry.taught);
}

/// A virtual machine's port. The test says what its front-end's session would.
struct MachinePort {
    control: Control,
    id: PortId,
    _folder: TempDir,
}

impl MachinePort {
    fn new() -> Self {
        let World { mut control, folder, .. } = World::new("");
        let socket = folder.path().join("vm");
        let table =
            format!("[[port]]\nname = \"vm\"\nkind = \"vhost-user\"\nsocket = {socket:?}\n");
        let config = Config::parse(&table).unwrap();
        let port = of_tables(&config, TableKind::Port, None).unwrap().remove(0);
        let id = port.record.identity.id;
        let port = port.open(&control.host).unwrap();
        control.ports.insert(id, port);
        Self { control, id, _folder: folder }
    }

    /// Its rings can be served. A frame from it shows that they are.
    fn ready(&mut self) -> Sender {
        let (sender, ingress) = Sender::new();
        let egress = Box::new(FakeEgress::new(|_, _| Ok(Outcome::Delivered)));
        let queues = vec![port::Queue { ingress, egress }];
        self.control.serve_port(self.id, PortEvent::Ready { queues, agreed: None });
        sender.send([2; 60]);
        sender
    }

    fn gone(&mut self) {
        self.control.serve_port(self.id, PortEvent::Gone(Reason::Stopping));
    }

    fn port(&self) -> Option<Arc<Port>> {
        self.control.ports[&self.id].record.port.clone()
    }

    /// A worker slept in its memory.
    fn slept(&mut self, time: Duration) {
        let (from, cause) = (self.port(), Cause::Unknown);
        let sleep = datapath::Sleep {
            from,
            queue: None,
            to: None,
            are_copies: false,
            time,
            cause,
            has_left: false,
            is_replaced: true,
        };
        self.control.slept(&sleep);
    }

    fn reason(&mut self) -> Option<Reason> {
        self.control.status().ports.remove(0).reason
    }
}

fn wait_until_carried(sender: &Sender) {
    let start = Instant::now();
    while sender.answers().is_empty() {
        assert!(start.elapsed().as_secs() < 20);
    }
}

/// Nothing says that it was on purpose, so it is not cut off.
#[test]
fn a_port_that_holds_workers_up_beyond_its_share_rests() {
    let mut machine = MachinePort::new();
    wait_until_carried(&machine.ready());
    for _ in 0..2 {
        machine.slept(Duration::from_millis(24));
        machine.gone();
        assert_eq!(machine.reason(), None);
        wait_until_carried(&machine.ready());
    }
    machine.slept(Duration::from_millis(14));
    machine.gone();
    assert_eq!(machine.reason(), Some(Reason::HeldWorkersUp));
    // Its front-end may even come again meanwhile.
    let [_, sender] = [false, true].map(|is_new| {
        if is_new {
            machine.gone();
        }
        let sender = machine.ready();
        machine.control.check_ports();
        assert!(sender.answers().is_empty() && sender.turns() == 0, "its memory is touched");
        sender
    });
    while machine.reason().is_some() {
        std::thread::sleep(Duration::from_millis(10));
        machine.control.check_ports();
    }
    wait_until_carried(&sender);
}

/// Two workers, or two short sleeps.
#[test]
fn rings_that_are_being_served_anew_are_not_asked_for_once_more() {
    for second in 0..3 {
        let mut machine = MachinePort::new();
        wait_until_carried(&machine.ready());
        let port = machine.port();
        let sleep = |machine: &mut MachinePort, moment| {
            if moment == 0 || moment == second {
                machine.slept(Duration::from_millis(1));
            }
        };
        sleep(&mut machine, 0);
        sleep(&mut machine, 1);
        machine.gone();
        sleep(&mut machine, 2);
        wait_until_carried(&machine.ready());
        let is_same = port.zip(machine.port()).is_some_and(|(old, new)| Arc::ptr_eq(&old, &new));
        assert!(is_same, "a second port has its place");
    }
}
