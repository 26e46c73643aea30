//! Why a NIC is not taken over.

use hypervisor::PAGE_SIZE;
use rustix::io::Errno;

use super::{BUFFERS, MTU_MAX};
use crate::packet::DeviceError;
use crate::xdp::socket::SocketError;

/// Why a NIC is not taken over, and what to do about it.
#[derive(Clone, Debug, thiserror::Error)]
pub enum XdpNicError {
    /// The interface cannot be used.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// Its frames may be longer than a buffer.
    #[error(
        "{name} has an MTU of {mtu}, and an AF_XDP buffer holds frames of {MTU_MAX}: lower it (ip link set {name} mtu 1500), or set \
         kind = \"af-packet\""
    )]
    TooLong {
        /// The interface.
        name: String,
        /// Its MTU in bytes.
        mtu: u32,
    },
    /// A socket sends by the queue in which it receives, and there is none of that number.
    #[error(
        "{name} has {receive} receive queues and {transmit} transmit queues, and an AF_XDP socket has one of each: give it as many \
         of both (ethtool -L {name} rx {transmit}, or `combined` if `ethtool -l {name}` says so), or set kind = \"af-packet\""
    )]
    FewToSend {
        /// The interface.
        name: String,
        /// Its receive queues.
        receive: u32,
        /// Its transmit queues, which are fewer.
        transmit: u32,
    },
    /// There is another program.
    #[error(
        "{name} has another XDP program: see `ip link show {name}`, take it off (ip link set {name} xdp off), or set \
         kind = \"af-packet\""
    )]
    TakenProgram {
        /// The interface.
        name: String,
    },
    /// Another socket has a receive queue.
    #[error("receive queue {queue} of {name} has an AF_XDP socket of another program: end it")]
    TakenQueue {
        /// The interface.
        name: String,
        /// The receive queue.
        queue: u32,
    },
    /// The kernel does not keep the buffers in place.
    #[error(
        "the kernel does not keep {mib} MiB in place for receive queue {queue} of {name} ({errno}): raise the limit (ulimit -l, \
         LimitMEMLOCK= of a unit), or run with CAP_IPC_LOCK"
    )]
    Memory {
        /// The interface.
        name: String,
        /// The receive queue.
        queue: u32,
        /// How much.
        mib: usize,
        /// The kernel's error.
        errno: Errno,
    },
    /// A step failed for another reason.
    #[error(
        "AF_XDP on {name}: {step} failed: {error}; it needs CONFIG_XDP_SOCKETS, CAP_BPF, CAP_NET_ADMIN and CAP_NET_RAW, and kind = \
         \"af-packet\" does without"
    )]
    System {
        /// The interface.
        name: String,
        /// The step.
        step: &'static str,
        /// The kernel's error.
        error: String,
    },
}

impl XdpNicError {
    pub(super) fn system<E: std::fmt::Display>(
        name: &str,
        step: &'static str,
    ) -> impl Fn(E) -> Self {
        move |error| Self::System { name: name.to_owned(), step, error: error.to_string() }
    }

    pub(super) fn of_socket(name: &str, queue: u32) -> impl Fn(SocketError) -> Self {
        move |error| {
            let name = name.to_owned();
            match error {
                SocketError::Taken => Self::TakenQueue { name, queue },
                SocketError::Memory(errno) => {
                    Self::Memory { name, queue, mib: (BUFFERS * PAGE_SIZE) >> 20, errno }
                }
                SocketError::System { step, error } => Self::System { name, step, error },
            }
        }
    }
}
