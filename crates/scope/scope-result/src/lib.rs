//! The recording: the file that the plugin writes and the reports read.
//!
//! ```text
//!  magic · version · length · CRC-32 · body (postcard)
//! ```
//!
//! The file is written under another name and then renamed, so a file with the final name is whole. A file that was cut short
//! or altered since is refused by its length or its checksum.

#![forbid(unsafe_code)]

mod calls;
mod file;
mod frames;
mod layouts;
mod provenance;
mod recording;
mod source;

pub use calls::{CallKind, CallNode};
pub use file::{Error, VERSION, read, write};
pub use frames::{FrameCounts, InterfaceFrames};
pub use layouts::{BlockMisses, LayoutCounts};
pub use provenance::{FileDigest, Provenance};
pub use recording::{
    After, Block, Checks, Domain, Event, EventKind, Function, Mode, Owner, Profile, Recording,
    Sample, Step, Work,
};
pub use source::{FileLine, Inlined, SourceLine};
