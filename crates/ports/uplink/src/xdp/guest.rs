//! An AF_XDP socket whose memory is a guest's.

pub(super) mod ingress;

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;
use rustix::net::xdp::SocketAddrXdpFlags;
use shm::Region;
use thiserror::Error;

use super::ring::{FillRing, RxRing};
use super::socket::{Sizes, Socket, SocketError};

/// Descriptors of each ring: as many as a guest's ring has.
const DESCRIPTORS: u32 = 256;

/// Nothing is sent by it.
const SIZES: Sizes = Sizes { fill: DESCRIPTORS, rx: DESCRIPTORS, tx: None, completion: 1 };

/// Why a guest has no socket, and what to do about it.
#[derive(Clone, Debug, Error)]
pub enum XdpSocketError {
    /// Another socket has the receive queue.
    #[error(
        "receive queue {queue} has an AF_XDP socket of another program: end it, or set fewer guest_queues"
    )]
    Taken {
        /// The receive queue.
        queue: u32,
    },
    /// The kernel cannot keep the guest's memory in place.
    #[error(
        "the kernel does not take the guest's memory for AF_XDP ({0}): it must be an ordinary file, so the guest can \
         have no [[guest.context]], and all of it is locked"
    )]
    Memory(Errno),
    /// A step failed for another reason.
    #[error("AF_XDP: {step} failed: {error}")]
    System {
        /// The step.
        step: &'static str,
        /// The kernel's error.
        error: String,
    },
}

impl XdpSocketError {
    fn of(queue: u32) -> impl Fn(SocketError) -> Self {
        move |error| match error {
            SocketError::Taken => Self::Taken { queue },
            SocketError::Memory(errno) => Self::Memory(errno),
            SocketError::System { step, error } => Self::System { step, error },
        }
    }
}

/// A socket of one receive queue of an interface, which the kernel writes to as long as it is open.
#[derive(Debug)]
pub struct XdpSocket {
    rings: Mutex<Rings>,
    socket: Socket,
    queue: u32,
}

/// The side of a socket that one worker uses.
#[derive(Debug)]
pub(super) struct Rings {
    pub(super) fill: FillRing,
    pub(super) rx: RxRing,
}

impl XdpSocket {
    /// See [`Xdp::open`](super::Xdp::open).
    pub(super) fn open(
        interface: u32,
        queue: u32,
        memory: &Region,
    ) -> Result<Self, XdpSocketError> {
        let open = || {
            let socket = Socket::open(memory, SIZES)?;
            let fill = socket.map(socket.fill(), |socket, place| FillRing::map(socket, place))?;
            let rx = socket.map(socket.rx(), |socket, place| RxRing::map(socket, place))?;
            // A card that writes to the buffers itself would do so before the program looks at the destination.
            socket.bind(interface, queue, SocketAddrXdpFlags::XDP_COPY)?;
            Ok(Self { rings: Mutex::new(Rings { fill, rx }), socket, queue })
        };
        open().map_err(XdpSocketError::of(queue))
    }

    /// The receive queue.
    pub(super) fn queue(&self) -> u32 {
        self.queue
    }

    /// Frames that the kernel has dropped because it had no buffer, or no room in the ring.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.socket.dropped()
    }

    /// Its rings, for the one worker that uses them: nobody waits for the lock.
    pub(super) fn rings(&self) -> MutexGuard<'_, Rings> {
        self.rings.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AsFd for XdpSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl port::Event for XdpSocket {
    /// Does nothing: each frame makes a new edge.
    fn take(&self) {}
}
