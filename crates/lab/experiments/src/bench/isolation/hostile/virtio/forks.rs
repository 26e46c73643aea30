//! Attacks of processes that are started for one port each.

use std::time::Duration;

use super::attacker::Attacker;
use super::{memory, rings};
use crate::bench::guest::text;
use crate::bench::isolation::hostile::HostileArgs;
use crate::testbed::this;

const PAUSE: Duration = Duration::from_millis(300);

/// Attacks by another process, and by another port.
pub fn attack(attacker: &mut Attacker) -> Result<u64, String> {
    let (port, class) = (attacker.next_port(), attacker.args.class);
    if port >= class.ports() {
        // All are closed.
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

/// What such a process does.
pub fn child(args: &HostileArgs, port: usize) -> Result<(), String> {
    let mut attacker = Attacker::after(args, port.saturating_sub(1));
    let attack = if args.class.makes_holes() { memory::own } else { rings::full_calls };
    attack(&mut attacker).map(drop)
}
