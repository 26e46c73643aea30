//! The chains that the device has taken and not yet returned.

/// A chain in the device's hands.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TakenChain {
    /// The id that the driver gets back.
    pub(crate) id: u16,
    /// Descriptors that it occupies in a packed ring.
    pub(crate) descriptors: u16,
    /// Bytes that the device wrote into it.
    pub(crate) written: u32,
    is_complete: bool,
}

/// Chains in the order in which they were taken. Chain numbers run freely and wrap at 2¹⁶.
#[derive(Debug)]
pub(crate) struct Taken {
    entries: Box<[TakenChain]>,
    /// The first one that is not published.
    first: u16,
    /// The first one that is not complete.
    complete: u16,
    next: u16,
}

impl Taken {
    /// For at most `size` chains at a time, numbered from `first` on.
    pub(crate) fn new(size: u16, first: u16) -> Self {
        let entries = vec![TakenChain::default(); usize::from(size).next_power_of_two()].into();
        Self { entries, first, complete: first, next: first }
    }

    #[inline]
    fn at(&self, index: u16) -> usize {
        usize::from(index) & (self.entries.len() - 1)
    }

    #[inline]
    pub(crate) fn first(&self) -> u16 {
        self.first
    }

    #[inline]
    pub(crate) fn complete_end(&self) -> u16 {
        self.complete
    }

    #[inline]
    pub(crate) fn next(&self) -> u16 {
        self.next
    }

    /// Takes a chain. The caller has checked that there are fewer than the ring's size.
    #[inline]
    pub(crate) fn push(&mut self, id: u16, descriptors: u16) -> u16 {
        let index = self.next;
        let at = self.at(index);
        self.entries[at] = TakenChain { id, descriptors, written: 0, is_complete: false };
        self.next = index.wrapping_add(1);
        index
    }

    /// Forgets the chains from `index` on. None may be complete.
    #[inline]
    pub(crate) fn truncate(&mut self, index: u16) {
        debug_assert!(
            index.wrapping_sub(self.complete) <= self.next.wrapping_sub(self.complete),
            "a chain that was returned cannot be put back"
        );
        self.next = index;
    }

    #[inline]
    pub(crate) fn get(&self, index: u16) -> TakenChain {
        self.entries[self.at(index)]
    }

    /// Notes that a chain is complete.
    #[inline]
    pub(crate) fn set_complete(&mut self, index: u16, written: u32) {
        debug_assert!(
            index.wrapping_sub(self.complete) < self.next.wrapping_sub(self.complete),
            "a chain that was not taken cannot be returned"
        );
        let at = self.at(index);
        let entry = &mut self.entries[at];
        (entry.written, entry.is_complete) = (written, true);
        if index == self.complete {
            self.catch_up();
        }
    }

    #[inline]
    fn catch_up(&mut self) {
        while self.complete != self.next && self.get(self.complete).is_complete {
            self.complete = self.complete.wrapping_add(1);
        }
    }

    /// The complete chains at the front were published.
    #[inline]
    pub(crate) fn published(&mut self) {
        self.first = self.complete;
    }
}
