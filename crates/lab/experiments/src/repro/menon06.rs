//! `pvnet-lab repro menon06`: one server, on Linux, in the driver domain and in a guest.

mod claims;
mod config;
mod document;
mod measure;
mod paper;
mod plan;
mod rows;
mod show;
mod single;
mod topology;

use clap::Args;
use report::human;

use crate::error::{Error, Result};
use crate::repro::cpus::Cpus;
use crate::repro::results::Results;
use crate::repro::rounds::{Experiment, Outcome, Schedule, in_rounds};
use crate::repro::server::{Machine, Server, Setup as _};
pub use document::Document;
use document::{Method, document};
use measure::{Sample, measure};
use paper::Figure;
use plan::{Key, Planned, keys, plan, superpages};
use rows::Measurements;
pub use single::{Gain, MECHANISMS, gains};

/// Options of `menon06`.
#[derive(Args)]
pub struct Menon06Args {
    /// Figures to reproduce [default: all].
    #[arg(long, value_name = "FIGURE,…", value_delimiter = ',')]
    figure: Vec<Figure>,
    /// Configurations of the figures, by the paper's names: none, high-ioc, Driver-MTU [default: all].
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    config: Vec<String>,
    /// Seconds of each transfer.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    seconds: u32,
    /// The number of rounds; rows are medians, with minimum and maximum.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    #[command(flatten)]
    results: Results,
}

/// Runs the experiment.
pub fn run(args: &Menon06Args) -> Result<()> {
    args.results.prepare()?;
    let superpages = superpages();
    let plan = plan(&args.figure, &args.config, superpages.as_ref().copied().map_err(|why| &**why));
    if plan.is_empty() {
        let names = args.config.join(", ");
        return Err(Error::Failed(format!(
            "none of the chosen figures has a configuration {names}"
        )));
    }
    let (seen, method) = experiment(args, &plan)?;
    let document = document(&plan, &seen, method);
    let sections = show::sections(&document);
    args.results.write(&document, &sections, || show::page(&document), seen.failures())
}

/// A configuration of every kind of daemon, as TOML.
#[must_use]
pub fn configurations() -> Vec<String> {
    let toml = |bar: paper::Bar| match bar.feasibility {
        paper::Feasibility::Measure(server) => server.toml("/run".as_ref(), &Machine::EXAMPLE),
        paper::Feasibility::Impossible(_) => None,
    };
    paper::bars().into_iter().filter_map(toml).collect()
}

/// Seconds that a transfer takes to start: a server listens, a client connects.
const OVERHEAD: f64 = 0.2;
/// Seconds until a server and its client reach each other.
const START: f64 = 0.8;

/// Measures everything in interleaved rounds.
fn experiment(args: &Menon06Args, plan: &[Planned]) -> Result<(Measurements, Method)> {
    lab::preflight(&["iperf3", "ping", "ethtool"])?;
    let cpus = Cpus::choose()?;
    let each = f64::from(args.seconds) + OVERHEAD;
    let is_quiet = args.results.quiet;
    let schedule = Schedule { rounds: args.rounds, each, start: START, is_quiet };
    let transfers = Transfers { args, plan, cpus: &cpus };
    let Outcome { seen, mut notes } = in_rounds(&transfers, &keys(plan), &schedule)?;
    notes.extend(cpus.note.clone());
    notes.extend(stolen(&seen));
    Ok((seen, Method { seconds: args.seconds, rounds: args.rounds, own: cpus, notes }))
}

/// The experiment: transfers from and to servers.
struct Transfers<'a> {
    args: &'a Menon06Args,
    plan: &'a [Planned],
    cpus: &'a Cpus,
}

impl Experiment<Key> for Transfers<'_> {
    type Running = Server;
    type Sample = Sample;

    fn start(&self, kind: config::ServerKind, _: u16) -> Result<Server> {
        topology::start(kind, self.cpus)
    }

    fn notes<'a>(&self, server: &'a Server) -> &'a [String] {
        &server.notes
    }

    fn name(&self, key: Key) -> String {
        name(self.plan, key)
    }

    fn measure(&self, server: &mut Server, key: Key) -> Result<Sample> {
        measure(server, key, self.args.seconds, self.cpus)
    }

    fn words(&self, sample: &Sample) -> String {
        format!("{} Mb/s", human(sample.mbps))
    }
}

/// The name of the first bar with this key.
fn name(plan: &[Planned], key: Key) -> String {
    let bar = plan.iter().find(|planned| planned.key == Ok(key)).map(|it| &it.bar);
    bar.map_or(String::new(), |bar| {
        let write = if bar.program == paper::Program::Write { ", write" } else { "" };
        format!("{} ({}{write})", bar.config, bar.direction.name())
    })
}

/// A note if others had the server's CPU.
fn stolen(seen: &Measurements) -> Option<String> {
    let most = seen.all().map(|sample| sample.stolen).fold(0.0, f64::max);
    (most > 0.01).then(|| {
        let percent = human(100.0 * most);
        format!(
            "the host gave up to {percent} % of the server CPU's time to others during a transfer"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_measurement_is_named_after_its_first_bar() {
        let plan = plan(&[Figure::Five, Figure::Seven, Figure::Ten], &[], Ok(()));
        let names: Vec<String> = keys(&plan).into_iter().map(|key| name(&plan, key)).collect();
        assert_eq!(names[..2], ["none (tx)", "sp (tx)"]);
        assert!(names.contains(&"none (tx, write)".to_owned()), "{names:?}");
        assert!(names.contains(&"high/csum (tx)".to_owned()), "{names:?}");
    }
}
