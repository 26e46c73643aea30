//! Watches fire for the changes that their domain may see.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use xenstore::{Access, Permissions, Store, StoreError};

use super::{DomId, GUEST, OTHER, event, events, machine, not_found, owned_by};

#[test]
fn a_watch_fires_once_when_registered() {
    let (_hub, dom0, guest, _other) = machine();
    dom0.watch("/no/such/node", "t").unwrap();
    assert_eq!(events(&dom0), [event("/no/such/node", "t")]);
    guest.watch("/local/domain/6/hidden", "t").unwrap();
    assert_eq!(events(&guest), [event("/local/domain/6/hidden", "t")]);
}

#[test]
fn a_watch_fires_for_its_node_and_all_nodes_below() {
    let (_hub, dom0, guest, _other) = machine();
    guest.watch("/local/domain/5/dir", "t").unwrap();
    events(&guest);
    guest.mkdir(None, "dir").unwrap();
    guest.write(None, "dir/a/b", "1").unwrap();
    let permissions = guest.permissions(None, "dir").unwrap();
    guest.set_permissions(None, "dir", &permissions).unwrap();
    guest.remove(None, "dir/a").unwrap();
    // None of these fires: no change, a node beside, a node above, a read, nothing removed.
    guest.mkdir(None, "dir").unwrap();
    guest.write(None, "dirt", "1").unwrap();
    dom0.write(None, "/local/domain/5", "1").unwrap();
    guest.read(None, "dir").unwrap();
    guest.remove(None, "dir/none").unwrap();
    // Equal events that wait are merged.
    let fired =
        ["/dir", "/dir/a/b", "/dir/a"].map(|at| event(&format!("/local/domain/5{at}"), "t"));
    assert_eq!(events(&guest), fired);
}

#[test]
fn removing_a_node_above_fires_with_the_watched_path() {
    let (_hub, dom0, guest, _other) = machine();
    guest.write(None, "dir/a/b", "1").unwrap();
    guest.watch("dir/a/b", "leaf").unwrap();
    guest.watch("dir/none", "missing").unwrap();
    dom0.watch("/local/domain/5", "home").unwrap();
    events(&guest);
    events(&dom0);
    guest.remove(None, "dir").unwrap();
    assert_eq!(events(&guest), [event("dir/a/b", "leaf")]);
    assert_eq!(events(&dom0), [event("/local/domain/5/dir", "home")]);
}

#[test]
fn relative_watches_report_relative_paths() {
    let (_hub, dom0, guest, _other) = machine();
    guest.watch("device", "t").unwrap();
    assert_eq!(events(&guest), [event("device", "t")]);
    dom0.write(None, "/local/domain/5/device/vif/0", "1").unwrap();
    assert_eq!(events(&guest), [event("device/vif/0", "t")]);
}

#[test]
fn each_watch_that_sees_a_change_fires() {
    let (_hub, dom0, _guest, _other) = machine();
    for (path, token) in [("/", "1"), ("/a", "2"), ("/a", "3"), ("/b", "4")] {
        dom0.watch(path, token).unwrap();
    }
    events(&dom0);
    dom0.write(None, "/a/x", "").unwrap();
    assert_eq!(events(&dom0), ["1", "2", "3"].map(|token| event("/a/x", token)));
}

#[test]
fn unreadable_nodes_do_not_fire() {
    let (_hub, dom0, guest, other) = machine();
    other.watch("/local/domain/5", "t").unwrap();
    events(&other);
    guest.write(None, "secret", "1").unwrap();
    guest.remove(None, "secret").unwrap();
    assert_eq!(events(&other), []);
    guest.write(None, "open", "1").unwrap();
    let shared = |access| Permissions { others: vec![(OTHER, access)], ..owned_by(GUEST) };
    let open = [event("/local/domain/5/open", "t")];
    // Readable from now on, readable until now, and removed while readable.
    guest.set_permissions(None, "open", &shared(Access::READ)).unwrap();
    assert_eq!(events(&other), open);
    guest.set_permissions(None, "open", &shared(Access::NONE)).unwrap();
    assert_eq!(events(&other), open);
    guest.write(None, "open", "2").unwrap();
    assert_eq!(events(&other), []);
    dom0.set_permissions(None, "/local/domain/5/open", &shared(Access::READ)).unwrap();
    events(&other);
    guest.remove(None, "open").unwrap();
    assert_eq!(events(&other), open);
}

#[test]
fn watches_are_distinguished_by_path_and_token() {
    let (_hub, _dom0, guest, _other) = machine();
    guest.watch("a", "t").unwrap();
    guest.watch("a", "u").unwrap();
    let same = guest.watch("/local/domain/5/a", "t");
    assert_eq!(same, Err(StoreError::Exists("/local/domain/5/a".into())));
    guest.unwatch("a", "t").unwrap();
    assert_eq!(guest.unwatch("a", "t"), Err(not_found("a")));
    events(&guest);
    guest.write(None, "a", "1").unwrap();
    assert_eq!(events(&guest), [event("a", "u")]);
}

#[test]
fn special_watches_are_for_domain_0() {
    let (hub, dom0, guest, _other) = machine();
    for store in [&dom0, &guest] {
        store.watch("@introduceDomain", "in").unwrap();
        store.watch("@releaseDomain", "out").unwrap();
        store.watch("/", "root").unwrap();
        events(store);
    }
    assert!(!hub.is_introduced(GUEST));
    hub.introduce(GUEST);
    assert!(hub.is_introduced(GUEST));
    assert_eq!(events(&dom0), [event("@introduceDomain", "in")]);
    hub.release(GUEST);
    assert!(!hub.is_introduced(GUEST));
    assert_eq!(events(&dom0), [event("@releaseDomain", "out")]);
    assert_eq!(events(&guest), []);
    assert!(hub.is_introduced(DomId(0)));
}

#[test]
fn malformed_watches_are_refused() {
    let (_hub, _dom0, guest, _other) = machine();
    let long = "t".repeat(4096);
    for (path, token) in [("a//b", "t"), ("", "t"), ("@", "t"), ("a", "t\0"), ("a", &long)] {
        assert_eq!(guest.watch(path, token), Err(StoreError::Invalid(path.into())));
    }
}

#[test]
fn the_descriptor_is_readable_while_events_wait() {
    let (_hub, _dom0, guest, _other) = machine();
    let readable = || {
        let mut fds = [PollFd::from_borrowed_fd(guest.event_fd(), PollFlags::IN)];
        poll(&mut fds, Some(&Timespec::default())).unwrap() == 1
    };
    assert!(!readable());
    guest.watch("a", "t").unwrap();
    assert!(readable());
    events(&guest);
    assert!(!readable());
}
