//! The store: a tree of keys with watches and permissions (xenstore).

use std::os::fd::BorrowedFd;

use hypervisor::DomId;

/// Longest value and longest message body, in bytes (`XENSTORE_PAYLOAD_MAX`).
pub const PAYLOAD_MAX: usize = 4096;
/// Longest absolute path, in bytes (`XENSTORE_ABS_PATH_MAX`).
pub const ABS_PATH_MAX: usize = 3072;
/// Longest relative path, in bytes (`XENSTORE_REL_PATH_MAX`).
pub const REL_PATH_MAX: usize = 2048;

/// Why the store refused a request; each names xenstore's error.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// ENOENT
    #[error("{0}: no such key")]
    NotFound(String),
    /// EACCES
    #[error("{0}: permission denied")]
    Denied(String),
    /// EINVAL
    #[error("{0}: malformed path or value")]
    Invalid(String),
    /// EAGAIN: another commit came first; start the transaction again.
    #[error("transaction conflict")]
    Conflict,
    /// EEXIST
    #[error("{0}: exists already")]
    Exists(String),
    /// ENOSPC, E2BIG: a limit of this connection was reached.
    #[error("store quota exceeded: {0}")]
    Quota(&'static str),
    /// The connection broke.
    #[error("store connection lost: {0}")]
    Gone(String),
}

/// A change below a watched path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchEvent {
    /// The key that changed; once, on registration, the watched path itself.
    pub path: String,
    /// The token that the watcher gave when it registered.
    pub token: String,
}

/// What a domain may do to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// May read it.
    pub read: bool,
    /// May write it.
    pub write: bool,
}

impl Access {
    /// No access.
    pub const NONE: Self = Self { read: false, write: false };
    /// Read only.
    pub const READ: Self = Self { read: true, write: false };
    /// Both.
    pub const BOTH: Self = Self { read: true, write: true };
}

/// A node's permissions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Permissions {
    /// The owner: it may read, write and change the permissions.
    pub owner: DomId,
    /// What domains not listed may do.
    pub default: Access,
    /// What each listed domain may do.
    pub others: Vec<(DomId, Access)>,
}

/// A transaction's number, as the store gave it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TransactionId(pub u32);

/// One domain's connection to the store.
///
/// A relative path is below `/local/domain/DOMID` of the caller. Paths have no trailing slash.
pub trait Store: Send + Sync {
    /// The value of a key.
    fn read(&self, tx: Option<TransactionId>, path: &str) -> Result<String, StoreError>;
    /// Writes a key. Missing parents are made and inherit permissions.
    fn write(&self, tx: Option<TransactionId>, path: &str, value: &str) -> Result<(), StoreError>;
    /// Makes a node without a value; no error if it exists.
    fn mkdir(&self, tx: Option<TransactionId>, path: &str) -> Result<(), StoreError>;
    /// Removes a node and all below it.
    fn remove(&self, tx: Option<TransactionId>, path: &str) -> Result<(), StoreError>;
    /// The names of a node's children.
    fn directory(&self, tx: Option<TransactionId>, path: &str) -> Result<Vec<String>, StoreError>;
    /// A node's permissions.
    fn permissions(&self, tx: Option<TransactionId>, path: &str)
    -> Result<Permissions, StoreError>;
    /// Changes a node's permissions.
    fn set_permissions(
        &self,
        tx: Option<TransactionId>,
        path: &str,
        permissions: &Permissions,
    ) -> Result<(), StoreError>;
    /// Starts a transaction.
    fn begin(&self) -> Result<TransactionId, StoreError>;
    /// Ends a transaction; [`StoreError::Conflict`] means that it must be repeated.
    fn end(&self, tx: TransactionId, commit: bool) -> Result<(), StoreError>;
    /// Watches a path and everything below it; fires once on registration.
    fn watch(&self, path: &str, token: &str) -> Result<(), StoreError>;
    /// Removes a watch.
    fn unwatch(&self, path: &str, token: &str) -> Result<(), StoreError>;
    /// The next watch event, if one is pending. Never blocks.
    fn event(&self) -> Result<Option<WatchEvent>, StoreError>;
    /// Readable while watch events are pending.
    fn event_fd(&self) -> BorrowedFd<'_>;
}

/// How often a transaction is tried in all when it conflicts.
const TRIES: usize = 16;

/// Makes a change in one transaction. `change` runs again after a conflict.
pub fn in_transaction(
    store: &dyn Store,
    mut change: impl FnMut(TransactionId) -> Result<(), StoreError>,
) -> Result<(), StoreError> {
    for _ in 0..TRIES {
        let tx = store.begin()?;
        let result = change(tx);
        let ended = store.end(tx, result.is_ok());
        match (result, ended) {
            (Ok(()), Err(StoreError::Conflict)) => {}
            (Ok(()), ended) => return ended,
            (Err(error), _) => return Err(error),
        }
    }
    Err(StoreError::Conflict)
}
