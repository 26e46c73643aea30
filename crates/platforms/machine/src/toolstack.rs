//! What the toolstack (libxl, on Xen) writes into the store for a domain and its interfaces.

use hypervisor::DomId;
use xenstore::{Access, Permissions, Store, StoreError, VifNodes};

use crate::domain::DRIVER_DOMAIN;

/// The backend's node of interface `index` of a domain.
#[must_use]
pub fn backend_path(domain: DomId, index: u32) -> String {
    nodes(domain, index).backend_path()
}

/// The frontend's node of interface `index`, relative to its domain.
#[must_use]
pub fn device_path(index: u32) -> String {
    format!("device/vif/{index}")
}

/// Makes a domain's home in the store. The domain can read all of it, and write only below the
/// nodes of its devices: it cannot add a device.
pub fn create_domain(store: &dyn Store, domain: DomId, name: &str) -> Result<(), StoreError> {
    let home = format!("/local/domain/{domain}");
    make(store, &home, DRIVER_DOMAIN, Some(domain))?;
    store.write(None, &format!("{home}/name"), name)?;
    store.write(None, &format!("{home}/domid"), &domain.to_string())?;
    make(store, &format!("{home}/device"), DRIVER_DOMAIN, Some(domain))
}

/// The key with a domain's memory target in KiB, relative to its home.
pub const MEMORY_TARGET: &str = "memory/target";

/// Sets a domain's memory target in KiB. The domain follows as far as it can.
pub fn set_memory_target(store: &dyn Store, domain: DomId, kib: usize) -> Result<(), StoreError> {
    let path = format!("/local/domain/{domain}/{MEMORY_TARGET}");
    store.write(None, &path, &kib.to_string())
}

/// Makes both nodes of a domain's interface, as libxl does.
pub fn create_vif(
    store: &dyn Store,
    domain: DomId,
    index: u32,
    mac: &str,
) -> Result<(), StoreError> {
    nodes(domain, index).create(store, mac)
}

fn nodes(domain: DomId, index: u32) -> VifNodes {
    VifNodes { backend: DRIVER_DOMAIN, kind: "vif".to_owned(), domain, handle: index }
}

/// Removes all nodes of a domain. `StoreHub::forget` removes those that are left.
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
