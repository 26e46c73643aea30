//! Who may read and write which nodes, and who owns new ones.

use hypervisor::DomId;
use xenstore::{Access, Permissions, Store, StoreError};

use super::{GUEST, OTHER, denied, machine, not_found, owned_by};

const WRITE: Access = Access { read: false, write: true };

#[test]
fn a_guest_writes_only_its_own_subtree() {
    let (_hub, dom0, guest, _other) = machine();
    dom0.write(None, "/tool/x", "1").unwrap();
    guest.write(None, "data/x", "1").unwrap();
    guest.write(None, "/local/domain/5/data/y", "2").unwrap();
    assert_eq!(dom0.read(None, "/local/domain/5/data/x").unwrap(), "1");
    for path in ["/", "/new", "/tool/x", "/local/domain/6/data", "/local/domain/7"] {
        assert_eq!(guest.write(None, path, "1"), Err(denied(path)));
        assert_eq!(guest.mkdir(None, path), Err(denied(path)));
    }
    for path in ["/tool/x", "/tool/none", "/local/domain/6", "/local"] {
        assert_eq!(guest.remove(None, path), Err(denied(path)));
        assert_eq!(guest.read(None, path), Err(denied(path)));
        assert_eq!(guest.directory(None, path), Err(denied(path)));
        assert_eq!(guest.permissions(None, path), Err(denied(path)));
        let mine = owned_by(GUEST);
        assert_eq!(guest.set_permissions(None, path, &mine), Err(denied(path)));
    }
}

/// Owner, others by name, others by default: who may read and who may write.
#[test]
fn each_permission_allows_only_what_it_names() {
    let (_hub, dom0, guest, other) = machine();
    let permissions = |default, others| Permissions { owner: DomId(9), default, others };
    for access in [Access::NONE, Access::READ, WRITE, Access::BOTH] {
        let opposite = Access { read: !access.read, write: !access.write };
        let cases = [
            permissions(access, vec![]),
            permissions(opposite, vec![(GUEST, access), (GUEST, opposite)]),
            permissions(access, vec![(OTHER, opposite)]),
        ];
        for permissions in cases {
            dom0.write(None, "/key", "value").unwrap();
            dom0.set_permissions(None, "/key", &permissions).unwrap();
            let case = format!("{permissions:?}");
            assert_eq!(guest.read(None, "/key").is_ok(), access.read, "{case}");
            assert_eq!(guest.permissions(None, "/key").is_ok(), access.read, "{case}");
            assert_eq!(guest.write(None, "/key", "new").is_ok(), access.write, "{case}");
            assert_eq!(guest.mkdir(None, "/key/new").is_ok(), access.write, "{case}");
            let stolen = owned_by(GUEST);
            assert!(guest.set_permissions(None, "/key", &stolen).is_err(), "{case}");
            assert_eq!(guest.remove(None, "/key").is_ok(), access.write, "{case}");
            dom0.remove(None, "/key").unwrap();
        }
    }
    drop(other);
}

#[test]
fn new_nodes_inherit_permissions_and_belong_to_their_creator() {
    let (_hub, dom0, guest, other) = machine();
    let shared = Permissions {
        owner: DomId(0),
        default: Access::NONE,
        others: vec![(GUEST, Access::BOTH), (OTHER, Access::READ)],
    };
    dom0.mkdir(None, "/shared").unwrap();
    dom0.set_permissions(None, "/shared", &shared).unwrap();
    guest.write(None, "/shared/a/b", "1").unwrap();
    let inherited = Permissions { owner: GUEST, ..shared };
    for path in ["/shared/a", "/shared/a/b"] {
        assert_eq!(dom0.permissions(None, path).unwrap(), inherited);
    }
    assert_eq!(other.read(None, "/shared/a/b").unwrap(), "1");
    assert_eq!(other.write(None, "/shared/a/b", "2"), Err(denied("/shared/a/b")));
    // What domain 0 makes below a guest's node is the guest's.
    dom0.write(None, "/local/domain/5/device/vif/0/state", "1").unwrap();
    guest.write(None, "device/vif/0/state", "3").unwrap();
}

#[test]
fn an_owner_can_share_a_node_but_not_give_it_away() {
    let (_hub, dom0, guest, other) = machine();
    guest.write(None, "data", "1").unwrap();
    let path = "/local/domain/5/data";
    let mut permissions = guest.permissions(None, "data").unwrap();
    permissions.others.push((OTHER, Access::READ));
    guest.set_permissions(None, "data", &permissions).unwrap();
    assert_eq!(other.read(None, path).unwrap(), "1");
    assert_eq!(other.set_permissions(None, path, &permissions), Err(denied(path)));
    permissions.owner = OTHER;
    assert_eq!(guest.set_permissions(None, path, &permissions), Err(denied(path)));
    dom0.set_permissions(None, path, &permissions).unwrap();
    assert_eq!(guest.read(None, path), Err(denied(path)));
    other.write(None, path, "2").unwrap();
}

#[test]
fn only_a_reader_of_the_parent_learns_that_a_node_is_missing() {
    let (_hub, _dom0, guest, _other) = machine();
    assert_eq!(guest.read(None, "none"), Err(not_found("/local/domain/5/none")));
    let hidden = "/local/domain/6/none";
    assert_eq!(guest.read(None, hidden), Err(denied(hidden)));
}

#[test]
fn removing_a_node_removes_all_below_and_needs_a_parent() {
    let (_hub, dom0, guest, _other) = machine();
    guest.write(None, "a/b/c", "1").unwrap();
    guest.remove(None, "a").unwrap();
    let gone = "/local/domain/5/a/b/c";
    assert_eq!(guest.read(None, gone), Err(not_found(gone)));
    guest.remove(None, "a").unwrap();
    assert_eq!(guest.remove(None, gone), Err(not_found(gone)));
    assert_eq!(dom0.remove(None, "/"), Err(StoreError::Invalid("/".into())));
}

#[test]
fn a_node_can_have_a_value_and_children() {
    let (_hub, _dom0, guest, _other) = machine();
    guest.write(None, "dir", "value").unwrap();
    guest.mkdir(None, "dir/b").unwrap();
    guest.write(None, "dir/a/x", "").unwrap();
    guest.mkdir(None, "dir").unwrap();
    assert_eq!(guest.directory(None, "dir").unwrap(), ["a", "b"]);
    assert_eq!(guest.read(None, "dir").unwrap(), "value");
    assert_eq!(guest.read(None, "dir/b").unwrap(), "");
}
