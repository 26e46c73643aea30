//! Machine addresses: one flat space, in which each domain's memory has a base.
//!
//! A domain knows its base. Nothing in an address says whose page it is; that is what protection
//! checks.

use core::ops::Range;

/// Bytes of a page.
pub const PAGE_SIZE: u64 = 4096;

/// The number of the page that holds `address`.
#[inline]
#[must_use]
pub const fn page(address: u64) -> u64 {
    address / PAGE_SIZE
}

/// The numbers of all pages that `len` bytes at `address` touch: none if `len` is 0.
///
/// None if the bytes go beyond the end of the address space.
#[inline]
#[must_use]
pub const fn pages(address: u64, len: u16) -> Option<Range<u64>> {
    if len == 0 {
        return Some(0..0);
    }
    match address.checked_add(len as u64 - 1) {
        Some(last) => Some(page(address)..page(last) + 1),
        None => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_touched_pages_are_named() {
        assert_eq!(pages(0, 1), Some(0..1));
        assert_eq!(pages(4095, 1), Some(0..1));
        assert_eq!(pages(4095, 2), Some(0..2));
        assert_eq!(pages(4096, 4096), Some(1..2));
        assert_eq!(pages(1, u16::MAX), Some(0..16));
        assert_eq!(pages(2, u16::MAX), Some(0..17));
        assert_eq!(pages(u64::MAX, 0), Some(0..0), "no byte touches no page");
        assert_eq!(pages(u64::MAX, 1), Some(page(u64::MAX)..page(u64::MAX) + 1));
        assert_eq!(pages(u64::MAX, 2), None);
    }
}
