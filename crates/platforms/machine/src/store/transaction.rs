//! Transactions: a private copy of the tree, and which parts of it were read or written.
//!
//! A commit succeeds if nothing that the transaction read or wrote has changed since its start. Its
//! changes are then applied to the current tree. Other changes do not matter, so transactions of
//! different devices do not disturb each other.

use std::collections::BTreeMap;

use hypervisor::DomId;
use xenstore::StoreError;
use xenstore::wire::AbsPath;

use super::quota::{self, is_privileged};
use super::tree::{Change, Scope, Touched, Tree};

/// Approximate memory of one path or change besides its text.
const OVERHEAD: usize = 64;

#[derive(Debug)]
pub(super) struct Transaction {
    caller: DomId,
    /// The tree at the start.
    base: Tree,
    /// The same with the transaction's own changes.
    tree: Tree,
    relied_on: BTreeMap<AbsPath, Scope>,
    changes: Vec<Change>,
    /// The memory that reads and changes take.
    bytes: usize,
}

impl Transaction {
    pub fn new(caller: DomId, tree: &Tree) -> Self {
        Self {
            caller,
            base: tree.clone(),
            tree: tree.clone(),
            relied_on: BTreeMap::new(),
            changes: Vec::new(),
            bytes: 0,
        }
    }

    /// The tree as this transaction sees it, to read `path`. The transaction relies on that node from now on.
    pub fn view(&mut self, path: &AbsPath) -> Result<&Tree, StoreError> {
        self.rely_on(path, Scope::Node)?;
        Ok(&self.tree)
    }

    /// Makes a change that others see once the transaction is committed.
    pub fn change(&mut self, change: Change) -> Result<(), StoreError> {
        let (scope, size) = match &change {
            Change::Remove { .. } => (Scope::Subtree, 0),
            Change::Write { value, .. } => (Scope::Node, value.len()),
            Change::Mkdir { .. } => (Scope::Node, 0),
            Change::SetPermissions { permissions, .. } => {
                (Scope::Node, size_of_val(&*permissions.others))
            }
        };
        self.rely_on(change.path(), scope)?;
        self.charge(change.path().as_str().len() + size)?;
        self.tree.apply(self.caller, &change)?;
        self.changes.push(change);
        Ok(())
    }

    /// Makes all changes in `tree`, or none.
    pub fn commit(self, tree: &mut Tree) -> Result<Vec<Touched>, StoreError> {
        let changed = |(path, scope): (&AbsPath, &Scope)| {
            self.base.version(path, *scope) != tree.version(path, *scope)
        };
        if self.relied_on.iter().any(changed) {
            return Err(StoreError::Conflict);
        }
        // Quotas and the permissions above new nodes may have changed, so this can fail too.
        let mut next = tree.clone();
        let mut touched = Vec::new();
        for change in &self.changes {
            match next.apply(self.caller, change) {
                Ok(more) => touched.extend(more),
                Err(StoreError::Quota(what)) => return Err(StoreError::Quota(what)),
                // The client repeats the transaction and meets the error itself.
                Err(_) => return Err(StoreError::Conflict),
            }
        }
        *tree = next;
        Ok(touched)
    }

    fn rely_on(&mut self, path: &AbsPath, scope: Scope) -> Result<(), StoreError> {
        if let Some(known) = self.relied_on.get_mut(path) {
            *known = scope.max(*known);
            return Ok(());
        }
        self.charge(path.as_str().len())?;
        self.relied_on.insert(path.clone(), scope);
        Ok(())
    }

    /// A transaction that only reads, or writes one key again and again, takes memory too.
    fn charge(&mut self, bytes: usize) -> Result<(), StoreError> {
        if is_privileged(self.caller) {
            return Ok(());
        }
        self.bytes += bytes + OVERHEAD;
        quota::check("transaction", self.bytes, quota::TRANSACTION_BYTES)
    }
}
