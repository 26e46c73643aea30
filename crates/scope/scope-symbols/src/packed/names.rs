//! Finds the names of a compressed table.

use std::iter;
use std::ops::{Range, RangeInclusive};

use crate::bytes::{size_at, u32_at, u32s_at};

/// Every 256th name has a marker with its offset.
const STRIDE: usize = 256;
/// The fewest bytes of a name in the image: a byte of length and a token.
const PACKED_MIN: usize = 2;
/// The most bytes of a name in the image: two bytes of length and 14 bits of tokens.
const PACKED_MAX: usize = 2 + 0x3fff;
/// The most arrays of apparent markers to try for a token table, and the most walks through names. Both bound the time for a
/// hostile image; a real one needs few.
const MARKERS: usize = 256;
const WALKS: usize = 64;

/// The names of a table, which match its markers.
pub(super) struct Names {
    /// The offset of the number of names.
    pub(super) count_at: usize,
    pub(super) count: usize,
    /// The start of the first name.
    pub(super) start: usize,
    /// The end of the last name.
    pub(super) end: usize,
    length: Length,
}

/// Names that some markers may belong to.
struct Candidate {
    count_at: usize,
    count: usize,
    start: usize,
    markers: usize,
}

/// The encoding of a name's length.
#[derive(Clone, Copy)]
enum Length {
    /// One byte, or two where the top bit of the first is set (Linux from 6.1).
    OneOrTwo,
    /// Always one byte (Xen, and Linux before).
    One,
}

/// An array that may be markers.
struct Markers {
    at: usize,
    len: usize,
    /// The possible numbers of names.
    counts: RangeInclusive<usize>,
}

impl Names {
    /// The names of the table whose token table starts at `tokens`.
    pub(super) fn before(image: &[u8], tokens: usize) -> Option<Self> {
        let plain = Markers::right_before(image, tokens).into_iter();
        let ordered = Markers::before_order(image, tokens);
        let markers = plain.chain(ordered).take(MARKERS);
        let candidates = markers.flat_map(|markers| markers.candidates(image)).take(WALKS);
        let candidates: Vec<Candidate> = candidates.collect();
        // A long name in one encoding may be several names in the other: try today's encoding first.
        let lengths = [Length::OneOrTwo, Length::One].into_iter();
        lengths
            .flat_map(|length| candidates.iter().map(move |own| (own, length)))
            .find_map(|(candidate, length)| candidate.walk(image, length))
    }

    /// The names, still compressed.
    pub(super) fn iter<'a>(&self, image: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
        let (mut at, length) = (self.start, self.length);
        iter::from_fn(move || {
            let name = length.name(image, at)?;
            at = name.end;
            image.get(name)
        })
        .take(self.count)
    }
}

impl Candidate {
    /// The names, if the markers match a walk through all of them.
    fn walk(&self, image: &[u8], length: Length) -> Option<Names> {
        let Self { count_at, count, start, markers } = *self;
        let mut at = start;
        for name in 0..count {
            if name % STRIDE == 0 {
                let marker = size_at(image, markers + name / STRIDE * 4)?;
                (marker == at - start).then_some(())?;
            }
            at = length.name(image, at)?.end;
        }
        // Only alignment lies between the last name and the markers.
        let adjacent = markers.checked_sub(at).is_some_and(|padding| padding < 8);
        adjacent.then_some(Names { count_at, count, start, end: at, length })
    }
}

impl Length {
    /// The range of the tokens of the name at `at`.
    fn name(self, image: &[u8], at: usize) -> Option<Range<usize>> {
        let first = usize::from(*image.get(at)?);
        let (start, len) = match self {
            Self::OneOrTwo if first & 0x80 != 0 => {
                (at + 2, (first & 0x7f) | usize::from(*image.get(at + 1)?) << 7)
            }
            Self::OneOrTwo | Self::One => (at + 1, first),
        };
        // A name has at least the letter of its kind, so a run of zeros is no table.
        (len > 0).then_some(start..start + len)
    }
}

impl Markers {
    /// Markers with only alignment between them and the token table.
    fn right_before(image: &[u8], tokens: usize) -> Vec<Self> {
        // Try the farther one first: alignment looks like a single marker, which is 0.
        let ends = [(tokens & !3).saturating_sub(4), tokens & !3];
        ends.into_iter().filter_map(|end| Self::ending_at(image, end)).collect()
    }

    /// The ascending words before `end`, from the 0 that they start with.
    fn ending_at(image: &[u8], end: usize) -> Option<Self> {
        let mut at = end.checked_sub(4)?;
        let mut last = u32_at(image, at)?;
        while last != 0 {
            at = at.checked_sub(4)?;
            let word = u32_at(image, at)?;
            (word < last).then_some(())?;
            last = word;
        }
        let len = (end - at) / 4;
        Some(Self { at, len, counts: (len - 1) * STRIDE + 1..=len * STRIDE })
    }

    /// Markers before the order of names, which has three bytes per name. Their distance from the token table gives the number of
    /// names, and so the number of markers: each place has few readings.
    fn before_order(image: &[u8], tokens: usize) -> impl Iterator<Item = Self> {
        let ends = (4..=tokens & !3).rev().step_by(4);
        ends.flat_map(move |end| {
            // The order is followed by less than 8 bytes of alignment.
            let most = (tokens - end) / 3;
            let fewest = most.saturating_sub(2).max(1);
            let lens = fewest.div_ceil(STRIDE)..=most.div_ceil(STRIDE);
            // At most 4 bytes of alignment follow the markers.
            let places =
                lens.flat_map(move |len| [4 * len, 4 * len + 4].map(|before| (len, before)));
            places.filter_map(move |(len, before)| {
                Self::plausible(image, end.checked_sub(before)?, len, fewest..=most)
            })
        })
    }

    /// The `len` words at `at`, if they can be offsets of names before them.
    fn plausible(
        image: &[u8],
        at: usize,
        len: usize,
        counts: RangeInclusive<usize>,
    ) -> Option<Self> {
        // Nearly every place fails here.
        (u32_at(image, at)? == 0).then_some(())?;
        let mut last = 0;
        for word in u32s_at(image, at, len)?.skip(1) {
            let word = usize::try_from(word).ok()?;
            (word >= last + STRIDE * PACKED_MIN && word < at).then_some(())?;
            last = word;
        }
        Some(Self { at, len, counts })
    }

    /// Names that may lie before these markers; the number of names is found by its value.
    fn candidates(self, image: &[u8]) -> impl Iterator<Item = Candidate> {
        let last = size_at(image, self.at + (self.len - 1) * 4).unwrap_or(usize::MAX);
        // At most 256 names and some alignment follow the last marker's name.
        let highest = self.at.saturating_sub(last) & !3;
        let lowest = highest.saturating_sub(STRIDE * PACKED_MAX + 8).max(8);
        let starts = (lowest.next_multiple_of(4)..=highest).rev().step_by(4);
        starts.flat_map(move |start| {
            let counts = self.counts.clone();
            // The number is aligned to 4 (Xen) or to 8 (Linux), and so are the names after it, with zeros between.
            let far = (u32_at(image, start - 4) == Some(0)).then_some(start - 8);
            [Some(start - 4), far].into_iter().flatten().filter_map(move |count_at| {
                let count = size_at(image, count_at).filter(|count| counts.contains(count))?;
                Some(Candidate { count_at, count, start, markers: self.at })
            })
        })
    }
}
