//! Packet sockets (`AF_PACKET`) on an interface: its frames, read and written as those of a tap.
//!
//! The network stack gets the same frames: what is for the interface's own address belongs to both.

use std::ffi::c_int;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use thiserror::Error;

use crate::packet_ring::PacketRing;
use crate::sys::packet::{self, Frames, PacketOption};
use crate::sysfs;
use crate::tap::{MAX_QUEUES, TapQueue};

/// Bytes of frames that wait for the worker at most.
const RECEIVE_ROOM: c_int = 4 << 20;
/// `PACKET_FANOUT_HASH` with `PACKET_FANOUT_FLAG_UNIQUEID`: the first socket of a group gets a free number.
const NEW_GROUP: c_int = 0x2000 << 16;

/// Why an interface's frames cannot be had, and what to do about it.
#[derive(Clone, Debug, Error)]
pub enum DeviceError {
    /// There is no such interface in this network namespace.
    #[error(
        "there is no interface {name}: `ip link` lists those there are; set device to one of them"
    )]
    Missing {
        /// The interface wanted.
        name: String,
    },
    /// The caller lacks a capability.
    #[error(
        "not permitted to use {name} ({step}): run as root or with CAP_NET_RAW and CAP_NET_ADMIN"
    )]
    NotPermitted {
        /// The interface wanted.
        name: String,
        /// The step.
        step: &'static str,
    },
    /// A step failed for another reason.
    #[error("interface {name}: {step} failed: {errno}")]
    System {
        /// The interface wanted.
        name: String,
        /// The step.
        step: &'static str,
        /// The kernel's error.
        errno: Errno,
    },
}

impl DeviceError {
    pub(crate) fn new(name: &str, step: &'static str) -> impl Fn(Errno) -> Self {
        move |errno| {
            let name = name.to_owned();
            match errno {
                Errno::PERM | Errno::ACCESS => Self::NotPermitted { name, step },
                errno => Self::System { name, step, errno },
            }
        }
    }
}

/// The index of an interface of the calling thread's network namespace.
///
/// # Errors
/// There is none of this name.
pub fn interface_index(name: &str) -> Result<u32, DeviceError> {
    let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None)
        .map_err(DeviceError::new(name, "socket"))?;
    rustix::net::netdevice::name_to_index(&socket, name)
        .map_err(|_| DeviceError::Missing { name: name.to_owned() })
}

/// How many receive queues an interface of the calling thread's network namespace has.
///
/// # Errors
/// See [`DeviceError`].
pub fn receive_queues(name: &str) -> Result<usize, DeviceError> {
    interface_index(name)?;
    sysfs::receive_queues(name).map_err(DeviceError::new(name, "the count of its receive queues"))
}

/// How many transmit queues it has.
///
/// # Errors
/// See [`DeviceError`].
pub(crate) fn transmit_queues(name: &str) -> Result<usize, DeviceError> {
    sysfs::transmit_queues(name).map_err(DeviceError::new(name, "the count of its transmit queues"))
}

/// Opens `sockets` packet sockets for all frames of the interface `name` in the calling thread's network namespace. They share
/// its frames by flow.
///
/// # Errors
/// See [`DeviceError`].
pub fn open(name: &str, sockets: usize) -> Result<Vec<TapQueue>, DeviceError> {
    open_all(name, sockets, false)
}

/// As [`open`], with a receive ring for each socket whose kernel has the memory: its frames are read without system calls. Only
/// [`TapIngress`](crate::TapIngress) reads such a socket.
///
/// # Errors
/// See [`DeviceError`].
pub fn open_with_rings(name: &str, sockets: usize) -> Result<Vec<TapQueue>, DeviceError> {
    open_all(name, sockets, true)
}

fn open_all(name: &str, sockets: usize, rings: bool) -> Result<Vec<TapQueue>, DeviceError> {
    let interface = interface_index(name)?.cast_signed();
    let mut group = None;
    let open = |_| {
        let socket = new_socket(name)?;
        let ring = rings.then(|| PacketRing::new(socket.as_fd()).ok()).flatten();
        listen(name, &socket, interface)?;
        if sockets > 1 {
            let step = DeviceError::new(name, "PACKET_FANOUT");
            let join = group.unwrap_or(NEW_GROUP);
            packet::set_option(socket.as_fd(), PacketOption::Fanout, join).map_err(&step)?;
            // Without the flag for a new one.
            group = Some(packet::fanout(socket.as_fd()).map_err(&step)? & 0xffff);
        }
        Ok(TapQueue::of_socket(socket, name).with_ring(ring))
    };
    (0..sockets.min(MAX_QUEUES)).map(open).collect()
}

/// Opens a packet socket that gets no frames of its interface, but has it take those for all addresses, and notices when it is
/// deleted.
pub(crate) fn open_without_frames(name: &str, interface: u32) -> Result<OwnedFd, DeviceError> {
    let failed = |step| DeviceError::new(name, step);
    let interface = interface.cast_signed();
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::PACKET, SocketType::RAW, flags, None);
    let socket = socket.map_err(failed("socket(AF_PACKET)"))?;
    packet::set_promiscuous(socket.as_fd(), interface).map_err(failed("PACKET_MR_PROMISC"))?;
    packet::bind(socket.as_fd(), interface, Frames::None).map_err(failed("bind"))?;
    Ok(socket)
}

/// Counts the frames that the kernel dropped because packet sockets were full: nobody read them in time.
#[derive(Debug)]
pub struct SocketDrops {
    sockets: Vec<Arc<TapQueue>>,
    total: AtomicU64,
}

impl SocketDrops {
    /// Of these sockets.
    #[must_use]
    pub fn of(sockets: Vec<Arc<TapQueue>>) -> Self {
        Self { sockets, total: AtomicU64::new(0) }
    }

    /// How many there were. The kernel forgets what it has said, so there should be one of this for a socket.
    #[must_use]
    pub fn read(&self) -> u64 {
        let new = |socket: &Arc<TapQueue>| packet::take_drops(socket.as_fd()).unwrap_or(0);
        let new: u64 = self.sockets.iter().map(|socket| u64::from(new(socket))).sum();
        self.total.fetch_add(new, Ordering::Relaxed) + new
    }
}

/// Waits until the kernel is done with all frames that it was receiving.
///
/// The kernel does that when a packet socket is closed, even one that has received nothing: it waits for all RCU sections, and
/// frames are received in such.
pub(crate) fn wait_for_frames_on_the_way() -> rustix::io::Result<()> {
    rustix::net::socket(AddressFamily::PACKET, SocketType::RAW, None).map(drop)
}

/// A socket that gets no frames yet.
fn new_socket(name: &str) -> Result<OwnedFd, DeviceError> {
    let failed = |step| DeviceError::new(name, step);
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    // Without a protocol it receives nothing before it is bound.
    let socket = rustix::net::socket_with(AddressFamily::PACKET, SocketType::RAW, flags, None);
    let socket = socket.map_err(failed("socket(AF_PACKET)"))?;
    let set = |option| packet::set_option(socket.as_fd(), option, 1);
    set(PacketOption::VnetHeader).map_err(failed("PACKET_VNET_HDR"))?;
    set(PacketOption::IgnoreOutgoing).map_err(failed("PACKET_IGNORE_OUTGOING"))?;
    packet::set_receive_room(socket.as_fd(), RECEIVE_ROOM).map_err(failed("SO_RCVBUFFORCE"))?;
    Ok(socket)
}

/// Has a socket receive all frames of an interface.
fn listen(name: &str, socket: &OwnedFd, interface: c_int) -> Result<(), DeviceError> {
    let failed = |step| DeviceError::new(name, step);
    packet::set_promiscuous(socket.as_fd(), interface).map_err(failed("PACKET_MR_PROMISC"))?;
    packet::bind(socket.as_fd(), interface, Frames::All).map_err(failed("bind"))
}
