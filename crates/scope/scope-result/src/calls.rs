//! The call graph: one node for each chain of calls.

use scope_model::Counters;
use serde::{Deserialize, Serialize};

/// A function that was entered by one chain of calls. [`Recording::calls`](crate::Recording::calls) has the parents before their
/// children; the first node is the root, which no code belongs to and which is its own parent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallNode {
    /// The caller: an index into [`Recording::calls`](crate::Recording::calls).
    pub parent: u32,
    /// How the execution comes here.
    pub kind: CallKind,
    /// The block that was entered first, and so the function: an index into [`Recording::blocks`](crate::Recording::blocks).
    pub block: u32,
    /// The block that called first; none for a node below the root.
    pub site: Option<u32>,
    /// The domain that ran then: an index into [`Recording::domains`](crate::Recording::domains).
    pub domain: u8,
    /// The root of the page tables then.
    pub space: u64,
    /// The counts without those of its children. The executions are the calls; accesses are not counted.
    pub counters: Counters,
}

/// How the execution comes to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum CallKind {
    /// By a call.
    Call,
    /// By a jump to another function, as in a tail call: both return to the caller of the first.
    Jump,
    /// By a system call, a hypercall or an exception of the parent.
    Trap,
    /// By an interrupt. Its parent is the root.
    Interrupt,
    /// The caller was not seen: it called before the recording began. Its parent is the root.
    Unknown,
}
