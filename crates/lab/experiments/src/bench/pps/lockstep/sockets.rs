//! A tap, and the Linux stack behind it.

use std::os::fd::AsFd as _;

use rustix::io::{Errno, write};
use uplink::packet;
use uplink::tap::{Tap, TapOffload, TapQueue};
use wire::ethernet::MacAddr;

use super::frames::Sample;
use crate::bench::guest::text;

/// The tap of every window; it goes with its window.
const NAME: &str = "lockstep0";

/// A station behind the tap.
pub const STATION: MacAddr = MacAddr([2, 0, 0, 0, 1, 0]);

/// Makes a tap whose stack sends nothing of its own.
pub fn tap(large: bool) -> Result<TapQueue, String> {
    let offload = match large {
        true => TapOffload::ALL,
        false => TapOffload { csum: true, ..TapOffload::NONE },
    };
    let mut queues = Tap::open(NAME, 1, offload).map_err(text)?;
    let queue = queues.pop().ok_or("a tap without a queue")?;
    no_ipv6(NAME)?;
    let mut command = lab::command("ip").map_err(text)?;
    command.args(["link", "set", "dev", NAME, "mtu", "1500", "up"]);
    let done = command.status().map_err(text)?;
    if done.success() { Ok(queue) } else { Err(format!("ip link set {NAME} up: {done}")) }
}

/// Without IPv6 an interface sends no solicitations.
pub fn no_ipv6(interface: &str) -> Result<(), String> {
    let switch = format!("/proc/sys/net/ipv6/conf/{interface}/disable_ipv6");
    match std::fs::write(switch, "1") {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(text(error)),
        _ => Ok(()),
    }
}

/// Sends frames into the tap from behind, or by another interface.
pub struct Station {
    socket: TapQueue,
    bytes: Vec<u8>,
}

impl Station {
    /// Sends this frame into the tap.
    pub fn new(sample: &Sample) -> Result<Self, String> {
        Self::behind(NAME, sample)
    }

    /// Sends this frame by an interface.
    pub fn behind(interface: &str, sample: &Sample) -> Result<Self, String> {
        let socket = packet::open(interface, 1).map_err(text)?.pop().ok_or("no socket")?;
        let bytes = [&sample.vnet_header()[..], &sample.bytes].concat();
        Ok(Self { socket, bytes })
    }

    /// Sends it once more.
    pub fn send(&self) -> Result<(), String> {
        match write(self.socket.as_fd(), &self.bytes) {
            Ok(written) if written == self.bytes.len() => Ok(()),
            Ok(written) => Err(format!("{written} of {} bytes were sent", self.bytes.len())),
            Err(Errno::NOBUFS) => Err("the tap's queue is full".into()),
            Err(errno) => Err(format!("sending to the tap: {errno}")),
        }
    }
}
