//! `pvnet-lab bench hostile-guest`: the hostile guest, a process that the benchmark starts.

mod netif;
mod virtio;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use wire::ethernet::MacAddr;

use super::class::Class;
use super::measure::SETTLE;
use super::order::{Order, Report};
use crate::bench::guest::thread_cpu;
use crate::error::{Error, Result};
use crate::output;

/// How often the process checks for a new order.
const CHECK: Duration = Duration::from_millis(5);
/// The time from an order to an attempt that may be the last one. The good guests' round trips are measured by then.
const FIRST: Duration = SETTLE.saturating_mul(2);

/// One round of an attack, a few milliseconds long. Returns the number of its operations.
type Round<A> = fn(&mut A) -> std::result::Result<u64, String>;

/// An attack, by the kind of guest that can make it.
enum Attack {
    Netif(Round<netif::Attacker>),
    Virtio(Round<virtio::Attacker>),
}

/// A hostile guest between two attacks.
trait Attacker {
    /// Behaves as a guest with nothing to send.
    fn rest(&mut self, until: Instant) -> std::result::Result<(), String>;
    /// Leaves the daemon. It joins again when there is something to do.
    fn leave(&mut self);
}

/// Joins, and follows orders until killed.
pub fn run(args: &HostileArgs) -> Result<()> {
    if let Some(port) = args.alone {
        return virtio::sessions::child(args, port).map_err(Error::Failed);
    }
    match attack(args.class) {
        Attack::Netif(round) => {
            let attacker = netif::Attacker::join(args).map_err(Error::Failed)?;
            follow(attacker, [round, netif::frames::ordinary], args)
        }
        Attack::Virtio(round) => {
            let attacker = virtio::Attacker::join(args).map_err(Error::Failed)?;
            follow(attacker, [round, virtio::frames::ordinary], args)
        }
    }
}

/// Follows orders. `busy` behaves as a guest that has much to send.
fn follow<A: Attacker>(
    mut attacker: A,
    [attack, busy]: [Round<A>; 2],
    args: &HostileArgs,
) -> Result<()> {
    let mut report = Report::default();
    let mut since = Instant::now();
    let mut has_attempted = !args.class.attacks_once();
    print(&report)?;
    loop {
        let order = Order::read(&args.orders).unwrap_or_default();
        if order != report.order {
            report.order = order;
            print(&report)?;
            since = Instant::now();
        }
        let until = Instant::now() + CHECK;
        let round = match order {
            Order::Idle => attacker.rest(until),
            Order::Attack if !has_attempted && since.elapsed() < FIRST => attacker.rest(until),
            Order::Spin(percent) if args.class.makes_holes() => {
                virtio::memory::apart(f64::from(percent) / 100.0)
            }
            Order::Spin(percent) => spin(&mut attacker, f64::from(percent) / 100.0, until),
            Order::Attack => repeat(&mut attacker, attack, until, &mut report.operations),
            Order::Busy => repeat(&mut attacker, busy, until, &mut 0),
        };
        if let Err(failure) = round {
            report.failures += 1;
            report.failure = Some(failure);
            attacker.leave();
            std::thread::sleep(CHECK);
        }
        if !has_attempted && report.operations + report.failures > 0 {
            has_attempted = true;
            print(&report)?;
        }
    }
}

fn attack(class: Class) -> Attack {
    use netif::{floods, frames, memory};
    use virtio as vm;
    match class {
        Class::SlowStops => Attack::Netif(frames::stops),
        Class::SlowDrips => Attack::Netif(frames::drips),
        Class::SlowBursts => Attack::Netif(frames::bursts),
        Class::SlowNever | Class::HoardedCopies | Class::EmptyQueue => Attack::Netif(frames::never),
        Class::BroadcastStorm => Attack::Netif(frames::broadcast),
        Class::UnknownStorm => Attack::Netif(frames::unknown),
        Class::MulticastStorm => Attack::Netif(frames::multicast),
        Class::Malformed => Attack::Netif(frames::malformed),
        Class::MacFlapping => Attack::Netif(frames::flapping),
        Class::EventStorm => Attack::Netif(floods::events),
        Class::ControlFlood => Attack::Netif(floods::control),
        Class::GrantRevocation | Class::StaleGrants => Attack::Netif(memory::revocation),
        Class::Balloon => Attack::Netif(memory::balloon),
        Class::Holes => Attack::Netif(memory::holes),
        Class::AttachDetach => Attack::Netif(floods::attach_detach),
        Class::TinySegments => Attack::Netif(frames::tiny),
        Class::StoreFlood => Attack::Netif(floods::store),
        Class::VirtioKickStorm => Attack::Virtio(vm::rings::kicks),
        Class::VirtioMalformed => Attack::Virtio(vm::frames::malformed),
        Class::VirtioLongTables => Attack::Virtio(vm::rings::long_tables),
        Class::VirtioBrokenRings => Attack::Virtio(vm::rings::broken),
        Class::VirtioSlowDrips => Attack::Virtio(vm::frames::drips),
        Class::VirtioSlowNever => Attack::Virtio(vm::frames::never),
        Class::VirtioHonest => Attack::Virtio(vm::frames::honest),
        Class::VirtioBroadcastStorm => Attack::Virtio(vm::frames::broadcast),
        Class::VirtioUnknownStorm => Attack::Virtio(vm::frames::unknown),
        Class::VirtioAttachDetach => Attack::Virtio(vm::sessions::attach_detach),
        Class::VirtioResets => Attack::Virtio(vm::sessions::resets),
        Class::VirtioMemoryTables => Attack::Virtio(vm::sessions::memory_tables),
        Class::VirtioControlFlood => Attack::Virtio(vm::sessions::control_flood),
        Class::VirtioSparseMemory => Attack::Virtio(vm::memory::sparse),
        Class::VirtioFullCalls => Attack::Virtio(vm::rings::full_calls),
        Class::VirtioSlowCalls => Attack::Virtio(vm::rings::slow_calls),
        Class::VirtioHoles => Attack::Virtio(vm::memory::own),
        Class::VirtioFilledHoles => Attack::Virtio(vm::memory::filled),
        Class::VirtioSharedHoles => Attack::Virtio(vm::memory::shared),
        Class::VirtioForkedCalls | Class::VirtioForkedHoles => Attack::Virtio(vm::sessions::attack),
    }
}

/// Repeats the attack for a while.
fn repeat<A>(
    attacker: &mut A,
    attack: Round<A>,
    until: Instant,
    operations: &mut u64,
) -> std::result::Result<(), String> {
    while Instant::now() < until {
        *operations += attack(attacker)?;
    }
    Ok(())
}

/// Behaves, but uses CPU time for nothing, on `cpus` CPUs. A second thread uses the part beyond one CPU.
fn spin(
    attacker: &mut impl Attacker,
    cpus: f64,
    until: Instant,
) -> std::result::Result<(), String> {
    attacker.rest(Instant::now())?;
    std::thread::scope(|scope| {
        if cpus > 1.0 {
            scope.spawn(|| use_cpu(cpus - 1.0, until));
        }
        use_cpu(cpus, until);
    });
    attacker.rest(until)
}

fn use_cpu(share: f64, until: Instant) {
    let slot = until.saturating_duration_since(Instant::now());
    let target = thread_cpu() + slot.mul_f64(share.clamp(0.0, 1.0));
    while thread_cpu() < target && Instant::now() < until {
        std::hint::spin_loop();
    }
}

fn print(report: &Report) -> Result<()> {
    let text = serde_json::to_string(report).map_err(|error| Error::Failed(error.to_string()))?;
    output::print(&(text + "\n"))
}

/// Options of the hostile guest.
#[derive(Args, Clone)]
pub struct HostileArgs {
    /// The class of its attacks.
    #[arg(long)]
    pub class: Class,
    /// The socket at which process guests join, or the one of its first vhost-user port.
    #[arg(long, value_name = "FILE")]
    pub socket: PathBuf,
    /// Its name in the daemon's configuration.
    #[arg(long)]
    pub name: String,
    /// The file with its orders.
    #[arg(long, value_name = "FILE")]
    pub orders: PathBuf,
    /// Its address, which a process guest learns when it joins.
    #[arg(long, value_name = "MAC")]
    pub mac: MacAddr,
    /// Addresses that the attack uses: other guests' or the uplink's.
    #[arg(long, value_name = "MAC")]
    pub target: Vec<MacAddr>,
    /// Attack once, at its port of this number, and end.
    #[arg(long, value_name = "N")]
    pub alone: Option<usize>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_is_of_the_kind_of_guest_that_its_name_says() {
        for class in Class::all() {
            assert_eq!(class.is_virtio(), matches!(attack(*class), Attack::Virtio(_)), "{class}");
        }
    }
}
