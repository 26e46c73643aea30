//! Where code comes from, as the debug information of its program says.

use serde::{Deserialize, Serialize};

/// The source line of a block's first instruction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceLine {
    /// The block: an index into [`Recording::blocks`](crate::Recording::blocks).
    pub block: u32,
    /// The file: an index into [`Recording::files`](crate::Recording::files).
    pub file: u32,
    /// The line, from 1; 0 for code that belongs to no line.
    pub line: u32,
    /// The functions that were inlined there, the outermost first.
    pub inlined: Vec<Inlined>,
}

/// An inlined function.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inlined {
    /// Its name.
    pub name: String,
}
