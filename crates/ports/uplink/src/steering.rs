//! Which queue of a tap or macvtap a frame goes to, by its destination.
//!
//! The tun driver asks an eBPF program for each frame (`TUNSETSTEERINGEBPF`, Linux 4.16). Ours looks the
//! destination up in a hash map, which the daemon changes when guests come and go. A frame for an address that is not
//! in the map goes to queue 0, as broadcasts and multicasts do.
//!
//! A macvtap has no such program, but chooses the queue by the frame's flow hash. So a program on the interface under it
//! (tcx, Linux 6.6) sets the hash from the same map.

pub(crate) mod program;

use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;
use thiserror::Error;
use wire::ethernet::MacAddr;

use crate::sys::bpf::{self, AttachType, Instruction, Map, MapType, ProgramType};
use crate::tap::TapQueue;

/// Queues by destination: keys are MAC addresses with two zeroes behind them.
pub(crate) type Stations = Map<8>;

/// The queues of a tap or macvtap, chosen by destination.
#[derive(Debug)]
pub struct Steering {
    map: Stations,
    /// A program on another interface, which runs as long as this is open.
    _link: Option<OwnedFd>,
}

/// Why a device does not choose queues by destination, and what to do about it.
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
        "this kernel cannot choose a queue by destination ({step}: {errno}): use Linux 4.16 or later for a tap, 6.6 or \
         later for a macvtap, with CONFIG_BPF_SYSCALL; or set queues = \"shared\""
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

pub(crate) fn failed(step: &'static str) -> impl Fn(Errno) -> SteeringError {
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
        let map = create_map(stations)?;
        let program = load(ProgramType::SocketFilter, &program::tap(map.number()))?;
        bpf::set_steering(queue.as_fd(), program.as_fd()).map_err(failed("TUNSETSTEERINGEBPF"))?;
        Ok(Self { map, _link: None })
    }

    /// As [`attach`](Self::attach), for a macvtap with `queues` queues over the interface with index `lower` in the calling
    /// thread's network namespace.
    ///
    /// # Errors
    /// See [`SteeringError`].
    pub fn attach_macvtap(lower: u32, queues: u16, stations: u32) -> Result<Self, SteeringError> {
        let map = create_map(stations)?;
        let program = program::macvtap(map.number(), queues.into());
        let program = load(ProgramType::Classifier, &program)?;
        let link = bpf::attach(program.as_fd(), lower, AttachType::TcxIngress, 0)
            .map_err(failed("BPF_LINK_CREATE"))?;
        Ok(Self { map, _link: Some(link) })
    }

    /// Frames for `station` go to a queue, given by its number in the order of opening.
    ///
    /// # Errors
    /// The map is full, or the kernel is short of memory.
    pub fn steer(&self, station: MacAddr, queue: u32) -> Result<(), SteeringError> {
        self.map.set(&key(station), queue).map_err(failed("BPF_MAP_UPDATE_ELEM"))
    }

    /// Frames for `station` go to queue 0 again. A few that were under way may still come in its queue.
    pub fn forget(&self, station: MacAddr) {
        // It fails only if it is not in the map.
        let _ = self.map.delete(&key(station));
    }
}

pub(crate) fn create_map(stations: u32) -> Result<Stations, SteeringError> {
    Map::create(MapType::Hash, stations.max(1)).map_err(failed("BPF_MAP_CREATE"))
}

pub(crate) fn load(kind: ProgramType, program: &[Instruction]) -> Result<OwnedFd, SteeringError> {
    bpf::load_program(kind, program).map_err(failed("BPF_PROG_LOAD"))
}

pub(crate) fn key(station: MacAddr) -> [u8; 8] {
    let [a, b, c, d, e, f] = station.0;
    [a, b, c, d, e, f, 0, 0]
}
