//! What a run found: the file that the plugin writes and the reports read.
//!
//! ```text
//!  magic · version · length · CRC-32 · body (postcard)
//! ```
//!
//! It is written under another name and then renamed, so a file that has the name is whole; one that was
//! cut short or altered since is refused by its length and its sum.

#![forbid(unsafe_code)]

mod file;
mod recording;

pub use file::{Error, read, write};
pub use recording::{
    After, Block, Checks, Domain, Event, EventKind, Function, Mode, Owner, Profile, Recording,
    Sample, Step, Work,
};
