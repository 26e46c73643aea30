//! What the queues of a NIC that is taken over do not see of it.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::packet::{self, DeviceError};
use crate::sys;
use crate::tap::raw_name;

/// Looks after a NIC that is taken over. As long as it is there, the NIC takes frames for all addresses.
#[derive(Debug)]
pub struct XdpNicWatch {
    name: String,
    raw_name: [u8; sys::IFNAMSIZ],
    /// A packet socket without frames: an AF_XDP socket neither knows the interface's state nor asks for other addresses' frames.
    socket: OwnedFd,
    mtu: Arc<AtomicU32>,
}

impl XdpNicWatch {
    pub(super) fn open(name: &str, interface: u32) -> Result<Self, DeviceError> {
        let raw_name =
            raw_name(name).map_err(|_| DeviceError::Missing { name: name.to_owned() })?;
        let socket = packet::open_without_frames(name, interface)?;
        let mtu = sys::interface::mtu_by(socket.as_fd(), raw_name)
            .map_err(DeviceError::new(name, "SIOCGIFMTU"))?;
        Ok(Self { name: name.to_owned(), raw_name, socket, mtu: Arc::new(mtu.into()) })
    }

    /// The interface's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether the interface was deleted: its sockets just get no more frames.
    #[must_use]
    pub fn is_deleted(&self) -> bool {
        // It fails for no bound packet socket.
        !sys::packet::has_interface(self.socket.as_fd()).unwrap_or(true)
    }

    /// Has the queues drop frames that are longer than the MTU is by now, and no others.
    pub fn look_at_mtu(&self) {
        if let Ok(mtu) = sys::interface::mtu_by(self.socket.as_fd(), self.raw_name) {
            self.mtu.store(mtu, Ordering::Relaxed);
        }
    }

    pub(super) fn mtu(&self) -> u32 {
        self.mtu.load(Ordering::Relaxed)
    }

    pub(super) fn shared_mtu(&self) -> Arc<AtomicU32> {
        self.mtu.clone()
    }
}
