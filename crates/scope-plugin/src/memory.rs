//! The guest's memory, in QEMU's address space.

use scope_model::PhysicalMemory;
use scope_recorder::shared_memory;

/// All of the guest's memory; it stays mapped as long as QEMU runs.
#[derive(Debug)]
pub struct GuestMemory {
    first: *const u64,
    words: u64,
}

impl GuestMemory {
    /// Finds it.
    pub fn find() -> Result<Self, String> {
        let maps = std::fs::read_to_string("/proc/self/maps").map_err(|error| error.to_string())?;
        let (first, bytes) = shared_memory(&maps).ok_or(
            "the machine's memory is not shared: QEMU needs -object memory-backend-memfd and \
             -machine memory-backend=, which `pvscope run` gives it",
        )?;
        let address = usize::try_from(first).map_err(|error| error.to_string())?;
        Ok(Self { first: std::ptr::with_exposed_provenance(address), words: bytes / 8 })
    }
}

impl PhysicalMemory for GuestMemory {
    #[inline]
    fn read(&self, address: u64) -> Option<u64> {
        let word = address / 8;
        let at = usize::try_from(word).ok().filter(|_| word < self.words)?;
        // SAFETY: within the mapping, which QEMU never takes away, and aligned. The guest may write
        // there, through other mappings, but no thread executes it while the plugin is called.
        Some(unsafe { self.first.add(at).read_volatile() })
    }
}
