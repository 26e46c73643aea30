//! What one guest may use of the store is bounded.

use xenstore::{Access, PAYLOAD_MAX, PENDING_MAX, Store, StoreError};

use super::super::quota;
use super::{DomId, GUEST, event, events, machine, owned_by};

fn over(what: &'static str) -> Result<(), StoreError> {
    Err(StoreError::Quota(what))
}

#[test]
fn a_guest_can_own_a_bounded_number_of_nodes() {
    let (_hub, dom0, guest, other) = machine();
    // Its home is the first.
    for n in 1..quota::NODES {
        guest.mkdir(None, &format!("n{n}")).unwrap();
    }
    assert_eq!(guest.mkdir(None, "more"), over("nodes"));
    guest.write(None, "n1", "what exists may change").unwrap();
    guest.remove(None, "n1").unwrap();
    assert_eq!(guest.mkdir(None, "a/b"), over("nodes"));
    assert!(guest.read(None, "a").is_err(), "all missing parents or none");
    guest.mkdir(None, "a").unwrap();
    assert_eq!(guest.mkdir(None, "a/b"), over("nodes"));
    dom0.mkdir(None, "/local/domain/5/more").unwrap();
    other.mkdir(None, "more").unwrap();
}

#[test]
fn nodes_count_for_their_owner() {
    let (_hub, dom0, guest, _other) = machine();
    for n in 1..quota::NODES {
        guest.mkdir(None, &format!("n{n}")).unwrap();
    }
    dom0.set_permissions(None, "/local/domain/5/n1", &owned_by(DomId(0))).unwrap();
    guest.mkdir(None, "more").unwrap();
    dom0.set_permissions(None, "/local/domain/5/n1", &owned_by(GUEST)).unwrap();
    guest.remove(None, "more").unwrap();
    assert_eq!(guest.mkdir(None, "more"), over("nodes"));
}

/// XSA-421: nodes made in transactions were not counted until all of them were committed.
#[test]
fn nodes_of_several_transactions_count_together() {
    let (_hub, _dom0, guest, _other) = machine();
    let open = [(); 3].map(|()| guest.begin().unwrap());
    for (n, tx) in open.iter().enumerate() {
        for m in 0..quota::NODES / 2 {
            guest.mkdir(Some(*tx), &format!("n{n}-{m}")).unwrap();
        }
    }
    assert_eq!(guest.end(open[0], true), Ok(()));
    assert_eq!(guest.end(open[1], true), over("nodes"));
    assert_eq!(guest.end(open[2], true), over("nodes"));
    let names = guest.directory(None, "/local/domain/5").unwrap();
    assert_eq!(names.len(), quota::NODES / 2);
}

#[test]
fn watches_of_all_connections_count_together() {
    let (hub, _dom0, guest, other) = machine();
    let second = hub.connect(GUEST);
    for n in 0..quota::WATCHES {
        let store = if n % 2 == 0 { &guest } else { &second };
        store.watch("a", &n.to_string()).unwrap();
    }
    assert_eq!(guest.watch("a", "more"), over("watches"));
    other.watch("a", "more").unwrap();
    guest.unwatch("a", "0").unwrap();
    guest.watch("a", "more").unwrap();
    assert_eq!(guest.watch("a", "yet more"), over("watches"));
    drop(second);
    guest.watch("a", "yet more").unwrap();
}

#[test]
fn open_transactions_are_bounded() {
    let (_hub, _dom0, guest, other) = machine();
    let open = [(); quota::TRANSACTIONS].map(|()| guest.begin().unwrap());
    assert_eq!(guest.begin().map(drop), over("transactions"));
    other.begin().unwrap();
    guest.end(open[0], false).unwrap();
    guest.begin().unwrap();
}

#[test]
fn the_memory_of_a_transaction_is_bounded() {
    let (_hub, dom0, guest, _other) = machine();
    let value = "v".repeat(quota::VALUE);
    let tx = guest.begin().unwrap();
    let until_refused =
        |act: &dyn Fn(usize) -> Result<(), StoreError>| (0..).map(act).find_map(Result::err);
    let rewriting = until_refused(&|_| guest.write(Some(tx), "same", &value));
    assert_eq!(rewriting, Some(StoreError::Quota("transaction")));
    guest.end(tx, false).unwrap();

    let tx = guest.begin().unwrap();
    let reading = until_refused(&|n| match guest.read(Some(tx), &format!("n{n}")) {
        Err(StoreError::NotFound(_)) => Ok(()),
        other => other.map(drop),
    });
    assert_eq!(reading, Some(StoreError::Quota("transaction")));

    let tx = dom0.begin().unwrap();
    for n in 0..2 * quota::TRANSACTION_BYTES / quota::VALUE {
        dom0.write(Some(tx), &format!("/n{n}"), &value).unwrap();
    }
    dom0.end(tx, true).unwrap();
}

#[test]
fn values_are_bounded_in_size() {
    let (_hub, dom0, guest, _other) = machine();
    guest.write(None, "a", &"v".repeat(quota::VALUE)).unwrap();
    assert_eq!(guest.write(None, "a", &"v".repeat(quota::VALUE + 1)), over("value"));
    dom0.write(None, "/a", &"v".repeat(PAYLOAD_MAX)).unwrap();
    assert_eq!(dom0.write(None, "/a", &"v".repeat(PAYLOAD_MAX + 1)), over("value"));
}

#[test]
fn permission_entries_of_a_node_are_bounded() {
    let (_hub, dom0, guest, _other) = machine();
    let mut permissions = owned_by(GUEST);
    let others = (10..).map(|domid| (DomId(domid), Access::READ));
    permissions.others = others.take(quota::PERMISSIONS - 1).collect();
    guest.mkdir(None, "a").unwrap();
    guest.set_permissions(None, "a", &permissions).unwrap();
    permissions.others.push((DomId(99), Access::READ));
    assert_eq!(guest.set_permissions(None, "a", &permissions), over("permissions"));
    dom0.set_permissions(None, "/local/domain/5/a", &permissions).unwrap();
}

/// XSA-418: depth is bounded for all, because walking and dropping the tree recurse.
#[test]
fn paths_are_bounded_in_depth() {
    let (_hub, dom0, _guest, _other) = machine();
    dom0.mkdir(None, &"/a".repeat(quota::DEPTH)).unwrap();
    assert_eq!(dom0.mkdir(None, &"/a".repeat(quota::DEPTH + 1)), over("depth"));
    dom0.remove(None, "/a").unwrap();
}

/// XSA-326, XSA-349: the domain that fires a watch does not decide how much memory it takes.
#[test]
fn waiting_events_are_bounded() {
    let (_hub, dom0, guest, _other) = machine();
    dom0.watch("/local/domain/5", "t").unwrap();
    events(&dom0);
    for n in 0..2 * PENDING_MAX {
        guest.write(None, &format!("n{n}"), "").unwrap();
        guest.remove(None, &format!("n{n}")).unwrap();
    }
    let waiting = events(&dom0);
    assert_eq!(waiting.len(), PENDING_MAX + 1);
    assert_eq!(waiting.last(), Some(&event("/local/domain/5", "t")));
}
