//! What L1 did not have, on its way to the L2s.

use crate::code::SiteId;

/// How many wait at most.
const ROOM: usize = 256;

/// What a line was used for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    /// To be executed.
    #[default]
    Code,
    /// To be read.
    Read,
    /// To be written.
    Write,
}

/// A line that L1 did not have.
#[derive(Clone, Copy, Debug, Default)]
pub struct Miss {
    /// Its physical number.
    pub line: u64,
    /// Instructions until then.
    pub at: u64,
    /// Whose it is.
    pub site: SiteId,
    /// Of which domain, and in which kind of code.
    pub owner: u8,
    /// What for.
    pub kind: Kind,
}

/// Those that wait. Whether a line is in L1 nobody can predict, and so no branch depends on it: each is put down,
/// and stays if it was missed.
#[derive(Debug)]
pub struct Misses {
    waiting: Box<[Miss; ROOM]>,
    count: usize,
}

impl Misses {
    /// None.
    pub fn new() -> Self {
        Self { waiting: Box::new([Miss::default(); ROOM]), count: 0 }
    }

    /// Adds a use of a line, if L1 `missed` it. Answers whether there is room for another.
    #[inline]
    pub fn add(&mut self, missed: bool, miss: Miss) -> bool {
        self.waiting[self.count % ROOM] = miss;
        self.count += usize::from(missed);
        self.count < ROOM
    }

    /// Takes those that wait, the first one first.
    pub fn take(&mut self, mut each: impl FnMut(&Miss)) {
        let count = std::mem::take(&mut self.count).min(ROOM);
        self.waiting[..count].iter().for_each(&mut each);
    }
}
