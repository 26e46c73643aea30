//! Batches of copies.

use arrayvec::ArrayVec;

use crate::grant::{CopyStatus, Dest, GrantCopy, Source};

/// Most copies of a batch.
pub const COPIES_MAX: usize = 128;

/// Copies that are [performed](crate::Hypervisor::perform) together (`GNTTABOP_copy`), in the form that their platform wants: each is
/// written once. A copy reads and writes within one page on a side that is granted.
pub trait Copies<'a, P>: Default {
    /// Adds a copy of `len` bytes. One that needs no hypercall may be done at once.
    ///
    /// # Panics
    /// There is no [room](Self::room).
    fn push(&mut self, source: Source<'a, P>, dest: Dest<'a, P>, len: u16);

    /// How many copies there are.
    fn len(&self) -> usize;

    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many more fit.
    fn room(&self) -> usize {
        COPIES_MAX - self.len()
    }

    /// How a copy ended, once the batch was performed. Copies are numbered from 0, in the order in which they were added.
    fn status(&self, n: usize) -> CopyStatus;

    /// What the batch was, once it was performed.
    fn tally(&self) -> Tally;

    /// Removes all copies.
    fn clear(&mut self);
}

/// Performs copies that are there already, by as few batches as possible, and sets the status of each.
pub fn copy_all<'a, P: 'a, C: Copies<'a, P>>(
    copies: &'a mut [GrantCopy<'_, P>],
    mut perform: impl FnMut(&mut C) -> bool,
) {
    for part in copies.chunks_mut(COPIES_MAX) {
        let mut batch = C::default();
        let mut statuses = ArrayVec::<&mut CopyStatus, COPIES_MAX>::new();
        for GrantCopy { source, dest, len, status } in part {
            batch.push(*source, dest.reborrow(), *len);
            statuses.push(status);
        }
        perform(&mut batch);
        for (n, status) in statuses.into_iter().enumerate() {
            *status = batch.status(n);
        }
    }
}

/// What a batch was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tally {
    /// The copies with a side that can be reached by its grant only. The others need no hypercall.
    pub granted: usize,
    /// The bytes of all copies that were done.
    pub bytes: u64,
}

/// A batch as it is: for platforms whose copies are their own.
#[derive(Debug)]
pub struct PlainCopies<'a, P> {
    /// The copies. The platform sets the status of each.
    pub copies: ArrayVec<GrantCopy<'a, P>, COPIES_MAX>,
}

impl<P> Default for PlainCopies<'_, P> {
    #[inline]
    fn default() -> Self {
        Self { copies: ArrayVec::new() }
    }
}

impl<'a, P> Copies<'a, P> for PlainCopies<'a, P> {
    #[inline]
    fn push(&mut self, source: Source<'a, P>, dest: Dest<'a, P>, len: u16) {
        self.copies.push(GrantCopy::new(source, dest, len));
    }

    #[inline]
    fn len(&self) -> usize {
        self.copies.len()
    }

    #[inline]
    fn status(&self, n: usize) -> CopyStatus {
        self.copies[n].status
    }

    fn tally(&self) -> Tally {
        let done = self.copies.iter().filter(|copy| copy.status == CopyStatus::Okay);
        let bytes = done.map(|copy| u64::from(copy.len)).sum();
        Tally { granted: self.copies.iter().filter(|copy| copy.is_granted()).count(), bytes }
    }

    #[inline]
    fn clear(&mut self) {
        self.copies.clear();
    }
}
