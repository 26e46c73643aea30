//! A domain's connection within this process.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use hypervisor::DomId;
use xenstore::wire::AbsPath;
use xenstore::{Permissions, Store, StoreError, TransactionId, WatchEvent, WatchQueue};

use super::hub::{ConnectionId, StoreHub};
use super::tree::{Change, Node};
use super::watch::Watch;

/// A connection to the embedded store, with one domain's rights.
///
/// Dropping it drops its watches and transactions.
#[derive(Debug)]
pub struct LocalStore {
    hub: StoreHub,
    id: ConnectionId,
    domid: DomId,
    queue: Arc<WatchQueue>,
}

impl StoreHub {
    /// Connects a domain. Dropping the connection drops its watches and transactions.
    ///
    /// # Panics
    /// When the process is out of descriptors: each connection has an eventfd.
    #[must_use]
    pub fn connect(&self, domid: DomId) -> LocalStore {
        self.try_connect(domid).expect("a descriptor for the connection's events")
    }

    /// As [`connect`](Self::connect), with an error when the process is out of descriptors.
    pub(super) fn try_connect(&self, domid: DomId) -> io::Result<LocalStore> {
        let queue = Arc::new(WatchQueue::new()?);
        let id = self.lock().connect(domid, Arc::clone(&queue));
        Ok(LocalStore { hub: self.clone(), id, domid, queue })
    }
}

impl LocalStore {
    /// The domain whose rights these are.
    #[must_use]
    pub fn domid(&self) -> DomId {
        self.domid
    }

    /// Shuts `socket` down when the domain is forgotten.
    pub(super) fn tie(&self, socket: Arc<OwnedFd>) -> Result<(), StoreError> {
        self.hub.lock().tie(self.id, socket)
    }

    /// Drops all watches, their events, and all transactions.
    pub(super) fn reset(&self) -> Result<(), StoreError> {
        self.hub.lock().reset(self.id)
    }

    /// A node's children, and the node's generation.
    pub(super) fn listing(
        &self,
        tx: Option<TransactionId>,
        path: &str,
    ) -> Result<(u64, Vec<String>), StoreError> {
        self.with_node(tx, path, |node| (node.generation(), node.names()))
    }

    fn with_node<R>(
        &self,
        tx: Option<TransactionId>,
        path: &str,
        at: impl FnOnce(&Node) -> R,
    ) -> Result<R, StoreError> {
        let path = self.resolve(path)?;
        let mut hub = self.hub.lock();
        let tree = hub.view(self.id, tx, &path)?;
        tree.readable(self.domid, &path).map(at)
    }

    fn change(&self, tx: Option<TransactionId>, change: Change) -> Result<(), StoreError> {
        self.hub.lock().change(self.id, tx, change)
    }

    fn resolve(&self, path: &str) -> Result<AbsPath, StoreError> {
        AbsPath::resolve(self.domid, path)
    }
}

impl Store for LocalStore {
    fn read(&self, tx: Option<TransactionId>, path: &str) -> Result<String, StoreError> {
        self.with_node(tx, path, |node| node.value.clone())
    }

    fn write(&self, tx: Option<TransactionId>, path: &str, value: &str) -> Result<(), StoreError> {
        let path = self.resolve(path)?;
        let value = value.to_owned();
        self.change(tx, Change::Write { path, value })
    }

    fn mkdir(&self, tx: Option<TransactionId>, path: &str) -> Result<(), StoreError> {
        let path = self.resolve(path)?;
        self.change(tx, Change::Mkdir { path })
    }

    fn remove(&self, tx: Option<TransactionId>, path: &str) -> Result<(), StoreError> {
        let path = self.resolve(path)?;
        self.change(tx, Change::Remove { path })
    }

    fn directory(&self, tx: Option<TransactionId>, path: &str) -> Result<Vec<String>, StoreError> {
        self.listing(tx, path).map(|(_, names)| names)
    }

    fn permissions(
        &self,
        tx: Option<TransactionId>,
        path: &str,
    ) -> Result<Permissions, StoreError> {
        self.with_node(tx, path, |node| node.permissions.clone())
    }

    fn set_permissions(
        &self,
        tx: Option<TransactionId>,
        path: &str,
        permissions: &Permissions,
    ) -> Result<(), StoreError> {
        let path = self.resolve(path)?;
        let permissions = permissions.clone();
        self.change(tx, Change::SetPermissions { path, permissions })
    }

    fn begin(&self) -> Result<TransactionId, StoreError> {
        self.hub.lock().begin(self.id)
    }

    fn end(&self, tx: TransactionId, commit: bool) -> Result<(), StoreError> {
        self.hub.lock().end(self.id, tx, commit)
    }

    fn watch(&self, path: &str, token: &str) -> Result<(), StoreError> {
        let watch = Watch::new(self.domid, path, token)?;
        self.hub.lock().watch(self.id, watch)
    }

    /// Events that already wait are still delivered.
    fn unwatch(&self, path: &str, token: &str) -> Result<(), StoreError> {
        let watch = Watch::new(self.domid, path, token)?;
        self.hub.lock().unwatch(self.id, &watch)
    }

    fn event(&self) -> Result<Option<WatchEvent>, StoreError> {
        self.queue.pop()
    }

    fn event_fd(&self) -> BorrowedFd<'_> {
        self.queue.as_fd()
    }
}

impl Drop for LocalStore {
    fn drop(&mut self) {
        self.hub.lock().disconnect(self.id);
    }
}
