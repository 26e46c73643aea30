//! Which queue of a tap a frame goes to, by its destination.
//!
//! The tun driver asks an eBPF program for each frame (`TUNSETSTEERINGEBPF`, Linux 4.16). Ours looks the
//! destination up in a hash map, which the daemon changes when guests come and go. A frame for an address that is not
//! in the map goes to queue 0, as broadcasts and multicasts do.

use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};

use rustix::io::Errno;
use thiserror::Error;
use wire::ethernet::MacAddr;

use crate::sys::bpf::{self, Instruction, KEY_LEN};
use crate::tap::TapQueue;

/// The queues of a tap, chosen by destination.
#[derive(Debug)]
pub struct Steering {
    map: OwnedFd,
}

/// Why a tap does not choose queues by destination, and what to do about it.
#[derive(Clone, Debug, Error)]
pub enum SteeringError {
    /// The caller lacks the right to load programs.
    #[error(
        "not permitted to load a steering program ({step}): run as root or with CAP_BPF and CAP_NET_ADMIN, and \
         check that no seccomp filter or kernel lockdown forbids bpf(); or set queues = \"shared\""
    )]
    NotPermitted {
        /// The step.
        step: &'static str,
    },
    /// The kernel cannot do it.
    #[error(
        "this kernel has no steering programs for taps ({step}: {errno}): use Linux 4.16 or later with \
         CONFIG_BPF_SYSCALL; or set queues = \"shared\""
    )]
    Unsupported {
        /// The step.
        step: &'static str,
        /// The kernel's error.
        errno: Errno,
    },
    /// A step failed for another reason.
    #[error("steering by destination: {step} failed: {errno}; queues = \"shared\" does without")]
    System {
        /// The step.
        step: &'static str,
        /// The kernel's error.
        errno: Errno,
    },
}

fn failed(step: &'static str) -> impl Fn(Errno) -> SteeringError {
    move |errno| match errno {
        Errno::PERM | Errno::ACCESS => SteeringError::NotPermitted { step },
        Errno::NOSYS | Errno::INVAL | Errno::NOTTY | Errno::OPNOTSUPP => {
            SteeringError::Unsupported { step, errno }
        }
        errno => SteeringError::System { step, errno },
    }
}

impl Steering {
    /// Makes the tap behind `queue` choose queues by destination, for `stations` addresses at most. All
    /// frames go to queue 0 until [`steer`](Self::steer) says otherwise.
    ///
    /// # Errors
    /// See [`SteeringError`].
    pub fn attach(queue: &TapQueue, stations: u32) -> Result<Self, SteeringError> {
        let map = bpf::create_map(stations.max(1)).map_err(failed("BPF_MAP_CREATE"))?;
        let program = program(map.as_raw_fd());
        let program = bpf::load_program(&program).map_err(failed("BPF_PROG_LOAD"))?;
        bpf::set_steering(queue.as_fd(), program.as_fd()).map_err(failed("TUNSETSTEERINGEBPF"))?;
        Ok(Self { map })
    }

    /// Frames for `station` go to a queue, given by its number in the order of opening.
    ///
    /// # Errors
    /// The map is full, or the kernel is short of memory.
    pub fn steer(&self, station: MacAddr, queue: u32) -> Result<(), SteeringError> {
        bpf::set_element(self.map.as_fd(), &key(station), queue)
            .map_err(failed("BPF_MAP_UPDATE_ELEM"))
    }

    /// Frames for `station` go to queue 0 again. A few that were under way may still come in its queue.
    pub fn forget(&self, station: MacAddr) {
        // It fails only if it is not in the map.
        let _ = bpf::delete_element(self.map.as_fd(), &key(station));
    }
}

fn key(station: MacAddr) -> [u8; KEY_LEN] {
    let [a, b, c, d, e, f] = station.0;
    [a, b, c, d, e, f, 0, 0]
}

/// Opcodes, registers and helpers of `linux/bpf.h`.
mod isa {
    pub(super) const MOV64_REG: u8 = 0xbf;
    pub(super) const MOV64_IMM: u8 = 0xb7;
    pub(super) const ADD64_IMM: u8 = 0x07;
    /// `*(u64 *)(dst + offset) = immediate`
    pub(super) const STORE64_IMM: u8 = 0x7a;
    /// `dst = *(u32 *)(src + offset)`
    pub(super) const LOAD32: u8 = 0x61;
    /// Two instructions; the immediate may be a map's descriptor.
    pub(super) const LOAD_IMM64: u8 = 0x18;
    pub(super) const JUMP_IF_EQUAL_IMM: u8 = 0x15;
    pub(super) const JUMP_IF_NOT_EQUAL_IMM: u8 = 0x55;
    pub(super) const CALL: u8 = 0x85;
    pub(super) const EXIT: u8 = 0x95;

    /// `BPF_PSEUDO_MAP_FD`, as the source register of `LOAD_IMM64`.
    pub(super) const MAP_FD: u8 = 1;
    pub(super) const MAP_LOOKUP_ELEM: i32 = 1;
    pub(super) const SKB_LOAD_BYTES: i32 = 26;
    /// The stack's end.
    pub(super) const STACK: u8 = 10;
}

fn instruction(code: u8, dst: u8, src: u8, offset: i16, immediate: i32) -> Instruction {
    Instruction { code, registers: dst | src << 4, offset, immediate }
}

/// The program: the queue of the destination in the map, or 0.
fn program(map: RawFd) -> [Instruction; 17] {
    use isa::{
        ADD64_IMM, CALL, EXIT, JUMP_IF_EQUAL_IMM, JUMP_IF_NOT_EQUAL_IMM, LOAD_IMM64, LOAD32,
        MAP_FD, MAP_LOOKUP_ELEM, MOV64_IMM, MOV64_REG, SKB_LOAD_BYTES, STACK, STORE64_IMM,
    };
    const KEY: i16 = -8;
    let op = instruction;
    [
        // The key on the stack: the first six bytes of the frame, and two zeroes.
        op(STORE64_IMM, STACK, 0, KEY, 0),
        op(MOV64_IMM, 2, 0, 0, 0),
        op(MOV64_REG, 3, STACK, 0, 0),
        op(ADD64_IMM, 3, 0, 0, KEY.into()),
        op(MOV64_IMM, 4, 0, 0, 6),
        op(CALL, 0, 0, 0, SKB_LOAD_BYTES),
        op(JUMP_IF_NOT_EQUAL_IMM, 0, 0, 8, 0),
        // The queue in the map.
        op(LOAD_IMM64, 1, MAP_FD, 0, map),
        op(0, 0, 0, 0, 0),
        op(MOV64_REG, 2, STACK, 0, 0),
        op(ADD64_IMM, 2, 0, 0, KEY.into()),
        op(CALL, 0, 0, 0, MAP_LOOKUP_ELEM),
        op(JUMP_IF_EQUAL_IMM, 0, 0, 2, 0),
        op(LOAD32, 0, 0, 0, 0),
        op(EXIT, 0, 0, 0, 0),
        // Queue 0.
        op(MOV64_IMM, 0, 0, 0, 0),
        op(EXIT, 0, 0, 0, 0),
    ]
}
