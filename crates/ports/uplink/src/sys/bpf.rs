//! The `bpf` system call (`linux/bpf.h`), as far as the programs that choose a frame's queue need it.

#![expect(clippy::cast_possible_truncation, reason = "sizes and counts here are small")]

use std::ffi::{c_int, c_long};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::io::{Errno, Result};
use rustix::ioctl::{Opcode, Setter, ioctl, opcode};

const TUNSETSTEERINGEBPF: Opcode = opcode::read::<c_int>(b'T', 224);

/// `enum bpf_cmd`.
mod command {
    pub(super) const MAP_CREATE: u32 = 0;
    pub(super) const MAP_UPDATE_ELEM: u32 = 2;
    pub(super) const MAP_DELETE_ELEM: u32 = 3;
    pub(super) const PROG_LOAD: u32 = 5;
    pub(super) const LINK_CREATE: u32 = 28;
    #[cfg(test)]
    pub(super) const LINK_DETACH: u32 = 34;
}

/// What a map is (`enum bpf_map_type`).
#[derive(Clone, Copy, Debug)]
#[repr(u32)]
pub(crate) enum MapType {
    /// Any keys to numbers.
    Hash = 1,
    /// Numbers to AF_XDP sockets.
    Xsk = 17,
}

/// What runs a program (`enum bpf_prog_type`).
#[derive(Clone, Copy, Debug)]
#[repr(u32)]
pub(crate) enum ProgramType {
    /// A socket filter, which is what tun runs.
    SocketFilter = 1,
    /// A classifier of an interface's frames.
    Classifier = 3,
    /// What a driver runs for each frame, before the network stack sees it.
    Xdp = 6,
}

/// Where an interface runs a program (`enum bpf_attach_type`).
#[derive(Clone, Copy, Debug)]
#[repr(u32)]
pub(crate) enum AttachType {
    /// For each frame that comes in, before whoever has taken over the interface gets it.
    TcxIngress = 46,
    /// For each frame that goes out.
    #[cfg(test)]
    TcxEgress = 47,
    /// In its driver, for each frame that comes in.
    Xdp = 37,
}

/// The license of the program; the helpers that it calls are for programs of any.
const LICENSE: &std::ffi::CStr = c"Apache-2.0";

/// `struct bpf_insn`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Instruction {
    pub(crate) code: u8,
    /// The destination register in the lower half, the source in the upper one.
    pub(crate) registers: u8,
    pub(crate) offset: i16,
    pub(crate) immediate: i32,
}

const _: () = assert!(size_of::<Instruction>() == 8, "struct bpf_insn has 8 bytes");

/// Members of `union bpf_attr` for [`command::MAP_CREATE`].
#[repr(C)]
struct MapCreate {
    map_type: u32,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
    map_flags: u32,
}

/// Members of `union bpf_attr` for the commands about an element.
#[repr(C)]
struct MapElement {
    map_fd: u32,
    padding: u32,
    key: u64,
    value: u64,
    flags: u64,
}

/// Members of `union bpf_attr` for [`command::PROG_LOAD`].
#[repr(C)]
struct ProgramLoad {
    prog_type: u32,
    insn_cnt: u32,
    insns: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log_buf: u64,
    kern_version: u32,
    prog_flags: u32,
}

/// Members of `union bpf_attr` for [`command::LINK_CREATE`].
#[repr(C)]
struct LinkCreate {
    prog_fd: u32,
    target_ifindex: u32,
    attach_type: u32,
    flags: u32,
}

/// Calls `bpf` with a part of `union bpf_attr`; the kernel takes the rest as zero.
///
/// # Safety
/// The attribute is that of the command, and its addresses are of memory that lives for the call and that
/// the command may only read.
unsafe fn bpf<T>(command: u32, attribute: &T) -> Result<c_long> {
    let attribute: *const T = attribute;
    // SAFETY: the kernel reads as many bytes as it is told to; the caller vouches for the addresses in them.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, attribute, size_of::<T>()) };
    match result {
        -1 => Err(std::io::Error::last_os_error()
            .raw_os_error()
            .map_or(Errno::IO, Errno::from_raw_os_error)),
        result => Ok(result),
    }
}

/// The address of something that a command reads.
fn address<T: ?Sized>(of: &T) -> u64 {
    let pointer: *const T = of;
    pointer.cast::<u8>().expose_provenance() as u64
}

fn number(fd: BorrowedFd<'_>) -> u32 {
    // A descriptor is not negative.
    fd.as_raw_fd().cast_unsigned()
}

/// The descriptor that a command returned.
fn descriptor(result: c_long) -> Result<OwnedFd> {
    let fd = c_int::try_from(result).map_err(|_| Errno::IO)?;
    // SAFETY: the command returned a new descriptor, which nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// A map from keys of `KEY` bytes to numbers or descriptors.
#[derive(Debug)]
pub(crate) struct Map<const KEY: usize>(OwnedFd);

impl<const KEY: usize> Map<KEY> {
    /// Makes a map of `entries` elements at most.
    pub(crate) fn create(kind: MapType, entries: u32) -> Result<Self> {
        let attribute = MapCreate {
            map_type: kind as u32,
            key_size: KEY as u32,
            value_size: size_of::<u32>() as u32,
            max_entries: entries,
            map_flags: 0,
        };
        // SAFETY: it is the command's attribute, and has no addresses.
        descriptor(unsafe { bpf(command::MAP_CREATE, &attribute) }?).map(Self)
    }

    fn element(&self, key: &[u8; KEY], value: u64) -> MapElement {
        let map_fd = number(self.0.as_fd());
        MapElement { map_fd, padding: 0, key: address(key), value, flags: 0 }
    }

    /// Sets the number or descriptor of a key.
    pub(crate) fn set(&self, key: &[u8; KEY], value: u32) -> Result<()> {
        let attribute = self.element(key, address(&value));
        // SAFETY: it is the command's attribute; key and value have the map's sizes and live for the call.
        unsafe { bpf(command::MAP_UPDATE_ELEM, &attribute) }.map(drop)
    }

    /// Removes a key.
    pub(crate) fn delete(&self, key: &[u8; KEY]) -> Result<()> {
        let attribute = self.element(key, 0);
        // SAFETY: as above; the command has no value.
        unsafe { bpf(command::MAP_DELETE_ELEM, &attribute) }.map(drop)
    }

    /// Its descriptor, for a program that uses it.
    pub(crate) fn number(&self) -> c_int {
        self.0.as_raw_fd()
    }
}

/// Has the kernel check a program and load it.
pub(crate) fn load_program(kind: ProgramType, instructions: &[Instruction]) -> Result<OwnedFd> {
    let attribute = ProgramLoad {
        prog_type: kind as u32,
        // A few.
        insn_cnt: instructions.len() as u32,
        insns: address(instructions),
        license: address(LICENSE),
        log_level: 0,
        log_size: 0,
        log_buf: 0,
        kern_version: 0,
        prog_flags: 0,
    };
    // SAFETY: it is the command's attribute; instructions and license live for the call and are only read.
    descriptor(unsafe { bpf(command::PROG_LOAD, &attribute) }?)
}

/// Has an interface of the calling thread's namespace run a program, until the returned descriptor is closed.
pub(crate) fn attach(
    program: BorrowedFd<'_>,
    interface: u32,
    place: AttachType,
    flags: u32,
) -> Result<OwnedFd> {
    let attribute = LinkCreate {
        prog_fd: number(program),
        target_ifindex: interface,
        attach_type: place as u32,
        flags,
    };
    // SAFETY: it is the command's attribute, and has no addresses.
    descriptor(unsafe { bpf(command::LINK_CREATE, &attribute) }?)
}

/// Takes a program off its interface although its descriptor is open, as `bpftool link detach` does.
#[cfg(test)]
pub(crate) fn detach(link: BorrowedFd<'_>) -> Result<()> {
    // SAFETY: the command's attribute is the descriptor alone, and has no addresses.
    unsafe { bpf(command::LINK_DETACH, &number(link)) }.map(drop)
}

/// Has a tap choose the queue of each frame by a program, which it keeps.
pub(crate) fn set_steering(tap: BorrowedFd<'_>, program: BorrowedFd<'_>) -> Result<()> {
    let program = program.as_fd().as_raw_fd();
    // SAFETY: TUNSETSTEERINGEBPF reads one `int`, although its number says that it writes one.
    unsafe { ioctl(tap, Setter::<TUNSETSTEERINGEBPF, c_int>::new(program)) }
}
