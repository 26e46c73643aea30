//! An AF_XDP socket whose memory is a guest's.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use hypervisor::PAGE_SIZE;
use rustix::io::Errno;
use rustix::net::xdp::{
    SocketAddrXdp, SocketAddrXdpFlags, XDP_PGOFF_RX_RING, XDP_UMEM_PGOFF_FILL_RING, XdpUmemReg,
    XdpUmemRegFlags,
};
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use shm::Region;
use thiserror::Error;

use super::ring::{FillRing, RxRing};

/// Descriptors of each ring: as many as a guest's ring has.
pub(super) const DESCRIPTORS: u32 = 256;

/// Bytes of a buffer: a page.
const CHUNK: u32 = 4096;

const _: () = assert!(CHUNK as usize == PAGE_SIZE);

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

fn failed<E: std::fmt::Display>(step: &'static str) -> impl Fn(E) -> XdpSocketError {
    move |error| XdpSocketError::System { step, error: error.to_string() }
}

/// A socket of one receive queue of an interface, which the kernel writes to as long as it is open.
#[derive(Debug)]
pub struct XdpSocket {
    rings: Mutex<Rings>,
    socket: OwnedFd,
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
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = rustix::net::socket_with(AddressFamily::XDP, SocketType::RAW, flags, None);
        let socket = socket.map_err(failed("socket"))?;
        let address = memory.address(0, memory.len()).map_err(failed("address"))?;
        let registration = XdpUmemReg {
            addr: address.expose_provenance() as u64,
            len: memory.len() as u64,
            chunk_size: CHUNK,
            headroom: 0,
            flags: XdpUmemRegFlags::empty(),
            tx_metadata_len: 0,
        };
        // The kernel writes there at any time, as the guest does: a region is read and written accordingly.
        sockopt::set_xdp_umem_reg(&socket, registration).map_err(XdpSocketError::Memory)?;
        sockopt::set_xdp_umem_fill_ring_size(&socket, DESCRIPTORS)
            .map_err(failed("XDP_UMEM_FILL_RING"))?;
        // Nothing is sent by it, but the kernel wants one.
        sockopt::set_xdp_umem_completion_ring_size(&socket, 1)
            .map_err(failed("XDP_UMEM_COMPLETION_RING"))?;
        sockopt::set_xdp_rx_ring_size(&socket, DESCRIPTORS).map_err(failed("XDP_RX_RING"))?;
        let rings = Self::map(&socket).map_err(failed("mmap of a ring"))?;
        // A card that writes to the buffers itself would do so before the program looks at the destination.
        let address = SocketAddrXdp::new(SocketAddrXdpFlags::XDP_COPY, interface, queue);
        rustix::net::bind(&socket, &address).map_err(|errno| match errno {
            Errno::BUSY => XdpSocketError::Taken { queue },
            errno => failed("bind")(errno),
        })?;
        Ok(Self { rings: Mutex::new(rings), socket, queue })
    }

    fn map(socket: &OwnedFd) -> io::Result<Rings> {
        let offsets = sockopt::xdp_mmap_offsets(socket)?;
        let fill = FillRing::map(socket, XDP_UMEM_PGOFF_FILL_RING, offsets.fr, DESCRIPTORS)?;
        let rx = RxRing::map(socket, XDP_PGOFF_RX_RING, offsets.rx, DESCRIPTORS)?;
        Ok(Rings { fill, rx })
    }

    /// The receive queue.
    pub(super) fn queue(&self) -> u32 {
        self.queue
    }

    /// Frames that the kernel has dropped because it had no buffer, or no room in the ring.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        sockopt::xdp_statistics(&self.socket).map_or(0, |counts| {
            counts.rx_dropped
                + counts.rx_ring_full.unwrap_or(0)
                + counts.rx_fill_ring_empty_descs.unwrap_or(0)
        })
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
