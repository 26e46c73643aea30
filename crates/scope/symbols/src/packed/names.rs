//! The names of a compressed table: where they lie, how many there are.

use std::iter;
use std::ops::{Range, RangeInclusive};

use crate::bytes::{size_at, u32_at, u32s_at};

/// A marker says where every 256th name starts.
const STRIDE: usize = 256;
/// The shortest a name is in the image: a byte of length and a token.
const PACKED_MIN: usize = 2;
/// The longest a name is in the image: two bytes of length and 14 bits of tokens.
const PACKED_MAX: usize = 2 + 0x3fff;
/// Arrays that look like markers before a token table is given up, and walks through the names for each. Both bound
/// the time that a hostile image can take; a real one needs a few.
const MARKERS: usize = 256;
const WALKS: usize = 64;

/// The names of a table whose markers agree with them.
pub(super) struct Names {
    /// Where the number of names lies.
    pub(super) count_at: usize,
    pub(super) count: usize,
    /// Where the first name starts.
    pub(super) start: usize,
    /// Where the last name ends.
    pub(super) end: usize,
    length: Length,
}

/// Names that markers could be of.
struct Candidate {
    count_at: usize,
    count: usize,
    start: usize,
    markers: usize,
}

/// How the length of a name is written.
#[derive(Clone, Copy)]
enum Length {
    /// One byte, or two where the top bit of the first is set (Linux from 6.1).
    OneOrTwo,
    /// Always one byte (Xen, and Linux before).
    One,
}

/// An array that could be markers.
struct Markers {
    at: usize,
    len: usize,
    /// How many names there can be.
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
        // What is long by one way to write lengths can be some names by the other: the one of today goes first.
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
    /// The names, if the markers agree with a walk through all of them.
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
        // Between the last name and the markers there is nothing but alignment.
        let adjacent = markers.checked_sub(at).is_some_and(|padding| padding < 8);
        adjacent.then_some(Names { count_at, count, start, end: at, length })
    }
}

impl Length {
    /// Where the tokens of the name at `at` lie.
    fn name(self, image: &[u8], at: usize) -> Option<Range<usize>> {
        let first = usize::from(*image.get(at)?);
        let (start, len) = match self {
            Self::OneOrTwo if first & 0x80 != 0 => {
                (at + 2, (first & 0x7f) | usize::from(*image.get(at + 1)?) << 7)
            }
            Self::OneOrTwo | Self::One => (at + 1, first),
        };
        // A name has at least the letter of its kind; a run of zeros is no table.
        (len > 0).then_some(start..start + len)
    }
}

impl Markers {
    /// Markers with nothing but alignment between them and the token table.
    fn right_before(image: &[u8], tokens: usize) -> Vec<Self> {
        // The farther first: of a table with one marker, which is 0, alignment would pass for the marker.
        let ends = [(tokens & !3).saturating_sub(4), tokens & !3];
        ends.into_iter().filter_map(|end| Self::ending_at(image, end)).collect()
    }

    /// The ascending words that end at `end`, back to the 0 that they start with.
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

    /// Markers before the order of names, three bytes a name. How far they lie before the token table says how many
    /// names there are, and so how many markers: each place has at most a few readings.
    fn before_order(image: &[u8], tokens: usize) -> impl Iterator<Item = Self> {
        let ends = (4..=tokens & !3).rev().step_by(4);
        ends.flat_map(move |end| {
            // The order is followed by less than 8 bytes of alignment.
            let most = (tokens - end) / 3;
            let fewest = most.saturating_sub(2).max(1);
            let lens = fewest.div_ceil(STRIDE)..=most.div_ceil(STRIDE);
            // The markers by 4 at most.
            let places =
                lens.flat_map(move |len| [4 * len, 4 * len + 4].map(|before| (len, before)));
            places.filter_map(move |(len, before)| {
                Self::plausible(image, end.checked_sub(before)?, len, fewest..=most)
            })
        })
    }

    /// The `len` words at `at`, if they are offsets from 0 of names that could lie before them.
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

    /// Names that could lie before these markers; the number of names is found by its value.
    fn candidates(self, image: &[u8]) -> impl Iterator<Item = Candidate> {
        let last = size_at(image, self.at + (self.len - 1) * 4).unwrap_or(usize::MAX);
        // Fewer than 256 names and a bit of alignment lie behind the last marker.
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
