//! What a process gives up when it has started: capabilities, files, system calls.
//!
//! Capabilities and files are given up by one thread, and by all threads that it starts afterwards, so the process does
//! this before its second thread. System calls are given up by all threads at once, when everything is up.

#![forbid(unsafe_code)]

mod calls;
mod capabilities;
mod files;

pub use calls::{CallError, CallRules, restrict_calls, restrict_calls_of_thread};
pub use capabilities::keep_capabilities;
pub use files::{Enforcement, FileError, FileRules, restrict_files};
pub use rustix::thread::CapabilitySet;
