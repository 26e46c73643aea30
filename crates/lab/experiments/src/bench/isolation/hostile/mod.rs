//! `pvnet bench hostile-guest`: the hostile guest, a process that the benchmark starts.

mod attacker;
mod control;
mod events;
mod frames;
mod memory;
mod receiver;
mod segments;
mod sessions;
mod store;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use wire::ethernet::MacAddr;

use super::class::Class;
use super::order::{Order, Report};
use crate::error::{Error, Result};
use crate::output;
use attacker::Attacker;

/// How often the process looks for a new order.
const CHECK: Duration = Duration::from_millis(5);

/// Options of the hostile guest.
#[derive(Args)]
pub struct HostileArgs {
    /// What it does.
    #[arg(long)]
    pub class: Class,
    /// The socket where guests join.
    #[arg(long, value_name = "FILE")]
    pub socket: PathBuf,
    /// Its name in the daemon's configuration.
    #[arg(long)]
    pub name: String,
    /// The file with its orders.
    #[arg(long, value_name = "FILE")]
    pub orders: PathBuf,
    /// Addresses that the attack uses: other guests' or the uplink's.
    #[arg(long, value_name = "MAC")]
    pub target: Vec<MacAddr>,
}

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
        Class::SlowNever => receiver::never,
        Class::BroadcastStorm => frames::broadcast,
        Class::UnknownStorm => frames::unknown,
        Class::MulticastStorm => frames::multicast,
        Class::Malformed => frames::malformed,
        Class::MacFlapping => frames::flapping,
        Class::EventStorm => events::storm,
        Class::ControlFlood => control::flood,
        Class::GrantRevocation => memory::revocation,
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
