//! The store as its users see it.

mod domains;
mod hostile;
mod model;
mod permissions;
mod quotas;
mod served;
mod transactions;
mod watches;

use hypervisor::DomId;
use xenstore::{Access, Permissions, Store, StoreError, WatchEvent};

use super::{LocalStore, StoreHub};

/// The guest that most tests are about.
const GUEST: DomId = DomId(5);
/// Another one.
const OTHER: DomId = DomId(6);

/// A store with a home for two guests, as a toolstack makes them; domain 0 and both guests.
fn machine() -> (StoreHub, LocalStore, LocalStore, LocalStore) {
    let hub = StoreHub::new();
    let dom0 = hub.connect(DomId(0));
    for guest in [GUEST, OTHER] {
        let home = format!("/local/domain/{guest}");
        dom0.mkdir(None, &home).unwrap();
        dom0.set_permissions(None, &home, &owned_by(guest)).unwrap();
    }
    let (guest, other) = (hub.connect(GUEST), hub.connect(OTHER));
    (hub, dom0, guest, other)
}

/// Permissions that shut everybody out but the owner.
fn owned_by(owner: DomId) -> Permissions {
    Permissions { owner, default: Access::NONE, others: Vec::new() }
}

/// All events that wait, as (path, token).
fn events(store: &impl Store) -> Vec<(String, String)> {
    std::iter::from_fn(|| store.event().unwrap())
        .map(|WatchEvent { path, token }| (path, token))
        .collect()
}

fn event(path: &str, token: &str) -> (String, String) {
    (path.to_owned(), token.to_owned())
}

fn denied(path: &str) -> StoreError {
    StoreError::Denied(path.to_owned())
}

fn not_found(path: &str) -> StoreError {
    StoreError::NotFound(path.to_owned())
}
