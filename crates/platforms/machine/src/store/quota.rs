//! How much of the store one guest may use. The privileged domain has no quota, only the protocol's
//! limits. The numbers are xenstored's defaults where it has one.

use hypervisor::DomId;
use xenstore::StoreError;

/// Nodes a domain may own.
pub(super) const NODES: usize = 1000;
/// Watches a domain may have.
pub(super) const WATCHES: usize = 128;
/// Transactions a domain may have open. Each holds on to the tree as it was at its start.
pub(super) const TRANSACTIONS: usize = 10;
/// Bytes of paths and values one transaction may remember: keys read, changes made.
///
/// xenstored limits the nodes to 1024; a limit in bytes bounds the memory for nodes of any size.
pub(super) const TRANSACTION_BYTES: usize = 256 * 1024;
/// Bytes of a value.
pub(super) const VALUE: usize = 2048;
/// Entries of a node's permissions, its owner's among them.
pub(super) const PERMISSIONS: usize = 5;
/// Names in a path, for every domain.
///
/// The tree is walked and dropped by recursion, so its depth takes stack: a path of 3072 bytes
/// could have 1500 levels (XSA-418: stack exhaustion in xenstored).
pub(super) const DEPTH: usize = 64;

/// Whether a domain may do anything, without a quota.
pub(super) fn is_privileged(domid: DomId) -> bool {
    domid == DomId(0)
}

/// Refuses what would go beyond a quota.
pub(super) fn check(what: &'static str, used: usize, quota: usize) -> Result<(), StoreError> {
    if used > quota {
        return Err(StoreError::Quota(what));
    }
    Ok(())
}
