//! A NIC that is taken over: all frames of its receive queues come to sockets of the daemon, and the network stack gets none.
//!
//! Each receive queue has a socket with memory of its own, half of it for frames in and half for frames out. Where the driver
//! can (zero copy), the NIC itself reads and writes that memory; else the kernel copies.

pub(super) mod egress;
pub(super) mod error;
pub(super) mod ingress;
pub(super) mod watch;

use std::ffi::c_int;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use egress::XdpNicSender;
use error::XdpNicError;
use hypervisor::{Meter, PAGE_SIZE};
use ingress::XdpNicReceiver;
use rustix::net::xdp::SocketAddrXdpFlags;
use shm::Region;
use watch::XdpNicWatch;

use super::ring::{CompletionRing, FillRing, RxRing, TxRing};
use super::socket::{LONGEST, Sizes, Socket, SocketError, failed};
use super::{Link, is_taken, patiently};
use crate::steering::program;
use crate::sys::bpf::{self, Map, MapType, ProgramType};
use crate::{packet, sys};

/// Buffers for frames that come in, of each socket: as many as NICs have in a ring.
const RX_BUFFERS: u32 = 1024;
/// Buffers for frames that go out.
const TX_BUFFERS: u32 = 512;
const BUFFERS: usize = (RX_BUFFERS + TX_BUFFERS) as usize;

/// Bytes of as many packets of the kernel's as frames go out at a time, each with what the kernel needs beside it.
const SEND_ROOM: c_int = 4 << 20;
const _: () = assert!(SEND_ROOM as usize == TX_BUFFERS as usize * 2 * PAGE_SIZE);

/// Each buffer is in one ring at a time, so that none of them is ever too small.
const SIZES: Sizes =
    Sizes { fill: RX_BUFFERS, rx: RX_BUFFERS, tx: Some(TX_BUFFERS), completion: TX_BUFFERS };

/// What a frame has beyond the MTU: its Ethernet header and two VLAN tags.
const BEYOND_MTU: u32 = 14 + 2 * 4;
const MTU_MAX: u32 = LONGEST as u32 - BEYOND_MTU;

/// A NIC that is taken over.
#[derive(Debug)]
pub struct XdpNic {
    /// A queue for each receive queue of the NIC.
    pub queues: Vec<XdpNicQueue>,
    /// What the queues do not see.
    pub watch: XdpNicWatch,
    /// Whether the driver hands the frames over, and not later the network stack.
    pub in_driver: bool,
}

impl XdpNic {
    /// Takes the interface `name` of the calling thread's network namespace over, until all queues are dropped. It should be up:
    /// drivers give a queue its buffers when they start it. The queues' memory has pages of 2 MiB if those are wanted, and there
    /// are some.
    ///
    /// # Errors
    /// See [`XdpNicError`].
    pub fn open(name: &str, huge_pages: bool) -> Result<Self, XdpNicError> {
        let interface = packet::interface_index(name)?;
        let count = count_queues(name)?;
        let watch = XdpNicWatch::open(name, interface, count)?;
        let mtu = watch.mtu();
        if mtu > MTU_MAX {
            return Err(XdpNicError::TooLong { name: name.to_owned(), mtu });
        }
        let program = Arc::new(Program::attach(name, interface, count)?);
        let open = |number| {
            let memory = memory(huge_pages).map_err(XdpNicError::system(name, "memory"))?;
            let bound = patiently(
                |error| matches!(error, SocketError::Taken),
                || bind(&memory, interface, number),
            );
            let bound = bound.map_err(XdpNicError::of_socket(name, number))?;
            let queue = XdpNicQueue::new(bound, memory, number, watch.shared_mtu(), &program);
            program
                .hand_over(&queue.socket)
                .map_err(XdpNicError::system(name, "the program's map"))?;
            Ok::<_, XdpNicError>(queue)
        };
        let queues = (0..count).map(open).collect::<Result<_, _>>()?;
        Ok(Self { queues, watch, in_driver: program.link.in_driver })
    }
}

/// How many queues a NIC has that receive. Each of them also sends.
fn count_queues(name: &str) -> Result<u32, XdpNicError> {
    let number = |count| u32::try_from(count).unwrap_or(u32::MAX);
    let receive = number(packet::receive_queues(name)?);
    let transmit = number(packet::transmit_queues(name)?);
    // The kernel binds such a socket, and sends its frames by a queue that is not there.
    match transmit < receive {
        true => Err(XdpNicError::FewToSend { name: name.to_owned(), receive, transmit }),
        false => Ok(receive),
    }
}

/// The program that hands frames over, which runs as long as a queue is there.
#[derive(Debug)]
struct Program {
    sockets: Map<4>,
    link: Link,
}

impl Program {
    /// Frames go to the network stack until their queue's socket is handed over.
    fn attach(name: &str, interface: u32, queues: u32) -> Result<Self, XdpNicError> {
        let failed = |step| XdpNicError::system(name, step);
        let sockets = Map::create(MapType::Xsk, queues).map_err(failed("BPF_MAP_CREATE"))?;
        let program = program::xdp_all(sockets.number());
        let program =
            bpf::load_program(ProgramType::Xdp, &program).map_err(failed("BPF_PROG_LOAD"))?;
        let link = Link::attach(&program, interface).map_err(|errno| match is_taken(&errno) {
            true => XdpNicError::TakenProgram { name: name.to_owned() },
            false => failed("BPF_LINK_CREATE")(errno),
        })?;
        Ok(Self { sockets, link })
    }

    /// The frames of its receive queue come to this socket from now on.
    fn hand_over(&self, socket: &XdpNicSocket) -> rustix::io::Result<()> {
        // A descriptor is not negative.
        let fd = socket.as_fd().as_raw_fd().cast_unsigned();
        self.sockets.set(&socket.queue.to_ne_bytes(), fd)
    }
}

fn memory(huge_pages: bool) -> io::Result<Region> {
    let len = BUFFERS * PAGE_SIZE;
    if !huge_pages {
        return Region::anonymous(len);
    }
    let memory = Region::anonymous_huge(len)?;
    if let Err(error) = memory.populate_huge(0..len) {
        tracing::warn!(
            %error,
            "AF_XDP buffers have pages of 4 KiB, because the kernel gave none of 2 MiB; check \
             /sys/kernel/mm/transparent_hugepage/enabled, or set huge_pages = false"
        );
    }
    Ok(memory)
}

/// A socket that has a receive queue, and its rings.
struct Bound {
    socket: Socket,
    /// All buffers for frames in are there.
    fill: FillRing,
    rx: RxRing,
    tx: TxRing,
    completion: CompletionRing,
}

fn bind(memory: &Region, interface: u32, queue: u32) -> Result<Bound, SocketError> {
    let socket = Socket::open(memory, SIZES)?;
    // Where the kernel copies, all buffers may be under way.
    sys::packet::set_send_room(socket.as_fd(), SEND_ROOM).map_err(failed("SO_SNDBUFFORCE"))?;
    let mut fill = socket.map(socket.fill(), |socket, place| FillRing::map(socket, place))?;
    // Before it is bound: a driver with zero copy takes some at once, and virtio-net waits for ever if there are none.
    (0..u64::from(RX_BUFFERS)).for_each(|n| fill.push(n * PAGE_SIZE as u64));
    fill.publish();
    // Linux before 6.4 maps no ring of a socket that is bound.
    let rx = socket.map(socket.rx(), |socket, place| RxRing::map(socket, place))?;
    let tx = socket.map(socket.tx(), |socket, place| TxRing::map(socket, place))?;
    let completion =
        socket.map(socket.completion(), |socket, place| CompletionRing::map(socket, place))?;
    // The kernel chooses zero copy where the driver can.
    socket.bind(interface, queue, SocketAddrXdpFlags::XDP_USE_NEED_WAKEUP)?;
    Ok(Bound { socket, fill, rx, tx, completion })
}

/// One queue of a NIC that is taken over.
#[derive(Debug)]
pub struct XdpNicQueue {
    socket: Arc<XdpNicSocket>,
    memory: Arc<[Region]>,
    fill: FillRing,
    rx: RxRing,
    tx: TxRing,
    completion: CompletionRing,
}

impl XdpNicQueue {
    fn new(
        bound: Bound,
        memory: Region,
        queue: u32,
        mtu: Arc<AtomicU32>,
        program: &Arc<Program>,
    ) -> Self {
        let Bound { socket, fill, rx, tx, completion } = bound;
        let is_zero_copy = socket.is_zero_copy();
        let socket = XdpNicSocket { socket, queue, is_zero_copy, mtu, program: program.clone() };
        Self { socket: Arc::new(socket), memory: [memory].into(), fill, rx, tx, completion }
    }

    /// Its socket, for its statistics.
    #[must_use]
    pub fn socket(&self) -> Arc<XdpNicSocket> {
        self.socket.clone()
    }

    /// What makes its two sides.
    ///
    /// # Errors
    /// The process is out of descriptors.
    pub fn split(self, meter: &Arc<Meter>) -> io::Result<(XdpNicReceiver, XdpNicSender)> {
        let Self { socket, memory, fill, rx, tx, completion } = self;
        let receiver = XdpNicReceiver::new(socket.clone(), memory.clone(), fill, rx);
        let sender = XdpNicSender::new(socket, memory, tx, completion, meter)?;
        Ok((receiver, sender))
    }
}

/// The socket of a receive queue of a NIC that is taken over.
#[derive(Debug)]
pub struct XdpNicSocket {
    socket: Socket,
    queue: u32,
    is_zero_copy: bool,
    /// The interface's, in bytes.
    mtu: Arc<AtomicU32>,
    program: Arc<Program>,
}

impl XdpNicSocket {
    /// The receive queue.
    #[must_use]
    pub fn queue(&self) -> u32 {
        self.queue
    }

    /// Whether the NIC reads and writes the buffers itself. Else the kernel copies.
    #[must_use]
    pub fn is_zero_copy(&self) -> bool {
        self.is_zero_copy
    }

    /// Frames that the kernel has dropped because it had no buffer, or no room in the ring.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.socket.dropped()
    }

    /// Whether the NIC still runs the program that hands frames over.
    #[must_use]
    pub fn has_program(&self) -> bool {
        self.program.link.is_attached()
    }

    #[cfg(test)]
    pub(crate) fn link(&self) -> BorrowedFd<'_> {
        self.program.link.fd.as_fd()
    }

    /// Bytes of the longest packet that the NIC takes.
    fn mtu(&self) -> u32 {
        self.mtu.load(Ordering::Relaxed)
    }
}

impl AsFd for XdpNicSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl port::Event for XdpNicSocket {
    /// Does nothing: each frame makes a new edge.
    fn take(&self) {}
}
