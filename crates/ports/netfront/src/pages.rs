//! Pages that the backend keeps mapped.

use std::sync::Arc;

use hypervisor::{GrantRef, Guest};
use wire::netif::GrefMapping;

use crate::Queue;

/// The pages that a queue sends from.
pub(crate) struct TxPages<G: Guest> {
    pub(crate) pages: Arc<G::Pages>,
    pub(crate) grefs: Arc<[GrantRef]>,
}

impl<G: Guest> TxPages<G> {
    pub(crate) fn of(queue: &Queue<G>) -> Self {
        let (pages, grefs) = queue.tx.pages();
        Self { pages: pages.clone(), grefs: grefs.clone() }
    }
}

/// The pages of a queue that the backend may keep mapped, the most important first.
pub(crate) fn wanted<G: Guest>(queue: &Queue<G>) -> Vec<GrefMapping> {
    // A backend that maps each packet anew has places for buffers only. It only reads TX pages.
    let sent = queue.tx.grefs().iter().map(|gref| (gref, GrefMapping::READ_ONLY));
    let received = queue.rx.grefs().iter().map(|gref| (gref, 0));
    let entry = |(gref, flags): (&GrantRef, _)| GrefMapping { gref: gref.0, flags, status: 0 };
    received.chain(sent).map(entry).collect()
}
