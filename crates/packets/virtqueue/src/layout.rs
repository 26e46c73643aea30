//! Where the parts of a ring lie, and what its two sides have agreed on.

use std::sync::atomic::Ordering;

use crate::memory::Area;
use crate::{GuestMemory, RingMemory, SetupError};

/// The largest ring (VIRTIO 1.2 §2.7).
pub const SIZE_MAX: u16 = 32_768;

/// How a ring is laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// Three arrays: descriptors, available chains, used chains.
    Split,
    /// One array of descriptors, which are made available and used in place (`VIRTIO_F_RING_PACKED`).
    Packed,
}

/// What the driver has agreed to, as far as it concerns rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// The layout.
    pub layout: Layout,
    /// Each side says at which index it wants a notification (`VIRTIO_F_EVENT_IDX`).
    pub event_idx: bool,
    /// Chains may lie in tables of their own (`VIRTIO_F_INDIRECT_DESC`).
    pub indirect: bool,
}

/// Where a ring lies, as addresses of the front-end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RingAddresses {
    /// The descriptors.
    pub descriptors: u64,
    /// What the driver writes: the available ring, or its event suppression.
    pub driver: u64,
    /// What the device writes: the used ring, or its event suppression.
    pub device: u64,
}

/// How a device attaches to a ring.
#[derive(Clone, Copy, Debug)]
pub struct RingSetup {
    /// Where it lies.
    pub at: RingAddresses,
    /// How many entries it has.
    pub size: u32,
    /// Where an earlier device stopped, see [`Queue::position`](crate::Queue::position). A split ring knows that itself.
    pub position: u32,
    /// What the driver has agreed to.
    pub options: Options,
}

impl RingSetup {
    pub(crate) fn split_size(&self) -> Result<u16, SetupError> {
        self.size_if("split", u16::is_power_of_two)
    }

    pub(crate) fn packed_size(&self) -> Result<u16, SetupError> {
        self.size_if("packed", |size| size > 0)
    }

    fn size_if(
        &self,
        layout: &'static str,
        is_possible: impl FnOnce(u16) -> bool,
    ) -> Result<u16, SetupError> {
        let size = u16::try_from(self.size).ok().filter(|size| *size <= SIZE_MAX);
        let bad = SetupError::Size { layout, size: self.size };
        size.filter(|size| is_possible(*size)).ok_or(bad)
    }
}

impl RingAddresses {
    /// Whether the ring is as in zeroed memory: as far as the memory shows, no driver has ever made a chain available. A ring
    /// outside the memory is not blank.
    #[must_use]
    pub fn is_blank(&self, memory: &GuestMemory, layout: Layout) -> bool {
        // The indices of a split ring, behind its flags; the first descriptor of a packed one.
        let parts: &[(u64, usize)] = match layout {
            Layout::Split => &[(self.driver, 2), (self.device, 2)],
            Layout::Packed => {
                &[(self.descriptors, 0), (self.descriptors, 8), (self.descriptors, 14)]
            }
        };
        parts.iter().all(|(start, at)| match memory.area(*start, at + size_of::<u16>()) {
            Ok(area) => area.region.load_u16(area.start + at, Ordering::Relaxed) == 0,
            Err(_) => false,
        })
    }
}

/// The alignment and the length of the three parts.
pub(crate) struct Parts([(&'static str, usize, usize); 3]);

impl Parts {
    pub(crate) fn split(size: u16) -> Self {
        let size = usize::from(size);
        Self([
            ("descriptor table", 16, 16 * size),
            ("available ring", 2, 6 + 2 * size),
            ("used ring", 4, 6 + 8 * size),
        ])
    }

    pub(crate) fn packed(size: u16) -> Self {
        let size = usize::from(size);
        Self([
            ("descriptor ring", 16, 16 * size),
            ("driver's event suppression", 4, 4),
            ("device's event suppression", 4, 4),
        ])
    }

    /// Finds the parts in the guest's memory.
    pub(crate) fn find(
        self,
        memory: &GuestMemory,
        at: RingAddresses,
    ) -> Result<[Area; 3], SetupError> {
        let [descriptors, driver, device] = self.0;
        let find = |(part, align, len): (&'static str, usize, usize), address: u64| {
            let area = memory.area(address, len);
            let area = area.map_err(|source| SetupError::Area { part, source })?;
            // Regions start at pages, so this is the alignment of the address as well.
            match area.start.is_multiple_of(align) {
                true => Ok(area),
                false => Err(SetupError::Alignment { part, align }),
            }
        };
        Ok([find(descriptors, at.descriptors)?, find(driver, at.driver)?, find(device, at.device)?])
    }
}

/// Whether a publication from `old` to `new` needs a notification for a side that wants one at `event`: exactly
/// when the entry `event` is among those published (VIRTIO 1.2 §2.7.7.2).
#[inline]
#[must_use]
pub fn must_notify(old: u16, new: u16, event: u16) -> bool {
    new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn notify_iff_the_event_entry_was_published(old in any::<u16>(), n in 0u16..300, d in -400i32..400) {
            let new = old.wrapping_add(n);
            let event = u16::try_from((i32::from(old) + d).rem_euclid(1 << 16)).unwrap();
            prop_assert_eq!(must_notify(old, new, event), d >= 0 && d < i32::from(n));
        }
    }
}
