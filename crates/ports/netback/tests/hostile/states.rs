//! The handshake: a frontend that jumps from any state to any other, and writes wrong values.

use std::path::PathBuf;
use std::sync::Arc;

use hypervisor::DomId;
use machine::{Machine, toolstack};
use netback::{
    Anonymous, Change, Connection, Files, Ledgers, Offered, RingKind, RxChannel, TxChannel, Vif,
};
use offload::Features;
use proptest::prelude::*;
use wire::netif::keys;
use xenstore::{Store, VifNodes, XenbusState};

use crate::guest::{RX_RING, Raw, TX_RING};

const OFFERED: Offered = Offered {
    max_queues: 1,
    features: Features::ALL,
    split_event_channels: false,
    tx: TxChannel::Header,
    rx: RxChannel::Copy,
    persistent_grants: 0,
};

/// The content of a frontend's state key: nothing, a wrong value, or a state.
const TEXTS: [Option<&str>; 14] = [
    None,
    Some(""),
    Some("0"),
    Some("9"),
    Some("abc"),
    Some("4 4"),
    Some("1"),
    Some("2"),
    Some("3"),
    Some("4"),
    Some("5"),
    Some("6"),
    Some("7"),
    Some("8"),
];

/// The stable states of the backend's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    InitWait,
    Connected,
    Closed,
    /// Closed, and removed by the toolstack.
    Removed,
}

impl End {
    /// The next state after the frontend, whose keys are valid, has written `text`.
    fn after(self, text: Option<&str>, online: bool) -> Self {
        match (self, text) {
            (Self::Removed, _) => Self::Removed,
            (Self::InitWait, Some("4")) => Self::Connected,
            (_, Some("2" | "3" | "4" | "7" | "8")) => self,
            (_, Some("5")) => Self::Closed,
            // All others mean that there is no frontend, or not yet.
            _ if !online => Self::Removed,
            (_, Some("1")) => Self::InitWait,
            _ => Self::Closed,
        }
    }

    /// As `after`, for a frontend that wrote it while the backend was dead.
    fn after_death(self, text: Option<&str>, online: bool) -> Self {
        match (self, text) {
            // With the frontend in one of these states there is no connection to adopt.
            (Self::Connected, Some("2" | "3" | "7" | "8")) => Self::Closed,
            _ => self.after(text, online),
        }
    }

    fn state(self) -> XenbusState {
        match self {
            Self::InitWait => XenbusState::InitWait,
            Self::Connected => XenbusState::Connected,
            Self::Closed | Self::Removed => XenbusState::Closed,
        }
    }
}

/// A guest, and a daemon with one interface.
struct World {
    machine: Machine,
    raw: Raw,
    /// The vif, until it is removed.
    vif: Option<Vif<Machine>>,
    connection: Option<Connection<Machine>>,
    /// How many connections there were.
    connections: u32,
}

impl World {
    fn new() -> Self {
        let machine = Machine::new();
        let raw = Raw::new(&machine);
        raw.prepare(Features::ALL);
        let vif = Some(raw.announce(machine.clone()));
        Self { machine, raw, vif, connection: None, connections: 0 }
    }

    fn write(&self, text: Option<&str>) {
        match text {
            Some(text) => self.raw.key("state", text),
            None => {
                let _ = self.raw.store.remove(None, &format!("{}/state", device()));
            }
        }
    }

    fn set_online(&self, online: bool) {
        let path = format!("{}/online", self.backend());
        self.raw.driver_store.write(None, &path, if online { "1" } else { "0" }).unwrap();
    }

    fn backend(&self) -> String {
        toolstack::backend_path(self.raw.domain.id(), 0)
    }

    /// The backend's state, as the frontend sees it.
    fn state(&self) -> Option<XenbusState> {
        let path = format!("{}/state", self.backend());
        XenbusState::parse(&self.raw.store.read(None, &path).unwrap())
    }

    /// Runs the daemon's reactions to a change, until there are none left.
    fn drive(&mut self) {
        for _ in 0..4 {
            let Some(vif) = &mut self.vif else { return };
            match vif.frontend_changed() {
                Ok(Change::None) => return self.check(),
                Ok(Change::Connect(connection)) => {
                    assert!(self.connection.is_none(), "connected twice");
                    assert!(!connection.queues.is_empty());
                    self.connection = Some(connection);
                    self.connections += 1;
                    vif.connected().unwrap();
                }
                Ok(Change::Remove) => {
                    self.connection = None;
                    self.vif.take().unwrap().remove().unwrap();
                }
                Ok(Change::Disconnect) | Err(_) => {
                    self.connection = None;
                    assert_eq!(self.raw.domain.pinned(), 0, "a grant stays mapped");
                    vif.disconnected().unwrap();
                }
            }
            self.check();
        }
        panic!("it never comes to rest");
    }

    /// The invariants at every moment at which the frontend could look.
    fn check(&self) {
        let state = self.state().unwrap();
        assert!([2, 4, 6].contains(&(state as u8)), "{state:?}");
        assert_eq!(state == XenbusState::Connected, self.connection.is_some());
        match &self.vif {
            Some(vif) => assert_eq!(vif.state(), state),
            None => assert_eq!(state, XenbusState::Closed),
        }
    }

    /// The daemon is killed and started again.
    fn restart(&mut self) {
        if self.vif.take().is_none() {
            return;
        }
        self.connection = None;
        self.vif = Some(self.raw.announce(self.machine.clone()));
        self.drive();
    }
}

fn device() -> String {
    toolstack::device_path(0)
}

#[test]
fn every_jump_between_two_states_leads_where_it_should() {
    for online in [true, false] {
        for first in TEXTS {
            for second in TEXTS {
                let mut world = World::new();
                world.set_online(online);
                let mut end = End::InitWait;
                for text in [first, second] {
                    world.write(text);
                    world.drive();
                    end = end.after(text, online);
                    let path = format!("{first:?} {second:?} online={online}");
                    assert_eq!(world.state(), Some(end.state()), "{path}");
                    assert_eq!(world.vif.is_none(), end == End::Removed, "{path}");
                }
            }
        }
    }
}

#[test]
fn what_a_frontend_does_while_the_daemon_is_dead_is_seen_after_it() {
    for online in [true, false] {
        for first in TEXTS {
            for second in TEXTS {
                let mut world = World::new();
                world.write(first);
                world.drive();
                let end = End::InitWait.after(first, true);
                world.set_online(online);
                world.write(second);
                world.restart();
                let end = end.after_death(second, online);
                let path = format!("{first:?} {second:?} online={online}");
                assert_eq!(world.state(), Some(end.state()), "{path}");
                assert_eq!(world.vif.is_none(), end == End::Removed, "{path}");
            }
        }
    }
}

#[test]
fn whatever_came_before_a_frontend_that_starts_over_connects() {
    for first in TEXTS {
        for second in TEXTS {
            let mut world = World::new();
            for text in [first, second, Some("1")] {
                world.write(text);
                world.drive();
            }
            assert_eq!(world.state(), Some(XenbusState::InitWait));
            world.write(Some("4"));
            world.drive();
            assert_eq!(world.state(), Some(XenbusState::Connected));
        }
    }
}

#[test]
fn connected_twice_is_one_connection() {
    let mut world = World::new();
    for _ in 0..3 {
        world.write(Some("4"));
        world.drive();
    }
    assert_eq!(world.connections, 1);
}

#[test]
fn a_frontend_that_starts_over_never_sees_the_backend_close() {
    let mut world = World::new();
    world.write(Some("4"));
    world.drive();
    let path = format!("{}/state", world.backend());
    let mut seen = Vec::new();
    world.raw.store.watch(&path, "state").unwrap();
    while world.raw.store.event().unwrap().is_some() {}
    world.write(Some("1"));
    assert!(matches!(world.vif.as_mut().unwrap().frontend_changed(), Ok(Change::Disconnect)));
    world.connection = None;
    world.vif.as_mut().unwrap().disconnected().unwrap();
    while world.raw.store.event().unwrap().is_some() {
        seen.push(world.state().unwrap());
    }
    // One write.
    assert_eq!(seen, [XenbusState::InitWait]);
}

#[test]
fn of_a_connection_that_goes_on_nothing_is_written() {
    let mut world = World::new();
    world.write(Some("4"));
    world.drive();
    world.raw.driver_store.watch(&world.backend(), "all").unwrap();
    while world.raw.driver_store.event().unwrap().is_some() {}
    world.restart();
    assert_eq!(world.connections, 2);
    assert_eq!(world.raw.driver_store.event(), Ok(None));
    // Only a connection without a backend is adopted.
    world.drive();
    assert_eq!(world.connections, 2);
}

#[test]
fn a_connection_that_cannot_go_on_is_closed_and_made_anew() {
    let mut world = World::new();
    world.write(Some("4"));
    world.drive();
    // More requests than slots.
    world.raw.write(TX_RING, 0, 1000u32);
    world.restart();
    assert_eq!(world.state(), Some(XenbusState::Closed));
    world.raw.reset();
    for text in ["1", "4"] {
        world.write(Some(text));
        world.drive();
    }
    assert_eq!(world.connections, 2);
}

#[test]
fn headers_come_as_was_agreed_with_the_backend_before() {
    for (tx, agreed) in [(TxChannel::Header, "1"), (TxChannel::Remap, "0")] {
        let machine = Machine::new();
        let raw = Raw::new(&machine);
        raw.supply_headers();
        let pinned = |vif: &mut Vif<Machine>| {
            let Ok(Change::Connect(connection)) = vif.frontend_changed() else { panic!() };
            vif.connected().unwrap();
            assert_eq!(connection.queues.len(), 1);
            raw.domain.pinned()
        };
        raw.prepare(Features::ALL);
        raw.key("state", 4);
        let mut first = raw.announce_by(machine.clone(), tx, RxChannel::Copy);
        let mapped = pinned(&mut first);
        let backend = toolstack::backend_path(raw.domain.id(), 0);
        let key = format!("{backend}/{}", keys::HEADER_CHANNEL);
        assert_eq!(raw.store.read(None, &key).unwrap(), agreed);
        // A backend with other offers.
        let other = match tx {
            TxChannel::Header => TxChannel::Remap,
            TxChannel::Remap => TxChannel::Header,
        };
        let mut second = raw.announce_by(machine.clone(), other, RxChannel::Copy);
        assert_eq!(pinned(&mut second), mapped);
    }
}

#[test]
fn a_backend_in_a_domain_of_its_own_takes_its_node_away() {
    let machine = Machine::new();
    let raw = Raw::new(&machine);
    let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("ledgers");
    for (domain, stays) in [(0, true), (5, false)] {
        let path = format!("/local/domain/{domain}/backend/vif/{}/0", raw.domain.id());
        let frontend = format!("/local/domain/{}/{}", raw.domain.id(), device());
        for (key, value) in
            [("frontend", &*frontend), ("frontend-id", "1"), ("mac", "02:00:00:00:00:01")]
        {
            raw.driver_store.write(None, &format!("{path}/{key}"), value).unwrap();
        }
        let ledgers = Arc::new(Files::new(&directory));
        ledgers.ledger(0, RingKind::Tx).unwrap();
        let store = raw.driver_store.clone();
        let vif = Vif::adopt(machine.clone(), store, &path, OFFERED, ledgers).unwrap();
        vif.remove().unwrap();
        let state = raw.driver_store.read(None, &format!("{path}/state"));
        assert_eq!(state.ok().as_deref(), stays.then_some("6"));
        assert_eq!(raw.driver_store.directory(None, &path).is_ok(), stays);
        assert!(!directory.exists());
    }
}

/// A domain other than dom0 gets "permission denied" for a node that is gone.
#[test]
fn a_backend_in_a_domain_of_its_own_sees_that_the_frontend_is_gone() {
    let machine = Machine::new();
    let raw = Raw::new(&machine);
    let own = DomId(5);
    let nodes =
        VifNodes { backend: own, kind: "vif".to_owned(), domain: raw.domain.id(), handle: 1 };
    let store = &*raw.driver_store;
    nodes.create(store, "02:00:00:00:00:01").unwrap();
    let path = format!("/local/domain/{own}/backend/vif/{}/1", raw.domain.id());

    let unprivileged: Arc<dyn Store> = Arc::new(machine.store().connect(own));
    let (hypervisor, ledgers) = (machine.clone(), Arc::new(Anonymous::default()));
    let mut vif = Vif::adopt(hypervisor, unprivileged, &path, OFFERED, ledgers).unwrap();
    assert!(matches!(vif.frontend_changed(), Ok(Change::None)));
    // As libxl destroys a guest: first it removes the frontend's nodes, then it asks the backend.
    store.remove(None, vif.frontend()).unwrap();
    assert!(matches!(vif.frontend_changed(), Ok(Change::Disconnect)));
    vif.disconnected().unwrap();
    store.write(None, &format!("{path}/online"), "0").unwrap();
    assert!(matches!(vif.frontend_changed(), Ok(Change::Remove)));
    vif.remove().unwrap();
    assert!(store.directory(None, &path).is_err());
}

#[derive(Clone, Debug)]
enum Step {
    State(Option<&'static str>),
    Key(&'static str, String),
    Index(u32, usize, u32),
    Online(bool),
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    let names = prop::sample::select(vec![
        keys::TX_RING_REF,
        keys::RX_RING_REF,
        keys::EVENT_CHANNEL,
        keys::EVENT_CHANNEL_TX,
        keys::EVENT_CHANNEL_RX,
        keys::MULTI_QUEUE_NUM_QUEUES,
        keys::REQUEST_RX_COPY,
        keys::TX_HEADER_REFS,
        keys::FEATURE_SG,
        "queue-0/tx-ring-ref",
    ]);
    let values = prop_oneof![
        prop::sample::select(vec!["", "-1", "abc", "4294967296", "1 2", "0x8"])
            .prop_map(str::to_owned),
        any::<u32>().prop_map(|n| n.to_string()),
        (0u32..12).prop_map(|n| n.to_string()),
    ];
    let ring = prop::sample::select(vec![TX_RING, RX_RING]);
    prop_oneof![
        8 => prop::sample::select(TEXTS.to_vec()).prop_map(Step::State),
        4 => Just(Step::State(Some("4"))),
        2 => Just(Step::State(Some("1"))),
        3 => (names, values).prop_map(|(name, value)| Step::Key(name, value)),
        1 => (ring, prop::sample::select(vec![0usize, 8]), 0u32..600)
            .prop_map(|(ring, at, value)| Step::Index(ring, at, value)),
        1 => prop::bool::weighted(0.9).prop_map(Step::Online),
        3 => Just(Step::Restart),
    ]
}

proptest! {
    #[test]
    fn no_walk_through_the_states_keeps_an_honest_driver_out(
        steps in prop::collection::vec(step(), 1..60),
    ) {
        let mut world = World::new();
        for step in steps {
            match step {
                Step::State(text) => world.write(text),
                Step::Key(key, value) => world.raw.key(key, value),
                Step::Index(ring, at, value) => world.raw.write(ring, at, value),
                Step::Online(online) => world.set_online(online),
                Step::Restart => world.restart(),
            }
            world.drive();
        }
        if world.vif.is_none() {
            // Like the toolstack for a new device.
            world.vif = Some(world.raw.announce(world.machine.clone()));
        }
        world.set_online(true);
        world.write(Some("1"));
        world.drive();
        prop_assert_eq!(world.state(), Some(XenbusState::InitWait));
        world.raw.reset();
        world.raw.prepare(Features::ALL);
        world.raw.key(keys::REQUEST_RX_COPY, 1);
        for key in [
            keys::MULTI_QUEUE_NUM_QUEUES,
            keys::EVENT_CHANNEL_TX,
            keys::EVENT_CHANNEL_RX,
            keys::TX_HEADER_REFS,
        ] {
            let _ = world.raw.store.remove(None, &format!("{}/{key}", device()));
        }
        world.write(Some("4"));
        world.drive();
        prop_assert_eq!(world.state(), Some(XenbusState::Connected));
    }
}
