//! Frames that the kernel puts into our buffers, or guests', before anybody reads them (AF_XDP).
//!
//! [`XdpNic`] takes a whole NIC over: all its frames come to sockets of the daemon.
//!
//! [`Xdp`] has sockets for guests, and leaves other frames to the network stack.
//! A program in the interface's driver looks at each frame's destination. It hands a frame of a guest that has the
//! receive queue in which the frame came to the guest's socket, and all others to the network stack. The memory of the socket is
//! the guest's, so the kernel copies the frame into a buffer that the guest has posted. That copy comes after the check, so no byte of
//! another guest's frame gets there.

mod guest;
mod nic;
mod ring;
mod socket;

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use shm::Region;
use socket::LONGEST;
use wire::ethernet::MacAddr;

use crate::packet::{self, DeviceError};
use crate::steering::{self, Stations, SteeringError, program};
use crate::sys::bpf::{self, AttachType, Map, MapType, ProgramType};

pub use guest::ingress::{XdpCounts, XdpIngress};
pub use guest::{XdpSocket, XdpSocketError};
pub use nic::egress::{XdpNicEgress, XdpNicSender};
pub use nic::error::XdpNicError;
pub use nic::ingress::{XdpNicIngress, XdpNicReceiver};
pub use nic::watch::XdpNicWatch;
pub use nic::{XdpNic, XdpNicQueue, XdpNicSocket};

/// `XDP_FLAGS_SKB_MODE`: the network stack runs the program, for a driver that cannot.
const IN_STACK: u32 = 1 << 1;

/// Far longer than the kernel needs for a frame, where it cannot say when it is done.
const GRACE: Duration = Duration::from_secs(1);

/// The kernel frees a program and a socket some time after the process that had them has ended.
const FREED: Duration = Duration::from_secs(2);
/// The time between two tries meanwhile.
const PAUSE: Duration = Duration::from_millis(10);

/// A program that an interface runs as long as this is open.
#[derive(Debug)]
struct Link {
    fd: OwnedFd,
    /// The number of its program, if the kernel says so.
    program: Option<u32>,
    /// The driver runs it, and not later the network stack.
    in_driver: bool,
}

impl Link {
    /// Fails with an error that [`is_taken`] if the interface has another program.
    fn attach(program: &OwnedFd, interface: u32) -> rustix::io::Result<Self> {
        let attach = |flags| bpf::attach(program.as_fd(), interface, AttachType::Xdp, flags);
        let (fd, in_driver) = match patiently(is_taken, || attach(0)) {
            Err(errno) if is_taken(&errno) => return Err(errno),
            // The driver cannot, or not with this MTU.
            Err(_) => (attach(IN_STACK)?, false),
            Ok(fd) => (fd, true),
        };
        let program = LinkInfo::read(&fd).map(|info| info.program);
        Ok(Self { fd, program, in_driver })
    }

    /// Whether the interface still runs this program: an administrator can take it off, or put another into the link.
    fn is_attached(&self) -> bool {
        let is_this = |info: LinkInfo| Some(info.program) == self.program && info.interface != 0;
        // Where the kernel does not say, nothing can be found wrong.
        self.program.is_none() || LinkInfo::read(&self.fd).is_none_or(is_this)
    }
}

/// What `/proc` says of a link.
struct LinkInfo {
    program: u32,
    /// 0 once it is detached.
    interface: u32,
}

impl LinkInfo {
    fn read(link: &OwnedFd) -> Option<Self> {
        let path = format!("/proc/self/fdinfo/{}", link.as_raw_fd());
        let text = std::fs::read_to_string(path).ok()?;
        let number = |name| {
            let mut fields = text.lines().filter_map(|line| line.split_once(':'));
            let (_, value) = fields.find(|(field, _)| *field == name)?;
            value.trim().parse().ok()
        };
        Some(Self { program: number("prog_id")?, interface: number("ifindex")? })
    }
}

/// Whether an interface has another program.
fn is_taken(errno: &Errno) -> bool {
    matches!(*errno, Errno::BUSY | Errno::EXIST)
}

/// Tries again while something `is_busy` that a process which has ended had.
fn patiently<T, E>(
    is_busy: impl Fn(&E) -> bool,
    mut attempt: impl FnMut() -> Result<T, E>,
) -> Result<T, E> {
    let start = Instant::now();
    loop {
        match attempt() {
            Err(error) if is_busy(&error) && start.elapsed() < FREED => std::thread::sleep(PAUSE),
            result => return result,
        }
    }
}

/// Why an interface has no program, and what to do about it.
#[derive(Clone, Debug, thiserror::Error)]
pub enum XdpError {
    /// The interface cannot be used.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The program cannot be loaded.
    #[error(transparent)]
    Program(#[from] SteeringError),
    /// There is another program.
    #[error(
        "{name} has another XDP program: see `ip link show {name}`, take it off (ip link set {name} xdp off), or set \
         kind = \"af-packet\""
    )]
    Taken {
        /// The interface.
        name: String,
    },
}

/// The program of an interface, and who gets which frames.
#[derive(Debug)]
pub struct Xdp {
    interface: u32,
    stations: Stations,
    sockets: Map<4>,
    link: Link,
}

impl Xdp {
    /// Has the interface `name` of the calling thread's network namespace run the program, for `stations` addresses at most and
    /// receive queues with a number below `queues`. All frames go to the network stack until [`steer`](Self::steer) says
    /// otherwise.
    ///
    /// # Errors
    /// See [`XdpError`].
    pub fn attach(name: &str, queues: u32, stations: u32) -> Result<Self, XdpError> {
        let interface = packet::interface_index(name)?;
        let stations = steering::create_map(stations)?;
        let sockets = Map::create(MapType::Xsk, queues.max(1))
            .map_err(steering::failed("BPF_MAP_CREATE of a map of sockets"))?;
        let program = program::xdp(stations.number(), sockets.number(), LONGEST.into());
        let program = steering::load(ProgramType::Xdp, &program)?;
        let link = Link::attach(&program, interface).map_err(|errno| match is_taken(&errno) {
            true => XdpError::Taken { name: name.into() },
            false => steering::failed("BPF_LINK_CREATE")(errno).into(),
        })?;
        Ok(Self { interface, stations, sockets, link })
    }

    /// Whether the program runs in the driver, and not later, in the network stack.
    #[must_use]
    pub fn is_in_driver(&self) -> bool {
        self.link.in_driver
    }

    /// Opens a socket for the frames of a receive queue, whose buffers are pages of `memory`. The kernel keeps all of that
    /// memory in place until the socket is closed. Call it in the interface's network namespace.
    ///
    /// # Errors
    /// See [`XdpSocketError`].
    pub fn open(&self, queue: u32, memory: &Region) -> Result<XdpSocket, XdpSocketError> {
        XdpSocket::open(self.interface, queue, memory)
    }

    /// Frames for `station` that come in the receive queue of `socket` go to that socket.
    ///
    /// # Errors
    /// The map is full, or the kernel is short of memory.
    pub fn steer(&self, station: MacAddr, socket: &XdpSocket) -> Result<(), SteeringError> {
        let failed = steering::failed("BPF_MAP_UPDATE_ELEM");
        let queue = socket.queue();
        // A descriptor is not negative.
        let fd = socket.as_fd().as_raw_fd().cast_unsigned();
        self.sockets.set(&queue.to_ne_bytes(), fd).map_err(&failed)?;
        self.stations.set(&steering::key(station), queue).map_err(&failed)
    }

    /// Frames for `station` go to the network stack again. When this returns, the kernel writes none to the memory of
    /// `socket` any more.
    pub fn forget(&self, station: MacAddr, socket: &XdpSocket) {
        // They fail only if the keys are not in the maps.
        let _ = self.stations.delete(&steering::key(station));
        let _ = self.sockets.delete(&socket.queue().to_ne_bytes());
        // A program that has checked before may have the frame copied after this. Without the wait, it could be written when
        // its buffer is the guest's again.
        if let Err(errno) = packet::wait_for_frames_on_the_way() {
            tracing::warn!(%errno, "cannot wait for frames on the way to a guest that goes");
            std::thread::sleep(GRACE);
        }
    }
}
