//! A Linux tap device, opened for whole frames with their offload metadata.
//!
//! A tap queue is a file descriptor: one `read` or `readv` reads one frame, one `writev` writes one, each with
//! a 10-byte little-endian `virtio_net_hdr` in front. The Linux stack behind the tap hands over unfinished
//! checksums and unsegmented TCP only as far as [`TapOffload`] allows, and as far as the interface's operator does: what `ethtool -K` has
//! switched off stays off when the interface is opened again.

use std::ffi::{c_short, c_uint};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use port::Budget;
use rustix::fs::{CWD, FileType, Mode, OFlags, makedev};
use rustix::io::Errno;
use shm::Region;
use thiserror::Error;
use tracing::warn;

use crate::packet_ring::{Next, PacketRing};
use crate::sys::interface::WantedFeatures;
use crate::sys::ring::Operation;
use crate::{sys, sysfs};

/// Most queues that the tun driver gives one interface (`MAX_TAP_QUEUES`).
pub const MAX_QUEUES: usize = 256;

/// `IFF_*` bits of `linux/if_tun.h`.
mod flag {
    pub(super) const TAP: u16 = 0x0002;
    pub(super) const MULTI_QUEUE: u16 = 0x0100;
    pub(super) const NO_PI: u16 = 0x1000;
    pub(super) const VNET_HDR: u16 = 0x4000;
}

/// `TUN_F_*` bits of `linux/if_tun.h`.
mod offload_bit {
    pub(super) const CSUM: u32 = 0x01;
    pub(super) const TSO4: u32 = 0x02;
    pub(super) const TSO6: u32 = 0x04;
    pub(super) const TSO_ECN: u32 = 0x08;
    /// Linux 6.2 and later know them, and only both.
    pub(super) const USO4_AND_USO6: u32 = 0x60;
}

/// What the reader of a tap can take from the Linux stack behind it.
///
/// It says nothing about the other direction: a frame written to a tap may always carry an unfinished
/// checksum or TCP's GSO size, and UDP's where the kernel knows `uso`.
#[derive(Copy, Clone, Eq, PartialEq, Debug, Default)]
pub struct TapOffload {
    /// Frames whose transport checksum is not finished (`VIRTIO_NET_HDR_F_NEEDS_CSUM`).
    pub csum: bool,
    /// TCP/IPv4 frames beyond the MTU. Needs `csum`.
    pub tso4: bool,
    /// TCP/IPv6 frames beyond the MTU. Needs `csum`.
    pub tso6: bool,
    /// UDP frames beyond the MTU, over IPv4 and IPv6, if the kernel knows of them. Needs `csum`.
    pub uso: bool,
}

impl TapOffload {
    /// No offload: every frame read fits the MTU and is complete.
    pub const NONE: Self = Self { csum: false, tso4: false, tso6: false, uso: false };
    /// Every offload named here.
    pub const ALL: Self = Self { csum: true, tso4: true, tso6: true, uso: true };

    fn tso(self) -> bool {
        self.tso4 || self.tso6
    }

    /// The wanted bits and no others. ECN comes with either TSO: a guest or the `offload` crate, which
    /// segment these frames later, keep CWR on the first segment only, as the bit demands.
    fn bits(self) -> c_uint {
        [
            (self.csum, offload_bit::CSUM),
            (self.tso4, offload_bit::TSO4),
            (self.tso6, offload_bit::TSO6),
            (self.tso(), offload_bit::TSO_ECN),
            (self.uso, offload_bit::USO4_AND_USO6),
        ]
        .into_iter()
        .filter_map(|(wanted, bit)| wanted.then_some(bit))
        .fold(0, |bits, bit| bits | bit)
    }
}

/// Why a tap could not be opened, and what to do about it.
#[derive(Clone, Debug, Error)]
pub enum TapError {
    /// The kernel has no tun driver.
    #[error("there is no /dev/net/tun: load the tun module (modprobe tun)")]
    NoDriver,
    /// The caller lacks `CAP_NET_ADMIN` in this network namespace, or access to the device.
    #[error("not permitted to open tap {name}: run as root or with CAP_NET_ADMIN")]
    NotPermitted {
        /// The interface wanted.
        name: String,
    },
    /// Another process holds this interface.
    #[error("tap {name} is in use by another process: choose another name, or stop that process")]
    NameTaken {
        /// The interface wanted.
        name: String,
    },
    /// An interface of this name exists, but is not a tap that can be opened this way.
    #[error(
        "{name} exists but is no tap with {queues} queue(s): choose another name, or delete it \
         (ip link delete {name})"
    )]
    OtherKind {
        /// The interface wanted.
        name: String,
        /// The queues wanted.
        queues: usize,
    },
    /// An interface of this name exists, but is not a tap that takes any number of queues.
    #[error(
        "{name} exists but is no multi-queue tap: choose another name, delete it (ip link delete {name}), or make it by ip tuntap \
         add dev {name} mode tap multi_queue vnet_hdr"
    )]
    NotMultiQueue {
        /// The interface wanted.
        name: String,
    },
    /// The name cannot be an interface's.
    #[error(
        "{name:?} cannot name an interface: use 1 to 15 printable ASCII characters without spaces, '/', ':' and \
         '%', and not \".\" or \"..\""
    )]
    BadName {
        /// The name given.
        name: String,
    },
    /// The number of queues is out of range.
    #[error("a tap cannot have {queues} queues: ask for 1 to {MAX_QUEUES}")]
    BadQueues {
        /// The number given.
        queues: usize,
    },
    /// Linux gives no unsegmented frames to a reader that cannot finish their checksums.
    #[error("segmentation needs csum: switch csum on, or tso4, tso6 and uso off")]
    TsoWithoutCsum,
    /// A step failed for another reason.
    #[error("tap {name}: {step} failed: {errno}")]
    System {
        /// The interface wanted.
        name: String,
        /// The step: a system call, or the name of an ioctl.
        step: &'static str,
        /// The kernel's error.
        errno: Errno,
    },
}

/// A tap interface, from which queues are opened.
#[derive(Debug)]
pub enum Tap {}

impl Tap {
    /// Opens (and, unless it persists already, makes) the tap `name` in the network namespace of the calling
    /// thread, with `queues` queues, and sets its offloads.
    ///
    /// The interface is down and without address when it is made here; it disappears with its last queue. Of one that is there, the
    /// features that were switched off (`ethtool -K`) stay off. A
    /// multi-queue tap that another process holds is shared with it, not refused: Linux adds our queues to its.
    ///
    /// # Errors
    /// See [`TapError`]; queues opened before an error are closed.
    pub fn open(name: &str, queues: usize, offload: TapOffload) -> Result<Vec<TapQueue>, TapError> {
        let opening = Opening::new(name, queues, offload)?;
        (0..queues).map(|_| opening.open_queue(offload)).collect()
    }

    /// As [`open`](Self::open), of a kind to which any number of queues can be added, also if it is opened with one: a tap that
    /// persists, or that has other queues already, can then be opened again with another number.
    ///
    /// # Errors
    /// As [`open`](Self::open); [`TapError::NotMultiQueue`] if it persists and is of the other kind.
    pub fn open_multi_queue(
        name: &str,
        queues: usize,
        offload: TapOffload,
    ) -> Result<Vec<TapQueue>, TapError> {
        let opening = Opening { multi_queue: true, ..Opening::new(name, queues, offload)? };
        (0..queues).map(|_| opening.open_queue(offload)).collect()
    }
}

/// One queue of a tap: non-blocking, closed on exec.
#[derive(Debug)]
pub struct TapQueue {
    fd: OwnedFd,
    name: Box<str>,
    kind: Kind,
    segments_udp: bool,
    /// Where a packet socket has its frames, if it has a ring.
    ring: Option<Arc<PacketRing>>,
}

/// What reads and writes frames like a tap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// A queue of a tap or a macvtap.
    Queue,
    Socket,
}

impl TapQueue {
    /// The interface's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether unsegmented UDP may be written: the kernel knows of it, and the queue was opened with `uso`.
    pub fn segments_udp(&self) -> bool {
        self.segments_udp
    }

    /// Makes the interface stay when its last queue is closed, for the next process that opens it.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn persist(&self) -> Result<(), TapError> {
        self.set_persistent(true)
    }

    /// Sets whether the interface stays.
    pub(crate) fn set_persistent(&self, is_persistent: bool) -> Result<(), TapError> {
        let set = sys::set_persistent(self.fd.as_fd(), is_persistent);
        set.map_err(|errno| self.failed("TUNSETPERSIST", errno))
    }

    /// The interface's name now, which may have been changed. None if it was deleted.
    pub(crate) fn interface_name(&self) -> Option<String> {
        let name = sys::interface_name(self.fd.as_fd()).ok()?;
        let name = name.split(|byte| *byte == 0).next()?;
        String::from_utf8(name.to_vec()).ok()
    }

    /// Another handle of this queue: the same frames. The interface stays until all are closed.
    ///
    /// # Errors
    /// The system's.
    pub fn try_clone(&self) -> std::io::Result<Self> {
        let (name, ring) = (self.name.clone(), self.ring.clone());
        Ok(Self { fd: self.fd.try_clone()?, name, ring, ..*self })
    }

    /// Sets what the reader of this queue can take from now on.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn set_offload(&self, offload: TapOffload) -> Result<(), TapError> {
        let offload = TapOffload { uso: offload.uso && self.segments_udp, ..offload };
        let set = sys::set_offload(self.fd.as_fd(), offload.bits());
        set.map_err(|errno| self.failed("TUNSETOFFLOAD", errno))
    }

    /// Says whether there is something behind the interface: without a carrier the stack sends nothing.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn set_carrier(&self, is_on: bool) -> Result<(), TapError> {
        let set = sys::set_carrier(self.fd.as_fd(), is_on);
        set.map_err(|errno| self.failed("TUNSETCARRIER", errno))
    }

    /// Whether the interface was deleted. A read says so for a tap, but not for a macvtap or a packet socket: those just get no
    /// more frames.
    pub fn is_deleted(&self) -> bool {
        let has_interface = match self.kind {
            Kind::Queue => sys::interface_name(self.fd.as_fd()).is_ok(),
            // It fails for no bound packet socket.
            Kind::Socket => sys::packet::has_interface(self.fd.as_fd()).unwrap_or(true),
        };
        !has_interface
    }

    pub(crate) fn failed(&self, step: &'static str, errno: Errno) -> TapError {
        TapError::System { name: self.name.to_string(), step, errno }
    }

    /// How a ring writes a frame.
    pub(crate) fn operation(&self) -> Operation {
        match self.kind {
            Kind::Queue => Operation::Write,
            Kind::Socket => Operation::Send,
        }
    }

    /// A socket that reads and writes frames like a tap.
    pub(crate) fn of_socket(fd: OwnedFd, name: &str) -> Self {
        Self { fd, name: name.into(), kind: Kind::Socket, segments_udp: false, ring: None }
    }

    /// The same, for a packet socket that has this ring.
    pub(crate) fn with_ring(self, ring: Option<PacketRing>) -> Self {
        Self { ring: ring.map(Arc::new), ..self }
    }

    /// Reads the next frame, with its `virtio_net_hdr`, into `head` (private) and then into `places` in order. Returns the number of bytes.
    pub(crate) fn read<'a>(
        &self,
        head: &mut [u8],
        places: impl Iterator<Item = (&'a Region, usize, usize)> + Clone,
    ) -> std::io::Result<usize> {
        let Some(ring) = &self.ring else { return shm::readv(self, head, places) };
        let bytes = match ring.next()? {
            Next::Here { start, len } => ring.copy((start, len), head, places),
            // A read says first, once, that the interface was down.
            Next::InSocket => {
                shm::readv(self, head, places.clone()).or_else(|_| shm::readv(self, head, places))
            }
        };
        ring.release()?;
        bytes
    }

    /// What a read costs, in units of a [`Budget`].
    pub(crate) fn read_cost(&self) -> u32 {
        if self.ring.is_some() { 1 } else { Budget::SYSTEM_CALL }
    }
}

impl port::Event for TapQueue {
    /// Does nothing: each frame makes a new edge.
    fn take(&self) {}

    fn is_of_work(&self) -> bool {
        self.ring.is_none()
    }
}

impl AsFd for TapQueue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// What all queues of one `open` share.
pub(crate) struct Opening<'a> {
    name: &'a str,
    raw_name: [u8; sys::IFNAMSIZ],
    queues: usize,
    multi_queue: bool,
}

impl<'a> Opening<'a> {
    pub(crate) fn new(name: &'a str, queues: usize, offload: TapOffload) -> Result<Self, TapError> {
        if (offload.tso() || offload.uso) && !offload.csum {
            return Err(TapError::TsoWithoutCsum);
        }
        if !(1..=MAX_QUEUES).contains(&queues) {
            return Err(TapError::BadQueues { queues });
        }
        Ok(Self { name, raw_name: raw_name(name)?, queues, multi_queue: queues > 1 })
    }

    fn open_queue(&self, offload: TapOffload) -> Result<TapQueue, TapError> {
        let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let fd = rustix::fs::open("/dev/net/tun", flags, Mode::empty())
            .map_err(|errno| self.open_error(errno))?;
        self.prepare(fd, offload)
    }

    /// Makes a queue of an open device.
    pub(crate) fn prepare(&self, fd: OwnedFd, offload: TapOffload) -> Result<TapQueue, TapError> {
        self.attach(fd.as_fd())?;
        let error = |step| move |errno| self.error(step, errno);
        sys::set_vnet_header(fd.as_fd()).map_err(error("TUNSETVNETHDRSZ"))?;
        sys::set_vnet_little_endian(fd.as_fd()).map_err(error("TUNSETVNETLE"))?;
        // Of a new one, all.
        let wanted = sys::interface::wanted_features(self.raw_name);
        let segments_udp = set_offload(fd.as_fd(), offload).map_err(error("TUNSETOFFLOAD"))?;
        if let Ok(wanted) = wanted {
            self.want_again(&wanted);
        }
        Ok(TapQueue { fd, name: self.name.into(), kind: Kind::Queue, segments_udp, ring: None })
    }

    /// Restores what the operator had set by `ethtool -K`: when a reader says what it can take, the kernel switches on all of that, and
    /// nothing else (`set_offload` in drivers/net/tun.c).
    fn want_again(&self, before: &WantedFeatures) {
        let Ok(now) = sys::interface::wanted_features(self.raw_name) else { return };
        if now == *before {
            return;
        }
        if let Err(errno) = sys::interface::want_features(self.raw_name, before)
            && now.exceeds(before)
        {
            let name = self.name;
            warn!(name, %errno, "what ethtool had switched off is on again, and cannot be switched off");
        }
    }

    fn attach(&self, fd: BorrowedFd<'_>) -> Result<(), TapError> {
        let mut request = sys::InterfaceRequest::new(self.raw_name, self.flags());
        sys::set_interface(fd, &mut request).map_err(|errno| match errno {
            Errno::BUSY => TapError::NameTaken { name: self.name.into() },
            Errno::INVAL if self.multi_queue && self.queues == 1 => {
                TapError::NotMultiQueue { name: self.name.into() }
            }
            Errno::INVAL => TapError::OtherKind { name: self.name.into(), queues: self.queues },
            errno => self.error("TUNSETIFF", errno),
        })
    }

    fn flags(&self) -> c_short {
        let multi_queue = if self.multi_queue { flag::MULTI_QUEUE } else { 0 };
        (flag::TAP | flag::NO_PI | flag::VNET_HDR | multi_queue).cast_signed()
    }

    fn open_error(&self, errno: Errno) -> TapError {
        match errno {
            Errno::NOENT | Errno::NODEV | Errno::NXIO => TapError::NoDriver,
            errno => self.error("open of /dev/net/tun", errno),
        }
    }

    pub(crate) fn error(&self, step: &'static str, errno: Errno) -> TapError {
        let name = self.name.into();
        match errno {
            Errno::PERM | Errno::ACCESS => TapError::NotPermitted { name },
            errno => TapError::System { name, step, errno },
        }
    }
}

/// Sets what the reader can take. Returns whether unsegmented UDP is part of it: a kernel before 6.2 does not know it.
fn set_offload(fd: BorrowedFd<'_>, offload: TapOffload) -> rustix::io::Result<bool> {
    match sys::set_offload(fd, offload.bits()) {
        Err(Errno::INVAL) if offload.uso => {
            sys::set_offload(fd, TapOffload { uso: false, ..offload }.bits()).map(|()| false)
        }
        result => result.map(|()| offload.uso),
    }
}

/// The name as the kernel takes it: zero-terminated in 16 bytes, without names that `dev_valid_name` refuses,
/// and without '%', which the kernel would replace by a number.
pub(crate) fn raw_name(name: &str) -> Result<[u8; sys::IFNAMSIZ], TapError> {
    let forbidden = |byte: u8| matches!(byte, b'/' | b':' | b'%') || !byte.is_ascii_graphic();
    let fits = (1..sys::IFNAMSIZ).contains(&name.len());
    if !fits || matches!(name, "." | "..") || name.bytes().any(forbidden) {
        return Err(TapError::BadName { name: name.into() });
    }
    let mut raw = [0; sys::IFNAMSIZ];
    raw[..name.len()].copy_from_slice(name.as_bytes());
    Ok(raw)
}

#[cfg(test)]
mod tests;

// A macvtap: the frames of a physical or virtual NIC, read and written as those of a tap.
//
// The interface must exist, in mode `passthru`: then it has all frames of the NIC under it, and its queues are those of
// a tap in all but how they are opened.

/// A macvtap interface, from which queues are opened.
#[derive(Debug)]
pub enum Macvtap {}

impl Macvtap {
    /// Opens `queues` queues of the macvtap `name` in the network namespace of the calling thread, and sets its offloads.
    ///
    /// # Errors
    /// See [`TapError`]; queues opened before an error are closed.
    pub fn open(name: &str, queues: usize, offload: TapOffload) -> Result<Vec<TapQueue>, TapError> {
        let opening = Opening::new(name, queues, offload)?;
        let (major, minor) = sysfs::macvtap(name)
            .map_err(|errno| opening.error("number of its device in sysfs", errno))?;
        // A node of ours, because /dev/tapN is named after an index that each network namespace counts anew.
        let node = format!("/dev/.pvnet-macvtap-{}-{minor}", std::process::id());
        let mode = Mode::RUSR | Mode::WUSR;
        rustix::fs::mknodat(CWD, &node, FileType::CharacterDevice, mode, makedev(major, minor))
            .map_err(|errno| opening.error("mknod in /dev", errno))?;
        let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let open = |_| match rustix::fs::open(&node, flags, Mode::empty()) {
            Ok(fd) => opening.prepare(fd, offload),
            Err(Errno::BUSY) => Err(TapError::NameTaken { name: name.into() }),
            Err(errno) => Err(opening.error("open of a macvtap", errno)),
        };
        let queues = (0..queues).map(open).collect();
        // If this fails, a node without a use stays in /dev.
        let _ = rustix::fs::unlink(&node);
        queues
    }
}
