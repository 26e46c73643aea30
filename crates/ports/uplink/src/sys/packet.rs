//! Packet sockets (`linux/if_packet.h`), each step as a safe function.

#![expect(clippy::cast_possible_truncation, reason = "sizes and constants here are small")]

use std::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::{Errno, Result};

/// All protocols (`ETH_P_ALL`), as a socket's address has it.
const ALL_PROTOCOLS: u16 = 0x0003_u16.to_be();

#[derive(Clone, Copy, Debug)]
#[repr(i32)]
pub(crate) enum PacketOption {
    /// A `virtio_net_hdr` precedes each frame.
    VnetHeader = libc::PACKET_VNET_HDR,
    /// Frames that the interface sends are not received.
    IgnoreOutgoing = 23,
    /// Frames that are longer than a slot of the ring go to the socket's queue.
    CopyThreshold = libc::PACKET_COPY_THRESH,
    /// The layout of rings.
    Version = libc::PACKET_VERSION,
    /// The socket shares the interface's frames with others.
    Fanout = libc::PACKET_FANOUT,
}

fn result(result: c_int) -> Result<()> {
    match result {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()
            .raw_os_error()
            .map_or(Errno::IO, Errno::from_raw_os_error)),
    }
}

fn set<T>(socket: BorrowedFd<'_>, level: c_int, option: c_int, value: &T) -> Result<()> {
    let pointer: *const T = value;
    // A few bytes.
    let len = size_of::<T>() as libc::socklen_t;
    let fd = socket.as_raw_fd();
    // SAFETY: setsockopt reads `len` bytes, which is the size of what the pointer points to.
    result(unsafe { libc::setsockopt(fd, level, option, pointer.cast::<c_void>(), len) })
}

pub(crate) fn set_option(socket: BorrowedFd<'_>, option: PacketOption, value: c_int) -> Result<()> {
    set(socket, libc::SOL_PACKET, option as c_int, &value)
}

/// Gives the socket a receive ring of `slots` slots, which is the content of its file then. `block`: a multiple of a slot's length.
pub(crate) fn set_receive_ring(
    socket: BorrowedFd<'_>,
    block: u32,
    slot: u32,
    slots: u32,
) -> Result<()> {
    set_option(socket, PacketOption::Version, libc::tpacket_versions::TPACKET_V2 as c_int)?;
    set_option(socket, PacketOption::CopyThreshold, 1)?;
    let ring = libc::tpacket_req {
        tp_block_size: block,
        tp_block_nr: slot * slots / block,
        tp_frame_size: slot,
        tp_frame_nr: slots,
    };
    set(socket, libc::SOL_PACKET, libc::PACKET_RX_RING, &ring)
}

/// The number of the socket's fanout group.
pub(crate) fn fanout(socket: BorrowedFd<'_>) -> Result<c_int> {
    let mut value: c_int = 0;
    let mut len = size_of::<c_int>() as libc::socklen_t;
    let (fd, level, option) = (socket.as_raw_fd(), libc::SOL_PACKET, libc::PACKET_FANOUT);
    // SAFETY: getsockopt writes `len` bytes at most, which is the value's size, and the length.
    result(unsafe {
        libc::getsockopt(fd, level, option, (&raw mut value).cast::<c_void>(), &raw mut len)
    })?;
    Ok(value)
}

/// Frames that the socket had no room for since this was last asked.
pub(crate) fn take_drops(socket: BorrowedFd<'_>) -> Result<u32> {
    let mut value = libc::tpacket_stats { tp_packets: 0, tp_drops: 0 };
    let mut len = size_of::<libc::tpacket_stats>() as libc::socklen_t;
    let (fd, level, option) = (socket.as_raw_fd(), libc::SOL_PACKET, libc::PACKET_STATISTICS);
    // SAFETY: getsockopt writes `len` bytes at most, which is the value's size, and the length.
    result(unsafe {
        libc::getsockopt(fd, level, option, (&raw mut value).cast::<c_void>(), &raw mut len)
    })?;
    Ok(value.tp_drops)
}

/// Sets the room for frames that wait in the socket, in bytes, also beyond the system's limit.
pub(crate) fn set_receive_room(socket: BorrowedFd<'_>, bytes: c_int) -> Result<()> {
    set(socket, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, &bytes)
}

/// Sets the room for frames that a socket of any family has under way, in bytes, also beyond the system's limit.
pub(crate) fn set_send_room(socket: BorrowedFd<'_>, bytes: c_int) -> Result<()> {
    set(socket, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, &bytes)
}

/// The interface takes frames for all addresses, as long as the socket is open.
pub(crate) fn set_promiscuous(socket: BorrowedFd<'_>, interface: c_int) -> Result<()> {
    let request = libc::packet_mreq {
        mr_ifindex: interface,
        mr_type: libc::PACKET_MR_PROMISC as u16,
        mr_alen: 0,
        mr_address: [0; 8],
    };
    set(socket, libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, &request)
}

/// Which frames of its interface a socket gets.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Frames {
    All,
    None,
}

/// Frames of an interface, as a socket's address.
fn address(interface: c_int, frames: Frames) -> libc::sockaddr_ll {
    libc::sockaddr_ll {
        sll_family: libc::AF_PACKET as u16,
        sll_protocol: match frames {
            Frames::All => ALL_PROTOCOLS,
            Frames::None => 0,
        },
        sll_ifindex: interface,
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 0,
        sll_addr: [0; 8],
    }
}

pub(crate) fn bind(socket: BorrowedFd<'_>, interface: c_int, frames: Frames) -> Result<()> {
    let address = address(interface, frames);
    let pointer: *const libc::sockaddr_ll = &raw const address;
    let len = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: bind reads `len` bytes, which is the address's size.
    result(unsafe { libc::bind(socket.as_raw_fd(), pointer.cast::<libc::sockaddr>(), len) })
}

/// Whether a bound socket still has its interface.
pub(crate) fn has_interface(socket: BorrowedFd<'_>) -> Result<bool> {
    let mut address = address(0, Frames::None);
    let mut len = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    let pointer = (&raw mut address).cast::<libc::sockaddr>();
    // SAFETY: getsockname writes `len` bytes at most, which is the address's size, and the length.
    result(unsafe { libc::getsockname(socket.as_raw_fd(), pointer, &raw mut len) })?;
    // The kernel puts -1 there when the interface is deleted.
    Ok(address.sll_ifindex > 0)
}
