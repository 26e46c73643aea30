//! Memory whose file another process can cut short.
//!
//! An access to a page that lies behind the end of its file, or for which the kernel has no huge page, raises SIGBUS.
//! The handler here replaces the whole region by private memory, in which the access is then repeated. It looks up the
//! address in a fixed table of guarded regions; a SIGBUS elsewhere ends the process as ever.

use std::ffi::c_int;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

/// The most guarded regions of a process.
const REGIONS_MAX: usize = 4096;

/// A guarded region. Free while `start` is zero.
struct Slot {
    start: AtomicUsize,
    len: AtomicUsize,
    is_lost: AtomicBool,
}

static SLOTS: [Slot; REGIONS_MAX] = [const {
    Slot { start: AtomicUsize::new(0), len: AtomicUsize::new(0), is_lost: AtomicBool::new(false) }
}; REGIONS_MAX];

/// All slots from this one on have always been free.
static USED: AtomicUsize = AtomicUsize::new(0);

/// One region is added at a time. The handler takes no lock.
static ADDING: Mutex<()> = Mutex::new(());

/// What SIGBUS did before, or the error that kept the handler from being installed.
static BEFORE: OnceLock<Result<libc::sigaction, i32>> = OnceLock::new();

/// How many regions have been lost: as long as it is none, no region is looked up.
static LOST: AtomicUsize = AtomicUsize::new(0);

/// Guards the `len` bytes at `start`, which are a mapping that was just made.
pub(super) fn guard(start: usize, len: usize) -> io::Result<()> {
    if let Err(errno) = BEFORE.get_or_init(install) {
        return Err(io::Error::from_raw_os_error(*errno));
    }
    let _adding = ADDING.lock().unwrap_or_else(PoisonError::into_inner);
    let free = SLOTS.iter().position(|slot| slot.start.load(Ordering::Relaxed) == 0);
    let number = free.ok_or_else(|| io::Error::other("too many guarded regions"))?;
    let slot = &SLOTS[number];
    slot.len.store(len, Ordering::Relaxed);
    slot.is_lost.store(false, Ordering::Relaxed);
    slot.start.store(start, Ordering::Release);
    USED.fetch_max(number + 1, Ordering::Release);
    Ok(())
}

/// Guards the region at `start` no more, if it was guarded. It is about to be unmapped.
pub(super) fn release(start: usize) {
    if let Some(slot) = slot_of(start) {
        slot.start.store(0, Ordering::Release);
    }
}

/// Whether the region at `start` was lost.
#[inline]
pub(super) fn is_lost(start: usize) -> bool {
    LOST.load(Ordering::Relaxed) > 0
        && slot_of(start).is_some_and(|slot| slot.is_lost.load(Ordering::Relaxed))
}

fn slot_of(start: usize) -> Option<&'static Slot> {
    let used = &SLOTS[..USED.load(Ordering::Acquire)];
    used.iter().find(|slot| slot.start.load(Ordering::Acquire) == start)
}

fn install() -> Result<libc::sigaction, i32> {
    let errno = || io::Error::last_os_error().raw_os_error().unwrap_or(libc::EINVAL);
    // SAFETY: a sigaction is integers and pointers, for which zeroes are valid values.
    let mut before: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: as above.
    let mut ours: libc::sigaction = unsafe { std::mem::zeroed() };
    let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut libc::c_void) = on_bus_error;
    ours.sa_sigaction = handler as usize;
    ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
    // SAFETY: both point to a sigaction; the handler calls only what a signal handler may.
    match unsafe { libc::sigaction(libc::SIGBUS, &raw const ours, &raw mut before) } {
        0 => Ok(before),
        _ => Err(errno()),
    }
}

/// Replaces the guarded region of the address, or restores what SIGBUS did before: the access is then repeated.
extern "C" fn on_bus_error(signal: c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel passes a siginfo, and SIGBUS has an address.
    let address = unsafe { (*info).si_addr() } as usize;
    if replace_region_of(address) {
        return;
    }
    if let Some(Ok(before)) = BEFORE.get() {
        // SAFETY: the action that was in force before.
        unsafe { libc::sigaction(signal, before, std::ptr::null_mut()) };
    } else {
        // Between the installation and the note of what was before it. SAFETY: the default action.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
}

/// Called by the handler: no locks, no allocation.
fn replace_region_of(address: usize) -> bool {
    for slot in &SLOTS[..USED.load(Ordering::Acquire)] {
        let start = slot.start.load(Ordering::Acquire);
        let len = slot.len.load(Ordering::Relaxed);
        if start == 0 || address.wrapping_sub(start) >= len {
            continue;
        }
        slot.is_lost.store(true, Ordering::Relaxed);
        LOST.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the range is that of a region which the interrupted thread accesses, so it is mapped, belongs to
        // that region alone, and stays so. Its bytes may change at any moment, as those of every region.
        let replaced = unsafe {
            libc::mmap(
                start as *mut libc::c_void,
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        return replaced != libc::MAP_FAILED;
    }
    false
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;
    use std::sync::Arc;

    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    use crate::Region;

    #[test]
    fn a_file_that_is_cut_short_ends_the_region_and_not_the_process() {
        let fd = memfd_create("test", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&fd, 4 * 4096).unwrap();
        let region = Arc::new(Region::map_guarded(&fd, 0, 4 * 4096).unwrap());
        let other = Region::map_guarded(&fd, 0, 4096).unwrap();
        let slice = region.slice(4096..8192).unwrap();
        region.write(2 * 4096, 7u8).unwrap();
        ftruncate(&fd, 4096).unwrap();
        assert!(!region.is_lost());
        assert_eq!(region.read::<u8>(2 * 4096), Ok(0));
        assert!(region.is_lost() && slice.is_lost() && !other.is_lost());
        region.write(3 * 4096, 9u8).unwrap();
        assert_eq!(region.read::<u8>(3 * 4096), Ok(9));
        drop((region, slice));
        let again = Region::map_guarded(&fd, 0, 4096).unwrap();
        assert!(!again.is_lost(), "a slot that is used again");
    }

    #[test]
    #[ignore = "a_bus_error_elsewhere_still_ends_the_process runs it"]
    fn bus_error_elsewhere() {
        let fd = memfd_create("test", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&fd, 8192).unwrap();
        let _guarded = Region::map_guarded(&fd, 0, 4096).unwrap();
        let region = Region::map(&fd, 4096, 4096).unwrap();
        ftruncate(&fd, 4096).unwrap();
        let _ = region.read::<u8>(0);
    }

    #[test]
    fn a_bus_error_elsewhere_still_ends_the_process() {
        let mut command = Command::new(std::env::current_exe().unwrap());
        let test = "region::guarded::tests::bus_error_elsewhere";
        let output = command.args(["--exact", test, "--ignored"]).output().unwrap();
        assert_eq!(output.status.signal(), Some(libc::SIGBUS), "{output:?}");
    }
}
