//! Memory whose file another process can cut short.
//!
//! An access to a page that lies behind the end of its file, or for which the kernel has no huge page, raises SIGBUS.
//! The handler here replaces the region, or what the kernel permits of it, by private memory, in which the access is then repeated. It looks
//! up the address in a fixed table of guarded regions; a SIGBUS elsewhere ends the process as ever.

use std::ffi::c_int;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
use std::sync::{Mutex, OnceLock, PoisonError};

use rustix::fs::{MemfdFlags, memfd_create};

use super::record::{self, WORDS, Words};
use crate::PageSize;

/// The most guarded regions of a process: as many mappings as the kernel allows by default (`vm.max_map_count`).
const REGIONS_MAX: usize = 65_536;
/// The largest page that a file of memory can have.
const GIGANTIC: usize = 1_073_741_824;

/// The record of a guarded region, and whether it was lost.
#[derive(Debug)]
struct Slot {
    words: [AtomicUsize; WORDS],
    is_lost: AtomicBool,
}

impl Words for Slot {
    fn load(&self, word: usize, order: Ordering) -> usize {
        self.words[word].load(order)
    }

    fn store(&self, word: usize, value: usize, order: Ordering) {
        self.words[word].store(value, order);
    }

    fn fence(&self, order: Ordering) {
        fence(order);
    }
}

static SLOTS: [Slot; REGIONS_MAX] = [const {
    Slot { words: [const { AtomicUsize::new(0) }; WORDS], is_lost: AtomicBool::new(false) }
}; REGIONS_MAX];

/// All slots from this one on have always been free.
static USED: AtomicUsize = AtomicUsize::new(0);

/// The slot before which none is free. One record changes at a time; the handler takes no lock.
static CHANGING: Mutex<usize> = Mutex::new(0);

/// What SIGBUS did before, or the error that kept the handler from being installed.
static BEFORE: OnceLock<Result<libc::sigaction, i32>> = OnceLock::new();

/// Whether the kernel charges private memory when it is mapped, and not when it is used.
static IS_CHARGED: AtomicBool = AtomicBool::new(false);

/// How many regions have been lost. While it is 0, no slot needs a check.
static LOST: AtomicUsize = AtomicUsize::new(0);

/// Guards a region until it is dropped, which must be before the region is unmapped: another mapping may come to lie there at once.
#[derive(Debug)]
pub(super) struct Guard(usize);

impl Guard {
    /// Guards the `len` bytes at `start`, which are a mapping that was just made.
    pub(super) fn new(start: usize, len: usize) -> io::Result<Self> {
        if let Err(errno) = BEFORE.get_or_init(install) {
            return Err(io::Error::from_raw_os_error(*errno));
        }
        let mut first = CHANGING.lock().unwrap_or_else(PoisonError::into_inner);
        let free = (*first..REGIONS_MAX).find(|number| record::is_free(&SLOTS[*number]));
        let number = free.ok_or_else(|| io::Error::other("too many guarded regions"))?;
        let slot = &SLOTS[number];
        slot.is_lost.store(false, Ordering::Relaxed);
        record::publish(slot, start, len);
        USED.fetch_max(number + 1, Ordering::Release);
        *first = number + 1;
        Ok(Self(number))
    }

    /// Whether the region was lost.
    pub(super) fn is_lost(&self) -> bool {
        SLOTS[self.0].is_lost.load(Ordering::Relaxed)
    }

    /// Replaces the guarded region, which is the `len` bytes at `start`: by private memory, or, if that is refused or charged, by a file without
    /// a page, whose pages the handler replaces when they are touched.
    pub(super) fn revoke(&self, start: usize, len: usize) -> io::Result<()> {
        SLOTS[self.0].is_lost.store(true, Ordering::Relaxed);
        LOST.fetch_add(1, Ordering::Relaxed);
        let len = len.next_multiple_of(PageSize::Small.bytes());
        if !IS_CHARGED.load(Ordering::Relaxed) && replace(start, len) {
            return Ok(());
        }
        let empty = memfd_create("pvnet-revoked", MemfdFlags::CLOEXEC)?;
        match replace_by(start, len, libc::MAP_SHARED, empty.as_raw_fd()) {
            true => Ok(()),
            false => Err(io::Error::last_os_error()),
        }
    }
}

/// Whether any region has ever been lost.
#[inline]
pub(super) fn is_any_lost() -> bool {
    LOST.load(Ordering::Relaxed) > 0
}

impl Drop for Guard {
    fn drop(&mut self) {
        // So a region that comes to lie here, and is guarded, is guarded after this.
        let mut first = CHANGING.lock().unwrap_or_else(PoisonError::into_inner);
        record::retire(&SLOTS[self.0]);
        *first = self.0.min(*first);
    }
}

fn install() -> Result<libc::sigaction, i32> {
    // With strict overcommit the kernel ignores `MAP_NORESERVE`.
    let overcommit = std::fs::read("/proc/sys/vm/overcommit_memory");
    let is_strict = overcommit.is_ok_and(|mode| mode.starts_with(b"2"));
    IS_CHARGED.store(is_strict, Ordering::Relaxed);
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
///
/// The region of the address is in use by the interrupted thread: its record does not change, and no other record has the address.
fn replace_region_of(address: usize) -> bool {
    for slot in &SLOTS[..USED.load(Ordering::Acquire)] {
        let Some((start, len)) = record::region_of(slot, address) else { continue };
        slot.is_lost.store(true, Ordering::Relaxed);
        LOST.fetch_add(1, Ordering::Relaxed);
        return replace_some_of(start, len, address);
    }
    false
}

/// Replaces the region of `len` bytes at `start`, or at least the page of `address`.
///
/// Whoever made the region's file chose the length, and the kernel may refuse as much memory, or charge it, so that others get none. The
/// rest is replaced when it is touched: no more than a turn of a worker touches, because the region is lost.
fn replace_some_of(start: usize, len: usize, address: usize) -> bool {
    let len = len.next_multiple_of(PageSize::Small.bytes());
    if !IS_CHARGED.load(Ordering::Relaxed) && replace(start, len) {
        return true;
    }
    // The file's pages may be of any of these sizes, and none of them can be replaced in part.
    [PageSize::Small.bytes(), PageSize::Huge.bytes(), GIGANTIC].into_iter().any(|page| {
        let from = address - address % page;
        let is_inside = from >= start && from - start + page <= len;
        is_inside && replace(from, page)
    })
}

/// Replaces `len` bytes at `start` by zeroed private memory. If this fails, the mapping there is as it was.
fn replace(start: usize, len: usize) -> bool {
    replace_by(start, len, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE, -1)
}

/// Replaces `len` bytes at `start` by such a mapping. If this fails, the mapping there is as it was.
///
/// The new one is mapped elsewhere first. A mapping with `MAP_FIXED` that the kernel refuses for want of memory has already removed what was
/// there (before Linux 6.12), and another thread's mapping could take its place.
fn replace_by(start: usize, len: usize, flags: c_int, file: c_int) -> bool {
    // SAFETY: a new mapping at an address that the kernel chooses overlaps nothing.
    let fresh = unsafe {
        libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ | libc::PROT_WRITE, flags, file, 0)
    };
    if fresh == libc::MAP_FAILED {
        return false;
    }
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    // SAFETY: the range at `start` is that of a region which the interrupted thread accesses or the caller has, or lies in it: it is mapped, belongs to that
    // region alone, and stays so. Its bytes may change at any moment, as those of every region. Nobody else knows of the fresh mapping.
    let moved = unsafe {
        libc::mremap(fresh, len, len, flags, std::ptr::without_provenance_mut::<u8>(start))
    };
    if moved == libc::MAP_FAILED {
        // SAFETY: mapped above, and not moved.
        let _ = unsafe { libc::munmap(fresh, len) };
        return false;
    }
    true
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;
    use std::sync::Arc;

    use rustix::fs::ftruncate;

    use super::*;
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
    fn a_region_that_is_revoked_is_private_for_whoever_has_it() {
        let fd = memfd_create("test", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&fd, 4 * 4096).unwrap();
        let region = Arc::new(Region::map_guarded(&fd, 0, 4 * 4096).unwrap());
        let slice = region.slice(4096..8192).unwrap();
        let other = Region::map_guarded(&fd, 0, 4 * 4096).unwrap();
        slice.write(0, 7u8).unwrap();
        slice.revoke().unwrap();
        assert!(region.is_lost() && slice.is_lost() && !other.is_lost());
        assert_eq!((slice.read::<u8>(0), other.read::<u8>(4096)), (Ok(0), Ok(7)));
        slice.write(0, 9u8).unwrap();
        assert_eq!((slice.read::<u8>(0), other.read::<u8>(4096)), (Ok(9), Ok(7)));
        assert!(Region::map(&fd, 0, 4096).unwrap().revoke().is_err(), "not guarded");
    }

    /// The kernel refuses this much private memory from now on, as it does under strict overcommit.
    fn limit_private_memory(len: usize) {
        let limit = libc::rlimit { rlim_cur: len as u64 / 2, rlim_max: len as u64 / 2 };
        // SAFETY: points to a limit.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_DATA, &raw const limit) }, 0);
        assert!(Region::anonymous(len).is_err(), "this kernel does not limit private memory");
    }

    #[test]
    #[ignore = "a_region_for_which_there_is_no_memory_is_replaced_by_the_page runs it"]
    fn region_that_cannot_be_replaced() {
        const LEN: usize = 1 << 30;
        let fd = memfd_create("test", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&fd, LEN as u64).unwrap();
        let region = Region::map_guarded(&fd, 0, LEN).unwrap();
        limit_private_memory(LEN);
        region.write(8192, 5u8).unwrap();
        ftruncate(&fd, 4096).unwrap();
        for page in [1, 2, 3, LEN / 4096 / 2, LEN / 4096 - 1] {
            assert_eq!(region.read::<u8>(page * 4096), Ok(0));
            region.write(page * 4096, 7u8).unwrap();
            assert_eq!(region.read::<u8>(page * 4096), Ok(7));
        }
        assert!(region.is_lost());
    }

    #[test]
    #[ignore = "a_region_for_which_there_is_no_memory_is_replaced_by_the_page runs it"]
    fn region_that_is_revoked_without_memory() {
        const LEN: usize = 1 << 30;
        let fd = memfd_create("test", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&fd, LEN as u64).unwrap();
        let region = Region::map_guarded(&fd, 0, LEN).unwrap();
        let other = Region::map(&fd, 0, LEN).unwrap();
        region.write(8192, 5u8).unwrap();
        limit_private_memory(LEN);
        region.revoke().unwrap();
        for page in [1, 2, 3, LEN / 4096 / 2, LEN / 4096 - 1] {
            let before = other.read::<u8>(page * 4096);
            assert_eq!(region.read::<u8>(page * 4096), Ok(0));
            region.write(page * 4096, 7u8).unwrap();
            assert_eq!(region.read::<u8>(page * 4096), Ok(7));
            assert_eq!(other.read::<u8>(page * 4096), before, "it is still the other side's");
        }
        assert!(region.is_lost() && other.read(8192) == Ok(5u8));
    }

    #[test]
    fn a_region_for_which_there_is_no_memory_is_replaced_by_the_page() {
        for test in ["region_that_cannot_be_replaced", "region_that_is_revoked_without_memory"] {
            let mut command = Command::new(std::env::current_exe().unwrap());
            let test = format!("region::guarded::tests::{test}");
            let output = command.args(["--exact", &test, "--ignored"]).output().unwrap();
            assert!(output.status.success(), "{output:?}");
        }
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
