//! One hostile guest beside two good ones, once: what `pvnet-lab demo` shows of this benchmark.

use super::class::Class;
use super::measure::{Sample, measure};
use super::order::Order;
use super::testbed::Attacked;
use crate::error::Result;
use crate::testbed::GuestKind;

/// What the good guests have beside the hostile one, and what it gets.
#[derive(Clone, Debug)]
pub struct Beside {
    /// While it is idle.
    pub idle: Sample,
    /// While it attacks.
    pub attack: Sample,
    /// Why its port was disabled.
    pub reason: String,
}

/// Measures the good guests before and during the attack, on one worker, and reads from the status why the hostile guest is cut off.
pub fn beside(class: Class, seconds: u32, step: impl Fn(&str)) -> Result<Beside> {
    step("start two guests beside a virtual machine");
    let mut attacked = Attacked::start(class, 1, GuestKind::Netif)?;
    step("the guests' stream while the machine is idle");
    let idle = measure(&mut attacked, Order::Idle, seconds)?;
    step("the same while it breaks its rings");
    let attack = measure(&mut attacked, Order::Attack, seconds)?;
    step("why its port is disabled");
    let reason = attacked.why_disabled()?;
    Ok(Beside { idle, attack, reason })
}
