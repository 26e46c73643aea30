//! The memory in which rings note what is in flight. The front-end keeps it while this process is away.

use std::fs::File;
use std::io;
use std::sync::Arc;

use shm::{PageSize, Region};
use virtqueue::{InflightLog, SIZE_MAX};

use crate::budget::MemoryBudget;
use crate::memory::{MapError, map_part, map_part_again};

/// The logs of a device's rings, one after the other.
#[derive(Debug)]
pub(crate) struct Inflight {
    region: Arc<Region>,
    file: File,
    offset: u64,
    rings: u16,
    ring_size: u16,
}

/// Bytes for the logs of `rings` rings of this size.
fn bytes(rings: u16, ring_size: u16) -> usize {
    usize::from(rings) * InflightLog::bytes(ring_size)
}

impl Inflight {
    /// A new file for the logs of `rings` rings. Returns it, and how many bytes are used.
    pub(crate) fn create(rings: u16, ring_size: u16) -> io::Result<(File, u64)> {
        let bytes = bytes(rings, ring_size.min(SIZE_MAX));
        let pages = bytes.div_ceil(PageSize::Small.bytes());
        let file = shm::create_memfd("inflight", pages, PageSize::Small)?;
        Ok((file.into(), bytes as u64))
    }

    /// Maps the logs that the front-end has kept.
    pub(crate) fn map(
        file: File,
        (offset, len): (u64, u64),
        rings: u16,
        ring_size: u16,
        budget: &Arc<MemoryBudget>,
    ) -> Result<Self, MapError> {
        let ring_size = ring_size.min(SIZE_MAX);
        let used = bytes(rings, ring_size) as u64;
        if len < used {
            return Err(MapError::BadRange { len, offset });
        }
        let region = Arc::new(map_part(&file, offset, used, budget)?);
        Ok(Self { region, file, offset, rings, ring_size })
    }

    /// Maps them once more, and revokes the mapping before.
    pub(crate) fn renew(&mut self, budget: &Arc<MemoryBudget>) -> Result<(), String> {
        let used = bytes(self.rings, self.ring_size) as u64;
        let fresh = map_part_again(&self.file, self.offset, used, budget);
        let fresh = Arc::new(fresh.map_err(|error| error.to_string())?);
        let old = std::mem::replace(&mut self.region, fresh);
        old.revoke().map_err(|error| format!("revoking a mapping: {error}"))
    }

    pub(crate) fn log(&self, ring: usize) -> Option<InflightLog> {
        let len = InflightLog::bytes(self.ring_size);
        let start = (ring < usize::from(self.rings)).then_some(ring * len)?;
        InflightLog::new(self.region.slice(start..start + len).ok()?, self.ring_size)
    }
}
