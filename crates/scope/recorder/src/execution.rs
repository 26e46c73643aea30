//! Follows what is executed: which lines it uses, and where that is counted.

use std::ops::Range;

use scope_model::{Line, Side};

use crate::accesses::Member;
use crate::code::{BlockId, Codes, Hot};
use crate::found::{Batch, Executed, FULL, USES, Use};
use crate::told::Told;

/// No block that is known.
const NO_BLOCK: BlockId = BlockId(u32::MAX);
/// No line's name.
const NO_LINE: u32 = u32::MAX;

/// Who is executed, what, and the lines that it uses.
///
/// Whether a line is used again nobody can foresee, and a branch that is not foreseen takes a processor as long as all that is
/// done for a group. So what may be used is written down in any case, and the next takes its place if it is not.
#[derive(Debug)]
pub struct Execution {
    /// The code.
    pub codes: Codes,
    /// Groups that are looked up: each one's block, and where its members are.
    many: Vec<(BlockId, Range<usize>)>,
    members: Vec<Member>,
    /// Who runs.
    pub domain: u8,
    /// When there is something to be taken notice of.
    pub next: u64,
    now: Now,
    uses: Box<[Use; USES]>,
}

/// What changes with every step.
#[derive(Clone, Copy, Debug)]
struct Now {
    instructions: u64,
    block: BlockId,
    /// The names of the lines that were used last, of code and of data: the same again changes nothing.
    code: u32,
    data: u32,
    /// How many uses there are.
    count: usize,
}

/// Why it is not gone on with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// There are no more words.
    End,
    /// There is no room for more uses.
    Full,
    /// This block was executed for another domain before.
    Turn(BlockId),
    /// It is time to take notice, as this block is about to be executed.
    Notice(BlockId),
    /// Something else happens.
    Other,
}

impl Execution {
    /// Nothing.
    pub fn new() -> Self {
        Self {
            codes: Codes::new(),
            many: Vec::new(),
            members: Vec::new(),
            domain: 0,
            now: Now { instructions: 0, block: NO_BLOCK, code: NO_LINE, data: NO_LINE, count: 0 },
            next: 0,
            uses: Box::new([Use::default(); USES]),
        }
    }

    /// Adds a group that is looked up, of a block.
    pub fn add_members(&mut self, block: BlockId, members: &[Member]) {
        let first = self.members.len();
        self.members.extend(members);
        self.many.push((block, first..self.members.len()));
    }

    /// How many instructions were executed.
    pub fn instructions(&self) -> u64 {
        self.now.instructions
    }

    /// Has a block count for whoever runs.
    pub fn turn(&mut self, block: BlockId) {
        self.codes.turn(block, self.domain);
    }

    /// What was used.
    pub fn uses(&self) -> &[Use] {
        debug_assert!(self.now.count <= USES, "no block has so many more");
        self.uses.get(..self.now.count).unwrap_or_default()
    }

    /// Forgets what was used.
    pub fn clear(&mut self) {
        self.now.count = 0;
    }

    /// Forgets which lines were used last: something may have changed for them.
    pub fn forget_last(&mut self) {
        (self.now.code, self.now.data, self.now.block) = (NO_LINE, NO_LINE, NO_BLOCK);
    }

    /// Follows steps as far as they are blocks and groups; they are left behind. What is executed is noted in the
    /// `batch`.
    pub fn follow(&mut self, words: &mut &[u64], batch: &mut Batch) -> Stop {
        // What changes is kept where a processor has it at hand.
        let (mut now, mut left) = (self.now, *words);
        let (domain, next, hots) = (self.domain, self.next, self.codes.hots());
        let mut sink = Sink::new(&mut self.uses, batch);
        let stop = loop {
            let Some((&word, rest)) = left.split_first() else { break Stop::End };
            if now.count > FULL {
                break Stop::Full;
            }
            let group = Told(word);
            let many = if group.is_plain() {
                None
            } else if let Some(many) = self.many.get(group.number() as usize)
                && !group.is_other()
            {
                Some(many)
            } else {
                break Stop::Other;
            };
            if group.begins() {
                let block = many.map_or(BlockId(group.number()), |(block, _)| *block);
                let Some(hot) = hots.get_mut(block.index()) else { break Stop::Other };
                if hot.domain != domain {
                    break Stop::Turn(block);
                }
                if *sink.last > FULL {
                    break Stop::Full;
                }
                if now.instructions >= next {
                    sink.note_begin(hot);
                    break Stop::Notice(block);
                }
                sink.execute(&mut now, hot, block);
            }
            left = rest;
            if let Some((_, members)) = many {
                for member in self.members.get(members.clone()).unwrap_or_default() {
                    let bytes = (member.first(group.address()), member.length());
                    sink.data(&mut now, bytes, member.write);
                }
            } else if !group.is_other() {
                sink.data(&mut now, (group.address(), group.length()), group.writes());
            }
        };
        (self.now, *words) = (now, left);
        stop
    }

    /// Data is read or written, besides what groups say.
    pub fn data(&mut self, address: u64, bytes: u8, write: bool, batch: &mut Batch) {
        self.codes.access(batch.now().site, write);
        let length = u64::from(bytes).saturating_sub(1);
        let mut sink = Sink::new(&mut self.uses, batch);
        sink.data(&mut self.now, (address, length), write);
    }
}

/// Where it is written down.
struct Sink<'a> {
    uses: &'a mut [Use; USES],
    executed: &'a mut [Executed; USES],
    /// The number of the last.
    last: &'a mut usize,
    /// Instructions before the first.
    first: u64,
}

impl<'a> Sink<'a> {
    fn new(uses: &'a mut [Use; USES], batch: &'a mut Batch) -> Self {
        let first = batch.first();
        let (executed, last) = batch.executed();
        Self { uses, executed, last, first }
    }

    /// Notices are of the block that is about to be executed.
    fn note_begin(&mut self, hot: &Hot) {
        let after = self.executed[*self.last % USES].after;
        *self.last += 1;
        self.executed[*self.last % USES] = Executed { site: hot.site, owner: hot.owner, after };
    }

    /// A block is executed.
    #[inline(always)]
    fn execute(&mut self, now: &mut Now, hot: &mut Hot, block: BlockId) {
        hot.executions += 1;
        now.instructions += u64::from(hot.instructions);
        #[expect(clippy::cast_possible_truncation, reason = "a batch has no room for later ones")]
        let after = (now.instructions - self.first) as u32;
        *self.last += 1;
        self.executed[*self.last % USES] = Executed { site: hot.site, owner: hot.owner, after };
        // The same again, or a part of the same line: nothing is newer than it.
        let again = block == now.block;
        now.block = block;
        if hot.lines == 1 {
            self.add(now, hot.line.name() != now.code, hot.line, false);
            now.code = hot.line.name();
        } else if !again {
            (0..hot.lines).for_each(|number| self.add(now, true, hot.line.after(number), false));
            now.code = hot.line.after(hot.lines - 1).name();
        }
    }

    /// The lines of a byte and of that so many after it, which are the same or neighbours.
    #[inline(always)]
    fn data(&mut self, now: &mut Now, (first, length): (u64, u64), write: bool) {
        let line = |address| Line::of(Side::Data, address);
        let (first, last) = (line(first), line(first.wrapping_add(length)));
        self.add(now, first.name() != now.data, first, write);
        self.add(now, first != last, last, write);
        now.data = last.name();
    }

    #[inline(always)]
    fn add(&mut self, now: &mut Now, is_so: bool, line: Line, write: bool) {
        self.uses[now.count % USES] = Use::new(line, write, *self.last);
        now.count += usize::from(is_so);
    }
}
