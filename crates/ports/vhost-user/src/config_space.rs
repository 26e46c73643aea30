//! The device's configuration space (VIRTIO 1.2 §5.1.4), which shows its link.

use std::os::fd::OwnedFd;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use wire::ethernet::MacAddr;
use zerocopy::little_endian::{U16, U32};
use zerocopy::{Immutable, IntoBytes};

use crate::channel::send_some;
use crate::lock;

/// `VIRTIO_NET_S_LINK_UP`
const LINK_UP: u16 = 1;

/// `struct virtio_net_config`
#[derive(Clone, Copy, Debug, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct ConfigSpace {
    mac: [u8; 6],
    status: U16,
    max_virtqueue_pairs: U16,
    mtu: U16,
    /// In Mbit/s, and whether both directions at once. All ones: unknown.
    speed: U32,
    duplex: u8,
    /// Receive-side scaling is not offered, because no message carries its commands.
    rss_max_key_size: u8,
    rss_max_indirection_table_length: U16,
    supported_hash_types: U32,
}

/// Bytes that a driver may write.
pub(crate) const WRITABLE: usize = size_of::<MacAddr>();

impl ConfigSpace {
    pub(crate) fn new(mac: Option<MacAddr>, queues: u16, mtu: u16, is_up: bool) -> Self {
        Self {
            mac: mac.map_or([0; 6], |MacAddr(mac)| mac),
            status: if is_up { LINK_UP } else { 0 }.into(),
            max_virtqueue_pairs: queues.into(),
            mtu: mtu.into(),
            speed: u32::MAX.into(),
            duplex: u8::MAX,
            rss_max_key_size: 0,
            rss_max_indirection_table_length: 0.into(),
            supported_hash_types: 0.into(),
        }
    }

    /// Some of its bytes. What is behind the end reads as zeros, as in a device with fewer fields.
    pub(crate) fn read(&self, offset: usize, len: usize) -> Vec<u8> {
        let bytes = self.as_bytes().iter().copied().chain(std::iter::repeat(0));
        bytes.skip(offset).take(len).collect()
    }
}

/// `VHOST_USER_BACKEND_CONFIG_CHANGE_MSG` of version 1, without payload.
const CONFIG_CHANGE: [u32; 3] = [2, 1, 0];

/// The link of a device, whichever front-end serves it.
#[derive(Debug)]
pub struct Link {
    is_up: AtomicBool,
    /// Where the present front-end wants changes reported.
    requests: Mutex<Option<OwnedFd>>,
}

impl Default for Link {
    fn default() -> Self {
        Self { is_up: AtomicBool::new(true), requests: Mutex::default() }
    }
}

impl Link {
    /// Sets it up or down. A change is reported to a front-end that has `BACKEND_REQ`.
    pub fn set(&self, is_up: bool) {
        if self.is_up.swap(is_up, Ordering::Relaxed) != is_up
            && let Some(requests) = &*lock(&self.requests)
        {
            // One that does not read them, or sent no socket, misses it.
            let _ = send_some(requests, &CONFIG_CHANGE.map(u32::to_le_bytes).concat(), &[]);
        }
    }

    /// Whether it is up.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.is_up.load(Ordering::Relaxed)
    }

    /// Sets where changes are reported.
    pub(crate) fn report_to(&self, requests: Option<OwnedFd>) {
        let mut present = lock(&self.requests);
        let before = std::mem::replace(&mut *present, requests);
        drop(present);
        // The front-end can make this close wait, and the control thread takes the lock: see `Call`.
        drop(before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_front_end_whose_socket_closes_slowly_delays_no_change_of_the_link() {
        let link = Link::default();
        let (slow, socket) = lab::SlowClose::new().unwrap();
        link.report_to(Some(socket));
        assert!(slow.delays_not(|| link.report_to(None), || link.set(false)));
    }

    #[test]
    fn fields_are_where_drivers_look_for_them() {
        let space = ConfigSpace::new(Some(MacAddr([2, 0, 0, 0, 0, 7])), 4, 9000, true);
        assert_eq!(space.read(0, 12), [2, 0, 0, 0, 0, 7, 1, 0, 4, 0, 0x28, 0x23]);
        assert_eq!(space.read(12, 5), [0xff; 5]);
        assert_eq!(space.read(16, 60)[1..], [0; 59]);
        assert_eq!(ConfigSpace::new(None, 1, 1500, false).read(4, 4), [0; 4]);
    }
}
