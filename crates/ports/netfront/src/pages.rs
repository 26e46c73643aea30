//! Pages that the backend keeps mapped.

use std::sync::Arc;

use hypervisor::{GrantRef, Guest};
use wire::netif::GrefMapping;

use crate::{ControlError, ControlRing, Queue};

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

/// Asks the backend to keep the pages of all queues mapped, as many as it can.
pub(crate) fn keep_mapped<G: Guest>(
    control: &mut ControlRing<G>,
    queues: &[Queue<G>],
) -> Result<(), ControlError> {
    for (number, queue) in (0..).zip(queues) {
        let size = control.size(number)?;
        // A backend that maps each packet anew has places for buffers only. It only reads TX pages.
        let sent = queue.tx.grefs().iter().map(|gref| (gref, GrefMapping::READ_ONLY));
        let received = queue.rx.grefs().iter().map(|gref| (gref, 0));
        let entry = |(gref, flags): (&GrantRef, _)| GrefMapping { gref: gref.0, flags, status: 0 };
        let entries: Vec<_> = received.chain(sent).map(entry).take(size).collect();
        for list in entries.chunks(GrefMapping::PER_PAGE) {
            control.add(number, list)?;
        }
    }
    Ok(())
}
