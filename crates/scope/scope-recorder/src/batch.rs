//! Misses of L1s and TLBs, and other events to be counted, on their way to the counters.

use scope_model::TlbSet;

use crate::accesses::{FULL, LineUse, USES};
use crate::blocks::OwnedSite;

/// The number of entries from which on a batch is handed over.
const ENOUGH: usize = FULL;
/// Capacity of a batch: [`ENOUGH`], and for each use of a full buffer two entries of a page and one of a line.
const CAPACITY: usize = 4 * USES;
const _: () = assert!(ENOUGH + 3 * USES < CAPACITY, "the misses of all uses have to fit");
const _: () = assert!(ENOUGH <= FULL, "a batch that is full is handed over");

/// What an entry of a batch is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum EntryKind {
    /// L1D missed a read.
    Read,
    /// L1D missed a write.
    Write,
    /// L1I missed.
    Code,
    /// DTLBs missed a page: those with the lower numbers.
    DataPage,
    /// ITLBs missed a page: those with the lower numbers.
    CodePage,
    /// The other DTLBs that missed a page.
    DataPageMore,
    /// The other ITLBs that missed a page.
    CodePageMore,
    /// Another domain runs.
    Switch,
    /// A page was invalidated in the TLBs.
    Invalidate,
    /// The counts are sampled now.
    Sample,
    /// A block of the flow begins, and the one before it ends.
    Block,
}

/// In the order of their numbers.
const KINDS: [EntryKind; 11] = [
    EntryKind::Read,
    EntryKind::Write,
    EntryKind::Code,
    EntryKind::DataPage,
    EntryKind::CodePage,
    EntryKind::DataPageMore,
    EntryKind::CodePageMore,
    EntryKind::Switch,
    EntryKind::Invalidate,
    EntryKind::Sample,
    EntryKind::Block,
];

/// The TLBs that one entry has bits for.
const LOWER_TLBS: u64 = (1 << (u64::BITS - Entry::VALUE_AT)) - 1;

/// A block that was executed, in 64 bits. Uses and misses refer to it.
#[derive(Clone, Copy, Debug, Default)]
pub struct ExecutedBlock {
    /// The counters of the block, and the number of its domain and kind of code.
    pub site: OwnedSite,
    /// Instructions since the start of the batch.
    pub after: u32,
}

const _: () = assert!(size_of::<ExecutedBlock>() == 8, "it is written for each executed block");

/// An entry of a batch, in 64 bits.
///
/// ```text
///  63…18     17…14  13…0
///  ┌────────┬──────┬───────┐
///  │value   │kind  │number │ of the executed block
///  └────────┴──────┴───────┘
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Entry(u64);

impl Entry {
    const KIND_AT: u32 = LineUse::BLOCK_BITS;
    const VALUE_AT: u32 = Self::KIND_AT + 4;
    const BLOCK: u64 = (1 << LineUse::BLOCK_BITS) - 1;

    fn new(kind: EntryKind, value: u64, block: usize) -> Self {
        Self(value << Self::VALUE_AT | (kind as u64) << Self::KIND_AT | block as u64 & Self::BLOCK)
    }

    /// L1 missed the line of a use, which has this physical number.
    #[inline]
    pub fn l1_miss(used: LineUse, line: u64) -> Self {
        // The numbers of the kinds, without a branch.
        let is_code = u64::from(!used.line().is_data());
        let kind = is_code << 1 | u64::from(used.writes());
        Self(line << Self::VALUE_AT | kind << Self::KIND_AT | u64::from(used.block()))
    }

    /// TLBs missed the page of a use: an entry for those with lower numbers, and one for the others.
    pub fn tlb_misses(used: LineUse, missed: TlbSet) -> [Self; 2] {
        let kinds = if used.line().is_data() {
            [EntryKind::DataPage, EntryKind::DataPageMore]
        } else {
            [EntryKind::CodePage, EntryKind::CodePageMore]
        };
        let sets = [missed.0 & LOWER_TLBS, missed.0 >> LOWER_TLBS.count_ones()];
        [0, 1].map(|half| Self::new(kinds[half], sets[half], used.block() as usize))
    }

    /// The TLBs that missed, if the entry is of a page.
    pub fn tlbs(self) -> TlbSet {
        match self.kind() {
            EntryKind::DataPage | EntryKind::CodePage => TlbSet(self.value()),
            EntryKind::DataPageMore | EntryKind::CodePageMore => {
                TlbSet(self.value() << LOWER_TLBS.count_ones())
            }
            _ => TlbSet::NONE,
        }
    }

    /// The physical number of the line, part of a set of TLBs, or the block's number.
    #[inline]
    pub fn value(self) -> u64 {
        self.0 >> Self::VALUE_AT
    }

    /// The kind.
    #[inline]
    pub fn kind(self) -> EntryKind {
        let kind = KINDS.get((self.0 >> Self::KIND_AT & 15) as usize);
        kind.copied().unwrap_or(EntryKind::Block)
    }

    /// Whether it is a miss of an L1.
    #[inline]
    pub fn is_line(self) -> bool {
        self.0 >> Self::KIND_AT & 15 <= EntryKind::Code as u64
    }

    #[inline]
    fn block(self) -> usize {
        usize::try_from(self.0 & Self::BLOCK).unwrap_or(0)
    }
}

/// Entries that are handed over together, and the blocks that they refer to.
#[derive(Debug)]
pub struct Batch {
    /// Instructions before it.
    first: u64,
    executed: Box<[ExecutedBlock; USES]>,
    /// The node of the call graph of each, if it is recorded.
    nodes: Box<[u32; USES]>,
    /// The number of the one that is executed now.
    last: usize,
    entries: Box<[Entry; CAPACITY]>,
    count: usize,
}

/// The end of a batch's entries. A loop keeps it in registers.
pub struct End<'a> {
    entries: &'a mut [Entry; CAPACITY],
    /// How many there are.
    pub count: usize,
}

impl End<'_> {
    /// Adds an entry if `counts`; otherwise the next one overwrites it. This has no branch, since a miss is unpredictable.
    #[inline]
    pub fn add(&mut self, counts: bool, entry: Entry) {
        self.entries[self.count % CAPACITY] = entry;
        self.count += usize::from(counts);
    }
}

impl Batch {
    /// An empty batch.
    pub fn new() -> Self {
        let entries = vec![Entry::default(); CAPACITY].into_boxed_slice().try_into();
        let entries = entries.unwrap_or_else(|_| Box::new([Entry::default(); CAPACITY]));
        let executed = Box::new([ExecutedBlock::default(); USES]);
        let nodes = Box::new([0; USES]);
        Self { first: 0, executed, nodes, last: 0, entries, count: 0 }
    }

    /// Empties the batch. It starts after `first` instructions, while a block is executed at a node of the call graph.
    pub fn begin(&mut self, first: u64, (executed, node): (ExecutedBlock, u32)) {
        (self.first, self.last, self.count) = (first, 0, 0);
        self.executed[0] = ExecutedBlock { after: 0, ..executed };
        self.nodes[0] = node;
    }

    /// Instructions before it.
    pub fn first(&self) -> u64 {
        self.first
    }

    /// The executed blocks, their nodes, and the number of the last.
    #[inline]
    pub fn executed(&mut self) -> (&mut [ExecutedBlock; USES], &mut [u32; USES], &mut usize) {
        (&mut self.executed, &mut self.nodes, &mut self.last)
    }

    /// The block that is executed now, and its node.
    pub fn now(&self) -> (ExecutedBlock, u32) {
        (self.executed[self.last % USES], self.nodes[self.last % USES])
    }

    /// The end of the entries, where more can be added. They belong to the batch once it is
    /// [extended](Self::extend_to) to them.
    pub fn end(&mut self) -> End<'_> {
        End { entries: &mut self.entries, count: self.count }
    }

    /// Extends the batch to a number of entries.
    pub fn extend_to(&mut self, count: usize) {
        self.count = count;
    }

    /// Adds an entry that is no miss, after `at` instructions.
    pub fn note(&mut self, kind: EntryKind, value: u64, at: u64) {
        #[expect(clippy::cast_possible_truncation, reason = "it is handed over before")]
        let after = (at - self.first) as u32;
        let (executed, node) = self.now();
        self.last += 1;
        self.executed[self.last % USES] = ExecutedBlock { after, ..executed };
        self.nodes[self.last % USES] = node;
        let entry = Entry::new(kind, value, self.last);
        let mut end = self.end();
        end.add(true, entry);
        let count = end.count;
        self.extend_to(count);
    }

    /// Whether to hand it over, after `at` instructions.
    pub fn is_enough(&self, at: u64) -> bool {
        let is_full = self.count >= ENOUGH || self.last >= ENOUGH;
        is_full || at - self.first > u64::from(u32::MAX / 2)
    }

    /// The entries in their order.
    pub fn entries(&self) -> &[Entry] {
        self.entries.get(..self.count).unwrap_or_default()
    }

    /// The node of the call graph that an entry refers to, if the call graph is recorded.
    #[inline]
    pub fn node_at(&self, entry: Entry) -> u32 {
        self.nodes[entry.block() % USES]
    }

    /// The block that an entry refers to, and the instructions until then.
    #[inline]
    pub fn executed_at(&self, entry: Entry) -> (ExecutedBlock, u64) {
        let executed = self.executed[entry.block() % USES];
        (executed, self.first + u64::from(executed.after))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use scope_model::{LineId, Side};

    use super::*;

    proptest! {
        #[test]
        fn uses_and_entries_decode_to_what_they_were_made_of(
            (side, address) in (prop::sample::select(vec![Side::Code, Side::Data]), any::<u64>()),
            write: bool,
            block in 0usize..USES,
            number in 0u64..1 << 46,
            tlbs in 0u64..1 << 16,
        ) {
            let line = LineId::of(side, address);
            let (write, is_code) = (write && side == Side::Data, side == Side::Code);
            let used = LineUse::new(line, write, block);
            prop_assert_eq!(used.line(), line);
            let missed = Entry::l1_miss(used, number);
            prop_assert!(missed.is_line());
            prop_assert_eq!((missed.value(), missed.block()), (number, block));
            let kind = match (is_code, write) {
                (true, _) => EntryKind::Code,
                (_, true) => EntryKind::Write,
                _ => EntryKind::Read,
            };
            prop_assert_eq!(missed.kind(), kind);
            let tlbs = TlbSet(number | tlbs << 40);
            let pages = Entry::tlb_misses(used, tlbs);
            prop_assert!(pages.iter().all(|page| !page.is_line() && page.block() == block));
            prop_assert_eq!(pages[0].tlbs().union(pages[1].tlbs()), tlbs);
            let kind = if is_code { EntryKind::CodePage } else { EntryKind::DataPage };
            prop_assert_eq!(pages[0].kind(), kind);
        }
    }

    #[test]
    fn entries_keep_their_block_and_time() {
        let mut batch = Batch::new();
        let site = OwnedSite::new(1000, 7);
        batch.begin(100, (ExecutedBlock { site, ..ExecutedBlock::default() }, 9));
        let notes = || KINDS.into_iter().zip(3..).zip(130..);
        notes().for_each(|((kind, value), at)| batch.note(kind, value, at));
        let entries = batch.entries().iter().map(|entry| {
            let (executed, at) = batch.executed_at(*entry);
            assert_eq!((executed.site.owner(), executed.site.site().index()), (7, 1000));
            assert_eq!(batch.node_at(*entry), 9);
            ((entry.kind(), entry.value()), at)
        });
        assert_eq!(entries.collect::<Vec<_>>(), notes().collect::<Vec<_>>());
    }
}
