//! What a process gives up when it has started: capabilities, files, system calls.
//!
//! Capabilities and files are given up by one thread, and by all threads that it starts afterwards, so the process does
//! this before its second thread. System calls are given up by all threads at once, when everything is up.

#![forbid(unsafe_code)]

mod calls;
mod files;

use rustix::io::Result;
use rustix::thread::{
    CapabilitySets, capabilities, capability_is_in_bounding_set,
    remove_capability_from_bounding_set, set_capabilities,
};

pub use calls::{CallError, CallRules, restrict_calls, restrict_calls_of_thread};
pub use files::{Enforcement, FileError, FileRules, restrict_files};
pub use rustix::thread::CapabilitySet;

/// Gives up every capability but the wanted ones, in the calling thread and in the threads and programs that it starts.
/// Returns those that it had and keeps.
///
/// # Errors
/// The kernel's, if it knows no capabilities.
pub fn keep_capabilities(wanted: CapabilitySet) -> Result<CapabilitySet> {
    let sets = capabilities(None)?;
    let kept = sets.permitted & wanted;
    // Programs that root starts have the bounding set. Without SETPCAP it stays, and no_new_privs bounds them.
    if sets.effective.contains(CapabilitySet::SETPCAP) {
        for capability in CapabilitySet::all().difference(kept).iter() {
            // Older kernels have fewer capabilities.
            if capability_is_in_bounding_set(capability).unwrap_or(false) {
                remove_capability_from_bounding_set(capability)?;
            }
        }
    }
    let inheritable = sets.inheritable & kept;
    set_capabilities(None, CapabilitySets { effective: kept, permitted: kept, inheritable })?;
    Ok(kept)
}
