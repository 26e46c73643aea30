//! Messages of a front-end, and front-ends that come and go.

use std::time::Duration;

use vhost::VhostBackend as _;
use vhost::vhost_user::VhostUserFrontend as _;

use super::attacker::Attacker;
use super::frames::broadcast;
use super::{memory, rings};
use crate::bench::guest::text;
use crate::bench::isolation::hostile::{Attacker as _, HostileArgs};
use crate::bench::virtio::SIZE;
use crate::testbed::this;

/// How long to wait until the device serves new rings: it does so after 1 ms without a message.
const SERVED: Duration = Duration::from_millis(2);
/// Parts of the memory: the most in one message.
const PARTS: usize = 8;
/// Messages per round of [`control_flood`].
const MESSAGES: u64 = 64;

/// Leaves, connects again and describes its rings.
pub fn attach_detach(attacker: &mut Attacker) -> Result<u64, String> {
    attacker.leave();
    attacker.machine()?;
    std::thread::sleep(SERVED);
    Ok(1)
}

/// Stops and starts both rings, once before they are served and once after.
pub fn resets(attacker: &mut Attacker) -> Result<u64, String> {
    for pause in [Duration::ZERO, SERVED] {
        let machine = attacker.machine()?;
        machine.restart()?;
        machine.post(SIZE.into())?;
        std::thread::sleep(pause);
    }
    Ok(2)
}

/// Sends frames, and while they are in flight describes the memory as one part, or as eight.
pub fn memory_tables(attacker: &mut Attacker) -> Result<u64, String> {
    for (parts, pause) in [(PARTS, SERVED), (1, SERVED), (PARTS, Duration::ZERO)] {
        broadcast(attacker)?;
        let machine = attacker.machine()?;
        machine.description().send_memory(&mut machine.front_end.clone(), parts)?;
        std::thread::sleep(pause);
    }
    Ok(3)
}

/// Sends messages that change nothing, and passes the descriptors for both rings' notifications again.
pub fn control_flood(attacker: &mut Attacker) -> Result<u64, String> {
    attacker.receive()?;
    let machine = attacker.machine()?;
    let mut front_end = machine.front_end.clone();
    for _ in 0..MESSAGES / 4 {
        front_end.get_features().map_err(text)?;
        // GET_QUEUE_NUM is not used: its answer is a number of pairs, and the crate takes it for the number of rings, and then
        // refuses the second ring.
        front_end.get_protocol_features().map_err(text)?;
        machine.description().send_calls(&mut front_end)?;
    }
    Ok(MESSAGES)
}

const PAUSE: Duration = Duration::from_millis(300);

/// Attacks from a new process, at a new port.
pub fn attack(attacker: &mut Attacker) -> Result<u64, String> {
    let (port, class) = (attacker.next_port(), attacker.args.class);
    if port >= class.ports() {
        // All ports are closed.
        std::thread::sleep(PAUSE);
        return Ok(0);
    }
    let HostileArgs { socket, name, orders, mac, .. } = &attacker.args;
    let mut command = this(None).map_err(text)?;
    command.args(["bench", "hostile-guest", "--name", name, "--class", &class.to_string()]);
    command.arg("--socket").arg(socket).arg("--orders").arg(orders);
    command.args(["--mac", &mac.to_string(), "--alone", &port.to_string()]);
    let status = command.status().map_err(text)?;
    if status.success() { Ok(1) } else { Err(format!("port {port}: {status}")) }
}

/// The attack of such a process.
pub fn child(args: &HostileArgs, port: usize) -> Result<(), String> {
    let mut attacker = Attacker::after(args, port.saturating_sub(1));
    let attack = if args.class.makes_holes() { memory::own } else { rings::full_calls };
    attack(&mut attacker).map(drop)
}
