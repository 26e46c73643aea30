//! The memory that a ring lies in.

use std::fmt::Debug;
use std::sync::atomic::{Ordering, fence};

use shm::Region;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Memory in which both ends of a ring read and write at any time: a [`Region`], or loom's model of one.
///
/// Each caller says how an access is ordered, so that loom checks the orders of the code that runs. Setup has checked the
/// offsets; what does not exist reads as zero, or as none.
pub trait RingMemory: Debug {
    /// Reads a word of 16 bits.
    fn load_u16(&self, at: usize, order: Ordering) -> u16;
    /// Reads a word of 32 bits.
    fn load_u32(&self, at: usize, order: Ordering) -> u32;
    /// Reads a word of 64 bits.
    fn load_u64(&self, at: usize, order: Ordering) -> u64;
    /// Writes a word of 16 bits.
    fn store_u16(&self, at: usize, value: u16, order: Ordering);
    /// Writes a word of 32 bits.
    fn store_u32(&self, at: usize, value: u32, order: Ordering);
    /// Writes a word of 64 bits.
    fn store_u64(&self, at: usize, value: u64, order: Ordering);
    /// Reads words of `WIDTH` bytes, in any order, each at once.
    fn read_words<T: FromBytes, const WIDTH: usize>(&self, at: usize) -> Option<T>;
    /// Writes words of `WIDTH` bytes, in any order, each at once.
    fn write_words<T: IntoBytes + Immutable, const WIDTH: usize>(&self, at: usize, value: T);
    /// A full barrier: it also orders earlier stores before later loads.
    fn full_barrier(&self);
    /// Starts to fetch a cache line that will be read. Any offset will do.
    fn prefetch(&self, at: usize);
    /// The same of one that will be written.
    fn prefetch_for_write(&self, at: usize);
}

impl RingMemory for Region {
    #[inline]
    fn load_u16(&self, at: usize, order: Ordering) -> u16 {
        self.atomic_u16(at).map_or(0, |word| word.load(order))
    }

    #[inline]
    fn load_u32(&self, at: usize, order: Ordering) -> u32 {
        self.atomic_u32(at).map_or(0, |word| word.load(order))
    }

    #[inline]
    fn load_u64(&self, at: usize, order: Ordering) -> u64 {
        self.atomic_u64(at).map_or(0, |word| word.load(order))
    }

    #[inline]
    fn store_u16(&self, at: usize, value: u16, order: Ordering) {
        if let Ok(word) = self.atomic_u16(at) {
            word.store(value, order);
        }
    }

    #[inline]
    fn store_u32(&self, at: usize, value: u32, order: Ordering) {
        if let Ok(word) = self.atomic_u32(at) {
            word.store(value, order);
        }
    }

    #[inline]
    fn store_u64(&self, at: usize, value: u64, order: Ordering) {
        if let Ok(word) = self.atomic_u64(at) {
            word.store(value, order);
        }
    }

    #[inline(always)]
    fn read_words<T: FromBytes, const WIDTH: usize>(&self, at: usize) -> Option<T> {
        Region::read_words::<T, WIDTH>(self, at).ok()
    }

    #[inline(always)]
    fn write_words<T: IntoBytes + Immutable, const WIDTH: usize>(&self, at: usize, value: T) {
        let _ = Region::write_words::<T, WIDTH>(self, at, value);
    }

    #[inline]
    fn full_barrier(&self) {
        fence(Ordering::SeqCst);
    }

    #[inline]
    fn prefetch(&self, at: usize) {
        Region::prefetch(self, at);
    }

    #[inline]
    fn prefetch_for_write(&self, at: usize) {
        Region::prefetch_for_write(self, at);
    }
}
