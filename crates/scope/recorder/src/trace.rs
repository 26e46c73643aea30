//! What is handed from the thread that executes the guest to that of the models: words of 64 bits.

use scope_model::{Flush, Mapping, Side};

use crate::code::BlockId;
use crate::told::{OTHER, Told};

/// Something that happened, in the order in which it did.
///
/// ```text
///  63…61  60
///  ┌──────┬───┬───────────────┐
///  │ flags│ 0 │ a group       │ nothing more
///  │ kind │ 1 │ a number      │ up to two more words
///  └──────┴───┴───────────────┘
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// A group of accesses, with the lower bits of where it happens.
    Group(Told),
    /// A block is executed that no group begins.
    Block(BlockId),
    /// Data of so many bytes is read or written.
    Access {
        /// Where.
        address: u64,
        /// How many.
        bytes: u8,
        /// Whether they are written.
        write: bool,
    },
    /// A page of 4 KiB is used from here on, which lies there.
    Page(Side, u64, Mapping),
    /// TLBs are emptied. Second: whether the models are not to know.
    Flush(Flush, bool),
    /// Another domain runs.
    Switch(u8),
    /// A probe's place is reached.
    Probe(u8),
    /// Where the data that was accessed last lies, virtually and physically, as QEMU says.
    Compare(u64, u64),
}

/// No step has more words.
pub const LONGEST: usize = 3;
const NUMBER: u64 = OTHER - 1;
/// Pages' numbers have 52 bits.
const PAGE_NUMBER: u64 = (1 << 52) - 1;
const ACCESS: u64 = 0;
const PAGE: u64 = 1;
const FLUSH: u64 = 2;
const SWITCH: u64 = 3;
/// With the bit of what begins a block.
const BLOCK: u64 = 4;
const PROBE: u64 = 5;
const COMPARE: u64 = 6;

/// [`Step::Block`], in its one word.
#[inline]
pub fn block_word(block: BlockId) -> u64 {
    BLOCK << 61 | OTHER | u64::from(block.0)
}

impl Step {
    /// Its words, of which so many count.
    #[inline]
    #[must_use]
    pub fn words(self) -> ([u64; LONGEST], usize) {
        let other = |kind: u64, number: u64| kind << 61 | OTHER | number;
        match self {
            Self::Group(told) => ([told.0, 0, 0], 1),
            Self::Block(block) => ([block_word(block), 0, 0], 1),
            Self::Access { address, bytes, write } => {
                ([other(ACCESS, u64::from(bytes) << 1 | u64::from(write)), address, 0], 2)
            }
            Self::Page(side, page, mapping) => {
                let number = (page & PAGE_NUMBER) << 1 | side as u64;
                ([other(PAGE, number), mapping.to_word(), 0], 2)
            }
            Self::Flush(flush, deaf) => {
                let (kind, first, second) = match flush {
                    Flush::Cr3(value) => (0, value, 0),
                    Flush::Cr4(value) => (1, value, 0),
                    Flush::Page(address) => (2, address, 0),
                    Flush::Pcid(which, pcid, address) => {
                        (3 | u64::from(pcid) << 8 | (which & 0xff) << 24, address, 0)
                    }
                };
                ([other(FLUSH, kind << 1 | u64::from(deaf)), first, second], 3)
            }
            Self::Switch(place) => ([other(SWITCH, place.into()), 0, 0], 1),
            Self::Probe(number) => ([other(PROBE, number.into()), 0, 0], 1),
            Self::Compare(address, physical) => ([other(COMPARE, 0), address, physical], 3),
        }
    }

    /// The step that these words begin with; they are left behind.
    #[inline]
    pub fn take(words: &mut &[u64]) -> Option<Self> {
        let (&head, rest) = words.split_first()?;
        *words = rest;
        let mut next = || {
            let (&word, rest) = words.split_first()?;
            *words = rest;
            Some(word)
        };
        if head & OTHER == 0 {
            return Some(Self::Group(Told(head)));
        }
        #[expect(clippy::cast_possible_truncation, reason = "so many bits were put there")]
        let (byte, half, number) = (head as u8, head as u32, head & NUMBER);
        Some(match head >> 61 {
            BLOCK => Self::Block(BlockId(half)),
            ACCESS => {
                let write = number & 1 != 0;
                let bytes = u8::try_from(number >> 1 & 0xff).unwrap_or(1).max(1);
                Self::Access { address: next()?, bytes, write }
            }
            PAGE => {
                let side = if number & 1 == Side::Code as u64 { Side::Code } else { Side::Data };
                Self::Page(side, number >> 1 & PAGE_NUMBER, Mapping::from_word(next()?))
            }
            FLUSH => {
                let (first, _) = (next()?, next()?);
                let (kind, deaf) = (number >> 1, number & 1 != 0);
                let flush = match kind & 0xff {
                    0 => Flush::Cr3(first),
                    1 => Flush::Cr4(first),
                    2 => Flush::Page(first),
                    _ => Flush::Pcid(kind >> 24, (kind >> 8 & 0xffff) as u16, first),
                };
                Self::Flush(flush, deaf)
            }
            SWITCH => Self::Switch(byte),
            PROBE => Self::Probe(byte),
            COMPARE => Self::Compare(next()?, next()?),
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use scope_model::{Mask, PageSize, Policy};

    use super::*;

    fn flush() -> impl Strategy<Value = Flush> {
        prop_oneof![
            any::<u64>().prop_map(Flush::Cr3),
            any::<u64>().prop_map(Flush::Cr4),
            any::<u64>().prop_map(Flush::Page),
            (0u64..4, 0u16..4096, any::<u64>())
                .prop_map(|(which, pcid, at)| Flush::Pcid(which, pcid, at)),
        ]
    }

    fn mapping() -> impl Strategy<Value = Mapping> {
        let size = prop::sample::select(vec![
            None,
            Some(PageSize::Small),
            Some(PageSize::Large),
            Some(PageSize::Huge),
        ]);
        let large = prop::sample::select(vec![
            Mask::NONE,
            Mask::of(Policy::Superpages),
            Mask::of(Policy::GroupedSuperpages),
            Mask::of(Policy::Superpages).and(Mask::of(Policy::GroupedSuperpages)),
        ]);
        (0u64..1 << 46, size, any::<bool>(), large)
            .prop_map(|(frame, size, global, large)| Mapping { frame, size, global, large })
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            any::<u64>().prop_map(|told| Step::Group(Told(told & !OTHER))),
            any::<u32>().prop_map(|number| Step::Block(BlockId(number))),
            (any::<u64>(), 1u8.., any::<bool>()).prop_map(|(address, bytes, write)| Step::Access {
                address,
                bytes,
                write
            }),
            (prop::sample::select(vec![Side::Code, Side::Data]), 0u64..1 << 52, mapping())
                .prop_map(|(side, page, mapping)| Step::Page(side, page, mapping)),
            (flush(), any::<bool>()).prop_map(|(flush, deaf)| Step::Flush(flush, deaf)),
            any::<u8>().prop_map(Step::Switch),
            any::<u8>().prop_map(Step::Probe),
            (any::<u64>(), any::<u64>()).prop_map(|(at, physical)| Step::Compare(at, physical)),
        ]
    }

    proptest! {
        #[test]
        fn steps_come_back_from_their_words(steps in prop::collection::vec(step(), 0..50)) {
            let words: Vec<u64> = steps
                .iter()
                .flat_map(|step| {
                    let (words, count) = step.words();
                    words.into_iter().take(count)
                })
                .collect();
            let mut left = &words[..];
            let back: Vec<Step> = std::iter::from_fn(|| Step::take(&mut left)).collect();
            prop_assert_eq!(back, steps);
            prop_assert!(left.is_empty());
        }

        #[test]
        fn arbitrary_words_are_taken_or_let_alone(words in prop::collection::vec(any::<u64>(), 0..50)) {
            let mut left = &words[..];
            while Step::take(&mut left).is_some() {}
        }
    }
}
