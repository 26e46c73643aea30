//! Uses of lines, and what the L1s and TLBs did not have of them, on its way to where it is counted.

use scope_model::{Line, Mask};

use crate::code::SiteId;

/// Room for uses, and for blocks that make them.
pub const USES: usize = 1 << 12;
/// From how many of either on there is to be made room. Those of one block more fit: QEMU's have no more than 512
/// instructions, which read and write a line or two each, on 120 lines of their own.
pub const FULL: usize = 1 << 10;
/// From how much on it is handed over.
const ENOUGH: usize = FULL;
/// Room for that, and as much more as comes of a full list of uses, a page and a line each.
const ROOM: usize = 4 * USES;
const _: () = assert!(ENOUGH + 2 * USES < ROOM, "what comes of uses has to fit");
const _: () = assert!(ENOUGH <= FULL, "a batch that nothing can be added to is handed over");

/// What was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// A line to be read, that L1 did not have.
    Read,
    /// One to be written.
    Write,
    /// One to be executed.
    Code,
    /// A page of data, that TLBs did not have.
    DataPage,
    /// One of code.
    CodePage,
    /// Another domain runs.
    Switch,
    /// A page is taken out of the TLBs.
    Invalidate,
    /// Counts are to be kept as they are by now.
    Sample,
    /// A block of the flow begins. The one before it is over.
    Block,
}

/// In the order of their numbers.
const KINDS: [Kind; 9] = [
    Kind::Read,
    Kind::Write,
    Kind::Code,
    Kind::DataPage,
    Kind::CodePage,
    Kind::Switch,
    Kind::Invalidate,
    Kind::Sample,
    Kind::Block,
];

/// A block that is executed: what is used and found is its.
#[derive(Clone, Copy, Debug, Default)]
pub struct Executed {
    /// Where it is counted.
    pub site: SiteId,
    /// Of which domain it is, and in which kind of code.
    pub owner: u8,
    /// Instructions since the batch's beginning.
    pub after: u32,
}

/// The use of a line, in 32 bits.
///
/// ```text
///  31…15     14      13…0
///  ┌────────┬───────┬───────┐
///  │line    │writes │number │ of what is executed
///  └────────┴───────┴───────┘
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Use(u32);

impl Use {
    const NUMBER_BITS: u32 = 14;
    const NUMBER: u32 = (1 << Self::NUMBER_BITS) - 1;
    const LINE: u32 = Self::NUMBER_BITS + 1;

    /// A use.
    #[inline]
    pub fn new(line: Line, write: bool, executed: usize) -> Self {
        #[expect(clippy::cast_possible_truncation, reason = "there is no room for more")]
        let executed = executed as u32 & Self::NUMBER;
        Self(line.name() << Self::LINE | u32::from(write) << Self::NUMBER_BITS | executed)
    }

    /// The line that is used.
    #[inline]
    pub fn line(self) -> Line {
        Line::named(self.0 >> Self::LINE)
    }

    /// That L1 missed the line, which has this number.
    #[inline]
    pub fn missed(self, number: u64) -> Found {
        let is_code = u64::from(!self.line().is_data());
        let kind = is_code << 1 | u64::from(self.0 >> Self::NUMBER_BITS & 1);
        Found(number << Found::WHAT | kind << Self::NUMBER_BITS | u64::from(self.0 & Self::NUMBER))
    }

    /// That TLBs missed the line's page.
    pub fn page(self, missed: Mask) -> Found {
        let kind = if self.line().is_data() { Kind::DataPage } else { Kind::CodePage };
        Found::new(kind, missed.0, (self.0 & Self::NUMBER) as usize)
    }
}

const _: () = assert!(Use::LINE + Line::BITS == u32::BITS, "a use has 32 bits");
const _: () = assert!(USES <= 1 << Use::NUMBER_BITS, "what is executed has a number");

/// What was found, in 64 bits.
///
/// ```text
///  63…18           17…14  13…0
///  ┌──────────────┬──────┬───────┐
///  │what it is of │kind  │number │ of what is executed
///  └──────────────┴──────┴───────┘
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Found(u64);

impl Found {
    const WHAT: u32 = Use::NUMBER_BITS + 4;

    fn new(kind: Kind, what: u64, executed: usize) -> Self {
        Self(
            what << Self::WHAT
                | (kind as u64) << Use::NUMBER_BITS
                | executed as u64 & u64::from(Use::NUMBER),
        )
    }

    /// The line's number, the TLBs' mask, or the block's number.
    #[inline]
    pub fn number(self) -> u64 {
        self.0 >> Self::WHAT
    }

    /// What it is.
    #[inline]
    pub fn kind(self) -> Kind {
        let kind = KINDS.get((self.0 >> Use::NUMBER_BITS & 15) as usize);
        kind.copied().unwrap_or(Kind::Block)
    }

    /// Whether it is a line.
    #[inline]
    pub fn is_line(self) -> bool {
        self.0 >> Use::NUMBER_BITS & 15 <= Kind::Code as u64
    }

    #[inline]
    fn executed(self) -> usize {
        usize::try_from(self.0 & u64::from(Use::NUMBER)).unwrap_or(0)
    }
}

/// What is handed over together.
#[derive(Debug)]
pub struct Batch {
    /// Instructions before it.
    first: u64,
    /// What is executed: the last one is, now.
    executed: Box<[Executed; USES]>,
    last: usize,
    found: Box<[Found; ROOM]>,
    count: usize,
}

impl Batch {
    /// Nothing.
    pub fn new() -> Self {
        let found = vec![Found::default(); ROOM].into_boxed_slice().try_into();
        let found = found.unwrap_or_else(|_| Box::new([Found::default(); ROOM]));
        Self { first: 0, executed: Box::new([Executed::default(); USES]), last: 0, found, count: 0 }
    }

    /// Begins anew, after so many instructions, while something is executed.
    pub fn begin(&mut self, first: u64, executed: Executed) {
        (self.first, self.last, self.count) = (first, 0, 0);
        self.executed[0] = Executed { after: 0, ..executed };
    }

    /// Instructions before it.
    pub fn first(&self) -> u64 {
        self.first
    }

    /// What is executed, and the number of the last.
    #[inline]
    pub fn executed(&mut self) -> (&mut [Executed; USES], &mut usize) {
        (&mut self.executed, &mut self.last)
    }

    /// What is executed now.
    pub fn now(&self) -> Executed {
        self.executed[self.last % USES]
    }

    /// Adds something if it `is_so`; else the next takes its place. Whether a line is in L1 nobody can predict, and so no
    /// branch depends on it.
    #[inline]
    pub fn add(&mut self, is_so: bool, found: Found) {
        self.found[self.count % ROOM] = found;
        self.count += usize::from(is_so);
    }

    /// Adds what does not come of a use, after so many instructions.
    pub fn note(&mut self, kind: Kind, number: u64, at: u64) {
        #[expect(clippy::cast_possible_truncation, reason = "it is handed over before")]
        let after = (at - self.first) as u32;
        let executed = Executed { after, ..self.now() };
        self.last += 1;
        self.executed[self.last % USES] = executed;
        self.add(true, Found::new(kind, number, self.last));
    }

    /// Whether it is time to hand it over, after so many instructions.
    pub fn is_enough(&self, at: u64) -> bool {
        let is_full = self.count >= ENOUGH || self.last >= ENOUGH;
        is_full || at - self.first > u64::from(u32::MAX / 2)
    }

    /// What was added, in its order.
    pub fn found(&self) -> &[Found] {
        self.found.get(..self.count).unwrap_or_default()
    }

    /// What was executed when something was found, and the instructions before.
    #[inline]
    pub fn executed_at(&self, found: Found) -> (Executed, u64) {
        let executed = self.executed[found.executed() % USES];
        (executed, self.first + u64::from(executed.after))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use scope_model::Side;

    use super::*;

    proptest! {
        #[test]
        fn uses_and_what_was_found_say_what_they_were_made_of(
            (side, address) in (prop::sample::select(vec![Side::Code, Side::Data]), any::<u64>()),
            write: bool,
            executed in 0usize..USES,
            number in 0u64..1 << 46,
        ) {
            let line = Line::of(side, address);
            let (write, is_code) = (write && side == Side::Data, side == Side::Code);
            let used = Use::new(line, write, executed);
            prop_assert_eq!(used.line(), line);
            let missed = used.missed(number);
            prop_assert!(missed.is_line());
            prop_assert_eq!((missed.number(), missed.executed()), (number, executed));
            let kind = if is_code { Kind::Code } else if write { Kind::Write } else { Kind::Read };
            prop_assert_eq!(missed.kind(), kind);
            let page = used.page(Mask(number));
            prop_assert!(!page.is_line());
            prop_assert_eq!((page.number(), page.executed()), (number, executed));
            prop_assert_eq!(page.kind(), if is_code { Kind::CodePage } else { Kind::DataPage });
        }
    }

    #[test]
    fn a_batch_knows_when_what_was_found_was_executed() {
        let mut batch = Batch::new();
        batch.begin(100, Executed { owner: 7, ..Executed::default() });
        let notes = || KINDS.into_iter().zip(3..).zip(130..);
        notes().for_each(|((kind, number), at)| batch.note(kind, number, at));
        let found = batch.found().iter().map(|found| {
            let (executed, at) = batch.executed_at(*found);
            assert_eq!(executed.owner, 7);
            ((found.kind(), found.number()), at)
        });
        assert_eq!(found.collect::<Vec<_>>(), notes().collect::<Vec<_>>());
    }
}
