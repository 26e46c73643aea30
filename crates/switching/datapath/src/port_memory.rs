//! Ports whose memory can make a thread sleep, beside ports whose queues nobody can replace meanwhile.
//!
//! A thread that copies a frame between two guests has the queues of both in its hands. If it sleeps in the memory of the one, the other's queue must
//! be replaced ([`sleepers`](crate::sleepers)), or it waits as long. A queue over granted pages cannot be: what the thread still does with it when it wakes up
//! would reach pages that the guest uses for something else by then. So frames between these two kinds of ports go through memory of this
//! process: those from memory that can sleep are copied before the other port's queue is locked ([`copies`](crate::copies)), and those to such memory are
//! delivered by the turns of its own port ([`inbox`](crate::inbox)).

/// What a thread may find in the memory of a port, and what becomes of the port while a thread sleeps elsewhere.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortMemory {
    /// A thread that touches it may sleep for as long as its owner likes.
    pub can_sleep: bool,
    /// Other queues take the places of those with which a thread sleeps in another port's memory.
    pub is_replaceable: bool,
    /// Its frames may lie in buffers that another port lends: in memory in which a thread can sleep, for whoever else gets them.
    pub borrows: bool,
}

impl PortMemory {
    /// Whether frames from here to there are copied before the other queue is locked.
    #[inline]
    pub(crate) fn is_left_for(self, to: Self) -> bool {
        self.can_sleep && !to.is_replaceable
    }

    /// Whether frames from here to there are delivered by the other port's turns.
    #[inline]
    pub(crate) fn avoids(self, to: Self) -> bool {
        to.can_sleep && !self.is_replaceable
    }
}
