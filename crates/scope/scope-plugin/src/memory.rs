//! The guest's memory, in QEMU's address space.

use scope_model::PhysicalMemory;
use scope_recorder::{MemoryMap, shared_memory};

/// All of the guest's memory, which stays mapped as long as QEMU runs.
#[derive(Debug)]
pub struct GuestMemory {
    first: *const u64,
    map: MemoryMap,
}

impl GuestMemory {
    /// Finds the guest's memory among QEMU's mappings. Its first `low` bytes lie below the device hole; all of them if none.
    pub fn find(low: Option<u64>) -> Result<Self, String> {
        let maps = std::fs::read_to_string("/proc/self/maps").map_err(|error| error.to_string())?;
        let (first, bytes) = shared_memory(&maps)?;
        let address = usize::try_from(first).map_err(|error| error.to_string())?;
        let first = std::ptr::with_exposed_provenance(address);
        Ok(Self { first, map: MemoryMap::new(bytes, low) })
    }
}

impl PhysicalMemory for GuestMemory {
    #[inline]
    fn read(&self, address: u64) -> Option<u64> {
        let at = self.map.word(address)?;
        // SAFETY: aligned, and within the mapping, which QEMU keeps. The guest may write there through other mappings, but no
        // thread executes it during a callback.
        Some(unsafe { self.first.add(at).read_volatile() })
    }

    fn end(&self) -> u64 {
        self.map.end()
    }
}
