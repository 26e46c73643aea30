//! Misses under several layouts of a program.

use scope_model::LayoutMisses;
use serde::{Deserialize, Serialize};

/// Misses under several layouts of a program at once. Interrupts are left out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayoutCounts {
    /// The misses of each layout.
    pub layouts: Vec<LayoutMisses>,
    /// The misses of each block, by its number, under all layouts together.
    pub blocks: Vec<BlockMisses>,
}

/// The misses of a block under all layouts together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockMisses {
    /// Lines of code and data that L1 missed.
    pub lines: u64,
    /// Pages of data that the DTLBs of all sizes missed.
    pub pages: u64,
}
