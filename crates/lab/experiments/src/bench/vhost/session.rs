//! What a front-end says of a guest with one pair of rings.

use std::os::fd::{AsRawFd as _, OwnedFd};

use vhost::vhost_user::{Frontend, VhostUserFrontend as _, VhostUserProtocolFeatures};
use vhost::{VhostBackend as _, VhostUserMemoryRegionInfo, VringConfigData};
use virtqueue::{Layout, RingAddresses};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

use crate::bench::guest::text;

/// The guest's addresses do not begin at zero, and differ from those of the front-end.
pub(crate) const GUEST: u64 = 1 << 32;
pub(crate) const USER: u64 = 0x7f00_0000_0000;

/// `VIRTIO_F_VERSION_1` and `VHOST_USER_F_PROTOCOL_FEATURES`, which each guest accepts.
const ALWAYS: u64 = 1 << 32 | 1 << 30;

/// A guest's memory and its rings: the one that it receives by, and the one that it sends by.
pub(crate) struct Description<'a> {
    /// Bits beside those that each guest accepts.
    pub(crate) features: u64,
    pub(crate) memory: &'a OwnedFd,
    pub(crate) memory_len: usize,
    /// Entries of a ring.
    pub(crate) size: u16,
    pub(crate) layout: Layout,
    /// Offsets in the memory.
    pub(crate) rings: [RingAddresses; 2],
    pub(crate) kicks: &'a [EventFd; 2],
    pub(crate) calls: &'a [EventFd; 2],
}

/// Descriptors for notifications of both rings.
pub(crate) fn eventfds() -> Result<[EventFd; 2], String> {
    let new = || EventFd::new(EFD_NONBLOCK).map_err(text);
    Ok([new()?, new()?])
}

impl Description<'_> {
    /// Says it all. The back-end serves the rings at some moment after this.
    pub(crate) fn send(&self, front_end: &mut Frontend) -> Result<(), String> {
        let wanted = ALWAYS | self.features;
        front_end.set_owner().map_err(text)?;
        let missing = wanted & !front_end.get_features().map_err(text)?;
        if missing != 0 {
            return Err(format!("the back-end lacks the features {missing:#x}"));
        }
        let protocol = front_end.get_protocol_features().map_err(text)?;
        let protocol = protocol & VhostUserProtocolFeatures::MQ;
        front_end.set_protocol_features(protocol).map_err(text)?;
        front_end.set_features(wanted).map_err(text)?;
        let region = VhostUserMemoryRegionInfo {
            guest_phys_addr: GUEST,
            memory_size: self.memory_len as u64,
            userspace_addr: USER,
            mmap_offset: 0,
            mmap_handle: self.memory.as_raw_fd(),
        };
        front_end.set_mem_table(&[region]).map_err(text)?;
        for (index, at) in self.rings.iter().enumerate() {
            self.send_ring(front_end, index, at)?;
        }
        (0..2).try_for_each(|index| front_end.set_vring_enable(index, true).map_err(text))
    }

    fn send_ring(
        &self,
        front_end: &mut Frontend,
        index: usize,
        at: &RingAddresses,
    ) -> Result<(), String> {
        let config = VringConfigData {
            queue_max_size: self.size,
            queue_size: self.size,
            flags: 0,
            desc_table_addr: USER + at.descriptors,
            used_ring_addr: USER + at.device,
            avail_ring_addr: USER + at.driver,
            log_addr: None,
        };
        // The position of a packed ring has the lap's wrap counter in its highest bit.
        let base = if self.layout == Layout::Packed { 0x8000 } else { 0 };
        front_end.set_vring_num(index, self.size).map_err(text)?;
        front_end.set_vring_base(index, base).map_err(text)?;
        front_end.set_vring_addr(index, &config).map_err(text)?;
        front_end.set_vring_call(index, &self.calls[index]).map_err(text)?;
        front_end.set_vring_kick(index, &self.kicks[index]).map_err(text)
    }
}
