//! The messages of a vhost-user front-end that describe a guest with one pair of rings.

use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use vhost::vhost_user::{Frontend, VhostUserFrontend as _, VhostUserProtocolFeatures};
use vhost::{VhostBackend as _, VhostUserMemoryRegionInfo, VringConfigData};
use virtqueue::{Layout, RingAddresses};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

use crate::bench::guest::text;

/// The guest's addresses do not begin at zero, and differ from those of the front-end.
pub(in crate::bench) const GUEST: u64 = 1 << 32;
const USER: u64 = 0x7f00_0000_0000;

/// `VIRTIO_F_VERSION_1` and `VHOST_USER_F_PROTOCOL_FEATURES`, which each guest accepts.
const ALWAYS: u64 = 1 << 32 | 1 << 30;

/// A guest's memory, its RX ring and its TX ring.
pub(in crate::bench) struct Description<'a> {
    /// Feature bits beside those that each guest accepts.
    pub(in crate::bench) features: u64,
    pub(in crate::bench) memory: &'a OwnedFd,
    pub(in crate::bench) memory_len: usize,
    /// Entries of a ring.
    pub(in crate::bench) size: u16,
    pub(in crate::bench) layout: Layout,
    /// Offsets in the memory.
    pub(in crate::bench) rings: [RingAddresses; 2],
    pub(in crate::bench) kicks: &'a [EventFd; 2],
    pub(in crate::bench) calls: &'a [EventFd; 2],
}

/// Descriptors for notifications of both rings.
pub(in crate::bench) fn eventfds() -> Result<[EventFd; 2], String> {
    let new = || EventFd::new(EFD_NONBLOCK).map_err(text);
    Ok([new()?, new()?])
}

impl Description<'_> {
    /// Sends all messages. The back-end serves the rings some time later.
    pub(in crate::bench) fn send(&self, front_end: &mut Frontend) -> Result<(), String> {
        self.negotiate(front_end)?;
        self.send_memory(front_end, 1)?;
        // The highest bit of a packed ring's position is the wrap counter.
        let base = if self.layout == Layout::Packed { 0x8000 } else { 0 };
        self.send_rings(front_end, [base; 2])
    }

    /// Agrees on features.
    pub(in crate::bench) fn negotiate(&self, front_end: &mut Frontend) -> Result<(), String> {
        let wanted = ALWAYS | self.features;
        front_end.set_owner().map_err(text)?;
        let missing = wanted & !front_end.get_features().map_err(text)?;
        if missing != 0 {
            return Err(format!("the back-end lacks the features {missing:#x}"));
        }
        let protocol = front_end.get_protocol_features().map_err(text)?;
        let protocol = protocol & VhostUserProtocolFeatures::MQ;
        front_end.set_protocol_features(protocol).map_err(text)?;
        front_end.set_features(wanted).map_err(text)
    }

    /// Describes the memory as `parts` regions of equal lengths.
    pub(in crate::bench) fn send_memory(
        &self,
        front_end: &mut Frontend,
        parts: usize,
    ) -> Result<(), String> {
        let len = (self.memory_len / parts) as u64;
        let region = |n: u64| VhostUserMemoryRegionInfo {
            guest_phys_addr: GUEST + n * len,
            memory_size: len,
            userspace_addr: USER + n * len,
            mmap_offset: n * len,
            mmap_handle: self.memory.as_raw_fd(),
        };
        let regions: Vec<_> = (0..parts as u64).map(region).collect();
        front_end.set_mem_table(&regions).map(drop).map_err(text)
    }

    /// Describes the rings and the positions at which they go on, and switches them on.
    pub(in crate::bench) fn send_rings(
        &self,
        front_end: &mut Frontend,
        positions: [u16; 2],
    ) -> Result<(), String> {
        self.send_pair(front_end, 0, positions)
    }

    /// The same for one of several pairs.
    pub(in crate::bench) fn send_pair(
        &self,
        front_end: &mut Frontend,
        pair: usize,
        positions: [u16; 2],
    ) -> Result<(), String> {
        for (index, position) in positions.into_iter().enumerate() {
            self.send_ring(front_end, 2 * pair + index, index, position)?;
        }
        let mut rings = 2 * pair..2 * pair + 2;
        rings.try_for_each(|ring| front_end.set_vring_enable(ring, true).map_err(text))
    }

    /// Sends the descriptors by which the device notifies.
    pub(in crate::bench) fn send_calls(&self, front_end: &mut Frontend) -> Result<(), String> {
        let mut calls = self.calls.iter().enumerate();
        calls.try_for_each(|(index, call)| front_end.set_vring_call(index, call).map_err(text))
    }

    fn send_ring(
        &self,
        front_end: &mut Frontend,
        ring: usize,
        index: usize,
        position: u16,
    ) -> Result<(), String> {
        let at = &self.rings[index];
        let config = VringConfigData {
            queue_max_size: self.size,
            queue_size: self.size,
            flags: 0,
            desc_table_addr: USER + at.descriptors,
            used_ring_addr: USER + at.device,
            avail_ring_addr: USER + at.driver,
            log_addr: None,
        };
        front_end.set_vring_num(ring, self.size).map_err(text)?;
        front_end.set_vring_base(ring, position).map_err(text)?;
        front_end.set_vring_addr(ring, &config).map_err(text)?;
        front_end.set_vring_call(ring, &self.calls[index]).map_err(text)?;
        front_end.set_vring_kick(ring, &self.kicks[index]).map_err(text)
    }
}

/// Connects to the socket of a back-end that may still be starting.
pub(in crate::bench) fn connect(socket: &Path, limit: Duration) -> Result<UnixStream, String> {
    let end = Instant::now() + limit;
    loop {
        match UnixStream::connect(socket) {
            Ok(stream) => return Ok(stream),
            Err(error) if Instant::now() > end => {
                return Err(format!("{}: {error}", socket.display()));
            }
            Err(_) => std::thread::sleep(Duration::from_millis(20)),
        }
    }
}
