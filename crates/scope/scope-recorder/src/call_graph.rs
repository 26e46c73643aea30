//! Follows calls and returns on all stacks.
//!
//! A call notes its caller at the slot that it writes the return address to, and a return finds the caller there. So it does not
//! matter which stack is in use, who switched to it, or how many functions were left at once. What interrupts and system calls
//! leave is kept until the execution arrives where it was left.

use std::collections::{HashMap, HashSet};

use scope_model::Counters;
use scope_result::{CallKind, CallNode, Mode};

use crate::block_flow::{BlockFlow, Ending};
use crate::blocks::{BlockId, DOMAINS, KINDS};
use crate::call_tree::{CallTree, Entered, ROOT};
use crate::functions::EntryKind;
use crate::return_slots::{Frame, ReturnSlots};

/// The most callers to search for a function.
const SEARCH: usize = 64;
/// The most executions to keep that were left in one context.
const LEFT: usize = 32;
/// The address bits of CR3.
const ROOT_ADDRESS: u64 = 0x000f_ffff_ffff_f000;

/// A block that was executed, and the call or return at its end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Executed {
    /// The block; none before the first.
    pub block: Option<BlockId>,
    /// The slot of the return address that it wrote or read.
    pub slot: Option<u64>,
}

/// An execution that an interrupt, an exception or a system call left.
#[derive(Clone, Copy, Debug)]
struct Left {
    last: Executed,
    node: u32,
}

/// Whose execution is left: the kind of code, and the domain, or the page tables of a program.
type Context = (Mode, u64);

/// The call graph so far.
#[derive(Debug)]
pub struct CallGraph {
    flows: Vec<BlockFlow>,
    tree: CallTree,
    slots: ReturnSlots,
    left: HashMap<Context, Vec<Left>>,
    /// Where unknown functions were seen to begin.
    called: HashSet<u64>,
    /// The node of each domain when it last entered the hypervisor.
    guests: [u32; DOMAINS],
    node: u32,
    /// The instructions until `node` became the present one.
    since: u64,
    /// The root of the page tables.
    space: u64,
}

impl CallGraph {
    /// Nothing is executed yet; the page tables have this CR3.
    pub fn new(cr3: u64) -> Self {
        Self {
            flows: Vec::new(),
            tree: CallTree::new(),
            slots: ReturnSlots::new(),
            left: HashMap::new(),
            called: HashSet::new(),
            guests: [ROOT; DOMAINS],
            node: ROOT,
            since: 0,
            space: cr3 & ROOT_ADDRESS,
        }
    }

    /// Adds the next block. Returns whether its function is unknown, but known to begin with it.
    pub fn add(&mut self, flow: BlockFlow) -> bool {
        let begins = flow.function.is_none() && self.called.contains(&flow.start);
        self.flows.push(flow);
        begins
    }

    /// The page of this virtual number, for data, lies at a physical address.
    pub fn map(&mut self, page: u64, physical: u64) {
        self.slots.map(page, physical);
    }

    /// The page tables change.
    pub fn set_space(&mut self, cr3: u64) {
        self.space = cr3 & ROOT_ADDRESS;
    }

    /// The slot of a block's return address, by the lower bits of the address of the group that has it.
    #[inline]
    pub fn slot(&self, block: BlockId, address: u64) -> Option<u64> {
        let flow = self.flows.get(block.index())?;
        Some(self.slots.physical(address.wrapping_add(i64::from(flow.slot).cast_unsigned())))
    }

    /// A block's events happen.
    pub fn count_events(&mut self, block: BlockId) {
        let events = self.flows.get(block.index()).map(|flow| flow.events);
        self.tree.count_events(self.node, &events.unwrap_or_default());
    }

    /// The node of the function that is executed.
    pub fn node(&self) -> u32 {
        self.node
    }

    /// Another block is about to be executed after `last`, in a domain, after this many instructions. Returns whether its function
    /// is unknown, but known to begin with it.
    ///
    /// Between blocks of one function that end without a call or return this need not be called.
    pub fn arrive(&mut self, last: Executed, next: BlockId, domain: u8, instructions: u64) -> bool {
        self.tree.charge(self.node, instructions - self.since);
        self.since = instructions;
        let Some(flow) = self.flows.get(next.index()).copied() else { return false };
        let before = last.block.and_then(|block| self.flows.get(block.index()).copied());
        let arrival = Arrival { next, flow, domain };
        match before {
            None => self.node = self.without_caller(&arrival),
            Some(before) if is_entry(&before, &flow) => self.enter(last, &before, &arrival),
            Some(before) if before.mode != flow.mode || before.ending == Ending::Resume => {
                self.resume(&arrival);
            }
            Some(before) => self.go_on(last, &before, &arrival),
        }
        flow.function.is_none() && self.called.contains(&flow.start)
    }

    /// An interrupt, an exception or a system call enters a block.
    fn enter(&mut self, last: Executed, before: &BlockFlow, to: &Arrival) {
        let from_hypervisor = before.mode == Some(Mode::Hypervisor);
        let into_hypervisor = to.flow.mode == Some(Mode::Hypervisor);
        let guest = self.guests[usize::from(to.domain) % DOMAINS];
        let is_trap = match to.flow.entry() {
            EntryKind::SystemCall | EntryKind::Exception => true,
            EntryKind::Interrupt | EntryKind::InterruptTable => false,
            EntryKind::None | EntryKind::Thunk => before.ending == Ending::Trap,
        };
        // What the hypervisor passes on to a guest comes from where the guest entered it.
        let passes_on = from_hypervisor && !into_hypervisor;
        let parent = match (is_trap, passes_on) {
            (false, _) => ROOT,
            (true, true) => guest,
            (true, false) => self.node,
        };
        if !passes_on {
            if into_hypervisor && !from_hypervisor {
                self.guests[usize::from(to.domain) % DOMAINS] = self.node;
            }
            self.leave(last, before, to.domain);
        }
        let kind = if is_trap { CallKind::Trap } else { CallKind::Interrupt };
        let site = last.block.filter(|_| is_trap && !passes_on);
        self.node = self.child(parent, kind, site, to);
    }

    /// Keeps the present execution until it goes on.
    fn leave(&mut self, last: Executed, before: &BlockFlow, domain: u8) {
        let left = self.left.entry(context(before.mode, domain, self.space)).or_default();
        // A trap that was left at the same block before never returned: it was the hypercall that ends an interrupt.
        if before.ending == Ending::Trap && before.mode == Some(Mode::Kernel) {
            left.retain(|left| left.last.block != last.block);
        }
        if left.len() >= LEFT {
            left.remove(0);
        }
        left.push(Left { last, node: self.node });
    }

    /// The execution goes on where it was left.
    fn resume(&mut self, to: &Arrival) {
        let flows = &self.flows;
        let slots = &mut self.slots;
        let left = self.left.entry(context(to.flow.mode, to.domain, self.space)).or_default();
        let flow_of = |left: &Left| left.last.block.and_then(|block| flows.get(block.index()));
        let mut returns_here = |left: &Left| {
            let returns = left.last.slot.map(|slot| slots.at(slot).returns_to);
            returns == Some(to.flow.start)
        };
        // Mostly the last execution that was left goes on first. An indirect call leads to the start of a function, an
        // indirect jump there or into its own function.
        let likely = left.iter().rposition(|left| {
            flow_of(left).is_some_and(|flow| {
                flow.contains(to.flow.start)
                    || flow.leads_to(to.flow.start)
                    || match flow.ending {
                        Ending::Return => returns_here(left),
                        Ending::IndirectCall => to.flow.begins_function(),
                        Ending::IndirectJump => {
                            to.flow.begins_function() || flow.shares_function(&to.flow)
                        }
                        _ => false,
                    }
            })
        });
        let place = likely.or_else(|| {
            let is_indirect =
                |ending| matches!(ending, Ending::IndirectCall | Ending::IndirectJump);
            let possible = |left: &Left| flow_of(left).is_some_and(|flow| is_indirect(flow.ending));
            left.iter().rposition(|left| to.flow.function.is_none() && possible(left))
        });
        let found = place.map(|place| left.remove(place));
        let before = found.as_ref().and_then(flow_of).copied();
        match (found, before) {
            (Some(found), Some(before)) => {
                self.node = found.node;
                if !before.contains(to.flow.start) || before.leads_to(to.flow.start) {
                    self.go_on(found.last, &before, to);
                }
            }
            _ => self.node = self.without_caller(to),
        }
    }

    /// The execution goes on as the end of the block before says.
    fn go_on(&mut self, last: Executed, before: &BlockFlow, to: &Arrival) {
        let start = to.flow.start;
        match before.ending {
            Ending::Call if before.target != Some(start) => self.elsewhere(to),
            Ending::Call if start == before.end || is_within(before, &to.flow) => {
                if let Some(slot) = last.slot {
                    let frame =
                        Frame { caller: self.node, is_inside: true, returns_to: before.end };
                    *self.slots.at(slot) = frame;
                }
            }
            Ending::Call | Ending::IndirectCall => {
                if let Some(slot) = last.slot {
                    let frame =
                        Frame { caller: self.node, is_inside: false, returns_to: before.end };
                    *self.slots.at(slot) = frame;
                }
                if to.flow.function.is_none() {
                    self.called.insert(start);
                }
                self.node = self.child(self.node, CallKind::Call, last.block, to);
            }
            Ending::Return => {
                let frame = last.slot.map(|slot| *self.slots.at(slot)).unwrap_or_default();
                if frame.returns_to == start && start != 0 {
                    last.slot.iter().for_each(|slot| *self.slots.at(*slot) = Frame::default());
                    self.node = frame.caller;
                } else {
                    // A return in place of an indirect jump, to an address that was written over that of a call.
                    self.jump(last, before, to);
                }
            }
            Ending::Next | Ending::Jump | Ending::IndirectJump | Ending::Trap | Ending::Resume => {
                self.jump(last, before, to);
            }
        }
    }

    /// A jump, perhaps to another function.
    fn jump(&mut self, last: Executed, before: &BlockFlow, to: &Arrival) {
        let is_jump = matches!(before.ending, Ending::Jump | Ending::IndirectJump | Ending::Return);
        let begins = match to.flow.function {
            // A block may reach into the next function, and end there with a direct jump.
            Some(_) => to.flow.begins_function() || before.leads_to(to.flow.start),
            None => is_jump && (self.called.contains(&to.flow.start) || self.is_trampoline(before)),
        };
        if begins && to.flow.function.is_none() {
            self.called.insert(to.flow.start);
        }
        // One of the functions that return to the same caller, or the caller of the first.
        let mut own = self.node;
        loop {
            if self.is_of(own, &to.flow, begins) {
                self.node = own;
                return;
            }
            let node = self.tree.node(own);
            if node.kind != CallKind::Jump {
                break;
            }
            own = node.parent;
        }
        if begins {
            let (from, kind, site) = self.jumper(last, before);
            self.node = self.child(from, kind, site, to);
        } else {
            self.elsewhere(to);
        }
    }

    /// The caller of a function that is entered by a jump, how, and from where. The function that a thunk leads to has the thunk's caller.
    fn jumper(&self, last: Executed, before: &BlockFlow) -> (u32, CallKind, Option<BlockId>) {
        let node = self.tree.node(self.node);
        let first = self.flows.get(node.block.index());
        if before.is_thunk() && self.node != ROOT && first.is_some_and(BlockFlow::is_thunk) {
            (node.parent, node.kind, node.site)
        } else {
            (self.node, CallKind::Jump, last.block)
        }
    }

    /// The execution is in the middle of another function: one of its callers, after functions were left without return, or one
    /// that called before the recording began.
    fn elsewhere(&mut self, to: &Arrival) {
        let mut node = self.node;
        for _ in 0..SEARCH {
            if node == ROOT {
                break;
            }
            if self.is_of(node, &to.flow, false) {
                self.node = node;
                return;
            }
            node = self.tree.node(node).parent;
        }
        self.node = self.without_caller(to);
    }

    /// Whether a jump at the end of a block leads to another function: from a known function to other code, as that of an indirect
    /// thunk, or from the first block of a function to anywhere, as in a table of a program's links to libraries.
    fn is_trampoline(&self, before: &BlockFlow) -> bool {
        let first = self.flows.get(self.tree.node(self.node).block.index());
        let is_first = first.is_some_and(|first| first.start == before.start);
        before.function.is_some()
            || before.is_link
            || before.ending == Ending::IndirectJump && is_first
    }

    /// Whether a node is of the function of a block. The extent of an unknown function is not known: code belongs to it unless
    /// another one `begins` there.
    fn is_of(&self, node: u32, flow: &BlockFlow, begins: bool) -> bool {
        if node == ROOT {
            return false;
        }
        let own = self.flows.get(self.tree.node(node).block.index());
        own.is_some_and(|own| match (own.function, flow.function) {
            (Some(_), Some(_)) => own.shares_function(flow),
            (None, None) => own.mode == flow.mode && (!begins || own.start == flow.start),
            _ => false,
        })
    }

    fn without_caller(&mut self, to: &Arrival) -> u32 {
        self.child(ROOT, CallKind::Unknown, None, to)
    }

    fn child(&mut self, parent: u32, kind: CallKind, site: Option<BlockId>, to: &Arrival) -> u32 {
        let mode = to.flow.mode.unwrap_or(Mode::User);
        self.tree.child(
            parent,
            &Entered {
                kind,
                block: to.next,
                site,
                entry: to.flow.function.map_or(to.flow.start, |function| function.start),
                owner: (to.domain, mode as u8 % KINDS),
                space: self.space,
            },
        )
    }

    /// The nodes after this many instructions; `misses` are those of each node.
    pub fn finish(mut self, instructions: u64, misses: &[Counters]) -> Vec<CallNode> {
        self.tree.charge(self.node, instructions - self.since);
        self.tree.finish(misses)
    }
}

/// The block that the execution arrives at, and the domain that runs.
struct Arrival {
    next: BlockId,
    flow: BlockFlow,
    domain: u8,
}

/// Whether the processor enters a block for an interrupt, an exception or a system call.
fn is_entry(before: &BlockFlow, next: &BlockFlow) -> bool {
    if before.leads_to(next.start) && before.mode == next.mode {
        return false;
    }
    next.mode < before.mode || next.entry() != EntryKind::None
}

/// Whether a call stays in its function.
fn is_within(before: &BlockFlow, next: &BlockFlow) -> bool {
    before.shares_function(next) && !next.begins_function()
}

/// Whose execution it is.
fn context(mode: Option<Mode>, domain: u8, space: u64) -> Context {
    match mode {
        Some(Mode::Hypervisor) => (Mode::Hypervisor, 0),
        Some(Mode::Kernel) => (Mode::Kernel, domain.into()),
        Some(Mode::User) | None => (Mode::User, space),
    }
}

#[cfg(test)]
mod examples;
#[cfg(test)]
mod tests;
