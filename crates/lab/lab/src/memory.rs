//! The memory of a process.

use crate::{Error, Result};
use std::fs;

/// Resident memory of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rss {
    /// All of it, in bytes.
    pub bytes: u64,
    /// The part that is shared memory, such as guests' memory in a memfd, in bytes.
    pub shmem_bytes: u64,
}

impl Rss {
    /// The memory of process `pid` now.
    pub fn of(pid: u32) -> Result<Self> {
        let text =
            fs::read_to_string(format!("/proc/{pid}/status")).map_err(|_| Error::Gone { pid })?;
        // The status of a zombie has no memory lines.
        Self::parse(&text)
            .ok_or_else(|| Error::parse(format!("/proc/{pid}/status"), "no VmRSS or RssShmem"))
    }

    fn parse(status: &str) -> Option<Self> {
        let kib = |name: &str| {
            let value =
                status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
            value.trim().strip_suffix(" kB")?.parse::<u64>().ok()
        };
        Some(Self { bytes: kib("VmRSS")? * 1024, shmem_bytes: kib("RssShmem")? * 1024 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATUS: &str = "Name:\tpvnet\nVmHWM:\t    3952 kB\nVmRSS:\t    3940 kB\nRssAnon:\t     968 kB\n\
        RssFile:\t    2972 kB\nRssShmem:\t     512 kB\n";

    #[test]
    fn the_kernels_lines() {
        let rss = Rss::parse(STATUS).expect("recorded");
        assert_eq!(rss, Rss { bytes: 3940 * 1024, shmem_bytes: 512 * 1024 });
        assert_eq!(Rss::parse("Name:\tzombie\nState:\tZ (zombie)\n"), None);
    }

    #[test]
    fn this_process_has_some_and_a_missing_one_is_gone() {
        assert!(Rss::of(std::process::id()).expect("own").bytes > 0);
        assert!(matches!(Rss::of(u32::MAX), Err(Error::Gone { .. })));
    }
}
