//! A domain that is forgotten leaves no nodes, rights, quotas or connections.

use xenstore::{Access, Permissions, Store, StoreError};

use super::{DomId, GUEST, OTHER, denied, event, events, machine, not_found, owned_by};

fn gone() -> StoreError {
    StoreError::Gone("the domain is gone".to_owned())
}

#[test]
fn nodes_of_a_forgotten_domain_are_removed() {
    let (hub, dom0, guest, _other) = machine();
    let home = "/local/domain/5";
    dom0.set_permissions(
        None,
        home,
        &Permissions { others: vec![(GUEST, Access::BOTH)], ..owned_by(DomId(0)) },
    )
    .unwrap();
    dom0.write(None, "/local/domain/5/vm", "by domain 0").unwrap();
    guest.write(None, "data/x/y", "1").unwrap();
    dom0.watch("/local/domain/5/data/x/y", "t").unwrap();
    events(&dom0);
    hub.forget(GUEST);
    assert_eq!(dom0.directory(None, home).unwrap(), ["vm"]);
    assert_eq!(events(&dom0), [event("/local/domain/5/data/x/y", "t")]);
}

#[test]
fn a_forgotten_domain_is_disconnected() {
    let (hub, _dom0, guest, other) = machine();
    guest.watch("a", "t").unwrap();
    events(&guest);
    let tx = guest.begin().unwrap();
    hub.forget(GUEST);
    assert_eq!(guest.read(None, "a"), Err(gone()));
    assert_eq!(guest.end(tx, true), Err(gone()));
    assert_eq!(guest.watch("b", "t"), Err(gone()));
    assert_eq!(guest.event(), Err(gone()));
    other.write(None, "a", "1").unwrap();
}

/// XSA-322: the next domain of the same number must not find the rights of the last.
#[test]
fn a_forgotten_domain_keeps_no_rights() {
    let (hub, dom0, guest, other) = machine();
    let shared = |owner, with| Permissions {
        others: vec![(with, Access::BOTH), (DomId(7), Access::READ)],
        ..owned_by(owner)
    };
    dom0.mkdir(None, "/shared").unwrap();
    dom0.set_permissions(None, "/shared", &shared(DomId(0), GUEST)).unwrap();
    guest.write(None, "/shared/left", "behind").unwrap();
    other.mkdir(None, "mine").unwrap();
    other.set_permissions(None, "mine", &shared(OTHER, GUEST)).unwrap();
    hub.forget(GUEST);
    let next = hub.connect(GUEST);
    for path in ["/shared", "/shared/left", "/local/domain/6/mine", "/local/domain/5"] {
        assert_eq!(next.read(None, path), Err(denied(path)));
        assert_eq!(next.write(None, path, ""), Err(denied(path)));
    }
    assert_eq!(dom0.permissions(None, "/shared/left").unwrap().owner, DomId(0));
    let mine = dom0.permissions(None, "/local/domain/6/mine").unwrap();
    assert_eq!(mine.others, [(DomId(7), Access::READ)]);
}

#[test]
fn a_forgotten_domain_gives_its_quota_back() {
    let (hub, dom0, guest, _other) = machine();
    for n in 1..super::super::quota::NODES {
        guest.mkdir(None, &format!("n{n}")).unwrap();
    }
    hub.forget(GUEST);
    assert_eq!(dom0.read(None, "/local/domain/5"), Err(not_found("/local/domain/5")));
    dom0.mkdir(None, "/local/domain/5").unwrap();
    dom0.set_permissions(None, "/local/domain/5", &owned_by(GUEST)).unwrap();
    let next = hub.connect(GUEST);
    for n in 1..super::super::quota::NODES {
        next.mkdir(None, &format!("n{n}")).unwrap();
    }
}

#[test]
fn domain_0_is_never_forgotten() {
    let (hub, dom0, _guest, _other) = machine();
    dom0.write(None, "x", "1").unwrap();
    hub.forget(DomId(0));
    assert_eq!(dom0.read(None, "/local/domain/0/x").unwrap(), "1");
}

#[test]
fn dropping_a_connection_drops_its_watches_and_transactions() {
    let (hub, _dom0, guest, _other) = machine();
    let tx = guest.begin().unwrap();
    drop(guest);
    let again = hub.connect(GUEST);
    let unknown = not_found(&format!("transaction {}", tx.0));
    assert_eq!(again.end(tx, true), Err(unknown));
}
