//! What the tracer sends to the recorder at a time.

use crate::access_groups::Member;
use crate::block_flow::BlockFlow;
use crate::block_id::BlockId;
use crate::blocks::BlockCode;
use crate::trace::LONGEST;

/// Words of a message: with this many, handing it over costs next to nothing.
const WORDS: usize = 1 << 16;

/// A message to the recorder. Waking its thread takes longer than all work for a block, so new blocks wait until the words
/// are full.
#[derive(Debug)]
pub struct Message {
    /// New blocks, numbered consecutively.
    pub blocks: Vec<BlockCode>,
    /// The flow of each new block, if the call graph is recorded.
    pub flows: Vec<BlockFlow>,
    /// The members of new indexed groups with their blocks, numbered consecutively.
    pub members: Vec<(BlockId, Box<[Member]>)>,
    /// The words of events.
    words: Box<[u64; WORDS]>,
    /// How many of the words are used.
    used: usize,
}

impl Message {
    /// An empty message.
    pub fn new() -> Self {
        // Allocated on the heap: it is too large for the stack.
        let words = vec![0; WORDS].into_boxed_slice().try_into();
        let words = words.unwrap_or_else(|_| Box::new([0; WORDS]));
        Self { blocks: Vec::new(), flows: Vec::new(), members: Vec::new(), words, used: 0 }
    }

    /// The words of events.
    pub fn words(&self) -> &[u64] {
        self.words.get(..self.used).unwrap_or_default()
    }

    /// Empties the message.
    pub fn clear(&mut self) {
        self.blocks.clear();
        self.flows.clear();
        self.members.clear();
        self.used = 0;
    }

    /// Adds a word. Returns whether there was space.
    #[inline]
    pub fn add(&mut self, word: u64) -> bool {
        let Some(place) = self.words.get_mut(self.used) else { return false };
        *place = word;
        self.used += 1;
        true
    }

    /// Whether there is space for any event.
    pub fn has_space(&self) -> bool {
        self.used + LONGEST <= WORDS
    }
}
