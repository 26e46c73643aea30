//! How much of this process's limits one domain may take.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Event channels one guest may have open, unless its share says less.
const PORTS_MAX: usize = 256;

/// One guest's share of the limits of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Event channels. Each takes [two descriptors](Self::CHANNEL_DESCRIPTORS).
    pub channels: usize,
    /// Mappings for the pages in its apertures (`vm.max_map_count`). Adjacent places that hold
    /// adjacent pages, or nothing, share one.
    pub mappings: usize,
}

impl Share {
    /// Descriptors of this process for one event channel.
    pub const CHANNEL_DESCRIPTORS: usize = 2;
}

impl Default for Share {
    /// 256 event channels, and as many mappings as the kernel gives.
    fn default() -> Self {
        Self { channels: PORTS_MAX, mappings: usize::MAX }
    }
}

/// The mappings that a domain's apertures take.
#[derive(Debug)]
pub(crate) struct MappingCount {
    limit: usize,
    used: AtomicUsize,
}

impl MappingCount {
    pub(crate) fn new(limit: usize) -> Self {
        Self { limit, used: AtomicUsize::new(0) }
    }

    /// Counts `more` mappings, or fewer if it is negative. Returns false, and counts nothing, if
    /// there would be more than the limit.
    pub(crate) fn change(&self, more: isize) -> bool {
        let count = |used: usize| {
            let used = used.saturating_add_signed(more);
            (more <= 0 || used <= self.limit).then_some(used)
        };
        self.used.try_update(Ordering::Relaxed, Ordering::Relaxed, count).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_are_counted_up_to_the_limit() {
        let count = MappingCount::new(3);
        assert!(count.change(2) && count.change(1) && !count.change(1));
        assert!(count.change(-2) && !count.change(3) && count.change(2));
    }
}
