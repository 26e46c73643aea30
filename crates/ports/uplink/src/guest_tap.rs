//! A tap that is a guest's interface on the host, as a vif device of the kernel's xen-netback is.

use std::sync::Arc;

use rustix::io::Errno;

use crate::tap::{Tap, TapError, TapOffload, TapQueue, raw_name};
use crate::{packet, sys, sysfs};

/// The link-layer address of a new one, as Xen's hotplug scripts set it. It must not be the guest's: a bridge takes the
/// addresses of its ports for the host's own. Being the highest, it is not the one that a bridge takes as its own.
const ADDRESS: [u8; 6] = [0xfe, 0xff, 0xff, 0xff, 0xff, 0xff];

/// A tap for one guest. It stays when the process ends, with its bridge, its rules and its port of a virtual switch, and has no
/// carrier until it is [connected](Self::set_carrier) and after the process has ended.
#[derive(Debug)]
pub struct GuestTap {
    queues: Vec<Arc<TapQueue>>,
    is_new: bool,
}

impl GuestTap {
    /// Opens the tap `name` in the network namespace of the calling thread with `queues` queues, and makes it if there is none. It
    /// takes frames with unfinished checksums and beyond the MTU from the stack, unless an operator has switched that off. A new one is
    /// down.
    ///
    /// # Errors
    /// See [`TapError`]; [`TapError::NameTaken`] also if another process has queues of it.
    pub fn open(name: &str, queues: usize) -> Result<Self, TapError> {
        let is_new = !Self::exists(name);
        let queues: Vec<_> = Tap::open_multi_queue(name, queues, TapOffload::ALL)?
            .into_iter()
            .map(Arc::new)
            .collect();
        let tap = Self { queues, is_new };
        let others = sysfs::receive_queues(name).is_ok_and(|count| count > tap.queues.len());
        if others {
            // The kernel would give the other process a part of the guest's frames.
            return Err(TapError::NameTaken { name: name.to_owned() });
        }
        tap.set_carrier(false)?;
        if is_new {
            let failed = |errno| tap.queues[0].failed("SIOCSIFHWADDR", errno);
            sys::interface::set_address(raw_name(name)?, ADDRESS).map_err(failed)?;
        }
        tap.queues[0].persist()?;
        Ok(tap)
    }

    /// Whether there is an interface of this name, of any kind.
    pub fn exists(name: &str) -> bool {
        packet::interface_index(name).is_ok()
    }

    /// Whether it was made by [`open`](Self::open).
    pub fn is_new(&self) -> bool {
        self.is_new
    }

    /// Its queues.
    pub fn queues(&self) -> &[Arc<TapQueue>] {
        &self.queues
    }

    /// Its name now: an operator, or a script, may have changed it. None if it was deleted.
    pub fn name(&self) -> Option<String> {
        self.queues[0].interface_name()
    }

    /// Says whether the guest is there: without a carrier the stack sends nothing.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn set_carrier(&self, is_on: bool) -> Result<(), TapError> {
        self.queues[0].set_carrier(is_on)
    }

    /// Whether an operator has set it up. While it is down, it drops what the guest sends.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn is_up(&self) -> Result<bool, TapError> {
        self.by_name("SIOCGIFFLAGS", sys::interface::is_up)
    }

    /// The longest IP packet that the stack sends through it unsegmented, in bytes.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn mtu(&self) -> Result<u32, TapError> {
        self.by_name("SIOCGIFMTU", sys::interface::mtu)
    }

    /// Sets the [`mtu`](Self::mtu).
    ///
    /// # Errors
    /// The kernel's error.
    pub fn set_mtu(&self, mtu: u16) -> Result<(), TapError> {
        self.by_name("SIOCSIFMTU", |name| sys::interface::set_mtu(name, mtu))
    }

    /// Deletes it, once no other handle of its queues is left.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn delete(self) -> Result<(), TapError> {
        self.queues[0].set_persistent(false)
    }

    fn by_name<T>(
        &self,
        step: &'static str,
        work: impl FnOnce([u8; sys::IFNAMSIZ]) -> rustix::io::Result<T>,
    ) -> Result<T, TapError> {
        let failed = |errno| self.queues[0].failed(step, errno);
        let name = self.name().ok_or_else(|| failed(Errno::NODEV))?;
        work(raw_name(&name)?).map_err(failed)
    }
}
