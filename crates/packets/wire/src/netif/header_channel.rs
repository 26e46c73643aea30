//! The header channel: pages beside a TX ring through which a frontend hands over headers.
//!
//! An extension of pvnet (Menon et al. 2006, §4.1, have the idea but no format). A backend that
//! writes `feature-header-channel` accepts the grants of [`PAGES`] pages in `tx-header-refs`, and
//! confirms it in `header-channel`. Then the first [`HEADER_LEN`] bytes of every packet, or all of
//! a shorter one, are at the [`place`] of its first request and not in its fragments. The first
//! request's size still counts the whole packet, header included. A packet that fits the header
//! channel has one request, whose grant is not used.

/// The most bytes of a packet that the channel carries.
pub const HEADER_LEN: u16 = 128;
/// Requests of a TX ring, each of which has a place.
const PLACES: u32 = 256;
/// Pages of one ring's channel.
pub const PAGES: usize = PLACES as usize * HEADER_LEN as usize / 4096;

/// The offset, in the channel's pages, of the header of request `index`.
#[inline]
#[must_use]
pub const fn place(index: u32) -> usize {
    (index % PLACES) as usize * HEADER_LEN as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_request_has_a_separate_place() {
        let places: std::collections::BTreeSet<_> = (300..556).map(place).collect();
        assert_eq!(places.len(), 256);
        assert_eq!(places.last(), Some(&(PAGES * 4096 - usize::from(HEADER_LEN))));
    }
}
