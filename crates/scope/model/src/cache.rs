//! One set-associative cache.

use wide::{u16x8, u32x8, u64x2, u64x4};

/// The lines of a set.
pub const WAYS: usize = 8;

/// A cache of sets of [`WAYS`] lines, least recently used out first, that allocates on reads and writes
/// alike.
///
/// Lines are told apart by as few bits as they need: the less memory a cache of the model takes, the less often
/// it misses the caches of the machine that it runs on.
#[derive(Clone, Debug)]
pub struct Cache {
    tags: Tags,
    index: Index,
}

/// Which bits of a line's number choose its set.
#[derive(Clone, Copy, Debug)]
struct Index {
    /// Sets less one.
    mask: u64,
    /// How many bits that are.
    bits: u32,
}

impl Index {
    /// The set of a line, and what tells it apart there.
    #[inline]
    fn of(self, line: u64) -> (usize, u64) {
        (usize::try_from(line & self.mask).unwrap_or(0), line >> self.bits)
    }
}

/// The tags of each set, the most recently used first.
#[derive(Clone, Debug)]
enum Tags {
    Short(Box<[[u16; WAYS]]>),
    Long(Box<[[u32; WAYS]]>),
}

impl Cache {
    /// A cache of so many bytes in lines of [`LINE`](crate::LINE), for lines whose numbers are below `lines`. The
    /// number of sets is rounded down to a power of two.
    ///
    /// # Panics
    /// If there is not one set, or there are more lines than in 16 TiB.
    #[must_use]
    pub fn new(bytes: usize, lines: u64) -> Self {
        let sets = bytes / crate::LINE / WAYS;
        assert!(sets > 0, "a cache of no sets");
        let bits = sets.ilog2();
        let (tags, sets) = (lines >> bits, 1 << bits);
        assert!(tags < u32::MAX.into(), "too much memory for the models");
        // The last number is that of no line.
        let tags = if tags < u16::MAX.into() {
            Tags::Short(vec![[u16::MAX; WAYS]; sets].into())
        } else {
            Tags::Long(vec![[u32::MAX; WAYS]; sets].into())
        };
        Self { tags, index: Index { mask: (1 << bits) - 1, bits } }
    }

    /// Uses a line, by its physical number: answers in which way it was, or [`WAYS`]. (A cache that is indexed by virtual
    /// numbers is one that is indexed by physical ones as long as its sets are no more than a page's lines.)
    #[inline]
    pub fn access(&mut self, line: u64) -> usize {
        let (set, tag) = self.index.of(line);
        match &mut self.tags {
            Tags::Short(sets) => use_short(sets, set, short(tag)),
            Tags::Long(sets) => use_long(sets, set, long(tag)),
        }
    }

    /// Uses lines, in their order. Sets the bits of `mark` in `missed`, in the place of each that missed. Those that were the newest
    /// of their sets already are taken out: answers how many are left.
    pub fn access_all(&mut self, asked: &mut [Asked], missed: &mut [u8], mark: u8) -> usize {
        let index = self.index;
        match &mut self.tags {
            Tags::Short(sets) => sift(asked, missed, mark, |line| {
                let (set, tag) = index.of(line);
                use_short(sets, set, short(tag))
            }),
            Tags::Long(sets) => sift(asked, missed, mark, |line| {
                let (set, tag) = index.of(line);
                use_long(sets, set, long(tag))
            }),
        }
    }
}

/// A line that is asked for by its physical number, and the place of the answer.
///
/// ```text
///  63…48   47…0
///  ┌──────┬──────┐
///  │place │line  │
///  └──────┴──────┘
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Asked(u64);

impl Asked {
    const LINE_BITS: u32 = 48;

    /// A line, and a place below 65536.
    #[inline]
    #[must_use]
    pub fn new(line: u64, place: usize) -> Self {
        Self(line | (place as u64) << Self::LINE_BITS)
    }

    #[inline]
    fn line(self) -> u64 {
        self.0 & ((1 << Self::LINE_BITS) - 1)
    }

    #[inline]
    fn place(self) -> usize {
        (self.0 >> Self::LINE_BITS) as usize
    }
}

/// Asks for each line in which `way` it was: what [`Cache::access_all`] does. Without a branch, as below.
#[inline]
fn sift(
    asked: &mut [Asked],
    missed: &mut [u8],
    mark: u8,
    mut way: impl FnMut(u64) -> usize,
) -> usize {
    let mut left = 0;
    for number in 0..asked.len() {
        let this = asked[number];
        let way = way(this.line());
        if let Some(missed) = missed.get_mut(this.place()) {
            *missed |= if way == WAYS { mark } else { 0 };
        }
        asked[left] = this;
        left += usize::from(way != 0);
    }
    left
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "`Cache::new` was told how many lines there are"
)]
fn short(tag: u64) -> u16 {
    tag as u16
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "`Cache::new` was told how many lines there are"
)]
fn long(tag: u64) -> u32 {
    tag as u32
}

const _: () = assert!(cfg!(target_endian = "little"), "sets are shifted as longer numbers");

/// Makes the function that uses a tag in a set. Without a branch: which way it is in nobody could predict. A set is read
/// and written as one vector, since a processor waits to read what it wrote in other parts a moment ago.
macro_rules! use_tag {
    ($name:ident, $tag:ty, $set:ty, $halves:ty, $carry:expr) => {
        #[inline]
        fn $name(sets: &mut [[$tag; WAYS]], set: usize, tag: $tag) -> usize {
            /// Which ways are another's after a use, by the way that the tag was in, or `WAYS`.
            static MOVED: [[$tag; WAYS]; WAYS + 1] = {
                let mut moved = [[0; WAYS]; WAYS + 1];
                let mut used = 0;
                while used <= WAYS {
                    let mut way = 0;
                    while way < WAYS {
                        moved[used][way] = if way <= used { <$tag>::MAX } else { 0 };
                        way += 1;
                    }
                    used += 1;
                }
                moved
            };
            let Some(ways) = sets.get_mut(set) else { return WAYS };
            let old = <$set>::from(*ways);
            let found = old.simd_eq(<$set>::splat(tag)).to_bitmask();
            let way = (found | 1 << WAYS).trailing_zeros() as usize;
            // Each tag one way further on: shifted as longer numbers are, with what that pushes out of each carried on.
            let halves: $halves = bytemuck::cast(old);
            let carried = <$halves>::from($carry(tag.into(), halves.to_array()));
            let later: $set = bytemuck::cast(halves << <$tag>::BITS | carried);
            // Each makes room for the one before it, up to where the tag was, or the last way.
            let moved = <$set>::from(MOVED[way]);
            *ways = ((later & moved) | (old & !moved)).to_array();
            way
        }
    };
}

use_tag!(use_short, u16, u16x8, u64x2, |tag, [a, _]: [u64; 2]| [tag, a >> 48]);
use_tag!(use_long, u32, u32x8, u64x4, |tag, [a, b, c, _]: [u64; 4]| [
    tag,
    a >> 32,
    b >> 32,
    c >> 32
]);
