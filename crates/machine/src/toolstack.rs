//! What the toolstack (libxl, on Xen) writes into the store for a domain and its interfaces.

use hypervisor::store::{Access, Permissions};
use hypervisor::{DomId, Store, StoreError, XenbusState};

use crate::hypervisor::DRIVER_DOMAIN;

/// The backend's node of interface `index` of a domain.
#[must_use]
pub fn backend_path(domain: DomId, index: u32) -> String {
    format!("/local/domain/{DRIVER_DOMAIN}/backend/vif/{domain}/{index}")
}

/// The frontend's node of interface `index`, relative to its domain.
#[must_use]
pub fn device_path(index: u32) -> String {
    format!("device/vif/{index}")
}

/// Makes a domain's own part of the store: it can read it, and write below `device`.
pub fn create_domain(store: &dyn Store, domain: DomId, name: &str) -> Result<(), StoreError> {
    let home = format!("/local/domain/{domain}");
    make(store, &home, DRIVER_DOMAIN, Some(domain))?;
    store.write(None, &format!("{home}/name"), name)?;
    store.write(None, &format!("{home}/domid"), &domain.to_string())?;
    make(store, &format!("{home}/device"), domain, Some(DRIVER_DOMAIN))
}

/// Where a domain looks for how much memory it should have, in KiB, relative to its own part.
pub const MEMORY_TARGET: &str = "memory/target";

/// Tells a domain how much memory it should have: KiB. It follows as far as it can.
pub fn set_memory_target(store: &dyn Store, domain: DomId, kib: usize) -> Result<(), StoreError> {
    let path = format!("/local/domain/{domain}/{MEMORY_TARGET}");
    store.write(None, &path, &kib.to_string())
}

/// Makes both nodes of a domain's interface, as libxl does. The frontend's belongs to the
/// domain; the backend's is the driver domain's, and the domain can read it.
pub fn create_vif(
    store: &dyn Store,
    domain: DomId,
    index: u32,
    mac: &str,
) -> Result<(), StoreError> {
    let backend = backend_path(domain, index);
    let frontend = format!("/local/domain/{domain}/{}", device_path(index));
    let number = index.to_string();
    let state = XenbusState::Initialising.to_string();
    make(store, &frontend, domain, Some(DRIVER_DOMAIN))?;
    make(store, &backend, DRIVER_DOMAIN, Some(domain))?;
    let driver = DRIVER_DOMAIN.to_string();
    for (key, value) in [
        ("backend", backend.as_str()),
        ("backend-id", &driver),
        ("handle", &number),
        ("mac", mac),
        ("state", &state),
    ] {
        store.write(None, &format!("{frontend}/{key}"), value)?;
    }
    let id = domain.to_string();
    for (key, value) in [
        ("frontend", frontend.as_str()),
        ("frontend-id", &id),
        ("handle", &number),
        ("mac", mac),
        ("online", "1"),
        ("state", &state),
    ] {
        store.write(None, &format!("{backend}/{key}"), value)?;
    }
    Ok(())
}

/// Removes all that was made for a domain. Its own nodes go with `StoreHub::forget` at the
/// latest.
pub fn remove_domain(store: &dyn Store, domain: DomId) -> Result<(), StoreError> {
    let backends = format!("/local/domain/{DRIVER_DOMAIN}/backend/vif/{domain}");
    for path in [backends, format!("/local/domain/{domain}")] {
        match store.remove(None, &path) {
            Ok(()) | Err(StoreError::NotFound(_)) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Makes a node that `owner` may change and `reader` may read.
fn make(
    store: &dyn Store,
    path: &str,
    owner: DomId,
    reader: Option<DomId>,
) -> Result<(), StoreError> {
    store.mkdir(None, path)?;
    let others = reader.map(|reader| (reader, Access::READ)).into_iter().collect();
    store.set_permissions(None, path, &Permissions { owner, default: Access::NONE, others })
}
