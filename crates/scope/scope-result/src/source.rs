//! Where code comes from, as the debug information of its program says.

use serde::{Deserialize, Serialize};

/// The source line of a part of a block: of instructions in a row.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceLine {
    /// The block: an index into [`Recording::blocks`](crate::Recording::blocks).
    pub block: u32,
    /// The bytes of the block before these instructions.
    pub offset: u16,
    /// The number of the instructions.
    pub instructions: u16,
    /// Their line; of inlined code, the line that was inlined.
    pub line: FileLine,
    /// The functions that were inlined there, the outermost first.
    pub inlined: Vec<Inlined>,
}

/// A line of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct FileLine {
    /// The file: an index into [`Recording::files`](crate::Recording::files).
    pub file: u32,
    /// The line, from 1; 0 for code that belongs to no line.
    pub line: u32,
}

/// An inlined function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Inlined {
    /// Its name: an index into [`Recording::inlined`](crate::Recording::inlined).
    pub name: u32,
    /// Where the function around it calls it.
    pub call: FileLine,
}

impl SourceLine {
    /// The line of the function that was not inlined: where it calls the outermost one, if there is one.
    #[must_use]
    pub fn outermost(&self) -> FileLine {
        self.inlined.first().map_or(self.line, |inlined| inlined.call)
    }
}
