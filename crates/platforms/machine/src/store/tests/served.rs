//! The client of `xenstore` against the server of this crate, over a socket.

use std::os::unix::net::UnixStream;
use std::thread;

use hypervisor::DomId;
use rustix::event::{PollFd, PollFlags, poll};
use xenstore::{Access, Client, Permissions, Store, StoreError};

use super::super::{StoreHub, serve};
use super::{GUEST, denied, event, events, machine, not_found};

fn connect(hub: &StoreHub, domid: DomId) -> (Client, thread::JoinHandle<()>) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let server = serve(hub.clone(), domid, theirs.into()).unwrap();
    (Client::new(ours.into()).unwrap(), server)
}

/// Sleeps until an event waits, and takes all.
fn wait_events(store: &impl Store) -> Vec<(String, String)> {
    poll(&mut [PollFd::from_borrowed_fd(store.event_fd(), PollFlags::IN)], None).unwrap();
    events(store)
}

#[test]
fn every_request_works_over_the_wire() {
    let (hub, dom0, _local, _other) = machine();
    let (guest, _server) = connect(&hub, GUEST);
    guest.write(None, "dir/a", "1").unwrap();
    guest.mkdir(None, "dir/b").unwrap();
    assert_eq!(guest.read(None, "dir/a").unwrap(), "1");
    assert_eq!(guest.directory(None, "dir").unwrap(), ["a", "b"]);
    assert_eq!(guest.directory(None, "dir/a").unwrap(), [""; 0]);
    let permissions =
        Permissions { owner: GUEST, default: Access::READ, others: vec![(DomId(6), Access::BOTH)] };
    guest.set_permissions(None, "dir", &permissions).unwrap();
    assert_eq!(guest.permissions(None, "dir").unwrap(), permissions);
    guest.remove(None, "dir/a").unwrap();
    assert_eq!(guest.read(None, "dir/a"), Err(not_found("dir/a")));
    assert_eq!(guest.read(None, "/local"), Err(denied("/local")));
    assert_eq!(guest.mkdir(None, "a//b"), Err(StoreError::Invalid("a//b".into())));
    let long = "v".repeat(3000);
    assert_eq!(guest.write(None, "a", &long), Err(StoreError::Quota("ENOSPC")));

    let tx = guest.begin().unwrap();
    guest.write(Some(tx), "dir/b", "2").unwrap();
    dom0.write(None, "/local/domain/5/dir/b", "3").unwrap();
    assert_eq!(guest.end(tx, true), Err(StoreError::Conflict));
    let tx = guest.begin().unwrap();
    guest.write(Some(tx), "dir/b", "2").unwrap();
    guest.end(tx, true).unwrap();
    assert_eq!(dom0.read(None, "/local/domain/5/dir/b").unwrap(), "2");
}

#[test]
fn watches_work_over_the_wire() {
    let (hub, dom0, _local, _other) = machine();
    let (guest, _server) = connect(&hub, GUEST);
    guest.watch("device", "t").unwrap();
    assert_eq!(wait_events(&guest), [event("device", "t")]);
    let again = guest.watch("device", "t");
    assert_eq!(again, Err(StoreError::Exists("device".into())));
    dom0.write(None, "/local/domain/5/device/x", "1").unwrap();
    assert_eq!(wait_events(&guest), [event("device/x", "t")]);
    guest.unwatch("device", "t").unwrap();
    dom0.write(None, "/local/domain/5/device/x", "2").unwrap();
    guest.read(None, "device/x").unwrap();
    assert_eq!(events(&guest), []);
}

#[test]
fn long_lists_come_in_parts() {
    let (hub, dom0, _local, _other) = machine();
    let (guest, _server) = connect(&hub, GUEST);
    let names: Vec<String> = (0..500).map(|n| format!("a-name-of-some-length-{n:04}")).collect();
    for name in &names {
        dom0.mkdir(None, &format!("/local/domain/5/many/{name}")).unwrap();
    }
    assert_eq!(guest.directory(None, "many").unwrap(), names);
}

#[test]
fn many_threads_share_a_connection() {
    const THREADS: usize = 8;
    const ROUNDS: usize = 50;
    let (hub, dom0, _local, _other) = machine();
    let (guest, _server) = connect(&hub, GUEST);
    guest.write(None, "counter", "0").unwrap();
    let count = |store: &Client| loop {
        let tx = store.begin()?;
        let value: usize = store.read(Some(tx), "counter")?.parse().unwrap();
        store.write(Some(tx), "counter", &(value + 1).to_string())?;
        match store.end(tx, true) {
            Err(StoreError::Conflict) => {}
            done => return done,
        }
    };
    thread::scope(|scope| {
        for n in 0..THREADS {
            let guest = &guest;
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    let (path, value) = (format!("own/{n}"), round.to_string());
                    guest.write(None, &path, &value).unwrap();
                    assert_eq!(guest.read(None, &path).unwrap(), value);
                    count(guest).unwrap();
                }
            });
        }
    });
    let total = dom0.read(None, "/local/domain/5/counter").unwrap();
    assert_eq!(total, (THREADS * ROUNDS).to_string());
}

#[test]
fn hanging_up_ends_the_server_and_its_watches() {
    let (hub, _dom0, _local, _other) = machine();
    let (guest, server) = connect(&hub, GUEST);
    for n in 0..super::super::quota::WATCHES {
        guest.watch("a", &n.to_string()).unwrap();
    }
    drop(guest);
    server.join().unwrap();
    let (guest, _server) = connect(&hub, GUEST);
    guest.watch("a", "t").unwrap();
}

#[test]
fn forgetting_a_domain_closes_its_connection() {
    let (hub, _dom0, _local, _other) = machine();
    let (guest, server) = connect(&hub, GUEST);
    hub.forget(GUEST);
    server.join().unwrap();
    assert!(matches!(guest.read(None, "a"), Err(StoreError::Gone(_))));
}
