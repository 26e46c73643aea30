//! The tun driver's ioctls (`linux/if_tun.h`), each as a safe function.
//!
//! With [`bpf`], [`interface`], [`packet`] and [`ring`], the one place of this crate with `unsafe`: rustix does not know what a driver reads and writes, so the
//! caller of an ioctl must guarantee its number and its argument's type.
#![allow(unsafe_code)]

pub(crate) mod bpf;
pub(crate) mod interface;
pub(crate) mod packet;
pub(crate) mod ring;

use std::ffi::{c_int, c_short, c_uint};
use std::os::fd::BorrowedFd;

use rustix::io::{Errno, Result};
use rustix::ioctl::{IntegerSetter, Opcode, Setter, Updater, ioctl, opcode};
use wire::virtio_net::VirtioNetHdr;

/// Bytes of an interface name, its terminating zero included (`IFNAMSIZ`).
pub(crate) const IFNAMSIZ: usize = 16;

const TUNSETIFF: Opcode = opcode::write::<c_int>(b'T', 202);
const TUNSETPERSIST: Opcode = opcode::write::<c_int>(b'T', 203);
const TUNSETOFFLOAD: Opcode = opcode::write::<c_uint>(b'T', 208);
const TUNGETIFF: Opcode = opcode::read::<c_uint>(b'T', 210);
const TUNSETVNETHDRSZ: Opcode = opcode::write::<c_int>(b'T', 216);
const TUNSETCARRIER: Opcode = opcode::write::<c_int>(b'T', 226);
const TUNSETVNETLE: Opcode = opcode::write::<c_int>(b'T', 220);

/// `struct ifreq`, of which `TUNSETIFF` uses the name and the flags.
#[repr(C)]
pub(crate) struct InterfaceRequest {
    /// Zero-terminated; the driver writes the name that it gave the interface.
    pub(crate) name: [u8; IFNAMSIZ],
    /// `IFF_*` bits of `linux/if_tun.h`.
    pub(crate) flags: c_short,
    /// The rest of the C union, which is as large as its largest member (`struct ifmap`).
    rest: [u8; 22],
}

const _: () =
    assert!(size_of::<InterfaceRequest>() == 40, "struct ifreq has 40 bytes on 64-bit Linux");

impl InterfaceRequest {
    pub(crate) fn new(name: [u8; IFNAMSIZ], flags: c_short) -> Self {
        Self { name, flags, rest: [0; 22] }
    }
}

/// Attaches an open `/dev/net/tun` to an interface, and makes the interface if there is none of that name.
pub(crate) fn set_interface(fd: BorrowedFd<'_>, request: &mut InterfaceRequest) -> Result<()> {
    // SAFETY: TUNSETIFF reads and writes back one `struct ifreq`, although its number says `int`; `InterfaceRequest`
    // has that layout and size, and is borrowed mutably for the call.
    unsafe { ioctl(fd, Updater::<TUNSETIFF, _>::new(request)) }
}

/// The name of the interface of a queue of a tap or macvtap, zero-terminated. It fails if the interface was deleted.
pub(crate) fn interface_name(fd: BorrowedFd<'_>) -> Result<[u8; IFNAMSIZ]> {
    let mut request = InterfaceRequest::new([0; IFNAMSIZ], 0);
    // SAFETY: TUNGETIFF writes one `struct ifreq`, although its number says `unsigned int`; `InterfaceRequest` has that
    // layout and size, and is borrowed mutably for the call.
    unsafe { ioctl(fd, Updater::<TUNGETIFF, _>::new(&mut request)) }?;
    Ok(request.name)
}

/// Sets whether the interface stays when its last queue is closed, with its addresses and its bridge.
pub(crate) fn set_persistent(fd: BorrowedFd<'_>, is_persistent: bool) -> Result<()> {
    // SAFETY: TUNSETPERSIST takes its flag by value and touches no memory of ours.
    unsafe { ioctl(fd, IntegerSetter::<TUNSETPERSIST>::new_usize(is_persistent.into())) }
}

/// Sets which `TUN_F_*` offloads the reader of this tap can take.
pub(crate) fn set_offload(fd: BorrowedFd<'_>, bits: c_uint) -> Result<()> {
    // A `c_uint` always fits: `usize` has 64 bits on every target that has this ifreq.
    let bits = bits as usize;
    // SAFETY: TUNSETOFFLOAD takes its bits by value and touches no memory of ours.
    unsafe { ioctl(fd, IntegerSetter::<TUNSETOFFLOAD>::new_usize(bits)) }
}

/// Has a [`VirtioNetHdr`] precede each frame, without `num_buffers`.
pub(crate) fn set_vnet_header(fd: BorrowedFd<'_>) -> Result<()> {
    let len = c_int::try_from(VirtioNetHdr::LEN).map_err(|_| Errno::INVAL)?;
    // SAFETY: TUNSETVNETHDRSZ reads one `int`.
    unsafe { ioctl(fd, Setter::<TUNSETVNETHDRSZ, c_int>::new(len)) }
}

/// Sets whether the interface has a carrier.
pub(crate) fn set_carrier(fd: BorrowedFd<'_>, is_on: bool) -> Result<()> {
    let on = c_int::from(is_on);
    // SAFETY: TUNSETCARRIER reads one `int`.
    unsafe { ioctl(fd, Setter::<TUNSETCARRIER, c_int>::new(on)) }
}

/// Makes the fields of that header little-endian on any machine.
pub(crate) fn set_vnet_little_endian(fd: BorrowedFd<'_>) -> Result<()> {
    // SAFETY: TUNSETVNETLE reads one `int`.
    unsafe { ioctl(fd, Setter::<TUNSETVNETLE, c_int>::new(1)) }
}

/// Moves the calling thread into a new network namespace.
#[cfg(test)]
pub(crate) fn unshare_network() -> Result<()> {
    // SAFETY: only CLONE_FILES is unsafe (it would hide file descriptors from other threads); this is
    // CLONE_NEWNET alone.
    unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNET) }
}
