//! The call graph of a recording: inclusive costs of functions, and of calls between them.

use std::collections::BTreeMap;

use scope_model::Counters;
use scope_result::{CallKind, CallNode, Function, Mode, Recording};

use crate::error::{Error, Result};
use crate::filter::EventFilter;
use crate::summary::{Part, Who, who};

/// A call graph with inclusive costs.
pub struct CallGraph<'a> {
    pub recording: &'a Recording,
    /// The function of each node.
    parts: Vec<Part>,
    /// The counts of each node with those of its descendants.
    inclusive: Vec<Counters>,
    /// Which nodes an event filter selects.
    selected: Vec<bool>,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct FunctionCost {
    /// How often it was entered.
    pub calls: u64,
    /// Its own counts.
    pub exclusive: Counters,
    /// With those of the functions that it calls. What it calls recursively counts once.
    pub inclusive: Counters,
}

/// The costs of calls from one function to another.
#[derive(Clone, Copy, Debug, Default)]
pub struct CallCost {
    pub calls: u64,
    /// The inclusive counts of the callee. Calls within another call of the same pair count once.
    pub inclusive: Counters,
    /// The block that called first: an index into [`Recording::blocks`].
    pub site: Option<u32>,
}

/// A recording without a call graph.
pub fn without_calls() -> Error {
    Error::Usage(
        "this recording has no call graph: `pvscope run --call-graph` records one".to_owned(),
    )
}

impl<'a> CallGraph<'a> {
    /// The call graph of a recording, of what the filter selects.
    pub fn new(recording: &'a Recording, filter: &EventFilter) -> Result<Self> {
        if recording.calls.is_empty() {
            return Err(without_calls());
        }
        let parts: Vec<Part> = recording.calls.iter().map(|node| part(recording, node)).collect();
        let mut selected = vec![false; recording.calls.len()];
        for (number, node) in recording.calls.iter().enumerate().skip(1) {
            selected[number] = selected[node.parent as usize] || filter.begins(recording, node);
        }
        let mut inclusive: Vec<Counters> = recording
            .calls
            .iter()
            .zip(&selected)
            .map(|(node, selected)| if *selected { node.counters } else { Counters::default() })
            .collect();
        // Parents come before their children.
        for number in (1..inclusive.len()).rev() {
            let own = Counters { executions: 0, ..inclusive[number] };
            inclusive[recording.calls[number].parent as usize] += &own;
        }
        Ok(Self { recording, parts, inclusive, selected })
    }

    /// The nodes that the filter selects, but the root, with their numbers.
    pub fn nodes(&self) -> impl Iterator<Item = (usize, &'a CallNode)> {
        self.recording.calls.iter().enumerate().skip(1).filter(|(number, _)| self.selected[*number])
    }

    /// Whether the filter selects a node.
    pub fn nodes_contain(&self, node: usize) -> bool {
        self.selected[node]
    }

    /// The function of a node.
    pub fn part(&self, node: usize) -> &Part {
        &self.parts[node]
    }

    /// The block that a function was entered at first: an index into [`Recording::blocks`].
    pub fn entry_of(&self, part: &Part) -> Option<u32> {
        let mut nodes = self.nodes().filter(|(number, _)| self.part(*number) == part);
        nodes.next().map(|(_, node)| node.block)
    }

    /// The counts of a node with those of its descendants.
    pub fn inclusive(&self, node: usize) -> &Counters {
        &self.inclusive[node]
    }

    /// All counts.
    pub fn total(&self) -> &Counters {
        &self.inclusive[0]
    }

    /// The chain of calls of a node, from the first caller on.
    pub fn chain(&self, node: usize) -> Vec<usize> {
        let mut chain = vec![node];
        let mut node = node;
        while let parent @ 1.. = self.recording.calls[node].parent as usize {
            chain.push(parent);
            node = parent;
        }
        chain.reverse();
        chain
    }

    /// The selected caller of a node.
    fn caller(&self, node: usize) -> Option<usize> {
        let parent = self.recording.calls[node].parent as usize;
        (parent > 0 && self.selected[parent]).then_some(parent)
    }

    /// Whether one of the callers of a node satisfies `is`, which gets a caller and its callee.
    fn has_above(&self, node: usize, is: impl Fn(usize, usize) -> bool) -> bool {
        let mut below = node;
        while let Some(above) = self.caller(below) {
            if is(above, below) {
                return true;
            }
            below = above;
        }
        false
    }

    /// The costs of every function.
    pub fn functions(&self) -> BTreeMap<&Part, FunctionCost> {
        let mut costs = BTreeMap::<&Part, FunctionCost>::new();
        for (number, node) in self.nodes() {
            let part = self.part(number);
            let is_outermost = !self.has_above(number, |above, _| self.part(above) == part);
            let cost = costs.entry(part).or_default();
            cost.calls += node.counters.executions;
            cost.exclusive += &node.counters;
            if is_outermost {
                cost.inclusive += &self.inclusive[number];
            }
        }
        costs
    }

    /// The costs of calls, by caller and callee.
    pub fn calls(&self) -> BTreeMap<(&Part, &Part), CallCost> {
        let mut costs = BTreeMap::<(&Part, &Part), CallCost>::new();
        for (number, node) in self.nodes() {
            let Some(caller) = self.caller(number) else { continue };
            let pair = (self.part(caller), self.part(number));
            let is_outermost = !self
                .has_above(caller, |above, below| (self.part(above), self.part(below)) == pair);
            let cost = costs.entry(pair).or_default();
            cost.calls += node.counters.executions;
            cost.site = cost.site.or(node.site);
            if is_outermost {
                cost.inclusive += &self.inclusive[number];
            }
        }
        costs
    }
}

/// The function of a node.
pub fn part(recording: &Recording, node: &CallNode) -> Part {
    let block = recording.blocks.get(node.block as usize);
    let mode = block.map_or(Mode::User, |block| block.mode);
    let function = block.and_then(|block| recording.functions.get(block.function as usize));
    let who: Who = who(recording.domains.get(usize::from(node.domain)), mode);
    Part { who, mode, function: function.cloned().unwrap_or_default() }
}

/// How the execution comes to a node, in a word; none for a call.
pub fn kind_name(kind: CallKind) -> Option<&'static str> {
    match kind {
        CallKind::Call => None,
        CallKind::Jump => Some("jump"),
        CallKind::Trap => Some("trap"),
        CallKind::Interrupt => Some("interrupt"),
        CallKind::Unknown => Some("caller unknown"),
    }
}

/// A function's name for people: with its module.
pub fn label(function: &Function) -> String {
    match (function.module.as_str(), function.name.as_str()) {
        ("", _) => "unknown".to_owned(),
        (module, "") => format!("[{module}]"),
        (_, name) => name.to_owned(),
    }
}

#[cfg(test)]
pub mod tests {
    use scope_result::{Block, Domain};

    use super::*;

    /// `main` calls `write` twice; it traps to `sys_write`, which calls itself and `copy`. A timer's interrupt calls `copy` too.
    pub fn recording() -> Recording {
        let names = ["", "main", "write", "sys_write", "copy", "timer"];
        let function = |name: &&str| Function::new(if name.is_empty() { "" } else { "m" }, name);
        let address =
            |n: u64| if n < 3 { 0x40_0000 + n * 16 } else { 0xffff_ffff_8100_0000 + n * 16 };
        let block = |number: u32| Block {
            // nopl 0x0(%rax), twice
            code: [0x0f, 0x1f, 0x40, 0].repeat(2),
            instructions: 2,
            space: 0x5000,
            function: number,
            counters: vec![(
                0,
                Counters {
                    executions: 1,
                    instructions: [0, 1, 10, 120, 3500, 10_000][number as usize],
                    ..Counters::default()
                },
            )],
            ..Block::at(address(number.into()))
        };
        let node = |parent, kind, block: u32, calls, instructions| CallNode {
            parent,
            kind,
            block,
            site: (parent > 0).then(|| block - 1),
            domain: 0,
            space: 0x5000,
            counters: Counters { executions: calls, instructions, ..Counters::default() },
        };
        Recording {
            instructions: 13_631,
            domains: vec![Domain::Machine],
            functions: names.iter().map(function).collect(),
            blocks: (0..6).map(block).collect(),
            calls: vec![
                node(0, CallKind::Unknown, 0, 0, 0),
                node(0, CallKind::Unknown, 1, 1, 1),
                node(1, CallKind::Call, 2, 2, 10),
                node(2, CallKind::Trap, 3, 2, 100),
                node(3, CallKind::Call, 3, 1, 20),
                node(4, CallKind::Call, 4, 5, 3000),
                node(0, CallKind::Interrupt, 5, 1, 10_000),
                node(6, CallKind::Call, 4, 1, 500),
            ],
            work: scope_result::Work { what: "work".to_owned(), ..Default::default() },
            ..Recording::default()
        }
    }

    #[test]
    fn inclusive_costs_have_recursion_once_and_sum_up() {
        let recording = recording();
        let graph = CallGraph::new(&recording, &EventFilter::default()).unwrap();
        assert_eq!(graph.total().instructions, recording.instructions);
        let functions = graph.functions();
        let cost = |name: &str| {
            let mut found = functions.iter().filter(|(part, _)| part.function.name == name);
            let cost = found.next().expect(name).1;
            (cost.calls, cost.exclusive.instructions, cost.inclusive.instructions)
        };
        assert_eq!(cost("main"), (1, 1, 3131));
        assert_eq!(cost("sys_write"), (3, 120, 3120));
        assert_eq!(cost("copy"), (6, 3500, 3500));
        assert_eq!(cost("timer"), (1, 10_000, 10_500));
        let calls = graph.calls();
        let call = |from: &str, to: &str| {
            let mut found = calls.iter().filter(|((caller, callee), _)| {
                (caller.function.name.as_str(), callee.function.name.as_str()) == (from, to)
            });
            found.next().map(|(_, cost)| (cost.calls, cost.inclusive.instructions))
        };
        assert_eq!(call("write", "sys_write"), Some((2, 3120)));
        assert_eq!(call("sys_write", "sys_write"), Some((1, 3020)));
        assert_eq!(call("timer", "copy"), Some((1, 500)));
        assert_eq!(call("main", "copy"), None);
        assert_eq!(graph.chain(5), [1, 2, 3, 4, 5]);
    }

    #[test]
    fn only_what_interrupts_do_can_be_selected() {
        let recording = recording();
        let filter = EventFilter::within("interrupt");
        let graph = CallGraph::new(&recording, &filter).unwrap();
        assert_eq!(graph.total().instructions, 10_500);
        assert_eq!(graph.functions().len(), 2);
        let filter = EventFilter::within("sys_write");
        let graph = CallGraph::new(&recording, &filter).unwrap();
        assert_eq!(graph.total().instructions, 3120);
        let none = Recording::default();
        let message = CallGraph::new(&none, &filter).err().unwrap().to_string();
        assert!(message.contains("--call-graph"), "{message}");
    }
}
