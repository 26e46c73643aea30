//! The program's own code, which stays in memory.

use std::io;
use std::ptr::with_exposed_provenance_mut;

use rustix::mm::{MlockFlags, mlock_with};

/// Locks the pages of the program and its libraries in memory: those that are there, and each other one from its first use on. For the start:
/// other files that are mapped by then are locked too.
///
/// A machine that is short of memory evicts code like other pages of files, and a thread that waits for it looks as one that waits for another
/// domain's memory.
///
/// # Errors
/// The program may not lock so much (`RLIMIT_MEMLOCK`), or there is no `/proc`.
pub fn lock_code() -> io::Result<()> {
    let maps = std::fs::read_to_string("/proc/self/maps")?;
    // "5581a000-5581c000 r-xp 00002000 08:01 1234   /usr/bin/pvnet"
    let of_files = maps.lines().filter(|line| line.contains(" /"));
    for (start, end) in of_files.filter_map(range) {
        let (start, len) = (with_exposed_provenance_mut(start), end - start);
        // SAFETY: it changes when the kernel may evict these pages, and nothing that the program sees of them.
        unsafe { mlock_with(start, len, MlockFlags::ONFAULT) }?;
    }
    Ok(())
}

/// The addresses of a mapping.
fn range(line: &str) -> Option<(usize, usize)> {
    let (start, end) = line.split_once(' ')?.0.split_once('-')?;
    let address = |text| usize::from_str_radix(text, 16).ok();
    Some((address(start)?, address(end)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapping_has_two_addresses() {
        assert_eq!(range("1000-2f00 r-xp 0 08:01 7 /bin/x"), Some((0x1000, 0x2f00)));
        assert_eq!(range("1000 /bin/x"), None);
    }

    #[test]
    fn code_is_locked_where_that_is_permitted() {
        let result = lock_code();
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let locked = status.lines().find_map(|line| line.strip_prefix("VmLck:"));
        assert!(result.is_err() || locked.unwrap().trim() != "0 kB", "{status}");
    }
}
