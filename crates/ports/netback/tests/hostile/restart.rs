//! A backend that is killed and started again, or runs in a domain other than dom0.

use std::path::PathBuf;
use std::sync::Arc;

use hypervisor::DomId;
use machine::{Machine, toolstack};
use netback::{
    Anonymous, Files, Ledgers, RingKind, RxChannel, TxChannel, Vif, VifChange, remove_closed,
};
use offload::Features;
use wire::netif::keys;
use xenstore::{Store, VifNodes, XenbusState};

use crate::common::guest::{OFFERED, Raw, TX_RING};
use crate::states::{End, TEXTS, World, device};

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
                assert_eq!(world.state(), Some(end.shown(second)), "{path}");
                assert_eq!(world.vif.is_none(), end == End::Removed, "{path}");
            }
        }
    }
}

#[test]
fn a_resumed_connection_writes_nothing() {
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
fn a_connection_that_cannot_be_resumed_is_closed_and_made_anew() {
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
fn a_resumed_connection_keeps_its_header_channel() {
    for (tx, agreed) in [(TxChannel::Header, "1"), (TxChannel::Remap, "0")] {
        let machine = Machine::new();
        let raw = Raw::new(&machine);
        raw.supply_headers();
        let pinned = |vif: &mut Vif<Machine>| {
            let Ok(VifChange::Connect(connection)) = vif.frontend_changed() else { panic!() };
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

/// libxl must see it closed: `xl network-detach` fails if the node is gone before.
#[test]
fn a_backend_stays_closed_until_its_node_is_removed() {
    let machine = Machine::new();
    let raw = Raw::new(&machine);
    let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("ledgers");
    for (domain, kind, stays) in [(0, "vif", true), (5, "vif", true), (0, "pvnet", false)] {
        let path = format!("/local/domain/{domain}/backend/{kind}/{}/0", raw.domain.id());
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
fn a_backend_in_a_driver_domain_sees_that_the_frontend_is_gone() {
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
    assert!(matches!(vif.frontend_changed(), Ok(VifChange::None)));
    // As libxl destroys a guest: first it removes the frontend's nodes, then it asks the backend.
    store.remove(None, vif.frontend()).unwrap();
    assert!(matches!(vif.frontend_changed(), Ok(VifChange::Disconnect)));
    vif.disconnected().unwrap();
    store.write(None, &format!("{path}/online"), "0").unwrap();
    assert!(matches!(vif.frontend_changed(), Ok(VifChange::Remove)));
    vif.remove().unwrap();
    assert_eq!(store.read(None, &format!("{path}/state")).as_deref(), Ok("6"));
    let unprivileged = machine.store().connect(own);
    for (online, state, stays) in [("1", "6", true), ("0", "2", true), ("0", "6", false)] {
        store.write(None, &format!("{path}/online"), online).unwrap();
        store.write(None, &format!("{path}/state"), state).unwrap();
        remove_closed(&unprivileged, &path).unwrap();
        assert_eq!(store.directory(None, &path).is_ok(), stays, "online {online}, state {state}");
    }
    // The toolstack has removed it.
    remove_closed(&unprivileged, &path).unwrap();
    assert!(store.directory(None, &path).is_err());
}
