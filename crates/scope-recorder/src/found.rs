//! What the L1s and TLBs did not have, on its way to where it is counted.

use crate::code::SiteId;

/// How many are handed over at a time.
const ROOM: usize = 1 << 12;

/// What was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// A line to be executed, that L1 did not have.
    Code,
    /// One to be read.
    Read,
    /// One to be written.
    Write,
    /// A page of code, that TLBs did not have.
    CodePage,
    /// One of data.
    DataPage,
    /// Another domain runs.
    Switch,
    /// A page is taken out of the TLBs.
    Invalidate,
    /// Counts are to be kept as they are by now.
    Sample,
    /// A block of the flow begins. The one before it is over.
    Block,
}

const KINDS: [Kind; 9] = [
    Kind::Code,
    Kind::Read,
    Kind::Write,
    Kind::CodePage,
    Kind::DataPage,
    Kind::Switch,
    Kind::Invalidate,
    Kind::Sample,
    Kind::Block,
];

/// A part of it, in 16 bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Found {
    /// What it is of: a line's number, TLBs or a block, of 48 bits; above them the owner and the kind.
    what: u64,
    /// Whose it is.
    pub site: SiteId,
    /// Instructions since the batch's first.
    after: u32,
}

impl Found {
    const BITS: u32 = 48;

    /// The line's number, the TLBs' mask, or the block's number.
    #[inline]
    pub fn number(self) -> u64 {
        self.what & ((1 << Self::BITS) - 1)
    }

    /// Of which domain it is, and in which kind of code.
    #[inline]
    pub fn owner(self) -> usize {
        (self.what >> Self::BITS & 0xff) as usize
    }

    /// What it is.
    #[inline]
    pub fn kind(self) -> Kind {
        KINDS[(self.what >> (Self::BITS + 8)) as usize % KINDS.len()]
    }
}

/// Those that are handed over together.
#[derive(Debug)]
pub struct Batch {
    /// Instructions before the first.
    first: u64,
    found: Box<[Found; ROOM]>,
    count: usize,
}

impl Batch {
    /// None.
    pub fn new() -> Self {
        let found = vec![Found::default(); ROOM].into_boxed_slice().try_into();
        let found = found.unwrap_or_else(|_| Box::new([Found::default(); ROOM]));
        Self { first: 0, found, count: 0 }
    }

    /// Begins anew, after so many instructions.
    pub fn begin(&mut self, first: u64) {
        (self.first, self.count) = (first, 0);
    }

    /// Adds something if it `is_so`; else the next takes its place. Whether a line is in L1 nobody can predict, and so no
    /// branch depends on it. There has to be [room](Self::has_room).
    #[inline]
    pub fn add(&mut self, is_so: bool, (kind, number): (Kind, u64), place: (SiteId, u8), at: u64) {
        let (site, owner) = place;
        let what = number | (u64::from(owner) | (kind as u64) << 8) << Found::BITS;
        #[expect(clippy::cast_possible_truncation, reason = "there is no room for later ones")]
        let after = (at - self.first) as u32;
        self.found[self.count % ROOM] = Found { what, site, after };
        self.count += usize::from(is_so);
    }

    /// Whether there is room for what is found after so many instructions.
    #[inline]
    pub fn has_room(&self, at: u64) -> bool {
        self.count < ROOM && at - self.first <= u32::MAX.into()
    }

    /// What was added, in its order: with the instructions before it.
    pub fn found(&self) -> impl Iterator<Item = (Found, u64)> {
        let first = self.first;
        let found = self.found.iter().take(self.count);
        found.map(move |found| (*found, first + u64::from(found.after)))
    }
}
