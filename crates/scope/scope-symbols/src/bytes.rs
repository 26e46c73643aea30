//! Little-endian numbers at arbitrary offsets.

/// The `u16` at `at`, or none beyond the end.
pub(crate) fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// The `u32` at `at`, or none beyond the end.
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// The `u64` at `at`, or none beyond the end.
pub(crate) fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// The `count` `u32`s from `at`, or none beyond the end.
pub(crate) fn u32s_at(bytes: &[u8], at: usize, count: usize) -> Option<impl Iterator<Item = u32>> {
    let end = at.checked_add(count.checked_mul(4)?)?;
    let words = bytes.get(at..end)?.as_chunks::<4>().0;
    Some(words.iter().map(|word| u32::from_le_bytes(*word)))
}

/// The `u32` at `at` as a count or an index.
pub(crate) fn size_at(bytes: &[u8], at: usize) -> Option<usize> {
    usize::try_from(u32_at(bytes, at)?).ok()
}
