//! The ring of interrupt vectors: a page that the card and the hypervisor share.
//!
//! A vector is a set of contexts that were updated. The card writes it, moves the producer index
//! (release), and then, after a full barrier, reads [`ASLEEP`]: if that is not 0, it interrupts the
//! hypervisor. The hypervisor takes all vectors, moves the consumer index, and before it sleeps it sets `ASLEEP` and, after a
//! full barrier, reads the producer index again. The card writes no vector that was not read: while the
//! ring is full, it collects contexts in a vector that it keeps.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::ContextId;
use crate::context::CONTEXTS_MAX;

/// Bytes of the page.
pub const PAGE_LEN: usize = 4096;
/// The producer index, a `u32` that the card writes.
pub const PRODUCER: usize = 0;
/// The consumer index, a `u32` that the hypervisor writes.
pub const CONSUMER: usize = 64;
/// A `u32` that the hypervisor writes: not 0 while it sleeps and wants an interrupt.
pub const ASLEEP: usize = 128;
/// The first vector.
pub const VECTORS: usize = 2048;
/// Vectors in the ring.
pub const SLOTS: u32 = 64;
/// Words of a vector, a `u32` each.
pub const WORDS: usize = CONTEXTS_MAX / 32;

const _: () = assert!(VECTORS + SLOTS as usize * size_of::<Vector>() == PAGE_LEN);

/// Where the vector of an index lies in the page.
#[inline]
#[must_use]
pub const fn offset(index: u32) -> usize {
    VECTORS + (index % SLOTS) as usize * size_of::<Vector>()
}

/// A set of contexts: context n is bit n mod 32 of word n / 32.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(transparent)]
pub struct Vector(pub [u32; WORDS]);

impl Vector {
    /// No context.
    pub const EMPTY: Self = Self([0; WORDS]);

    /// Adds a context.
    #[inline]
    pub const fn insert(&mut self, context: ContextId) {
        self.0[context.index() / 32] |= 1 << (context.index() % 32);
    }

    /// Removes a context.
    #[inline]
    pub const fn remove(&mut self, context: ContextId) {
        self.0[context.index() / 32] &= !(1 << (context.index() % 32));
    }

    /// Whether a context is in the set.
    #[inline]
    #[must_use]
    pub const fn contains(&self, context: ContextId) -> bool {
        self.0[context.index() / 32] & 1 << (context.index() % 32) != 0
    }

    /// Adds all contexts of another set.
    #[inline]
    pub fn merge(&mut self, other: &Self) {
        for (word, other) in self.0.iter_mut().zip(other.0) {
            *word |= other;
        }
    }

    /// Whether no context is in the set.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0 == [0; WORDS]
    }

    /// The contexts of the set, in ascending order.
    pub fn contexts(&self) -> impl Iterator<Item = ContextId> + use<> {
        (0u32..).step_by(32).zip(self.0).flat_map(|(first, mut word)| {
            core::iter::from_fn(move || {
                let bit = (word != 0).then(|| word.trailing_zeros())?;
                word &= word - 1;
                u8::try_from(first + bit).ok().map(ContextId::new)
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_fill_the_second_half_of_the_page() {
        assert_eq!((offset(0), offset(63), offset(64)), (2048, 4064, 2048));
    }

    #[test]
    fn a_vector_is_a_set() {
        let mut vector = Vector::EMPTY;
        assert!(vector.is_empty());
        let contexts = [0, 31, 32, 255].map(ContextId::new);
        contexts.into_iter().for_each(|context| vector.insert(context));
        assert_eq!(vector.0, [1 << 31 | 1, 1, 0, 0, 0, 0, 0, 1 << 31]);
        assert!(vector.contexts().eq(contexts));
        let mut other = Vector::EMPTY;
        other.insert(ContextId::new(7));
        vector.remove(ContextId::new(32));
        vector.merge(&other);
        assert!(vector.contexts().eq([0, 7, 31, 255].map(ContextId::new)));
        assert!(vector.contains(ContextId::new(7)) && !vector.contains(ContextId::new(32)));
    }
}
