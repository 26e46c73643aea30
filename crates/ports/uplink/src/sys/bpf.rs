//! The `bpf` system call (`linux/bpf.h`), as far as a steering program needs it.

#![expect(clippy::cast_possible_truncation, reason = "sizes and counts here are small")]

use std::ffi::{c_int, c_long};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::io::{Errno, Result};
use rustix::ioctl::{Opcode, Setter, ioctl, opcode};

/// Bytes of a MAC address as the map's key, with two zeroes behind it.
pub(crate) const KEY_LEN: usize = 8;

const TUNSETSTEERINGEBPF: Opcode = opcode::read::<c_int>(b'T', 224);

/// `enum bpf_cmd`.
mod command {
    pub(super) const MAP_CREATE: u32 = 0;
    pub(super) const MAP_UPDATE_ELEM: u32 = 2;
    pub(super) const MAP_DELETE_ELEM: u32 = 3;
    pub(super) const PROG_LOAD: u32 = 5;
}

/// `BPF_MAP_TYPE_HASH`.
const MAP_TYPE_HASH: u32 = 1;
/// `BPF_PROG_TYPE_SOCKET_FILTER`, which is what tun runs.
const PROG_TYPE_SOCKET_FILTER: u32 = 1;
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

/// Makes a map from keys of [`KEY_LEN`] bytes to numbers.
pub(crate) fn create_map(entries: u32) -> Result<OwnedFd> {
    let attribute = MapCreate {
        map_type: MAP_TYPE_HASH,
        key_size: KEY_LEN as u32,
        value_size: size_of::<u32>() as u32,
        max_entries: entries,
        map_flags: 0,
    };
    // SAFETY: it is the command's attribute, and has no addresses.
    descriptor(unsafe { bpf(command::MAP_CREATE, &attribute) }?)
}

fn element(map: BorrowedFd<'_>, key: &[u8; KEY_LEN], value: u64) -> MapElement {
    MapElement { map_fd: number(map), padding: 0, key: address(key), value, flags: 0 }
}

/// Sets the number of a key.
pub(crate) fn set_element(map: BorrowedFd<'_>, key: &[u8; KEY_LEN], value: u32) -> Result<()> {
    let attribute = element(map, key, address(&value));
    // SAFETY: it is the command's attribute; key and value have the map's sizes and live for the call.
    unsafe { bpf(command::MAP_UPDATE_ELEM, &attribute) }.map(drop)
}

/// Removes a key.
pub(crate) fn delete_element(map: BorrowedFd<'_>, key: &[u8; KEY_LEN]) -> Result<()> {
    let attribute = element(map, key, 0);
    // SAFETY: as above; the command has no value.
    unsafe { bpf(command::MAP_DELETE_ELEM, &attribute) }.map(drop)
}

/// Has the kernel check a program and load it.
pub(crate) fn load_program(instructions: &[Instruction]) -> Result<OwnedFd> {
    let attribute = ProgramLoad {
        prog_type: PROG_TYPE_SOCKET_FILTER,
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

/// Has a tap choose the queue of each frame by a program, which it keeps.
pub(crate) fn set_steering(tap: BorrowedFd<'_>, program: BorrowedFd<'_>) -> Result<()> {
    let program = program.as_fd().as_raw_fd();
    // SAFETY: TUNSETSTEERINGEBPF reads one `int`, although its number says that it writes one.
    unsafe { ioctl(tap, Setter::<TUNSETSTEERINGEBPF, c_int>::new(program)) }
}
