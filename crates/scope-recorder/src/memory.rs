//! Where QEMU keeps the guest's memory.

/// What the system calls the memory that QEMU makes for `-object memory-backend-memfd`.
pub const MEMORY: &str = "/memfd:memory-backend-memfd";

/// The guest's memory among the mappings of QEMU, as `/proc/self/maps` has them: its first byte and its
/// length.
#[must_use]
pub fn shared_memory(maps: &str) -> Option<(u64, u64)> {
    let line = maps.lines().find(|line| line.contains(MEMORY))?;
    let (first, end) = line.split_once(' ')?.0.split_once('-')?;
    let first = u64::from_str_radix(first, 16).ok()?;
    let end = u64::from_str_radix(end, 16).ok()?;
    Some((first, end.checked_sub(first)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_is_found_by_its_name() {
        let other = "7e0000000000-7e0080000000 rw-p 00000000 00:00 0\n";
        let own = "7f0000000000-7f0080000000 rw-s 00000000 00:01 9  /memfd:memory-backend-memfd (deleted)\n";
        let found = Some((0x7f00_0000_0000, 0x8000_0000));
        assert_eq!(shared_memory(&format!("{other}{own}{other}")), found);
        assert_eq!(shared_memory(other), None);
    }
}
