//! What a toolstack (libxl, on Xen) writes into the store for an interface.

use hypervisor::DomId;

use crate::XenbusState;
use crate::store::{Access, Permissions, Store, StoreError, TransactionId, in_transaction};

/// The two nodes of an interface: the frontend's belongs to its domain, the backend's to the
/// driver domain, and each may read the other's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VifNodes {
    /// The driver domain.
    pub backend: DomId,
    /// The backend's type: `vif`, or another name where other programs serve `vif`.
    pub kind: String,
    /// The domain whose interface it is.
    pub domain: DomId,
    /// Its number among the domain's.
    pub handle: u32,
}

impl VifNodes {
    /// The backend's node.
    #[must_use]
    pub fn backend_path(&self) -> String {
        let Self { backend, kind, domain, handle } = self;
        format!("/local/domain/{backend}/backend/{kind}/{domain}/{handle}")
    }

    /// The frontend's node.
    #[must_use]
    pub fn frontend_path(&self) -> String {
        format!("/local/domain/{}/device/vif/{}", self.domain, self.handle)
    }

    /// Makes both nodes in one transaction, as libxl does.
    pub fn create(&self, store: &dyn Store, mac: &str) -> Result<(), StoreError> {
        in_transaction(store, |tx| {
            let (backend, frontend) = (self.backend_path(), self.frontend_path());
            make(store, tx, &frontend, self.domain, self.backend)?;
            make(store, tx, &backend, self.backend, self.domain)?;
            let state = XenbusState::Initialising.to_string();
            let handle = self.handle.to_string();
            let of_both = [("handle", handle.as_str()), ("mac", mac), ("state", &state)];
            let (backend_id, domain) = (self.backend.to_string(), self.domain.to_string());
            let of_frontend = [("backend", backend.as_str()), ("backend-id", &backend_id)];
            let of_backend =
                [("frontend", frontend.as_str()), ("frontend-id", &domain), ("online", "1")];
            for (node, keys) in [
                (&frontend, of_frontend.iter().chain(&of_both)),
                (&backend, of_backend.iter().chain(&of_both)),
            ] {
                for (key, value) in keys {
                    store.write(Some(tx), &format!("{node}/{key}"), value)?;
                }
            }
            Ok(())
        })
    }

    /// Asks both ends to close: the frontend sees it in the backend's state.
    pub fn ask_to_close(&self, store: &dyn Store) -> Result<(), StoreError> {
        let backend = self.backend_path();
        in_transaction(store, |tx| {
            // A write to a node that is gone would make it again.
            store.read(Some(tx), &format!("{backend}/frontend"))?;
            store.write(Some(tx), &format!("{backend}/online"), "0")?;
            store.write(Some(tx), &format!("{backend}/state"), &XenbusState::Closing.to_string())
        })
    }

    /// Removes both nodes.
    pub fn remove(&self, store: &dyn Store) -> Result<(), StoreError> {
        for path in [self.backend_path(), self.frontend_path()] {
            match store.remove(None, &path) {
                Ok(()) | Err(StoreError::NotFound(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// Makes a node that `owner` may change and `reader` may read. Later children inherit this.
fn make(
    store: &dyn Store,
    tx: TransactionId,
    path: &str,
    owner: DomId,
    reader: DomId,
) -> Result<(), StoreError> {
    let others = vec![(reader, Access::READ)];
    let permissions = Permissions { owner, default: Access::NONE, others };
    store.mkdir(Some(tx), path)?;
    store.set_permissions(Some(tx), path, &permissions)
}
