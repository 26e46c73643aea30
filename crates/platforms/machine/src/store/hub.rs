//! The store itself: the tree and who is connected to it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hypervisor::DomId;
use rustix::net::{Shutdown, shutdown};
use xenstore::wire::AbsPath;
use xenstore::{StoreError, TransactionId, WatchQueue};

use super::quota::{self, is_privileged};
use super::transaction::Transaction;
use super::tree::{Change, Touched, Tree};
use super::watch::{INTRODUCE_DOMAIN, RELEASE_DOMAIN, Watch};

/// The embedded store. Clones are handles of the same store.
#[derive(Clone, Debug)]
pub struct StoreHub(Arc<Mutex<Hub>>);

impl Default for StoreHub {
    fn default() -> Self {
        Self::new()
    }
}

impl StoreHub {
    /// A store with nothing in it but a root, which only domain 0 may use.
    #[must_use]
    pub fn new() -> Self {
        Self(Arc::new(Mutex::new(Hub {
            tree: Tree::new(),
            connections: BTreeMap::new(),
            introduced: BTreeSet::new(),
            last_connection: 0,
            last_transaction: 0,
        })))
    }

    /// Makes a domain known; fires `@introduceDomain`.
    pub fn introduce(&self, domid: DomId) {
        let mut hub = self.lock();
        hub.introduced.insert(domid);
        hub.announce(INTRODUCE_DOMAIN);
    }

    /// Releases a domain; fires `@releaseDomain`. Its keys stay until [`forget`](Self::forget).
    pub fn release(&self, domid: DomId) {
        let mut hub = self.lock();
        hub.introduced.remove(&domid);
        hub.announce(RELEASE_DOMAIN);
    }

    /// Whether a domain was introduced and not yet released. Domain 0 always is.
    #[must_use]
    pub fn is_introduced(&self, domid: DomId) -> bool {
        is_privileged(domid) || self.lock().introduced.contains(&domid)
    }

    /// Cleans up after a dead domain: removes the nodes that it owns below `/local/domain/DOMID`,
    /// its permissions everywhere (domain 0 becomes the owner of what it left behind), its watches
    /// and its transactions. Its connections return [`StoreError::Gone`] from now on.
    ///
    /// Domain 0 is never forgotten.
    pub fn forget(&self, domid: DomId) {
        if is_privileged(domid) {
            return;
        }
        let mut hub = self.lock();
        hub.connections.retain(|_, connection| {
            let stays = connection.domid != domid;
            if !stays {
                connection.close();
            }
            stays
        });
        let touched = hub.tree.forget(domid);
        hub.fire(&touched);
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Hub> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection's number. Numbers are never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ConnectionId(u64);

#[derive(Debug)]
struct Connection {
    domid: DomId,
    watches: Vec<Watch>,
    transactions: HashMap<TransactionId, Transaction>,
    queue: Arc<WatchQueue>,
    /// The socket that it is served on, if any.
    socket: Option<Arc<OwnedFd>>,
}

impl Connection {
    /// Closes the connection of a domain that is gone, and its socket: while a guest reads nothing,
    /// the thread that serves it waits, and would stay for ever.
    fn close(&self) {
        self.queue.close("the domain is gone");
        if let Some(socket) = &self.socket {
            // Fails when the guest has hung up already.
            let _ = shutdown(socket, Shutdown::Both);
        }
    }
}

#[derive(Debug)]
pub(super) struct Hub {
    tree: Tree,
    connections: BTreeMap<ConnectionId, Connection>,
    introduced: BTreeSet<DomId>,
    last_connection: u64,
    last_transaction: u32,
}

impl Hub {
    pub(super) fn connect(&mut self, domid: DomId, queue: Arc<WatchQueue>) -> ConnectionId {
        self.last_connection += 1;
        let id = ConnectionId(self.last_connection);
        let connection = Connection {
            domid,
            watches: Vec::new(),
            transactions: HashMap::new(),
            queue,
            socket: None,
        };
        self.connections.insert(id, connection);
        id
    }

    /// Ties a connection to its socket, which is shut down with it.
    pub fn tie(&mut self, id: ConnectionId, socket: Arc<OwnedFd>) -> Result<(), StoreError> {
        self.connection(id)?.socket = Some(socket);
        Ok(())
    }

    pub fn disconnect(&mut self, id: ConnectionId) {
        self.connections.remove(&id);
    }

    /// Drops a connection's watches, their events, and its transactions.
    pub fn reset(&mut self, id: ConnectionId) -> Result<(), StoreError> {
        let connection = self.connection(id)?;
        connection.watches.clear();
        connection.transactions.clear();
        connection.queue.clear();
        Ok(())
    }

    /// The tree as a connection sees it, to read `path`.
    pub fn view(
        &mut self,
        id: ConnectionId,
        tx: Option<TransactionId>,
        path: &AbsPath,
    ) -> Result<&Tree, StoreError> {
        let connection = connection(&mut self.connections, id)?;
        match tx {
            Some(tx) => transaction(connection, tx)?.view(path),
            None => Ok(&self.tree),
        }
    }

    pub fn change(
        &mut self,
        id: ConnectionId,
        tx: Option<TransactionId>,
        change: Change,
    ) -> Result<(), StoreError> {
        let connection = connection(&mut self.connections, id)?;
        match tx {
            Some(tx) => transaction(connection, tx)?.change(change),
            None => {
                let touched = self.tree.apply(connection.domid, &change)?;
                self.fire(&touched);
                Ok(())
            }
        }
    }

    pub fn begin(&mut self, id: ConnectionId) -> Result<TransactionId, StoreError> {
        let domid = self.connection(id)?.domid;
        if !is_privileged(domid) {
            let open: usize = self.of(domid).map(|it| it.transactions.len()).sum();
            quota::check("transactions", open + 1, quota::TRANSACTIONS)?;
        }
        let tx = self.next_transaction();
        let transaction = Transaction::new(domid, &self.tree);
        self.connection(id)?.transactions.insert(tx, transaction);
        Ok(tx)
    }

    pub fn end(
        &mut self,
        id: ConnectionId,
        tx: TransactionId,
        commit: bool,
    ) -> Result<(), StoreError> {
        let transactions = &mut self.connection(id)?.transactions;
        let transaction = transactions.remove(&tx).ok_or_else(|| unknown(tx))?;
        if commit {
            let touched = transaction.commit(&mut self.tree)?;
            self.fire(&touched);
        }
        Ok(())
    }

    pub fn watch(&mut self, id: ConnectionId, watch: Watch) -> Result<(), StoreError> {
        let connection = self.connection(id)?;
        if connection.watches.iter().any(|known| known.is_same(&watch)) {
            return Err(StoreError::Exists(watch.path().to_owned()));
        }
        let domid = connection.domid;
        if !is_privileged(domid) {
            let registered: usize = self.of(domid).map(|it| it.watches.len()).sum();
            quota::check("watches", registered + 1, quota::WATCHES)?;
        }
        let connection = self.connection(id)?;
        connection.queue.push(watch.first_event(), watch.path());
        connection.watches.push(watch);
        Ok(())
    }

    pub fn unwatch(&mut self, id: ConnectionId, watch: &Watch) -> Result<(), StoreError> {
        let watches = &mut self.connection(id)?.watches;
        match watches.iter().position(|known| known.is_same(watch)) {
            Some(index) => {
                watches.remove(index);
                Ok(())
            }
            None => Err(StoreError::NotFound(watch.path().to_owned())),
        }
    }

    fn fire(&self, touched: &[Touched]) {
        for connection in self.connections.values() {
            let known = touched.iter().filter(|it| it.is_known_to(connection.domid));
            for touched in known {
                for watch in connection.watches.iter().filter(|it| it.sees(touched)) {
                    connection.queue.push(watch.event(touched), watch.path());
                }
            }
        }
    }

    /// Fires a special watch, for domain 0 only: guests must not learn about each other (XSA-115).
    fn announce(&self, name: &str) {
        for connection in self.of(DomId(0)) {
            for watch in connection.watches.iter().filter(|it| it.is_special(name)) {
                connection.queue.push(watch.first_event(), watch.path());
            }
        }
    }

    fn of(&self, domid: DomId) -> impl Iterator<Item = &Connection> {
        let connections = self.connections.values();
        connections.filter(move |connection| connection.domid == domid)
    }

    fn next_transaction(&mut self) -> TransactionId {
        loop {
            self.last_transaction = self.last_transaction.wrapping_add(1);
            let tx = TransactionId(self.last_transaction);
            let mut connections = self.connections.values();
            // 0 means no transaction on the wire.
            if tx.0 != 0 && !connections.any(|it| it.transactions.contains_key(&tx)) {
                return tx;
            }
        }
    }

    fn connection(&mut self, id: ConnectionId) -> Result<&mut Connection, StoreError> {
        connection(&mut self.connections, id)
    }
}

/// Not a method of the hub, so that its tree can be used beside the connection.
fn connection(
    connections: &mut BTreeMap<ConnectionId, Connection>,
    id: ConnectionId,
) -> Result<&mut Connection, StoreError> {
    let gone = || StoreError::Gone("the domain is gone".to_owned());
    connections.get_mut(&id).ok_or_else(gone)
}

fn transaction(
    connection: &mut Connection,
    tx: TransactionId,
) -> Result<&mut Transaction, StoreError> {
    let found = connection.transactions.get_mut(&tx);
    found.ok_or_else(|| unknown(tx))
}

fn unknown(tx: TransactionId) -> StoreError {
    StoreError::NotFound(format!("transaction {}", tx.0))
}
