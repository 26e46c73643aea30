//! Where QEMU keeps the guest's memory, and at which physical addresses the guest has it.

use scope_model::{Paging, PhysicalMemory, walk};

/// The name in `/proc/self/maps` of the memory that QEMU makes for `-object memory-backend-memfd`.
const MEMFD_NAME: &str = "/memfd:memory-backend-memfd";
/// Where the memory above the device hole begins.
const ABOVE: u64 = 1 << 32;

/// Finds the guest's memory in the text of QEMU's `/proc/self/maps`. Returns its address and its length in bytes.
///
/// # Errors
/// In words, if there is none or more than one.
pub fn shared_memory(maps: &str) -> Result<(u64, u64), String> {
    let lines = maps.lines().filter(|line| line.contains(MEMFD_NAME)).filter_map(range);
    let mut whole: Option<(u64, u64)> = None;
    for (first, end) in lines {
        whole = match whole {
            None => Some((first, end)),
            // The kernel splits a mapping whose parts have different flags.
            Some((from, to)) if to == first => Some((from, end)),
            Some(_) => {
                return Err("the machine has several memory backends, and only one can be read: use one -object \
                            memory-backend-memfd, and neither -numa node,memdev= nor memory devices"
                    .to_owned());
            }
        };
    }
    let missing = "the machine's memory is not shared: QEMU needs -object memory-backend-memfd and -machine \
                   memory-backend=; `pvscope run` adds both if the command line has no backend";
    whole.map(|(first, end)| (first, end - first)).ok_or_else(|| missing.to_owned())
}

/// The address range of a line of the text: its start and its end.
fn range(line: &str) -> Option<(u64, u64)> {
    let (first, end) = line.split_once(' ')?.0.split_once('-')?;
    let first = u64::from_str_radix(first, 16).ok()?;
    let end = u64::from_str_radix(end, 16).ok()?;
    (first <= end).then_some((first, end))
}

/// The physical addresses of the memory: from 0 on, and what lies above the device hole from 4 GiB on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryMap {
    bytes: u64,
    low: u64,
}

impl MemoryMap {
    /// Memory of `bytes` bytes, of which the first `low` lie below the device hole; all of them if none.
    #[must_use]
    pub fn new(bytes: u64, low: Option<u64>) -> Self {
        Self { bytes, low: low.unwrap_or(bytes).min(bytes) }
    }

    /// The address after the last byte.
    #[must_use]
    pub fn end(&self) -> u64 {
        if self.low < self.bytes { ABOVE + (self.bytes - self.low) } else { self.bytes }
    }

    /// The index of the 8-byte word at a physical address; none where there is no memory.
    #[inline]
    #[must_use]
    pub fn word(&self, address: u64) -> Option<usize> {
        let at = if address < self.low {
            address
        } else {
            address.checked_sub(ABOVE)?.checked_add(self.low)?
        };
        // A word at the end that is not whole is left out.
        usize::try_from(at / 8).ok().filter(|_| at < self.bytes & !7)
    }
}

/// Reads the bytes at a virtual address through the page tables. Returns none where nothing is mapped.
#[must_use]
pub fn bytes_at<const COUNT: usize>(
    memory: &impl PhysicalMemory,
    paging: Paging,
    address: u64,
) -> Option<[u8; COUNT]> {
    let mut bytes = [0; COUNT];
    for (address, byte) in (address..).zip(&mut bytes) {
        let physical = walk(memory, paging, address)?.physical(address);
        let word = memory.read(physical & !7)?.to_le_bytes();
        *byte = *word.get(usize::try_from(physical & 7).ok()?)?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    const OTHER: &str = "7e0000000000-7e0080000000 rw-p 00000000 00:00 0\n";
    const OWN: &str =
        "7f0000000000-7f0080000000 rw-s 00000000 00:01 9  /memfd:memory-backend-memfd (deleted)\n";

    #[test]
    fn the_memory_is_found_by_its_name() {
        let found = Ok((0x7f00_0000_0000, 0x8000_0000));
        assert_eq!(shared_memory(&format!("{OTHER}{OWN}{OTHER}")), found);
        assert!(shared_memory(OTHER).unwrap_err().contains("is not shared"));
    }

    #[test]
    fn parts_of_one_memory_are_one_and_two_memories_are_refused() {
        let line = |first: u64, end: u64| {
            OWN.replace("7f0000000000-7f0080000000", &format!("{first:x}-{end:x}"))
        };
        let parts = format!("{}{}", line(0x1000, 0x2000), line(0x2000, 0x5000));
        assert_eq!(shared_memory(&parts), Ok((0x1000, 0x4000)));
        let two = format!("{}{}", line(0x1000, 0x2000), line(0x3000, 0x5000));
        assert!(shared_memory(&two).unwrap_err().contains("several memory backends"));
    }

    #[test]
    fn memory_above_the_hole_follows_that_below() {
        const GIB: u64 = 1 << 30;
        let word = |address: u64| usize::try_from(address / 8).ok();
        let whole = MemoryMap::new(2 * GIB, None);
        assert_eq!(whole.word(2 * GIB - 8), word(2 * GIB - 8));
        for address in [2 * GIB, 3 * GIB, 4 * GIB, u64::MAX] {
            assert_eq!(whole.word(address), None, "{address:#x}");
        }
        let split = MemoryMap::new(5 * GIB, Some(3 * GIB));
        for (address, at) in [
            (0, Some(0)),
            (3 * GIB - 8, Some(3 * GIB - 8)),
            (3 * GIB, None),
            (4 * GIB - 8, None),
            (4 * GIB, Some(3 * GIB)),
            (4 * GIB + 0x1230, Some(3 * GIB + 0x1230)),
            (6 * GIB - 8, Some(5 * GIB - 8)),
            (6 * GIB, None),
            (!7, None),
        ] {
            assert_eq!(split.word(address), at.and_then(word), "{address:#x}");
        }
        // A hole above the end of memory changes nothing.
        assert_eq!(MemoryMap::new(GIB, Some(3 * GIB)).word(GIB), None);
        assert_eq!(MemoryMap::new(12, None).word(8), None);
        assert_eq!((whole.end(), split.end()), (2 * GIB, 6 * GIB));
    }

    struct Words(HashMap<u64, u64>);

    impl PhysicalMemory for Words {
        fn read(&self, address: u64) -> Option<u64> {
            assert_eq!(address % 8, 0);
            self.0.get(&address).copied()
        }

        fn end(&self) -> u64 {
            ABOVE
        }
    }

    #[test]
    fn bytes_are_read_where_the_page_tables_lead_also_across_pages() {
        let (present, address) = (1, 0x40_0000 + 4092);
        let mut words = HashMap::from([
            (0x1000, 0x2000 | present),
            (0x2000, 0x3000 | present),
            (0x3000 + 2 * 8, 0x4000 | present),
            (0x4000, 0x5000 | present),
            (0x4008, 0x9000 | present),
            (0x5000 + 4088, u64::from_le_bytes(*b"____abcd")),
            (0x9000, u64::from_le_bytes(*b"efg_____")),
        ]);
        let paging = Paging { root: 0x1000, ..Paging::default() };
        assert_eq!(bytes_at(&Words(words.clone()), paging, address), Some(*b"abcdefg"));
        words.remove(&0x4008);
        assert_eq!(bytes_at(&Words(words.clone()), paging, address), Some(*b"abcd"));
        assert_eq!(bytes_at::<7>(&Words(words), paging, address), None);
    }
}
