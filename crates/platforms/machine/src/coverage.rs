//! How much of a domain's memory large pages map, from the kernel's smaps.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};

use hypervisor::PAGE_SIZE;

use crate::domain::Domain;

/// How much of a domain's ordinary memory large pages map in one address space.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Coverage {
    /// Bytes that pages of 2 MiB map.
    pub large: u64,
    /// Bytes of memory, without what the domain has given up.
    pub total: u64,
}

impl Coverage {
    /// The part that large pages map, 0 to 1; 0 of no memory.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a share needs no more than 53 bits")]
    pub fn share(self) -> f64 {
        if self.total == 0 { 0.0 } else { self.large as f64 / self.total as f64 }
    }
}

/// A process's mappings, and what large pages map of each, at one moment. The kernel walks page tables for this:
/// milliseconds for gigabytes of memory.
#[derive(Debug)]
pub struct AddressSpace {
    mappings: Vec<Mapping>,
}

/// A mapping of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Mapping {
    inode: u64,
    /// The byte of the file at its start.
    offset: u64,
    /// Bytes that large pages map.
    large: u64,
}

impl AddressSpace {
    /// This process's.
    pub fn of_self() -> io::Result<Self> {
        Self::read("/proc/self/smaps")
    }

    /// Another process's, by its number. Needs the rights to look into it: its user, or root.
    pub fn of_process(process: u32) -> io::Result<Self> {
        Self::read(&format!("/proc/{process}/smaps"))
    }

    fn read(path: &str) -> io::Result<Self> {
        Self::parse(BufReader::new(File::open(path)?.take(LONGEST)))
    }

    /// Fails for a list that is too long for a well-behaved process.
    fn parse(mut smaps: impl BufRead) -> io::Result<Self> {
        let mut mappings: Vec<Mapping> = Vec::new();
        let mut line = String::new();
        let mut read = 0;
        while smaps.read_line(&mut line)? > 0 {
            read += line.len() as u64;
            match line.trim_end().split_once(": ") {
                Some((key, value)) if LARGE.contains(&key) => {
                    if let Some(mapping) = mappings.last_mut() {
                        mapping.large += kilobytes(value) * 1024;
                    }
                }
                _ => mappings.extend(mapping(&line)),
            }
            line.clear();
        }
        if read >= LONGEST {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        Ok(Self { mappings })
    }
}

/// Most bytes of smaps that are read: some thousand mappings. A guest may have 65,530, to make this
/// slow.
const LONGEST: u64 = 4 << 20;
/// The fields of smaps for large pages, by the kind of memory.
const LARGE: [&str; 3] = ["AnonHugePages", "ShmemPmdMapped", "FilePmdMapped"];

fn kilobytes(value: &str) -> u64 {
    let number = value.trim().strip_suffix(" kB").and_then(|number| number.parse().ok());
    number.unwrap_or(0)
}

/// The mapping that a line of smaps begins: `start-end perms offset dev inode`.
fn mapping(line: &str) -> Option<Mapping> {
    let mut fields = line.split_ascii_whitespace();
    fields.next()?.split_once('-')?;
    let offset = u64::from_str_radix(fields.nth(1)?, 16).ok()?;
    let inode = fields.nth(1)?.parse().ok()?;
    Some(Mapping { inode, offset, large: 0 })
}

impl Domain {
    /// How much of the domain's ordinary memory large pages map in `space`, its own or this
    /// process's.
    #[must_use]
    pub fn coverage(&self, space: &AddressSpace) -> Coverage {
        let inode = rustix::fs::fstat(self.fd()).map_or(0, |file| file.st_ino);
        let end = (self.size().pages * PAGE_SIZE) as u64;
        let total = end - (self.pages_out() * PAGE_SIZE) as u64;
        let is_own = |mapping: &&Mapping| mapping.inode == inode && mapping.offset < end;
        let large = space.mappings.iter().filter(is_own).map(|mapping| mapping.large).sum();
        Coverage { large, total }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMAPS: &str = "\
55d0-55e0 r-xp 00001000 fe:00 77                 /usr/bin/with: a colon
Size:                 64 kB
AnonHugePages:         0 kB
VmFlags: rd ex
7f00-7f20 rw-s 00200000 00:01 4242               /memfd:pvnet-domain-1 (deleted)
Size:               8192 kB
AnonHugePages:         0 kB
ShmemPmdMapped:     6144 kB
FilePmdMapped:      2048 kB
VmFlags: rd wr
7f20-7f30 rw-p 00000000 00:00 0
AnonHugePages:      2048 kB
";

    #[test]
    fn the_kernels_list_of_mappings_is_parsed() {
        let space = AddressSpace::parse(SMAPS.as_bytes()).unwrap();
        let mapping = |inode, offset, large| Mapping { inode, offset, large };
        let expected =
            [mapping(77, 0x1000, 0), mapping(4242, 0x20_0000, 8 << 20), mapping(0, 0, 2 << 20)];
        assert_eq!(space.mappings, expected);
    }

    #[test]
    fn an_endless_list_is_an_error() {
        let endless = "7f00-7f20 rw-s 00200000 00:01 4242\n".repeat(200_000);
        let error = AddressSpace::parse(endless.as_bytes().take(LONGEST)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::FileTooLarge);
    }

    #[test]
    fn a_share_of_nothing_is_none() {
        assert_eq!(Coverage { large: 1, total: 4 }.share(), 0.25);
        assert_eq!(Coverage::default().share(), 0.0);
    }

    #[test]
    fn a_process_that_is_gone_has_no_address_space() {
        assert!(AddressSpace::of_process(u32::MAX).is_err());
    }
}
