//! Events in words of 64 bits: the messages from the thread that executes the guest to the thread of the models.

use scope_model::{Flush, FlushSite, Mapping, Side};

use crate::blocks::BlockId;
use crate::group_word::{GroupWord, NO_GROUP};

/// An event in the execution of the guest.
///
/// ```text
///  63…61  60
///  ┌──────┬───┬───────────────┐
///  │ flags│ 0 │ group         │ one word
///  │ kind │ 1 │ number        │ up to two more words
///  └──────┴───┴───────────────┘
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TraceEvent {
    /// A group of accesses, with the lower bits of its address.
    Group(GroupWord),
    /// A block is executed which no group begins.
    Block(BlockId),
    /// Data is read or written.
    Access {
        /// The virtual address.
        address: u64,
        /// The number of bytes.
        bytes: u8,
        /// Whether it is a write.
        write: bool,
    },
    /// The mapping of a page of 4 KiB, which is used from here on.
    Page(Side, u64, Mapping),
    /// A flush of TLBs, where it is executed, and whether the models ignore it.
    Flush(Flush, FlushSite, bool),
    /// Another domain runs. False for the idle domain, and for the domain that ran last before it.
    Switch(u8, bool),
    /// The address of a probe is reached.
    Probe(u8),
    /// The virtual and the physical address of the last data access, according to QEMU.
    Compare(u64, u64),
}

/// The most words of an event.
pub const LONGEST: usize = 3;
const NUMBER: u64 = NO_GROUP - 1;
/// Page numbers have 52 bits.
const PAGE_NUMBER: u64 = (1 << 52) - 1;
const ACCESS: u64 = 0;
const PAGE: u64 = 1;
const FLUSH: u64 = 2;
const SWITCH: u64 = 3;
/// Includes the bit that begins a block.
const BLOCK: u64 = 4;
const PROBE: u64 = 5;
const COMPARE: u64 = 6;

/// [`TraceEvent::Block`], in its one word.
#[inline]
pub fn block_word(block: BlockId) -> u64 {
    BLOCK << 61 | NO_GROUP | u64::from(block.0)
}

impl TraceEvent {
    /// The words of the event, and how many of them are used.
    #[inline]
    #[must_use]
    pub fn words(self) -> ([u64; LONGEST], usize) {
        let other = |kind: u64, number: u64| kind << 61 | NO_GROUP | number;
        match self {
            Self::Group(word) => ([word.0, 0, 0], 1),
            Self::Block(block) => ([block_word(block), 0, 0], 1),
            Self::Access { address, bytes, write } => {
                ([other(ACCESS, u64::from(bytes) << 1 | u64::from(write)), address, 0], 2)
            }
            Self::Page(side, page, mapping) => {
                let number = (page & PAGE_NUMBER) << 1 | side as u64;
                ([other(PAGE, number), mapping.to_word(), 0], 2)
            }
            Self::Flush(flush, site, ignored) => {
                let (kind, first, second) = match flush {
                    Flush::Cr3(value) => (0, value, 0),
                    Flush::Cr4(value) => (1, value, 0),
                    Flush::Page(address) => (2, address, 0),
                    Flush::Pcid(which, pcid, address) => {
                        (3 | u64::from(pcid) << 8 | (which & 0xff) << 24, address, 0)
                    }
                };
                let site = u64::from(site == FlushSite::NewSpace);
                ([other(FLUSH, kind << 2 | site << 1 | u64::from(ignored)), first, second], 3)
            }
            Self::Switch(place, changes) => {
                ([other(SWITCH, u64::from(place) | u64::from(changes) << 8), 0, 0], 1)
            }
            Self::Probe(number) => ([other(PROBE, number.into()), 0, 0], 1),
            Self::Compare(address, physical) => ([other(COMPARE, 0), address, physical], 3),
        }
    }

    /// Decodes the event at the start of these words, and removes its words.
    #[inline]
    pub fn take(words: &mut &[u64]) -> Option<Self> {
        let (&head, rest) = words.split_first()?;
        *words = rest;
        let mut next = || {
            let (&word, rest) = words.split_first()?;
            *words = rest;
            Some(word)
        };
        if head & NO_GROUP == 0 {
            return Some(Self::Group(GroupWord(head)));
        }
        #[expect(clippy::cast_possible_truncation, reason = "`words` encoded no more bits")]
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
                let (kind, ignored) = (number >> 2, number & 1 != 0);
                let site = if number & 2 != 0 { FlushSite::NewSpace } else { FlushSite::Elsewhere };
                let flush = match kind & 0xff {
                    0 => Flush::Cr3(first),
                    1 => Flush::Cr4(first),
                    2 => Flush::Page(first),
                    _ => Flush::Pcid(kind >> 24, (kind >> 8 & 0xffff) as u16, first),
                };
                Self::Flush(flush, site, ignored)
            }
            SWITCH => Self::Switch(byte, number & 1 << 8 != 0),
            PROBE => Self::Probe(byte),
            COMPARE => Self::Compare(next()?, next()?),
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use scope_model::PageSize;

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
        (0u64..1 << 46, size, any::<bool>(), any::<bool>(), any::<bool>()).prop_map(
            |(frame, size, global, alone, grouped)| {
                let large = Mapping::large(alone, grouped);
                Mapping { frame, size, global, large }
            },
        )
    }

    fn event() -> impl Strategy<Value = TraceEvent> {
        prop_oneof![
            any::<u64>().prop_map(|word| TraceEvent::Group(GroupWord(word & !NO_GROUP))),
            any::<u32>().prop_map(|number| TraceEvent::Block(BlockId(number))),
            (any::<u64>(), 1u8.., any::<bool>())
                .prop_map(|(address, bytes, write)| TraceEvent::Access { address, bytes, write }),
            (prop::sample::select(vec![Side::Code, Side::Data]), 0u64..1 << 52, mapping())
                .prop_map(|(side, page, mapping)| TraceEvent::Page(side, page, mapping)),
            (
                flush(),
                prop::sample::select(vec![FlushSite::NewSpace, FlushSite::Elsewhere]),
                any::<bool>()
            )
                .prop_map(|(flush, site, ignored)| TraceEvent::Flush(flush, site, ignored)),
            (any::<u8>(), any::<bool>())
                .prop_map(|(place, changes)| TraceEvent::Switch(place, changes)),
            any::<u8>().prop_map(TraceEvent::Probe),
            (any::<u64>(), any::<u64>())
                .prop_map(|(at, physical)| TraceEvent::Compare(at, physical)),
        ]
    }

    proptest! {
        #[test]
        fn events_decode_to_themselves(events in prop::collection::vec(event(), 0..50)) {
            let words: Vec<u64> = events
                .iter()
                .flat_map(|event| {
                    let (words, count) = event.words();
                    words.into_iter().take(count)
                })
                .collect();
            let mut left = &words[..];
            let back: Vec<TraceEvent> = std::iter::from_fn(|| TraceEvent::take(&mut left)).collect();
            prop_assert_eq!(back, events);
            prop_assert!(left.is_empty());
        }

        #[test]
        fn arbitrary_words_are_decoded_or_left(words in prop::collection::vec(any::<u64>(), 0..50)) {
            let mut left = &words[..];
            while TraceEvent::take(&mut left).is_some() {}
        }
    }
}
