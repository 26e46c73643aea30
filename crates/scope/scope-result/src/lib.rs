//! The recording: the file that the plugin writes and the reports read.
//!
//! ```text
//!  magic · version · length · CRC-32 · body (postcard)
//! ```
//!
//! The file is written under another name and then renamed, so a file with the final name is whole. A file that was cut short
//! or altered since is refused by its length or its checksum.

#![forbid(unsafe_code)]

mod file;
mod recording;

pub use file::{Error, VERSION, read, write};
pub use recording::{
    After, Block, BlockMisses, CallKind, CallNode, Checks, Domain, Event, EventKind, FileDigest,
    FileLine, FrameCounts, Function, Inlined, InterfaceFrames, LayoutCounts, Mode, Owner, Profile,
    Provenance, Recording, Sample, SourceLine, Step, Work,
};
