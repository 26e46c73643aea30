//! Values of shared memory as atomic words, and copies that the compiler cannot see through.
//!
//! The other side may write at any moment. After an ordinary read the compiler may read the same
//! bytes again instead of keeping them in a register, and so undo a check (XSA-155). It may not
//! repeat, split or invent an atomic access.

use std::arch::asm;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

use zerocopy::{FromBytes, Immutable, IntoBytes};

/// The widest word in bytes. Every region starts at a multiple of it.
pub(super) const WORD: usize = 8;

/// The width of the words that a value of `size` bytes at `offset` is accessed by.
///
/// The compiler knows the result where the offset is a sum of known multiples, as that of a ring's
/// slot is.
#[inline(always)]
pub(super) const fn width(offset: usize, size: usize) -> usize {
    1 << (offset | size | WORD).trailing_zeros()
}

/// Reads a value, each word of it once. A word has `width` bytes: 8, 4, 2 or 1.
///
/// # Safety
/// The bytes at `source` are mapped, and both `source` and the value's size are multiples of `width`.
#[inline(always)]
pub(super) unsafe fn load<T: FromBytes>(source: *mut u8, width: usize) -> T {
    let mut value = MaybeUninit::<T>::uninit();
    let dest = value.as_mut_ptr().cast();
    let len = size_of::<T>();
    // SAFETY: the words lie in the mapped bytes, are aligned, and cover the value. FromBytes makes every
    // pattern a valid T.
    unsafe {
        match width {
            8 => load_words(source, dest, len, |word| {
                AtomicU64::from_ptr(word).load(Ordering::Relaxed)
            }),
            4 => load_words(source, dest, len, |word| {
                AtomicU32::from_ptr(word).load(Ordering::Relaxed)
            }),
            2 => load_words(source, dest, len, |word| {
                AtomicU16::from_ptr(word).load(Ordering::Relaxed)
            }),
            _ => load_words(source, dest, len, |word| {
                AtomicU8::from_ptr(word).load(Ordering::Relaxed)
            }),
        }
        value.assume_init()
    }
}

/// Writes a value, each word of it once.
///
/// # Safety
/// As [`load`]; the bytes are writable.
#[inline(always)]
pub(super) unsafe fn store<T: IntoBytes + Immutable>(dest: *mut u8, width: usize, value: &T) {
    let source = value.as_bytes().as_ptr();
    let len = size_of::<T>();
    // SAFETY: as in `load`. IntoBytes means that no padding leaks.
    unsafe {
        match width {
            8 => store_words(source, dest, len, |word, value| {
                AtomicU64::from_ptr(word).store(value, Ordering::Relaxed);
            }),
            4 => store_words(source, dest, len, |word, value| {
                AtomicU32::from_ptr(word).store(value, Ordering::Relaxed);
            }),
            2 => store_words(source, dest, len, |word, value| {
                AtomicU16::from_ptr(word).store(value, Ordering::Relaxed);
            }),
            _ => store_words(source, dest, len, |word, value| {
                AtomicU8::from_ptr(word).store(value, Ordering::Relaxed);
            }),
        }
    }
}

/// # Safety
/// Both sides have `len` bytes, a multiple of the word's; `load` may be called for each word of
/// `source`.
#[inline(always)]
unsafe fn load_words<W>(source: *mut u8, dest: *mut u8, len: usize, load: impl Fn(*mut W) -> W) {
    for n in 0..len / size_of::<W>() {
        // SAFETY: word `n` lies within both.
        unsafe { dest.cast::<W>().add(n).write_unaligned(load(source.cast::<W>().add(n))) };
    }
}

/// # Safety
/// As [`load_words`], the other way round.
#[inline(always)]
unsafe fn store_words<W>(source: *const u8, dest: *mut u8, len: usize, store: impl Fn(*mut W, W)) {
    for n in 0..len / size_of::<W>() {
        // SAFETY: word `n` lies within both.
        unsafe { store(dest.cast::<W>().add(n), source.cast::<W>().add(n).read_unaligned()) };
    }
}

/// Makes the compiler assume that all shared memory has changed. It emits no instruction.
///
/// After a copy out, the compiler must take later reads of the copy from the copy: the source may
/// hold other bytes by now. Before a copy in, it must have finished the private bytes: it cannot
/// work on them in shared memory.
#[inline(always)]
pub(super) fn assume_changed() {
    // SAFETY: no instruction. Without `nomem`, the compiler must assume that it writes to all
    // memory that others can reach.
    unsafe { asm!("", options(nostack, preserves_flags)) };
}

#[cfg(test)]
mod tests {
    use super::width;

    #[test]
    fn words_are_as_wide_as_their_place_allows() {
        // A slot of the TX ring, of the RX ring and of the control ring; the ledger's responses.
        for n in 0..256 {
            assert_eq!((width(64 + n * 12, 12), width(64 + n * 12, 4)), (4, 4));
            assert_eq!((width(64 + n * 8, 8), width(64 + n * 16, 16)), (8, 8));
        }
        assert_eq!([0, 1, 2, 4, 6].map(|offset| width(offset, 8)), [8, 1, 2, 4, 2]);
        assert_eq!([0, 1, 2, 3, 7].map(|size| width(0, size)), [8, 1, 2, 1, 1]);
    }
}
