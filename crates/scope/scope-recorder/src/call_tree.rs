//! The nodes of the call graph.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use scope_model::{Counters, EventCounts};
use scope_result::{CallKind, CallNode};

use crate::blocks::{BlockId, KINDS};
use crate::cost_events::BlockEvents;

/// The most nodes: further chains of calls count for the root.
const NODES: usize = 1 << 20;
/// The longest chain of calls: further calls count for its last function.
const DEPTH: u16 = 256;
/// The root.
pub const ROOT: u32 = 0;

/// A function that was entered by one chain of calls.
#[derive(Clone, Copy, Debug)]
pub struct TreeNode {
    /// The caller.
    pub parent: u32,
    /// How the execution came here first.
    pub kind: CallKind,
    /// The block that was entered first.
    pub block: BlockId,
    /// The block that called first.
    pub site: Option<BlockId>,
    domain: u8,
    space: u64,
    depth: u16,
    calls: u64,
    instructions: u64,
    events: EventCounts,
}

/// What distinguishes the children of a node: where the function begins, how the execution comes there, and for code that other
/// processes and domains have too, whose it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct ChildKey {
    parent: u32,
    /// The kind, the domain and the kind of code.
    owner: u32,
    entry: u64,
    space: u64,
}

/// Hashes keys of a few integers.
#[derive(Default)]
struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64((*byte).into()));
    }

    fn write_u32(&mut self, number: u32) {
        self.write_u64(number.into());
    }

    fn write_u64(&mut self, number: u64) {
        // 2⁶⁴ divided by the golden ratio.
        let mixed = (self.0 ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ mixed >> 29;
    }
}

/// Where a function is entered.
#[derive(Clone, Copy, Debug)]
pub struct Entered {
    /// How.
    pub kind: CallKind,
    /// The first block.
    pub block: BlockId,
    /// The block that comes before.
    pub site: Option<BlockId>,
    /// The address where the function begins.
    pub entry: u64,
    /// The domain and the kind of code.
    pub owner: (u8, u8),
    /// The root of the page tables.
    pub space: u64,
}

/// The nodes.
#[derive(Debug)]
pub struct CallTree {
    nodes: Vec<TreeNode>,
    children: HashMap<ChildKey, u32, BuildHasherDefault<KeyHasher>>,
}

impl CallTree {
    /// The root only.
    pub fn new() -> Self {
        let root = TreeNode {
            parent: ROOT,
            kind: CallKind::Unknown,
            block: BlockId(0),
            site: None,
            domain: 0,
            space: 0,
            depth: 0,
            calls: 0,
            instructions: 0,
            events: EventCounts::default(),
        };
        Self { nodes: vec![root], children: HashMap::default() }
    }

    /// A node.
    pub fn node(&self, number: u32) -> &TreeNode {
        &self.nodes[number as usize]
    }

    /// The child of a node for an entered function, which may be new. Counts a call.
    pub fn child(&mut self, parent: u32, entered: &Entered) -> u32 {
        let Entered { kind, block, site, entry, owner, space } = *entered;
        let depth = self.nodes[parent as usize].depth + 1;
        if depth > DEPTH {
            return parent;
        }
        // Programs have nodes for each process below the root; elsewhere the parent tells the process.
        let is_program = owner.1 == KINDS - 1;
        let own_space = if parent == ROOT && is_program { space } else { 0 };
        let owner_number = (kind as u32) << 16 | u32::from(owner.0) << 8 | u32::from(owner.1);
        let key = ChildKey { parent, owner: owner_number, entry, space: own_space };
        let next = u32::try_from(self.nodes.len()).unwrap_or(u32::MAX);
        if next as usize >= NODES {
            let known = self.children.get(&key).copied().unwrap_or(ROOT);
            self.nodes[known as usize].calls += 1;
            return known;
        }
        let child = *self.children.entry(key).or_insert(next);
        if child == next {
            self.nodes.push(TreeNode {
                parent,
                kind,
                block,
                site: site.filter(|_| parent != ROOT),
                domain: owner.0,
                space,
                depth,
                calls: 0,
                instructions: 0,
                events: EventCounts::default(),
            });
        }
        self.nodes[child as usize].calls += 1;
        child
    }

    /// Counts instructions for a node.
    #[inline]
    pub fn charge(&mut self, node: u32, instructions: u64) {
        self.nodes[node as usize].instructions += instructions;
    }

    /// Counts the events of a block for a node.
    pub fn count_events(&mut self, node: u32, events: &BlockEvents) {
        let counts = self.nodes[node as usize].events.iter_mut();
        counts.zip(events).for_each(|(count, event)| *count += u64::from(*event));
    }

    /// The nodes with their counts; `misses` are those of each node.
    pub fn finish(self, misses: &[Counters]) -> Vec<CallNode> {
        let with_misses = |(number, node): (usize, TreeNode)| {
            let misses = misses.get(number).copied().unwrap_or_default();
            let TreeNode { parent, kind, block, site, domain, space, .. } = node;
            CallNode {
                parent,
                kind,
                block: block.0,
                site: site.map(|site| site.0),
                domain,
                space,
                counters: Counters {
                    executions: node.calls,
                    instructions: node.instructions,
                    events: node.events,
                    ..misses
                },
            }
        };
        self.nodes.into_iter().enumerate().map(with_misses).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entered(entry: u64) -> Entered {
        let (kind, block) = (CallKind::Call, BlockId(7));
        Entered { kind, block, site: None, entry, owner: (0, 1), space: 0 }
    }

    #[test]
    fn chains_end_at_the_longest_and_what_follows_counts_for_their_last_function() {
        let mut tree = CallTree::new();
        let mut node = ROOT;
        for _ in 0..2 * DEPTH {
            node = tree.child(node, &entered(0x1000));
            tree.charge(node, 1);
        }
        let nodes = tree.finish(&[]);
        assert_eq!(nodes.len(), usize::from(DEPTH) + 1);
        let last = nodes.last().expect("nodes").counters;
        assert_eq!((last.instructions, last.executions), (u64::from(DEPTH) + 1, 1));
    }

    #[test]
    fn further_nodes_than_the_most_are_the_root() {
        let mut tree = CallTree::new();
        for entry in 1..NODES as u64 {
            assert_ne!(tree.child(ROOT, &entered(entry)), ROOT);
        }
        assert_eq!(tree.child(ROOT, &entered(0)), ROOT);
        assert_eq!(tree.child(ROOT, &entered(5)), 5);
    }
}
