//! Follows the execution: which blocks run, and which lines they use.

use std::ops::Range;

use scope_model::{LineId, Side};

use crate::access_groups::Member;
use crate::accesses::{FULL, LineUse, USES};
use crate::batch::{Batch, ExecutedBlock};
use crate::blocks::{BlockId, Blocks, CHECKED, HotBlock, NOWHERE};
use crate::call_graph::{CallGraph, Executed};
use crate::group_word::GroupWord;
use crate::layout_trace::LayoutTrace;

const NO_BLOCK: BlockId = BlockId(u32::MAX);
/// The identifier of no line.
const NO_LINE: u32 = u32::MAX;

/// The execution so far, and a buffer of the lines that it uses.
///
/// Whether a line repeats the last one is unpredictable, and a mispredicted branch takes as long as all other work for a group.
/// So each possible use is written to the buffer, and the next one overwrites it if it does not count.
#[derive(Debug)]
pub struct Execution {
    /// The blocks.
    pub blocks: Blocks,
    /// The call graph, if it is recorded.
    pub calls: Option<Box<CallGraph>>,
    /// The layouts, if they are modelled. Then there is no call graph.
    pub layouts: Option<Box<LayoutTrace>>,
    /// The block of each indexed group, and the range of its members.
    indexed: Vec<(BlockId, Range<usize>)>,
    members: Vec<Member>,
    /// The number of the domain that runs.
    pub domain: u8,
    /// The number of instructions after which [`follow`](Self::follow) stops for the recorder.
    pub next: u64,
    state: State,
    uses: Box<[LineUse; USES]>,
}

/// What changes with every event.
#[derive(Clone, Copy, Debug)]
struct State {
    instructions: u64,
    block: BlockId,
    /// The lines of code and of data that were used last: using them again changes nothing.
    code: u32,
    data: u32,
    /// The number of uses in the buffer.
    count: usize,
    /// For the call graph: the last block, and the slot of the return address that it wrote or read.
    last: Executed,
    /// [`HotBlock::leads_to`] of the last block.
    leads_to: u32,
    /// The block that the call graph has arrived at before its execution.
    arrived: BlockId,
    /// The node of the call graph.
    node: u32,
}

/// Why [`Execution::follow`] stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// There are no more words.
    End,
    /// A buffer is full.
    Full,
    /// This block was last executed for another domain.
    DomainChanged(BlockId),
    /// [`Execution::next`] is reached, and this block is about to be executed.
    Due(BlockId),
    /// The next event is neither a block nor a group.
    Other,
}

impl Execution {
    /// Nothing is executed yet.
    pub fn new() -> Self {
        Self {
            blocks: Blocks::new(),
            calls: None,
            layouts: None,
            indexed: Vec::new(),
            members: Vec::new(),
            domain: 0,
            state: State {
                instructions: 0,
                block: NO_BLOCK,
                code: NO_LINE,
                data: NO_LINE,
                count: 0,
                last: Executed::default(),
                leads_to: NOWHERE,
                arrived: NO_BLOCK,
                node: 0,
            },
            next: 0,
            uses: Box::new([LineUse::default(); USES]),
        }
    }

    /// Adds the next indexed group.
    pub fn add_members(&mut self, block: BlockId, members: &[Member]) {
        let first = self.members.len();
        self.members.extend(members);
        self.indexed.push((block, first..self.members.len()));
    }

    /// The number of executed instructions.
    pub fn instructions(&self) -> u64 {
        self.state.instructions
    }

    /// Makes a block count for the domain that runs.
    pub fn switch_domain(&mut self, block: BlockId) {
        self.blocks.switch_domain(block, self.domain);
    }

    /// The uses of lines in the buffer.
    pub fn uses(&self) -> &[LineUse] {
        debug_assert!(self.state.count <= USES, "no block has so many uses");
        self.uses.get(..self.state.count).unwrap_or_default()
    }

    /// Empties the buffer of uses.
    pub fn clear(&mut self) {
        self.state.count = 0;
    }

    /// Forgets the lines that were used last, as their mappings may have changed.
    pub fn forget_last(&mut self) {
        (self.state.code, self.state.data, self.state.block) = (NO_LINE, NO_LINE, NO_BLOCK);
    }

    /// Follows events as long as they are blocks and groups, and removes their words. Executed blocks go to the `batch`.
    pub fn follow(&mut self, words: &mut &[u64], batch: &mut Batch) -> Stop {
        match (self.calls.take(), self.layouts.take()) {
            (None, None) => self.follow_words(words, batch, None, None),
            (Some(mut calls), _) => {
                let stop = self.follow_words(words, batch, Some(&mut calls), None);
                self.calls = Some(calls);
                stop
            }
            (None, Some(mut layouts)) => {
                let stop = self.follow_words(words, batch, None, Some(&mut layouts));
                self.layouts = Some(layouts);
                stop
            }
        }
    }

    /// Compiled three times, so that nothing is done for a call graph or layouts which are not recorded.
    #[inline(always)]
    fn follow_words(
        &mut self,
        words: &mut &[u64],
        batch: &mut Batch,
        mut calls: Option<&mut CallGraph>,
        mut layouts: Option<&mut LayoutTrace>,
    ) -> Stop {
        // A local copy stays in registers.
        let (mut now, mut left) = (self.state, *words);
        let (domain, next, hot_blocks) = (self.domain, self.next, self.blocks.hot_blocks());
        let mut sink = Sink::new(&mut self.uses, batch);
        let stop = loop {
            let Some((&word, rest)) = left.split_first() else { break Stop::End };
            if now.count > FULL {
                break Stop::Full;
            }
            let group = GroupWord(word);
            let indexed = if group.is_plain() {
                None
            } else if let Some(indexed) = self.indexed.get(group.number() as usize)
                && !group.is_no_group()
            {
                Some(indexed)
            } else {
                break Stop::Other;
            };
            if group.begins_block() {
                let block = indexed.map_or(BlockId(group.number()), |(block, _)| *block);
                let Some(hot) = hot_blocks.get_mut(block.index()) else { break Stop::Other };
                if hot.domain != domain {
                    break Stop::DomainChanged(block);
                }
                if *sink.last > FULL {
                    break Stop::Full;
                }
                if let Some(calls) = calls.as_deref_mut() {
                    arrive(calls, &mut now, hot, block, domain);
                }
                if now.instructions >= next {
                    sink.note_begin(hot, calls.is_some().then_some(now.node));
                    break Stop::Due(block);
                }
                let node = calls.is_some().then_some(now.node);
                sink.execute(&mut now, (hot, block), node);
                if let Some(layouts) = layouts.as_deref_mut() {
                    layouts.execute(block);
                }
                if let Some(calls) = calls.as_deref_mut() {
                    now.last = Executed { block: Some(block), slot: None };
                    (now.leads_to, now.arrived) = (hot.leads_to, NO_BLOCK);
                    if hot.has_events {
                        calls.count_events(block);
                    }
                }
            }
            left = rest;
            if let Some(calls) = calls.as_deref()
                && group.has_slot()
                && !group.is_no_group()
            {
                let block = indexed.map_or(BlockId(group.number()), |(block, _)| *block);
                now.last.slot = calls.slot(block, group.address());
            }
            if let Some((_, members)) = indexed {
                for member in self.members.get(members.clone()).unwrap_or_default() {
                    let bytes = (member.first(group.address()), member.length());
                    sink.data(&mut now, bytes, member.write);
                    if let Some(layouts) = layouts.as_deref_mut() {
                        layouts.data(bytes);
                    }
                }
            } else if !group.is_no_group() {
                let bytes = (group.address(), group.length());
                sink.data(&mut now, bytes, group.writes());
                if let Some(layouts) = layouts.as_deref_mut() {
                    layouts.data(bytes);
                }
            }
        };
        (self.state, *words) = (now, left);
        stop
    }

    /// Applies an access that is in no group.
    pub fn data(&mut self, address: u64, bytes: u8, write: bool, batch: &mut Batch) {
        self.blocks.access(batch.now().0.site.site(), write);
        let length = u64::from(bytes).saturating_sub(1);
        if let Some(layouts) = &mut self.layouts {
            layouts.data((address, length));
        }
        let mut sink = Sink::new(&mut self.uses, batch);
        sink.data(&mut self.state, (address, length), write);
    }
}

/// The call graph follows the execution to a block, which is about to be executed.
#[inline(always)]
fn arrive(calls: &mut CallGraph, now: &mut State, hot: &mut HotBlock, block: BlockId, domain: u8) {
    // The call graph may be at this block already, since before a stop for the recorder.
    if hot.function != now.leads_to && now.arrived != block {
        if calls.arrive(now.last, block, domain, now.instructions) {
            hot.function = CHECKED;
        }
        now.node = calls.node();
        now.arrived = block;
    }
}

/// The buffers that are written to.
struct Sink<'a> {
    uses: &'a mut [LineUse; USES],
    executed: &'a mut [ExecutedBlock; USES],
    nodes: &'a mut [u32; USES],
    /// The number of the last executed block.
    last: &'a mut usize,
    /// Instructions before the batch.
    first: u64,
}

impl<'a> Sink<'a> {
    fn new(uses: &'a mut [LineUse; USES], batch: &'a mut Batch) -> Self {
        let first = batch.first();
        let (executed, nodes, last) = batch.executed();
        Self { uses, executed, nodes, last, first }
    }

    /// Makes the block that is about to be executed the present one, so that the recorder's notes belong to it.
    fn note_begin(&mut self, hot: &HotBlock, node: Option<u32>) {
        let after = self.executed[*self.last % USES].after;
        self.note(hot, after, node);
    }

    /// Notes a block, and its node if the call graph is recorded.
    #[inline(always)]
    fn note(&mut self, hot: &HotBlock, after: u32, node: Option<u32>) {
        *self.last += 1;
        self.executed[*self.last % USES] = ExecutedBlock { site: hot.site, after };
        if let Some(node) = node {
            self.nodes[*self.last % USES] = node;
        }
    }

    #[inline(always)]
    fn execute(
        &mut self,
        now: &mut State,
        (hot, block): (&mut HotBlock, BlockId),
        node: Option<u32>,
    ) {
        hot.executions += 1;
        now.instructions += u64::from(hot.instructions);
        #[expect(clippy::cast_possible_truncation, reason = "a batch is handed over before")]
        let after = (now.instructions - self.first) as u32;
        self.note(hot, after, node);
        // The same block again, or the same line: its lines are the newest already.
        let again = block == now.block;
        now.block = block;
        if hot.lines == 1 {
            self.add(now, hot.line.bits() != now.code, hot.line, false);
            now.code = hot.line.bits();
        } else if !again {
            (0..hot.lines).for_each(|number| self.add(now, true, hot.line.after(number), false));
            now.code = hot.line.after(hot.lines - 1).bits();
        }
    }

    /// Uses the lines of the first byte and of the one `length` bytes further on, which are the same or neighbours.
    #[inline(always)]
    fn data(&mut self, now: &mut State, (first, length): (u64, u64), write: bool) {
        let line = |address| LineId::of(Side::Data, address);
        let (first, last) = (line(first), line(first.wrapping_add(length)));
        self.add(now, first.bits() != now.data, first, write);
        self.add(now, first != last, last, write);
        now.data = last.bits();
    }

    #[inline(always)]
    fn add(&mut self, now: &mut State, counts: bool, line: LineId, write: bool) {
        self.uses[now.count % USES] = LineUse::new(line, write, *self.last);
        now.count += usize::from(counts);
    }
}
