//! The compressed symbol table that Xen and Linux carry to name their own addresses.
//!
//! Descendants of one program write both (Linux `scripts/kallsyms.c`, Xen `xen/tools/symbols.c`). Nothing in the image points to
//! the table, so it is found by its form, from its most regular part outwards:
//!
//! ```text
//! [offsets: N × u32] [Linux: base u64] [N: u32] [names: N × (length, tokens)] [markers: u32 for each 256 names]
//! [Linux 6.1.y to 6.3: order of names, N × 3 bytes] [token table: 256 strings] [token index: 256 × u16]
//! [Linux from 6.4: offsets and base here]
//! ```
//!
//! The token index must match the 256 strings before it, and the markers must match a walk through all names: no other data
//! passes for such a table.

#[cfg(test)]
pub(crate) mod sample;

use std::iter;
use std::ops::{Range, RangeInclusive};

use crate::Error;
use crate::bytes::{size_at, u16_at, u32_at, u32s_at};
use crate::table::Builder;

/// The most token tables to try; a real image has one.
const TABLES: usize = 16;
/// The longest name, in bytes; Linux allows 511, Xen 127.
const NAME_MAX: usize = 1023;
/// The most by which names may expand; real ones double in length.
const EXPANSION: usize = 16;

/// A compressed symbol table in an image, without its addresses.
pub(crate) struct Packed<'a> {
    image: &'a [u8],
    tokens: Tokens<'a>,
    names: Names,
}

impl<'a> Packed<'a> {
    /// Every table in `image` with consistent names.
    pub(crate) fn all(image: &'a [u8]) -> impl Iterator<Item = Self> {
        Tokens::all(image).take(TABLES).filter_map(move |tokens| {
            let names = Names::before(image, tokens.start)?;
            Some(Self { image, tokens, names })
        })
    }

    /// How many symbols the table has.
    pub(crate) fn count(&self) -> usize {
        self.names.count
    }

    /// The offset of the number of symbols. In the older order the addresses come before it.
    pub(crate) fn front(&self) -> usize {
        self.names.count_at
    }

    /// The end of the table's last part. In the newer order the addresses come after it.
    pub(crate) fn back(&self) -> usize {
        self.tokens.end
    }

    /// The symbols of `module` with the names of this table, at `addresses`. Absolute symbols are not code and cover no address.
    pub(crate) fn symbols(&self, module: &str, addresses: &[u64]) -> Result<Builder, Error> {
        let limit = (self.names.end - self.names.start).saturating_mul(EXPANSION);
        let mut builder = Builder::new(module, limit);
        let mut name = Vec::new();
        for (packed, address) in self.names.iter(self.image).zip(addresses) {
            self.unpack(packed, &mut name);
            let (kind, name) = name.split_first().unwrap_or((&b'?', &[]));
            let size = (*kind == b'A').then_some(0);
            builder.push(String::from_utf8_lossy(name), *address, size)?;
        }
        Ok(builder)
    }

    /// Replaces `name` by the expanded name, after the letter of its kind.
    fn unpack(&self, packed: &[u8], name: &mut Vec<u8>) {
        name.clear();
        for token in packed {
            name.extend_from_slice(self.tokens.get(*token));
            if name.len() > NAME_MAX {
                return name.truncate(NAME_MAX);
            }
        }
    }
}

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
struct Names {
    /// The offset of the number of names.
    count_at: usize,
    count: usize,
    /// The start of the first name.
    start: usize,
    /// The end of the last name.
    end: usize,
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
    fn before(image: &[u8], tokens: usize) -> Option<Self> {
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
    fn iter<'a>(&self, image: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
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

/// The number of tokens: one per value of a byte.
const COUNT: usize = 256;
/// The length of the token index in bytes.
const INDEX_LEN: usize = COUNT * 2;
/// The token index starts at a multiple of this: 4 in Xen, 8 in Linux.
const ALIGN: usize = 4;

/// A token table and its index.
struct Tokens<'a> {
    image: &'a [u8],
    /// The offset of each token's string in the table.
    offsets: [usize; COUNT],
    /// The start of the table.
    start: usize,
    strings_end: usize,
    /// The end of the index and of the table.
    end: usize,
}

impl<'a> Tokens<'a> {
    /// Every token table in `image`.
    fn all(image: &'a [u8]) -> impl Iterator<Item = Self> {
        let last = image.len().saturating_sub(INDEX_LEN);
        (0..=last).step_by(ALIGN).filter_map(move |index| Self::at(image, index))
    }

    /// The string of `token`.
    fn get(&self, token: u8) -> &'a [u8] {
        let token = usize::from(token);
        let next = self.offsets.get(token + 1).map(|offset| self.start + offset);
        let end = next.unwrap_or(self.strings_end) - 1;
        self.image.get(self.start + self.offsets[token]..end).unwrap_or_default()
    }

    /// The token table whose index lies at `index`.
    fn at(image: &'a [u8], index: usize) -> Option<Self> {
        // Nearly every place fails here: the first token starts at 0, the second soon after.
        let first = u32_at(image, index)?;
        if first & 0xffff != 0 || first == 0 {
            return None;
        }
        let offsets = offsets(image, index)?;
        let ends = index.saturating_sub(7)..=index;
        ends.rev().find_map(|strings_end| {
            let start = start(image, &offsets, strings_end)?;
            Some(Self { image, offsets, start, strings_end, end: index + INDEX_LEN })
        })
    }
}

/// The offsets at `index`, if they ascend from 0 as those of NUL-terminated strings do.
fn offsets(image: &[u8], index: usize) -> Option<[usize; COUNT]> {
    let mut offsets = [0; COUNT];
    for token in 1..COUNT {
        offsets[token] = u16_at(image, index + token * 2)?.into();
        if offsets[token] <= offsets[token - 1] {
            return None;
        }
    }
    Some(offsets)
}

/// The start of the strings before `end`, if each one ends where the next begins according to `offsets`.
fn start(image: &[u8], offsets: &[usize; COUNT], end: usize) -> Option<usize> {
    let (nul, strings) = image.get(..end)?.split_last()?;
    let last = strings.iter().rposition(|byte| *byte == 0)? + 1;
    let start = last.checked_sub(offsets[COUNT - 1])?;
    let whole = |pair: &[usize]| {
        let string = image.get(start + pair[0]..start + pair[1]);
        string.is_some_and(|string| {
            string.iter().position(|byte| *byte == 0) == Some(string.len() - 1)
        })
    };
    (*nul == 0 && offsets.windows(2).all(whole)).then_some(start)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::sample::Order;
    use super::*;

    /// Numbers of names near those at which the number of markers changes.
    fn counts() -> impl Strategy<Value = usize> {
        prop_oneof![1usize..20, 250usize..260, 505usize..520, 765usize..1200]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]

        #[test]
        fn every_name_is_read_back(
            some in prop::collection::vec("[a-zA-Z][a-z_.#]{1,300}", 1..20),
            count in counts(),
            (align, order) in prop_oneof![
                Just((4, Order::Absent)), Just((8, Order::Absent)), Just((8, Order::Present))
            ],
            mut image in prop::collection::vec(any::<[u8; 8]>(), 1..50).prop_map(|junk| junk.concat()),
        ) {
            let names: Vec<&str> = some.iter().map(String::as_str).cycle().take(count).collect();
            image.extend(sample::table(names.iter().copied(), align, order));
            image.extend([0x5a; 64]);
            let table = Packed::all(&image).next().expect("the table");
            prop_assert_eq!(table.count(), count);
            let symbols = table.symbols("test", &vec![0; count]).expect("room").build([]);
            let read: Vec<&str> = symbols.iter().map(|symbol| symbol.name).collect();
            prop_assert_eq!(read, names.iter().map(|name| &name[1..]).collect::<Vec<_>>());
        }
    }
}
