//! `pvnet bench hostile-guest`: the hostile guest, a process that the benchmark starts.

mod args;
mod attacker;
mod control;
mod events;
mod frames;
mod memory;
mod receiver;
mod segments;
mod sessions;
mod store;

use std::time::{Duration, Instant};

use super::class::Class;
use super::order::{Order, Report};
use crate::error::{Error, Result};
use crate::output;
pub use args::HostileArgs;
use attacker::Attacker;

/// How often the process looks for a new order.
const CHECK: Duration = Duration::from_millis(5);

/// One round of an attack, a few milliseconds long. Returns the number of its operations.
type Attack = fn(&mut Attacker) -> std::result::Result<u64, String>;

/// Joins, and follows orders until killed.
pub fn run(args: &HostileArgs) -> Result<()> {
    let attack = attack(args.class);
    let mut attacker = Attacker::join(args).map_err(Error::Failed)?;
    let mut report = Report::default();
    print(&report)?;
    loop {
        let order = Order::read(&args.orders).unwrap_or_default();
        if order != report.order {
            report.order = order;
            print(&report)?;
        }
        let until = Instant::now() + CHECK;
        let round = match order {
            Order::Idle => attacker.rest(until),
            Order::Spin(percent) => attacker.spin(f64::from(percent) / 100.0, until),
            Order::Attack => repeat(&mut attacker, attack, until, &mut report.operations),
            Order::Busy => repeat(&mut attacker, frames::ordinary, until, &mut 0),
        };
        if let Err(failure) = round {
            report.failures += 1;
            report.failure = Some(failure);
            attacker.leave();
            std::thread::sleep(CHECK);
        }
    }
}

fn attack(class: Class) -> Attack {
    match class {
        Class::SlowStops => receiver::stops,
        Class::SlowDrips => receiver::drips,
        Class::SlowBursts => receiver::bursts,
        Class::SlowNever | Class::HoardedCopies | Class::EmptyQueue => receiver::never,
        Class::BroadcastStorm => frames::broadcast,
        Class::UnknownStorm => frames::unknown,
        Class::MulticastStorm => frames::multicast,
        Class::Malformed => frames::malformed,
        Class::MacFlapping => frames::flapping,
        Class::EventStorm => events::storm,
        Class::ControlFlood => control::flood,
        Class::GrantRevocation | Class::StaleGrants => memory::revocation,
        Class::Balloon => memory::balloon,
        Class::Holes => memory::holes,
        Class::AttachDetach => sessions::attach_detach,
        Class::TinySegments => segments::tiny,
        Class::StoreFlood => store::flood,
    }
}

/// Repeats the attack for a while.
fn repeat(
    attacker: &mut Attacker,
    attack: Attack,
    until: Instant,
    operations: &mut u64,
) -> std::result::Result<(), String> {
    while Instant::now() < until {
        *operations += attack(attacker)?;
    }
    Ok(())
}

fn print(report: &Report) -> Result<()> {
    let text = serde_json::to_string(report).map_err(|error| Error::Failed(error.to_string()))?;
    output::print(&(text + "\n"))
}
