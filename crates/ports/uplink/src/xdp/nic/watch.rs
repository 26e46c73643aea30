//! What the queues of a NIC that is taken over do not see of it.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::netdevice::index_to_name;

use crate::packet::{self, DeviceError};
use crate::sys;
use crate::tap::raw_name;

/// Watches a NIC that is taken over. As long as it is there, the NIC takes frames for all addresses.
#[derive(Debug)]
pub struct XdpNicWatch {
    name: String,
    interface: u32,
    /// Receive queues that have a socket: those with smaller numbers.
    served: u32,
    /// A packet socket without frames: an AF_XDP socket neither knows the interface's state nor asks for other addresses' frames.
    socket: OwnedFd,
    mtu: Arc<AtomicU32>,
}

impl XdpNicWatch {
    pub(super) fn open(name: &str, interface: u32, served: u32) -> Result<Self, DeviceError> {
        let raw_name =
            raw_name(name).map_err(|_| DeviceError::Missing { name: name.to_owned() })?;
        let socket = packet::open_without_frames(name, interface)?;
        let mtu = sys::interface::mtu_by(socket.as_fd(), raw_name)
            .map_err(DeviceError::new(name, "SIOCGIFMTU"))?;
        let (name, mtu) = (name.to_owned(), Arc::new(mtu.into()));
        Ok(Self { name, interface, served, socket, mtu })
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

    /// Reads the MTU: from now on the queues drop frames that are longer.
    pub fn check_mtu(&self) {
        let ask = |name| sys::interface::mtu_by(self.socket.as_fd(), name);
        if let Ok(mtu) = self.raw_name().and_then(ask) {
            self.mtu.store(mtu, Ordering::Relaxed);
        }
    }

    /// Receive queues without a socket, which the NIC has got since it was taken over. Their frames go to the network stack.
    #[must_use]
    pub fn unserved_queues(&self) -> u32 {
        let ask = |name| sys::interface::receive_queues_by(self.socket.as_fd(), name);
        // A driver that does not say how many there are can hardly change it.
        self.raw_name().and_then(ask).map_or(0, |queues| queues.saturating_sub(self.served))
    }

    /// The interface's name by now. Another one may have the old name.
    fn raw_name(&self) -> rustix::io::Result<[u8; sys::IFNAMSIZ]> {
        let name = index_to_name(&self.socket, self.interface)?;
        raw_name(&name).map_err(|_| Errno::NODEV)
    }

    pub(super) fn mtu(&self) -> u32 {
        self.mtu.load(Ordering::Relaxed)
    }

    pub(super) fn shared_mtu(&self) -> Arc<AtomicU32> {
        self.mtu.clone()
    }
}

/// The time between two checks: at first, and at most.
const PAUSE: [Duration; 2] = [Duration::from_micros(50), Duration::from_millis(50)];

/// The checks of a queue that is full. Each may be a system call, and every worker with frames for it asks for one in each turn, so they
/// go by the time and not by how often they are asked for.
#[derive(Debug)]
pub(super) struct Checks {
    due: Duration,
    pause: Duration,
}

impl Checks {
    /// The first one is due.
    pub(super) const fn new() -> Self {
        Self { due: Duration::ZERO, pause: PAUSE[0] }
    }

    pub(super) fn are_due(&self, now: Duration) -> bool {
        now >= self.due
    }

    /// When the next one is due.
    pub(super) fn due(&self) -> Duration {
        self.due
    }

    /// There was a check. Those that find nothing are fewer and fewer.
    pub(super) fn checked(&mut self, has_found: bool, now: Duration) {
        self.pause = if has_found { PAUSE[0] } else { (self.pause * 2).min(PAUSE[1]) };
        self.due = now + self.pause;
    }

    /// The last one has found enough: where the kernel copies, the next may too.
    pub(super) fn renew(&mut self) {
        *self = Self::new();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checks_go_by_the_time() {
        let us = Duration::from_micros;
        let mut checks = Checks::new();
        assert!(checks.are_due(us(0)));
        for pause in [100, 200, 400] {
            checks.checked(false, us(1000));
            assert_eq!(checks.due(), us(1000 + pause));
        }
        assert!(!checks.are_due(us(1399)) && checks.are_due(us(1400)));
        for _ in 0..20 {
            checks.checked(false, us(2000));
        }
        assert_eq!(checks.due(), us(52_000));
        checks.checked(true, us(60_000));
        assert_eq!(checks.due(), us(60_050));
        checks.renew();
        assert!(checks.are_due(us(0)));
    }
}
