//! Transactions are isolated, and conflicts are found.

use xenstore::{Access, Permissions, Store, StoreError, TransactionId};

use super::super::LocalStore;
use super::{GUEST, denied, event, events, machine, not_found};

/// Runs `inside` in a transaction, `outside` while it is open, and commits.
fn race(
    store: &LocalStore,
    inside: impl FnOnce(Option<TransactionId>),
    outside: impl FnOnce(),
) -> Result<(), StoreError> {
    let tx = store.begin().unwrap();
    inside(Some(tx));
    outside();
    store.end(tx, true)
}

#[test]
fn changes_are_visible_only_after_the_commit() {
    let (_hub, dom0, guest, _other) = machine();
    let tx = guest.begin().unwrap();
    guest.write(Some(tx), "a/b", "1").unwrap();
    guest.mkdir(Some(tx), "c").unwrap();
    assert_eq!(guest.read(Some(tx), "a/b").unwrap(), "1");
    let path = "/local/domain/5/a/b";
    assert_eq!(dom0.read(None, path), Err(not_found(path)));
    guest.end(tx, true).unwrap();
    assert_eq!(dom0.read(None, path).unwrap(), "1");
    assert_eq!(guest.directory(None, "/local/domain/5").unwrap(), ["a", "c"]);
}

#[test]
fn discarded_changes_are_not_made() {
    let (_hub, _dom0, guest, _other) = machine();
    guest.write(None, "a", "1").unwrap();
    let tx = guest.begin().unwrap();
    guest.remove(Some(tx), "a").unwrap();
    guest.end(tx, false).unwrap();
    assert_eq!(guest.read(None, "a").unwrap(), "1");
}

#[test]
fn a_transaction_sees_the_tree_at_its_start() {
    let (_hub, dom0, guest, _other) = machine();
    dom0.write(None, "/local/domain/5/a", "old").unwrap();
    let tx = guest.begin().unwrap();
    dom0.write(None, "/local/domain/5/a", "new").unwrap();
    dom0.write(None, "/local/domain/5/b", "new").unwrap();
    assert_eq!(guest.read(Some(tx), "a").unwrap(), "old");
    assert!(guest.read(Some(tx), "b").is_err());
    assert_eq!(guest.end(tx, true), Err(StoreError::Conflict));
}

#[test]
fn a_commit_fails_if_a_node_that_was_read_has_changed() {
    let (_hub, dom0, guest, _other) = machine();
    guest.write(None, "a", "1").unwrap();
    guest.write(None, "dir/x", "1").unwrap();
    let path = |name: &str| format!("/local/domain/5/{name}");
    let read = |name: &'static str| {
        let guest = &guest;
        move |tx| drop(guest.read(tx, name))
    };
    let conflict = Err(StoreError::Conflict);

    let rewritten = race(&guest, read("a"), || dom0.write(None, &path("a"), "1").unwrap());
    assert_eq!(rewritten, conflict);
    let removed = race(&guest, read("a"), || dom0.remove(None, &path("a")).unwrap());
    assert_eq!(removed, conflict);
    let appeared = race(&guest, read("a"), || dom0.mkdir(None, &path("a")).unwrap());
    assert_eq!(appeared, conflict);
    let permitted = race(&guest, read("a"), || {
        let permissions = dom0.permissions(None, &path("a")).unwrap();
        dom0.set_permissions(None, &path("a"), &permissions).unwrap();
    });
    assert_eq!(permitted, conflict);
    let listed = race(
        &guest,
        |tx| drop(guest.directory(tx, "dir").unwrap()),
        || dom0.mkdir(None, &path("dir/y")).unwrap(),
    );
    assert_eq!(listed, conflict);
    let reborn = race(&guest, read("dir/x"), || {
        dom0.remove(None, &path("dir")).unwrap();
        dom0.write(None, &path("dir/x"), "1").unwrap();
    });
    assert_eq!(reborn, conflict);
}

#[test]
fn a_commit_fails_if_a_node_that_was_written_has_changed() {
    let (_hub, dom0, guest, _other) = machine();
    guest.write(None, "dir/x", "1").unwrap();
    let written = race(
        &guest,
        |tx| guest.write(tx, "dir/x", "mine").unwrap(),
        || dom0.write(None, "/local/domain/5/dir/x", "theirs").unwrap(),
    );
    assert_eq!(written, Err(StoreError::Conflict));
    assert_eq!(guest.read(None, "dir/x").unwrap(), "theirs");
    let removed = race(
        &guest,
        |tx| guest.remove(tx, "dir").unwrap(),
        || dom0.write(None, "/local/domain/5/dir/y/z", "1").unwrap(),
    );
    assert_eq!(removed, Err(StoreError::Conflict));
    assert_eq!(guest.directory(None, "dir").unwrap(), ["x", "y"]);
}

#[test]
fn transactions_on_different_nodes_both_succeed() {
    let (_hub, dom0, guest, _other) = machine();
    guest.write(None, "dir/x", "1").unwrap();
    let result = race(
        &guest,
        |tx| {
            guest.read(tx, "dir/x").unwrap();
            guest.write(tx, "dir/new", "1").unwrap();
        },
        || {
            let inside = |tx| dom0.write(tx, "/local/domain/5/dir/other", "1").unwrap();
            race(&dom0, inside, || {}).unwrap();
            dom0.write(None, "/elsewhere", "1").unwrap();
        },
    );
    assert_eq!(result, Ok(()));
    assert_eq!(guest.directory(None, "dir").unwrap(), ["new", "other", "x"]);
}

#[test]
fn a_commit_fails_as_a_whole_if_a_right_was_withdrawn() {
    let (_hub, dom0, guest, _other) = machine();
    let shared = |access| Permissions {
        owner: dom0.domid(),
        default: Access::NONE,
        others: vec![(GUEST, access)],
    };
    dom0.mkdir(None, "/shared").unwrap();
    dom0.set_permissions(None, "/shared", &shared(Access::BOTH)).unwrap();
    let result = race(
        &guest,
        |tx| {
            guest.write(tx, "mine", "1").unwrap();
            guest.write(tx, "/shared/new", "1").unwrap();
        },
        || dom0.set_permissions(None, "/shared", &shared(Access::READ)).unwrap(),
    );
    assert_eq!(result, Err(StoreError::Conflict));
    assert!(guest.read(None, "mine").is_err());
    assert!(dom0.read(None, "/shared/new").is_err());
}

#[test]
fn rights_hold_inside_a_transaction() {
    let (_hub, _dom0, guest, _other) = machine();
    let tx = guest.begin().unwrap();
    assert_eq!(guest.write(Some(tx), "/x", ""), Err(denied("/x")));
    assert_eq!(guest.read(Some(tx), "/local"), Err(denied("/local")));
}

#[test]
fn watches_fire_at_the_commit() {
    let (_hub, dom0, guest, _other) = machine();
    dom0.watch("/local/domain/5", "home").unwrap();
    events(&dom0);
    let tx = guest.begin().unwrap();
    guest.write(Some(tx), "a", "1").unwrap();
    guest.write(Some(tx), "b", "1").unwrap();
    assert_eq!(events(&dom0), []);
    guest.end(tx, true).unwrap();
    let fired = ["/local/domain/5/a", "/local/domain/5/b"].map(|path| event(path, "home"));
    assert_eq!(events(&dom0), fired);
}

#[test]
fn an_ended_or_foreign_transaction_is_unknown() {
    let (_hub, dom0, guest, _other) = machine();
    let tx = guest.begin().unwrap();
    let unknown = not_found(&format!("transaction {}", tx.0));
    assert_eq!(dom0.read(Some(tx), "/"), Err(unknown.clone()));
    assert_eq!(dom0.end(tx, true), Err(unknown.clone()));
    guest.end(tx, true).unwrap();
    assert_eq!(guest.write(Some(tx), "a", ""), Err(unknown.clone()));
    assert_eq!(guest.end(tx, false), Err(unknown));
}
