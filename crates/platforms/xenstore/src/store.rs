//! The store: a tree of keys with watches and permissions (xenstore).

use std::os::fd::BorrowedFd;

use hypervisor::DomId;

/// Longest value and longest message body, in bytes (`XENSTORE_PAYLOAD_MAX`).
pub const PAYLOAD_MAX: usize = 4096;
/// Longest absolute path, in bytes (`XENSTORE_ABS_PATH_MAX`).
pub const ABS_PATH_MAX: usize = 3072;
/// Longest relative path, in bytes (`XENSTORE_REL_PATH_MAX`).
pub const REL_PATH_MAX: usize = 2048;

/// What the store can answer instead of doing its work; the names are xenstore's errors.
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
    /// EAGAIN: another commit got in between; start the transaction again.
    #[error("transaction conflict")]
    Conflict,
    /// EEXIST
    #[error("{0}: exists already")]
    Exists(String),
    /// ENOSPC, E2BIG: a bound of this connection was reached.
    #[error("store quota exceeded: {0}")]
    Quota(&'static str),
    /// The connection broke.
    #[error("store connection lost: {0}")]
    Gone(String),
}

/// A change below a watched path. `path` is the key that changed, `token` the watcher's own word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchEvent {
    /// The key that changed (or the watched path itself, once, on registration).
    pub path: String,
    /// What the watcher gave when it registered.
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
    /// Neither.
    pub const NONE: Self = Self { read: false, write: false };
    /// Read only.
    pub const READ: Self = Self { read: true, write: false };
    /// Both.
    pub const BOTH: Self = Self { read: true, write: true };
}

/// A node's permissions: its owner may do anything, others what is listed, the rest `default`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Permissions {
    /// May read, write and change the permissions.
    pub owner: DomId,
    /// What domains not listed may do.
    pub default: Access,
    /// Exceptions.
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
    /// Writes a key; missing parents are made, with their parents' permissions.
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
    /// Ends a transaction; [`StoreError::Conflict`] when it has to be done again.
    fn end(&self, tx: TransactionId, commit: bool) -> Result<(), StoreError>;
    /// Watches a path and everything below it; fires once on registration.
    fn watch(&self, path: &str, token: &str) -> Result<(), StoreError>;
    /// Takes a watch back.
    fn unwatch(&self, path: &str, token: &str) -> Result<(), StoreError>;
    /// The next watch event, if one is pending. Never blocks.
    fn event(&self) -> Result<Option<WatchEvent>, StoreError>;
    /// Readable while watch events are pending.
    fn event_fd(&self) -> BorrowedFd<'_>;
}

/// How often a transaction is begun anew when others' changes get in between.
const TRIES: usize = 16;

/// Changes the store in one go, or not at all. The change is made anew when another's got in
/// between.
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
