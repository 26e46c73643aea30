//! `pvnet-lab bench isolation`: what a hostile guest costs two good ones.
//!
//! ```text
//!  red ── TCP, round trips ──► blue          for each class of hostile guest, with one worker and with two
//!   └──── 200 Mb/s ──► hostile               only to a slow receiver
//! ```

mod class;
mod hostile;
mod measure;
mod order;
mod outcome;
mod show;
mod testbed;

use clap::Args;
use lab::Progress;
use measure::{Sample, measure};
use order::Order;
use outcome::{Outcome, Round};
use report::{Benchmark, human};
use testbed::Attacked;

use super::rows::Common;
use super::show::Shown;
use crate::error::Result;
use crate::testbed::GuestKind;

pub use class::Class;
pub use hostile::{HostileArgs, run as hostile_guest};

/// Options of this benchmark.
#[derive(Args)]
pub struct IsolationArgs {
    #[command(flatten)]
    pub common: Common,
    /// The classes of hostile guests [default: all].
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    class: Vec<Class>,
    /// The kind of the good guests: process guests, or guests with virtio devices and vhost-user ports.
    #[arg(long, value_name = "KIND,…", value_delimiter = ',', default_values_t = [GuestKind::Netif], value_enum)]
    victims: Vec<GuestKind>,
    /// The daemon's workers, one run for each number.
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_values_t = [1, 2], value_parser = clap::value_parser!(u16).range(1..=64))]
    workers: Vec<u16>,
    /// Seconds of each stream, and of the round trips.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    seconds: u32,
}

/// Runs the benchmark.
pub fn run(args: &IsolationArgs) -> Result<Shown> {
    lab::preflight(&["iperf3", "ping"])?;
    let classes = if args.class.is_empty() { Class::all() } else { &args.class };
    let runs = args.victims.len() * args.workers.len() * classes.len();
    let steps = runs * (1 + args.common.rounds as usize);
    let progress = Progress::new(steps, args.common.quiet);
    let mut outcomes = Vec::new();
    for victims in &args.victims {
        for workers in &args.workers {
            for class in classes {
                let outcome = Outcome::new(*class, *victims, (*workers).into());
                outcomes.push(attack(args, outcome, &progress)?);
            }
        }
    }
    progress.finish();
    let mut benchmark = Benchmark::new("isolation");
    benchmark.rows.extend(outcomes.iter().flat_map(Outcome::rows));
    Ok(Shown {
        table: show::table(&outcomes),
        page: show::page(&benchmark, &outcomes),
        notes: show::rules(),
        benchmark,
    })
}

/// All rounds of one class. An attack that makes the benchmark fail is a result, too.
fn attack(args: &IsolationArgs, mut outcome: Outcome, progress: &Progress) -> Result<Outcome> {
    let what = outcome.label();
    progress.step(format!("{what}: start"));
    let mut attacked = Attacked::start(outcome.class, outcome.workers, outcome.victims)?;
    let mut cost = 0.0;
    for round in 0..args.common.rounds {
        let of = args.common.rounds;
        progress.step(format!("{what}: round {} of {of}", round + 1));
        match measure_round(&mut attacked, round, args.seconds, &mut cost) {
            Ok(round) => {
                let share = |of: f64, idle: f64| human(of / idle);
                let tcp = share(round.attack.mbps, round.idle.mbps);
                let p99 = share(round.attack.p99, round.idle.p99);
                progress.done(&format!("throughput × {tcp}, p99 × {p99}"));
                outcome.rounds.push(round);
            }
            Err(error) if error.is_interrupt() => return Err(error),
            Err(error) => {
                progress.done(&error.to_string());
                outcome.failure = Some(error.to_string());
                break;
            }
        }
    }
    Ok(outcome)
}

/// One round. The attack comes first or last, in turn. `cost` is the CPU time of the last attack, which the spinning
/// process uses too: so the first round has to attack first.
fn measure_round(
    attacked: &mut Attacked,
    round: u32,
    seconds: u32,
    cost: &mut f64,
) -> Result<Round> {
    let idle = measure(attacked, Order::Idle, seconds)?;
    let harmless = |attacked: &mut Attacked, cpus: f64| -> Result<[Sample; 2]> {
        let spin = measure(attacked, Order::Spin(percent(cpus)), seconds)?;
        Ok([spin, measure(attacked, Order::Busy, seconds)?])
    };
    let attacks_last = !round.is_multiple_of(2);
    let before = attacks_last.then(|| harmless(attacked, *cost)).transpose()?;
    let attack = measure(attacked, Order::Attack, seconds)?;
    *cost = attack.cost(&idle);
    if attacked.class.attacks_once() {
        // The hostile guest is refused from now on, however it behaves.
        attacked.start_anew()?;
    }
    let [spin, busy] = match before {
        Some(harmless) => harmless,
        None => harmless(attacked, *cost)?,
    };
    Ok(Round { idle, attack, spin, busy })
}

/// CPUs in per cent. The process has two threads.
fn percent(cpus: f64) -> u32 {
    (1..=200).take_while(|percent| f64::from(*percent) <= 100.0 * cpus).last().unwrap_or(0)
}

/// The good guests beside the hostile one, and its fate.
#[derive(Clone, Debug)]
pub struct Beside {
    /// The good guests while the hostile one is idle.
    pub idle: Sample,
    /// The good guests while it attacks.
    pub attack: Sample,
    /// Why its port was disabled.
    pub reason: String,
}

/// Measures the good guests before and during the attack, on one worker, and reads from the status why the hostile guest's port was disabled.
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
