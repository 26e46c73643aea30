//! The call graph compared with a naive model: a machine whose threads keep their stacks of calls.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::functions::KnownFunction;

/// A function lies at `KERNEL` or `USER` plus `STEP` times its number.
const KERNEL: u64 = 0xffff_ffff_8100_0000;
const USER: u64 = 0x40_0000;
const STEP: u64 = 0x1000;
/// Kernel functions that only system calls, interrupts, new threads and switches execute.
const SYSTEM_CALL: u64 = 16;
const INTERRUPT: u64 = 17;
const FORK: u64 = 18;
const SWITCH: u64 = 19;
/// A function that only goes on to another; in a program, a link to a library.
const THUNK: u64 = 20;

/// The blocks of a function: where they lie and where they lead. A block's second half is a block too, for the rest of a block
/// that an interrupt left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Part {
    Entry,
    Hub,
    Calls,
    AfterCall,
    Returns,
    SecondHub,
    Leaves,
    AfterTrap,
}
use Part::{AfterCall, AfterTrap, Calls, Entry, Hub, Leaves, Returns, SecondHub};

/// How the execution comes to a function, and the function's address.
type Step = (CallKind, u64);

/// The code that an interrupt, a system call or a new thread runs, until it returns to what it left.
#[derive(Clone, Debug)]
struct Level {
    path: Vec<Step>,
    /// The calls that have not returned: the length of the path before.
    calls: Vec<usize>,
    stack: u64,
}

struct Thread {
    levels: Vec<Level>,
    space: u64,
}

struct Machine {
    graph: CallGraph,
    blocks: BTreeMap<(u64, Part, bool), BlockId>,
    threads: Vec<Thread>,
    running: usize,
    last: Executed,
    instructions: u64,
    /// Instructions by path, as the naive model counts them.
    expected: BTreeMap<Vec<Step>, u64>,
    /// How many blocks until an interrupt, and whether it is in the middle of the block.
    interrupts: Vec<(u8, bool)>,
}

impl Machine {
    fn new(interrupts: Vec<(u8, bool)>) -> Self {
        let stack = |thread: u64| 0x10_0000 * (thread + 1);
        let threads = (0..3).map(|thread| {
            let user = Level {
                path: vec![(CallKind::Unknown, USER + thread * STEP)],
                calls: Vec::new(),
                stack: stack(thread) + 0x8000,
            };
            let forked = Level {
                path: vec![(CallKind::Unknown, KERNEL + FORK * STEP)],
                calls: Vec::new(),
                stack: stack(thread) + 0x4000,
            };
            // The first thread runs, the others have not run yet.
            let levels = if thread == 0 { vec![user] } else { vec![user, forked] };
            Thread { levels, space: (thread + 1) << 12 }
        });
        let mut machine = Self {
            graph: CallGraph::new(1 << 12),
            blocks: BTreeMap::new(),
            threads: threads.collect(),
            running: 0,
            last: Executed::default(),
            instructions: 0,
            expected: BTreeMap::new(),
            interrupts,
        };
        machine.go(AfterCall, 0);
        machine
    }

    fn level(&mut self) -> &mut Level {
        self.threads[self.running].levels.last_mut().expect("a level")
    }

    fn function(&mut self) -> u64 {
        self.level().path.last().expect("a function").1
    }

    fn is_user(&mut self) -> bool {
        self.function() < KERNEL
    }

    fn block(&mut self, function: u64, part: Part, rest: bool) -> BlockId {
        if let Some(known) = self.blocks.get(&(function, part, rest)) {
            return *known;
        }
        let place = [0, 0x10, 0x20, 0x30, 0x40, 0x60, 0x70, 0x80][part as usize];
        let start = function + place + if rest { 8 } else { 0 };
        let is_kernel = function >= KERNEL;
        let number = (function - if is_kernel { KERNEL } else { USER }) / STEP;
        let is_entry = is_kernel && [SYSTEM_CALL, INTERRUPT].contains(&number);
        let (ending, target) = match part {
            Entry if number == THUNK => (Ending::IndirectJump, None),
            Entry => (Ending::Next, None),
            Hub => (Ending::Next, Some(function + 0x60)),
            SecondHub => (Ending::Next, Some(function + 0x40)),
            Calls => (Ending::IndirectCall, None),
            AfterCall | AfterTrap => (Ending::Jump, Some(function + 0x10)),
            Returns => (Ending::Return, None),
            Leaves if is_entry || number == FORK => (Ending::Resume, None),
            Leaves if is_kernel => (Ending::IndirectJump, None),
            Leaves => (Ending::Trap, None),
        };
        let entry = match number {
            SYSTEM_CALL => EntryKind::SystemCall,
            INTERRUPT => EntryKind::Interrupt,
            THUNK => EntryKind::Thunk,
            _ => EntryKind::None,
        };
        let known = KnownFunction { number: 0, start: function, entry };
        let flow = BlockFlow {
            start,
            end: function + place + 0x10,
            target,
            ending,
            function: is_kernel.then_some(known),
            mode: Some(if is_kernel { Mode::Kernel } else { Mode::User }),
            is_link: !is_kernel && number == THUNK,
            ..BlockFlow::default()
        };
        let next = BlockId(u32::try_from(self.blocks.len()).expect("few"));
        self.graph.add(flow);
        self.blocks.insert((function, part, rest), next);
        next
    }

    /// Executes a block of the present function, with the slot of a return address.
    fn execute(&mut self, part: Part, rest: bool, slot: Option<u64>) {
        let function = self.function();
        let block = self.block(function, part, rest);
        self.graph.arrive(self.last, block, 0, self.instructions);
        self.last = Executed { block: Some(block), slot };
        self.instructions += 3;
        let path = self.level().path.clone();
        *self.expected.entry(path).or_default() += 3;
    }

    /// The same, with an interrupt before or in the middle, if it is time.
    fn go(&mut self, part: Part, slot: u64) {
        let slot = Some(slot).filter(|slot| *slot > 0);
        let due = self.interrupts.last_mut().is_some_and(|(blocks, _)| {
            *blocks = blocks.saturating_sub(1);
            *blocks == 0
        });
        let due = if due { self.interrupts.pop() } else { None };
        match due {
            // Nothing can be interrupted before the first block.
            Some((_, false)) if self.last.block.is_some() => {
                self.interrupt();
                self.execute(part, false, slot);
            }
            Some((_, true)) => {
                self.execute(part, false, slot);
                self.interrupt();
                self.execute(part, true, slot);
            }
            _ => self.execute(part, false, slot),
        }
    }

    /// An interrupt, whose function calls another.
    fn interrupt(&mut self) {
        let stack = if self.is_user() {
            0x10_0000 * (self.running as u64 + 1) + 0x4000
        } else {
            self.level().stack - 0x100
        };
        self.enter((CallKind::Interrupt, KERNEL + INTERRUPT * STEP), stack, Vec::new());
        self.execute(Entry, false, None);
        self.call(KERNEL + 3 * STEP);
        self.give_back();
        self.execute(Hub, false, None);
        self.execute(SecondHub, false, None);
        self.execute(Leaves, false, None);
        self.threads[self.running].levels.pop();
    }

    fn enter(&mut self, step: Step, stack: u64, mut path: Vec<Step>) {
        path.push(step);
        self.threads[self.running].levels.push(Level { path, calls: Vec::new(), stack });
    }

    fn call(&mut self, function: u64) {
        self.go(Hub, 0);
        self.level().stack -= 8;
        let slot = self.level().stack;
        self.go(Calls, slot);
        let level = self.level();
        level.calls.push(level.path.len());
        level.path.push((CallKind::Call, function));
        self.go(Entry, 0);
    }

    /// The thunk of programs or of the kernel.
    fn thunk(&mut self) -> u64 {
        THUNK * STEP + if self.is_user() { USER } else { KERNEL }
    }

    /// A call through a thunk: the function has the thunk's caller, and only the thunk's own instructions count for the thunk.
    fn call_through_thunk(&mut self, function: u64) {
        let thunk = self.thunk();
        self.call(thunk);
        let path = &mut self.level().path;
        path.pop();
        path.push((CallKind::Call, function));
        self.go(Entry, 0);
    }

    fn give_back(&mut self) {
        self.go(Hub, 0);
        self.go(SecondHub, 0);
        let slot = self.level().stack;
        self.go(Returns, slot);
        let level = self.level();
        level.stack += 8;
        let length = level.calls.pop().expect("a call");
        level.path.truncate(length);
        self.go(AfterCall, 0);
    }

    /// A tail call: a function that is among those which return to the same caller goes on.
    fn tail(&mut self, function: u64, through_thunk: bool) {
        self.go(Hub, 0);
        self.go(SecondHub, 0);
        self.go(Leaves, 0);
        if through_thunk {
            let thunk = self.thunk();
            self.level().path.push((CallKind::Jump, thunk));
            self.go(Entry, 0);
            self.level().path.pop();
        }
        let path = &mut self.level().path;
        let frame = path.iter().rposition(|(kind, _)| *kind != CallKind::Jump).expect("a call");
        match path.iter().skip(frame).rposition(|(_, own)| *own == function) {
            Some(place) => path.truncate(frame + place + 1),
            None => path.push((CallKind::Jump, function)),
        }
        self.go(Entry, 0);
    }

    /// Leaves functions without return: the execution goes on in one of the callers.
    fn jump_back(&mut self, calls: usize) {
        let level = self.level();
        let Some(place) = level.calls.len().checked_sub(calls + 1) else { return };
        let length = level.calls[place];
        let target = level.path[length - 1].1;
        // The nearest function of this address.
        let nearest = level.path.iter().rposition(|(_, own)| *own == target).expect("it");
        if nearest + 1 != length {
            return;
        }
        self.go(Hub, 0);
        self.go(SecondHub, 0);
        self.go(Leaves, 0);
        let level = self.level();
        let left = (level.calls.len() - place) as u64;
        level.stack += 8 * left;
        level.calls.truncate(place);
        level.path.truncate(length);
        self.execute(AfterCall, false, None);
    }

    fn system_call(&mut self) {
        self.go(Hub, 0);
        self.go(SecondHub, 0);
        self.go(Leaves, 0);
        let (path, stack) =
            (self.level().path.clone(), 0x10_0000 * (self.running as u64 + 1) + 0x4000);
        self.enter((CallKind::Trap, KERNEL + SYSTEM_CALL * STEP), stack, path);
        self.execute(Entry, false, None);
    }

    fn back_to_user(&mut self) {
        let forked = self.function() == KERNEL + FORK * STEP;
        self.go(Hub, 0);
        self.go(SecondHub, 0);
        self.execute(Leaves, false, None);
        self.threads[self.running].levels.pop();
        self.execute(if forked { AfterCall } else { AfterTrap }, false, None);
    }

    /// Another thread goes on where it was switched away from.
    fn switch(&mut self, to: usize) {
        if to == self.running {
            return;
        }
        self.call(KERNEL + SWITCH * STEP);
        self.go(Hub, 0);
        self.go(SecondHub, 0);
        let slot = self.threads[to].levels.last().expect("a level").stack;
        self.go(Returns, slot);
        self.running = to;
        self.graph.set_space(self.threads[to].space);
        let level = self.level();
        if let Some(length) = level.calls.pop() {
            level.stack += 8;
            level.path.truncate(length);
        }
        self.execute(AfterCall, false, None);
    }

    fn step(&mut self, (what, which): (u8, u64)) {
        let depth = self.level().calls.len();
        let is_entered = depth == 0 && !self.is_user();
        let function =
            if self.is_user() { USER + (8 + which) * STEP } else { KERNEL + which * STEP };
        let is_own = self.level().path.len() > 1 && depth > 0;
        match what {
            0..4 if depth < 20 => self.call(function),
            4..6 if depth > 0 => self.give_back(),
            6 if !self.is_user() && is_own => self.tail(function, false),
            7 if self.is_user() => self.system_call(),
            8 if is_entered => self.back_to_user(),
            9 if !self.is_user() => self.switch(usize::try_from(which % 3).expect("few")),
            10 if !self.is_user() && is_own => {
                self.jump_back(usize::try_from(which % 3).expect("few"));
            }
            11 if depth < 20 => self.call_through_thunk(function),
            12 if !self.is_user() && is_own => self.tail(function, true),
            _ => {}
        }
    }

    /// Instructions by path, as the call graph counts them.
    fn counted(self) -> BTreeMap<Vec<Step>, u64> {
        let flows = self.graph.flows.clone();
        let nodes = self.graph.finish(self.instructions, &[]);
        let mut paths: Vec<Vec<Step>> = vec![Vec::new()];
        let mut counted = BTreeMap::new();
        for node in nodes.iter().skip(1) {
            let flow = flows[node.block as usize];
            let start = flow.function.map_or(flow.start & !(STEP - 1), |function| function.start);
            let mut path = paths[node.parent as usize].clone();
            path.push((node.kind, start));
            if node.counters.instructions > 0 {
                *counted.entry(path.clone()).or_default() += node.counters.instructions;
            }
            paths.push(path);
        }
        assert_eq!(nodes[0].counters.instructions, 0, "all code has a function");
        counted
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn every_instruction_counts_for_its_chain_of_calls(
        steps in prop::collection::vec((0u8..13, 0u64..6), 0..200),
        interrupts in prop::collection::vec((1u8..40, any::<bool>()), 0..20),
    ) {
        let mut machine = Machine::new(interrupts);
        steps.into_iter().for_each(|step| machine.step(step));
        let expected = machine.expected.clone();
        prop_assert_eq!(machine.counted(), expected);
    }
}
