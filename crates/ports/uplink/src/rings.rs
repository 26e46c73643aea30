//! Rings by which several frames are written by one system call, as far as the kernel has them.
//!
//! A system call of a paravirtual dom0 goes through Xen, which changes the page tables twice for it; so on such a host the daemon opens
//! rings, before it gives up the calls that make them. Elsewhere a call costs little more than an entry of a ring.

use std::io;
use std::sync::{Mutex, MutexGuard, OnceLock};

use crate::sys::ring::Ring;

/// The rings of this process. Like its filter of system calls they are set once.
static RINGS: OnceLock<Vec<Mutex<Ring>>> = OnceLock::new();

/// Opens as many rings as threads write at the same time, for all [`TapEgress`](crate::TapEgress)es of this process.
///
/// # Errors
/// The kernel has no io_uring, or its operator has switched it off (`kernel.io_uring_disabled`). Each frame is written by a call of its own then.
pub fn open_rings(threads: usize) -> io::Result<()> {
    let rings =
        (0..threads).map(|_| Ring::open().map(Mutex::new)).collect::<io::Result<Vec<_>>>()?;
    // They stay as they were first opened.
    let _ = RINGS.set(rings);
    Ok(())
}

/// Whether this kernel would let a process have rings.
pub fn try_ring() -> io::Result<()> {
    Ring::open().map(drop)
}

/// Whether there are rings.
#[must_use]
pub fn has_rings() -> bool {
    RINGS.get().is_some()
}

/// A ring that nobody uses. There is none if a thread was replaced that sleeps in a call.
pub(crate) fn free_ring() -> Option<MutexGuard<'static, Ring>> {
    RINGS.get()?.iter().find_map(|ring| ring.try_lock().ok().filter(|ring| ring.is_usable()))
}
