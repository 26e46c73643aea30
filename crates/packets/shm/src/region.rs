//! A mapped range of shared memory.

use std::any::Any;
use std::io;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64};

use zerocopy::{FromBytes, Immutable, IntoBytes};

mod guarded;
mod mapping;
mod record;
mod words;

use guarded::Guard;
use words::WORD;

/// The bytes asked for do not lie in the region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{len} bytes at {offset} lie outside a shared region of {size}")]
pub struct OutOfBounds {
    /// First byte asked for.
    pub offset: usize,
    /// How many bytes.
    pub len: usize,
    /// The region's size.
    pub size: usize,
}

impl From<OutOfBounds> for io::Error {
    fn from(error: OutOfBounds) -> Self {
        Self::new(io::ErrorKind::InvalidInput, error)
    }
}

/// A range of memory shared with another domain. Dropping it unmaps it, unless it is a
/// [slice](Region::slice) of a region that is still in use.
#[derive(Debug)]
pub struct Region {
    /// A multiple of [`WORD`]: the start of a page, or of a slice.
    base: NonNull<u8>,
    len: usize,
    /// The region that owns the mapping, if this is a slice of it.
    whole: Option<Arc<Region>>,
    /// What guards it, if it is [guarded](Self::map_guarded) and no slice.
    guard: Option<Guard>,
    /// What is dropped when it is unmapped, if it is no slice.
    kept: Option<Box<dyn Any + Send + Sync>>,
}

// SAFETY: a region is an address range that stays mapped until it is dropped; every access to
// its bytes goes through raw pointers or atomics, so threads may share it as domains do.
unsafe impl Send for Region {}
// SAFETY: as above; no method hands out a reference to non-atomic bytes.
unsafe impl Sync for Region {}

impl Region {
    /// A part of this region, from a multiple of 8 bytes on. It keeps the whole mapping alive.
    pub fn slice(self: &Arc<Self>, range: Range<usize>) -> Result<Self, OutOfBounds> {
        let len = range.end.saturating_sub(range.start);
        let base = NonNull::new(self.at(range.start, len)?);
        let aligned = base.filter(|_| range.start.is_multiple_of(WORD));
        let outside = OutOfBounds { offset: range.start, len, size: self.len };
        let (base, whole) = (aligned.ok_or(outside)?, Some(self.clone()));
        Ok(Self { base, len, whole, guard: None, kept: None })
    }

    /// The same region, which drops `kept` when the mapping goes, with its last slice: for what was counted for the mapping.
    #[must_use]
    pub fn keeping(self, kept: impl Any + Send + Sync) -> Self {
        let mut region = self;
        region.kept = Some(Box::new(kept));
        region
    }

    /// What the mapping [keeps](Self::keeping), and where this region begins in the mapping. None if it keeps nothing of this type.
    #[inline]
    #[must_use]
    pub fn kept<T: Any>(&self) -> Option<(&T, usize)> {
        let mut owner = self;
        while let Some(whole) = &owner.whole {
            owner = whole;
        }
        let kept = owner.kept.as_deref()?.downcast_ref()?;
        Some((kept, self.base.as_ptr() as usize - owner.base.as_ptr() as usize))
    }

    /// Another handle of this range; none if it is no [slice](Self::slice).
    #[must_use]
    pub fn share(&self) -> Option<Self> {
        let whole = Some(self.whole.clone()?);
        Some(Self { base: self.base, len: self.len, whole, guard: None, kept: None })
    }

    /// Whether the kernel could not provide a page of this [guarded](Self::map_guarded) region, or of the one that
    /// it is a slice of. Since then it holds private memory, at least where it was accessed.
    #[inline]
    #[must_use]
    pub fn is_lost(&self) -> bool {
        guarded::is_any_lost() && self.is_this_lost()
    }

    /// Replaces this [guarded](Self::map_guarded) region, or the one that it is a slice of, by zeroed private memory: whoever has it
    /// neither sees nor changes the other side's memory from here on, and finds it [lost](Self::is_lost).
    ///
    /// # Errors
    /// It is not guarded, or the kernel refuses the memory.
    pub fn revoke(&self) -> io::Result<()> {
        match (&self.whole, &self.guard) {
            (Some(whole), _) => whole.revoke(),
            (None, Some(guard)) => guard.revoke(self.base.as_ptr() as usize, self.len),
            (None, None) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    #[cold]
    fn is_this_lost(&self) -> bool {
        match &self.whole {
            Some(whole) => whole.is_this_lost(),
            None => self.guard.as_ref().is_some_and(Guard::is_lost),
        }
    }

    /// Size in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the region has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    #[inline]
    fn at(&self, offset: usize, len: usize) -> Result<*mut u8, OutOfBounds> {
        if offset.checked_add(len).is_some_and(|end| end <= self.len) {
            // SAFETY: offset ≤ offset + len ≤ self.len, all inside one mapping.
            Ok(unsafe { self.base.as_ptr().add(offset) })
        } else {
            Err(OutOfBounds { offset, len, size: self.len })
        }
    }

    /// The address of `len` bytes at `offset`, for system calls. It is valid as long as the region.
    #[inline]
    pub fn address(&self, offset: usize, len: usize) -> Result<*mut u8, OutOfBounds> {
        self.at(offset, len)
    }

    /// Copies out the value at `offset`, reading each byte once: as atomic words, which are as
    /// wide as the offset and the size allow (at most 8 bytes). Words may be of different moments.
    #[inline(always)]
    pub fn read<T: FromBytes>(&self, offset: usize) -> Result<T, OutOfBounds> {
        let source = self.at(offset, size_of::<T>())?;
        // SAFETY: the bytes are mapped, and the region starts at a multiple of a word.
        Ok(unsafe { words::load(source, words::width(offset, size_of::<T>())) })
    }

    /// The same by words of `WIDTH` bytes, where the offset is a multiple of `WIDTH`: cheaper if the compiler does not know the offset.
    #[inline(always)]
    pub fn read_words<T: FromBytes, const WIDTH: usize>(
        &self,
        offset: usize,
    ) -> Result<T, OutOfBounds> {
        let source = self.words::<T, WIDTH>(offset)?;
        // SAFETY: the bytes are mapped, the region starts at a multiple of a word, and the rest is checked.
        Ok(unsafe { words::load(source, WIDTH) })
    }

    /// The address of a value that is accessed by words of `WIDTH` bytes.
    #[inline(always)]
    fn words<T, const WIDTH: usize>(&self, offset: usize) -> Result<*mut u8, OutOfBounds> {
        const {
            assert!(WIDTH.is_power_of_two() && WIDTH <= WORD);
            assert!(size_of::<T>().is_multiple_of(WIDTH));
        }
        let address = self.at(offset, size_of::<T>())?;
        match offset.is_multiple_of(WIDTH) {
            true => Ok(address),
            false => Err(OutOfBounds { offset, len: size_of::<T>(), size: self.len }),
        }
    }

    /// Writes a value at `offset`, each byte once, as [`read`](Self::read) does.
    #[inline(always)]
    #[expect(clippy::needless_pass_by_value, reason = "a private value, whose bytes are at rest")]
    pub fn write<T: IntoBytes + Immutable>(
        &self,
        offset: usize,
        value: T,
    ) -> Result<(), OutOfBounds> {
        let dest = self.at(offset, size_of::<T>())?;
        // SAFETY: the bytes are mapped and writable, and the region starts at a multiple of a word.
        unsafe { words::store(dest, words::width(offset, size_of::<T>()), &value) };
        Ok(())
    }

    /// The same by words of `WIDTH` bytes, where the offset is a multiple of `WIDTH`, as [`read_words`](Self::read_words) does.
    #[inline(always)]
    #[expect(clippy::needless_pass_by_value, reason = "a private value, whose bytes are at rest")]
    pub fn write_words<T: IntoBytes + Immutable, const WIDTH: usize>(
        &self,
        offset: usize,
        value: T,
    ) -> Result<(), OutOfBounds> {
        let dest = self.words::<T, WIDTH>(offset)?;
        // SAFETY: the bytes are mapped and writable, the region starts at a multiple of a word, and the rest is checked.
        unsafe { words::store(dest, WIDTH, &value) };
        Ok(())
    }

    /// Copies bytes out into private memory. The compiler cannot read them again later in place of
    /// the copy.
    #[inline]
    pub fn copy_out(&self, offset: usize, dest: &mut [u8]) -> Result<(), OutOfBounds> {
        let source = self.at(offset, dest.len())?;
        // SAFETY: the source is mapped; `dest` is private, so the two cannot overlap.
        unsafe { copy_short(source, dest.as_mut_ptr(), dest.len()) };
        words::assume_changed();
        Ok(())
    }

    /// Copies private bytes in.
    #[inline]
    pub fn copy_in(&self, offset: usize, source: &[u8]) -> Result<(), OutOfBounds> {
        let dest = self.at(offset, source.len())?;
        words::assume_changed();
        // SAFETY: the destination is mapped and writable; `source` is private.
        unsafe { copy_short(source.as_ptr(), dest, source.len()) };
        Ok(())
    }

    /// Copies bytes between regions. They may be the same region, and may overlap.
    #[inline]
    pub fn copy_between(
        source: &Region,
        source_offset: usize,
        dest: &Region,
        dest_offset: usize,
        len: usize,
    ) -> Result<(), OutOfBounds> {
        let from = source.at(source_offset, len)?;
        let to = dest.at(dest_offset, len)?;
        // SAFETY: both ranges are mapped; `copy` allows overlap, which happens when a guest sends
        // to itself or one page has two mappings.
        unsafe { std::ptr::copy(from, to, len) };
        Ok(())
    }

    /// Zeroes bytes, so that a page that changes its user carries no old data (XSA-403).
    pub fn zero(&self, offset: usize, len: usize) -> Result<(), OutOfBounds> {
        let dest = self.at(offset, len)?;
        // SAFETY: the range is mapped and writable.
        unsafe { std::ptr::write_bytes(dest, 0, len) };
        Ok(())
    }

    /// Prefetches the cache line at `offset`; does nothing outside the region.
    #[inline]
    pub fn prefetch(&self, offset: usize) {
        #[cfg(target_arch = "x86_64")]
        if offset < self.len {
            // SAFETY: a prefetch has no effect on memory; the address is mapped.
            unsafe {
                use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
                _mm_prefetch::<_MM_HINT_T0>(self.base.as_ptr().add(offset).cast());
            }
        }
    }

    /// As [`prefetch`](Self::prefetch), for a line that will be written: it leaves the caches of other CPUs at once.
    #[inline]
    pub fn prefetch_for_write(&self, offset: usize) {
        #[cfg(target_arch = "x86_64")]
        if offset < self.len {
            // Compilers make an ordinary prefetch of `_MM_HINT_ET0`, unless they are told that the CPU has this instruction. All 64-bit
            // CPUs take it; the oldest do nothing.
            // SAFETY: a prefetch has no effect on memory; the address is mapped.
            unsafe {
                let line = self.base.as_ptr().add(offset);
                core::arch::asm!(
                    "prefetchw [{}]",
                    in(reg) line,
                    options(nostack, preserves_flags, readonly)
                );
            }
        }
    }

    /// The 16-bit word at `offset`, which must be aligned.
    #[inline]
    pub fn atomic_u16(&self, offset: usize) -> Result<&AtomicU16, OutOfBounds> {
        let word = self.aligned::<AtomicU16>(offset)?;
        // SAFETY: mapped, aligned, and other domains may write to an atomic.
        Ok(unsafe { AtomicU16::from_ptr(word.cast()) })
    }

    /// The 32-bit word at `offset`, which must be aligned.
    #[inline]
    pub fn atomic_u32(&self, offset: usize) -> Result<&AtomicU32, OutOfBounds> {
        let word = self.aligned::<AtomicU32>(offset)?;
        // SAFETY: mapped, aligned, and other domains may write to an atomic.
        Ok(unsafe { AtomicU32::from_ptr(word.cast()) })
    }

    /// The 64-bit word at `offset`, which must be aligned.
    #[inline]
    pub fn atomic_u64(&self, offset: usize) -> Result<&AtomicU64, OutOfBounds> {
        let word = self.aligned::<AtomicU64>(offset)?;
        // SAFETY: mapped, aligned, and other domains may write to an atomic.
        Ok(unsafe { AtomicU64::from_ptr(word.cast()) })
    }

    #[inline]
    fn aligned<T>(&self, offset: usize) -> Result<*mut u8, OutOfBounds> {
        const { assert!(align_of::<T>() <= WORD) };
        let address = self.at(offset, size_of::<T>())?;
        // The region starts at a multiple of a word, and the compiler often knows the offset.
        if offset.is_multiple_of(align_of::<T>()) {
            Ok(address)
        } else {
            Err(OutOfBounds { offset, len: size_of::<T>(), size: self.len })
        }
    }
}

/// Copies without a function call for the lengths of headers and small frames: two moves, which may
/// overlap, cover every length between one and two moves.
///
/// # Safety
/// As [`std::ptr::copy_nonoverlapping`] of `len` bytes.
#[inline]
unsafe fn copy_short(from: *const u8, to: *mut u8, len: usize) {
    /// Copies `size_of::<T>()` to twice as many bytes, as a move at each end.
    #[inline]
    unsafe fn ends<T>(from: *const u8, to: *mut u8, len: usize) {
        let last = len - size_of::<T>();
        // SAFETY: both moves lie within `len` bytes; both reads come before both writes.
        unsafe {
            let head = from.cast::<T>().read_unaligned();
            let tail = from.add(last).cast::<T>().read_unaligned();
            to.cast::<T>().write_unaligned(head);
            to.add(last).cast::<T>().write_unaligned(tail);
        }
    }
    // SAFETY: each arm is taken for lengths from one to two of its moves.
    unsafe {
        match len {
            65..=128 => ends::<[u64; 8]>(from, to, len),
            32..=64 => ends::<[u64; 4]>(from, to, len),
            _ => std::ptr::copy_nonoverlapping(from, to, len),
        }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        if self.whole.is_some() {
            return;
        }
        // Another mapping may come to lie here at once.
        self.guard = None;
        // SAFETY: the range was mapped for this region alone and no borrow of it is left.
        // A failure could only mean that the range is not mapped, and leaves nothing to do.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn words_are_checked_for_their_place() {
        let region = Region::anonymous(4096).unwrap();
        region.write_words::<_, 4>(12, [1u32, 2]).unwrap();
        assert_eq!(region.read_words::<[u32; 2], 4>(12), Ok([1, 2]));
        assert_eq!(region.read_words::<[u16; 4], 2>(12), Ok([1, 0, 2, 0]));
        assert!(region.read_words::<[u32; 2], 8>(12).is_err());
        assert!(region.write_words::<_, 4>(14, 7u32).is_err());
        assert!(region.read_words::<u64, 8>(4096).is_err());
    }

    #[test]
    fn a_slice_keeps_the_mapping_and_its_own_bounds() {
        let whole = Arc::new(Region::anonymous(4 * 4096).unwrap());
        let slice = whole.slice(4096..3 * 4096).unwrap();
        let part = Arc::new(slice).slice(4096..8192).unwrap();
        whole.write(2 * 4096, 5u8).unwrap();
        drop(whole);
        assert_eq!(part.read(0), Ok(5u8));
        assert!(part.read::<u8>(4096).is_err());
        let whole = Arc::new(part);
        assert!(whole.slice(1..4097).is_err());
        assert!(whole.slice(4..8).is_err(), "not the start of a word");
        assert!(whole.slice(8..9).is_ok());
        assert!(whole.slice(usize::MAX..usize::MAX).is_err());
    }

    #[test]
    fn what_a_region_keeps_goes_when_its_last_slice_does() {
        let kept = Arc::new(());
        let whole = Arc::new(Region::anonymous(8192).unwrap().keeping(kept.clone()));
        let slice = whole.slice(0..4096).unwrap();
        let other = slice.share().unwrap();
        drop((whole, slice));
        assert_eq!(Arc::strong_count(&kept), 2);
        drop(other);
        assert_eq!(Arc::strong_count(&kept), 1);
    }

    #[test]
    fn a_misaligned_word_is_refused() {
        let region = Region::anonymous(4096).unwrap();
        assert!(region.atomic_u32(2).is_err());
        assert!(region.atomic_u16(2).is_ok());
    }

    #[derive(Clone, Copy, Debug, PartialEq, FromBytes, IntoBytes, Immutable)]
    #[repr(C)]
    struct Slot {
        gref: u32,
        fields: [u16; 4],
    }

    fn round_trip<T: FromBytes + IntoBytes + Immutable + PartialEq + std::fmt::Debug>(
        offset: usize,
        bytes: &[u8],
    ) {
        let region = Region::anonymous(4096).unwrap();
        region.copy_in(offset, bytes).unwrap();
        let value: T = region.read(offset).unwrap();
        assert_eq!(value.as_bytes(), &bytes[..size_of::<T>()], "at {offset}");
        region.zero(0, 4096).unwrap();
        region.write(offset, value).unwrap();
        let mut seen = [0xff; 4096];
        region.copy_out(0, &mut seen).unwrap();
        assert_eq!(&seen[offset..][..size_of::<T>()], &bytes[..size_of::<T>()], "at {offset}");
        assert!(seen[..offset].iter().all(|byte| *byte == 0));
        assert!(seen[offset + size_of::<T>()..].iter().all(|byte| *byte == 0));
    }

    #[test]
    fn a_value_of_any_size_is_read_and_written_at_any_offset() {
        let bytes: Vec<u8> = (1..=32).collect();
        for offset in 60..77 {
            round_trip::<u8>(offset, &bytes);
            round_trip::<u16>(offset, &bytes);
            round_trip::<u32>(offset, &bytes);
            round_trip::<[u8; 7]>(offset, &bytes);
            round_trip::<Slot>(offset, &bytes);
            round_trip::<[u64; 3]>(offset, &bytes);
        }
    }

    proptest! {
        #[test]
        fn no_access_reaches_outside(offset in any::<usize>(), len in 0usize..10_000) {
            let region = Region::anonymous(4096).unwrap();
            let inside = offset.checked_add(len).is_some_and(|end| end <= 4096);
            let mut buffer = vec![0; len];
            prop_assert_eq!(region.copy_out(offset, &mut buffer).is_ok(), inside);
            prop_assert_eq!(region.copy_in(offset, &buffer).is_ok(), inside);
            prop_assert_eq!(region.zero(offset, len).is_ok(), inside);
            let copied = Region::copy_between(&region, offset, &region, 0, len);
            prop_assert_eq!(copied.is_ok(), inside && len <= 4096);
            prop_assert_eq!(
                region.read::<u64>(offset).is_ok(),
                offset.checked_add(8).is_some_and(|end| end <= 4096)
            );
            region.prefetch(offset);
        }
    }
}
