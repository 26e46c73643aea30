//! The ioctls of Linux's Xen devices, each as a safe function.
//!
//! The only module of this crate with `unsafe`: rustix cannot know what a driver reads and writes,
//! so each function here vouches for the ioctl's number and its argument's type.
#![allow(unsafe_code)]

pub(crate) mod evtchn;
pub(crate) mod gntalloc;
pub(crate) mod gntdev;

use std::ffi::{c_int, c_void};
use std::os::fd::BorrowedFd;

use rustix::io::Result;
use rustix::ioctl::{Direction, Ioctl, IoctlOutput, Opcode, ioctl, opcode};

/// `_IOC(_IOC_NONE, group, number, size)`: these devices name no direction, whichever way their
/// arguments go.
const fn number(group: u8, number: u8, size: usize) -> Opcode {
    opcode::from_components(Direction::None, group, number, size)
}

/// An ioctl that takes a pointer and returns an `int`.
struct Call<const OPCODE: Opcode>(*mut c_void);

// SAFETY: the opcode and the pointer are passed on as they are; whoever makes a call vouches for
// both, and nothing is read back through the pointer here.
unsafe impl<const OPCODE: Opcode> Ioctl for Call<OPCODE> {
    type Output = c_int;

    const IS_MUTATING: bool = true;

    fn opcode(&self) -> Opcode {
        OPCODE
    }

    fn as_ptr(&mut self) -> *mut c_void {
        self.0
    }

    unsafe fn output_from_ptr(answer: IoctlOutput, _: *mut c_void) -> Result<c_int> {
        Ok(answer)
    }
}

/// Issues an ioctl.
///
/// # Safety
/// `argument` is what the device expects with `OPCODE`: all that it reads is initialised and all
/// that it reads and writes lies in `argument`, or is borrowed by it for the call.
unsafe fn call<const OPCODE: Opcode, T>(fd: BorrowedFd<'_>, argument: &mut T) -> Result<c_int> {
    // SAFETY: the caller's promise.
    unsafe { ioctl(fd, Call::<OPCODE>(std::ptr::from_mut(argument).cast())) }
}
