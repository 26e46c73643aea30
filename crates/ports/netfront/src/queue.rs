//! A queue of the interface.

use hypervisor::Guest;

use crate::{RxQueue, TxQueue};

/// One queue: a ring for each direction.
pub struct Queue<G: Guest> {
    /// To the backend.
    pub tx: TxQueue<G>,
    /// From the backend.
    pub rx: RxQueue<G>,
}
