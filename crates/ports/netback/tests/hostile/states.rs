//! The handshake: a frontend that jumps from any state to any other, and writes wrong values.

use machine::{Machine, toolstack};
use netback::{Connection, Vif, VifChange};
use offload::Features;
use xenstore::XenbusState;

use crate::common::guest::Raw;

/// The content of a frontend's state key: nothing, a wrong value, or a state.
pub const TEXTS: [Option<&str>; 14] = [
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
pub enum End {
    InitWait,
    Connected,
    Closed,
    /// Closed, and removed by the toolstack.
    Removed,
}

impl End {
    /// The next state after the frontend, whose keys are valid, has written `text`.
    pub fn after(self, text: Option<&str>, online: bool) -> Self {
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
    pub fn after_death(self, text: Option<&str>, online: bool) -> Self {
        match (self, text) {
            // With the frontend in one of these states there is no connection to adopt.
            (Self::Connected, Some("2" | "3" | "8")) => Self::Closed,
            _ => self.after(text, online),
        }
    }

    /// What the store says after the frontend has written `text`.
    pub fn shown(self, text: Option<&str>) -> XenbusState {
        match (self, text) {
            (Self::Connected, Some("7")) => XenbusState::Reconfigured,
            _ => self.state(),
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
pub struct World {
    pub machine: Machine,
    pub raw: Raw,
    /// The vif, until it is removed.
    pub vif: Option<Vif<Machine>>,
    pub connection: Option<Connection<Machine>>,
    /// How many connections there were.
    pub connections: u32,
}

impl World {
    pub fn new() -> Self {
        let machine = Machine::new();
        let raw = Raw::new(&machine);
        raw.prepare(Features::ALL);
        let vif = Some(raw.announce(machine.clone()));
        Self { machine, raw, vif, connection: None, connections: 0 }
    }

    pub fn write(&self, text: Option<&str>) {
        match text {
            Some(text) => self.raw.key("state", text),
            None => {
                let _ = self.raw.store.remove(None, &format!("{}/state", device()));
            }
        }
    }

    pub fn set_online(&self, online: bool) {
        let path = format!("{}/online", self.backend());
        self.raw.driver_store.write(None, &path, if online { "1" } else { "0" }).unwrap();
    }

    pub fn backend(&self) -> String {
        toolstack::backend_path(self.raw.domain.id(), 0)
    }

    /// The backend's state, as the frontend sees it.
    pub fn state(&self) -> Option<XenbusState> {
        let path = format!("{}/state", self.backend());
        XenbusState::parse(&self.raw.store.read(None, &path).unwrap())
    }

    /// Runs the daemon's reactions to a change, until there are none left.
    pub fn drive(&mut self) {
        for _ in 0..4 {
            let Some(vif) = &mut self.vif else { return };
            match vif.frontend_changed() {
                Ok(VifChange::None) => return self.check(),
                Ok(VifChange::Connect(connection)) => {
                    assert!(self.connection.is_none(), "connected twice");
                    assert!(!connection.queues.is_empty());
                    self.connection = Some(connection);
                    self.connections += 1;
                    vif.connected().unwrap();
                }
                Ok(VifChange::Remove) => {
                    self.connection = None;
                    self.vif.take().unwrap().remove().unwrap();
                }
                Ok(VifChange::Disconnect) | Err(_) => {
                    self.connection = None;
                    assert_eq!(self.raw.domain.pinned(), 0, "a grant stays mapped");
                    vif.disconnected().unwrap();
                }
            }
            self.check();
        }
        panic!("it never comes to rest");
    }

    /// The invariants at every moment at which the frontend could read them.
    fn check(&self) {
        let state = self.state().unwrap();
        assert!([2, 4, 6, 8].contains(&(state as u8)), "{state:?}");
        // A frontend that reconfigures is connected.
        let state = if state as u8 == 8 { XenbusState::Connected } else { state };
        assert_eq!(state == XenbusState::Connected, self.connection.is_some());
        match &self.vif {
            Some(vif) => assert_eq!(vif.state(), state),
            None => assert_eq!(state, XenbusState::Closed),
        }
    }

    /// The daemon is killed and started again.
    pub fn restart(&mut self) {
        if self.vif.take().is_none() {
            return;
        }
        self.connection = None;
        self.vif = Some(self.raw.announce(self.machine.clone()));
        self.drive();
    }
}

pub fn device() -> String {
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
                    assert_eq!(world.state(), Some(end.shown(text)), "{path}");
                    assert_eq!(world.vif.is_none(), end == End::Removed, "{path}");
                }
            }
        }
    }
}

#[test]
fn a_frontend_that_starts_over_connects_from_any_state() {
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
    assert!(matches!(world.vif.as_mut().unwrap().frontend_changed(), Ok(VifChange::Disconnect)));
    world.connection = None;
    world.vif.as_mut().unwrap().disconnected().unwrap();
    while world.raw.store.event().unwrap().is_some() {
        seen.push(world.state().unwrap());
    }
    // One write.
    assert_eq!(seen, [XenbusState::InitWait]);
}
