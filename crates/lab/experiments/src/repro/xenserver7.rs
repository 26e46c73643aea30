//! `pvnet-lab repro xenserver7`: two guests with one to eight queues each.

mod claims;
mod document;
mod fit;
mod flows;
mod measure;
mod model;
mod rows;
mod show;

use clap::Args;
use document::{Method, Model, document};
use fit::Fit;
use flows::{Hashes, port_sets};
use measure::{Sample, Transfer, transfer};
use report::human;
use rows::{Measurements, Point, measured, modelled};

use crate::error::Result;
use crate::repro::results::Results;
use crate::repro::rounds::{Experiment, Outcome, Schedule, in_rounds};
use crate::testbed::{Setup, Testbed};

pub use document::Document;

/// Options of `xenserver7`.
#[derive(Args)]
pub struct Xenserver7Args {
    /// The numbers of queues of each guest.
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_values_t = 1..=8,
          value_parser = clap::value_parser!(u32).range(1..=64))]
    queues: Vec<u32>,
    /// TCP streams from one guest to the other.
    #[arg(long, value_name = "N", default_value_t = STREAMS, value_parser = clap::value_parser!(u32).range(1..=64))]
    streams: u32,
    /// TCP's congestion control at both ends. BBR, the default of some systems, sends at a pace of its own.
    #[arg(long, value_name = "NAME", default_value = "cubic")]
    congestion: String,
    /// Seconds of each transfer.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..))]
    seconds: u32,
    /// The number of rounds; rates are medians, with minimum and maximum, and all else is means.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    #[command(flatten)]
    results: Results,
}

/// With this many CPUs, every number of queues is measured with a worker for each queue.
const ENOUGH_CPUS: usize = 8;
/// Sets of ports over which flows per queue are computed.
const PORT_SETS: usize = 1000;
/// Rough overhead of a transfer in seconds; `START` is that of a testbed's start.
const OVERHEAD: f64 = 0.7;
const START: f64 = 0.5;

impl Xenserver7Args {
    /// The numbers of queues, in order, each once.
    fn queues(&self) -> Vec<usize> {
        let mut queues: Vec<usize> = self.queues.iter().map(|queues| *queues as usize).collect();
        queues.sort_unstable();
        queues.dedup();
        queues
    }

    /// The points to measure on a machine with `cpus` CPUs.
    fn points(&self, cpus: usize) -> Vec<Point> {
        let queues = self.queues();
        if cpus >= ENOUGH_CPUS {
            return queues.into_iter().map(|queues| Point { queues, workers: queues }).collect();
        }
        let of = |workers| {
            let queues = queues.iter().filter(move |queues| **queues >= workers);
            queues.map(move |queues| Point { queues: *queues, workers })
        };
        (1..=cpus.min(2)).flat_map(of).collect()
    }
}

/// Runs the experiment.
pub fn run(args: &Xenserver7Args) -> Result<()> {
    args.results.prepare()?;
    lab::preflight(&["ip", "iperf3"])?;
    let cpus = lab::cpus()?.len();
    let points = args.points(cpus);
    let sets = Hashes::of_sets(&port_sets(PORT_SETS, args.streams as usize)?);
    let each = f64::from(args.seconds) + OVERHEAD;
    let is_quiet = args.results.quiet;
    let schedule = Schedule { rounds: args.rounds, each, start: START, is_quiet };
    let Outcome { seen, .. } = in_rounds(&Transfers { args }, &points, &schedule)?;
    let queues = args.queues();
    let mut rows = measured(&points, &seen);
    let fit = Fit::new(&seen, &points, cpus);
    let model = fit.costs().map(|costs| Model { costs, checks: fit.checks(&costs, &sets) });
    if cpus < ENOUGH_CPUS
        && let Some(model) = &model
    {
        rows.extend(modelled(&queues, &model.costs, &sets));
    }
    let notes = notes(args, cpus, &seen);
    let (streams, congestion) = (args.streams, args.congestion.clone());
    let own = document::Streams { streams, congestion, cpus, port_sets: sets.len() };
    let method = Method { seconds: args.seconds, rounds: args.rounds, own, notes };
    let document = document(rows, &queues, &sets, model, method);
    let sections = show::sections(&document);
    args.results.write(&document, &sections, || show::page(&document), seen.failures())
}

/// What differs from the intended setup.
fn notes(args: &Xenserver7Args, cpus: usize, seen: &Measurements) -> Vec<String> {
    let few = (cpus < ENOUGH_CPUS).then(|| {
        format!(
            "this machine has {cpus} CPUs, so at most two workers were measured; rows of the model predict \
             one worker per queue with {ENOUGH_CPUS} CPUs for each guest"
        )
    });
    let others = rows::congestion(seen).into_iter().filter(|name| *name != args.congestion);
    let others = others.map(|name| format!("iperf3 says that a transfer used {name}"));
    let threads = "iperf3 before version 3.16 sends all streams from one thread; the paper's iperf 2 had one for each";
    few.into_iter().chain(others).chain([threads.to_owned()]).collect()
}

/// Transfers between two guests.
struct Transfers<'a> {
    args: &'a Xenserver7Args,
}

impl Experiment<Point> for Transfers<'_> {
    type Running = Testbed;
    type Sample = Sample;

    fn start(&self, Point { queues, workers }: Point, _: u16) -> Result<Testbed> {
        let queues = u32::try_from(queues).ok();
        let setup = Setup { workers: Some(workers), queues, meter: false, ..Setup::default() };
        Testbed::start(&setup)
    }

    fn notes<'a>(&self, _: &'a Testbed) -> &'a [String] {
        &[]
    }

    fn name(&self, point: Point) -> String {
        point.name()
    }

    fn measure(&self, testbed: &mut Testbed, _: Point) -> Result<Sample> {
        let Xenserver7Args { streams, seconds, congestion, .. } = self.args;
        let like = Transfer { streams: *streams, seconds: *seconds, congestion };
        transfer(testbed, &like)
    }

    fn words(&self, sample: &Sample) -> String {
        let full = sample.ring_full * 100.0;
        format!("{} Mb/s, rings full for {full:.0} %", human(sample.mbps))
    }
}

// The article's numbers: "XenServer 7.0 performance improvements part 2: Parallelised networking datapath", 2016. Two
// Debian 8 guests with 8 virtual CPUs each on a Dell R730xd, iperf 2.0.5 with 8 streams. Its plot has no numbers; its
// text has two.

/// Streams of its measurements.
pub(crate) const STREAMS: u32 = 8;
/// Virtual CPUs of each of its guests.
pub(crate) const GUEST_CPUS: usize = 8;
/// The number of queues at which the article's plot falls.
pub(crate) const DIP: usize = 5;
/// The default number of queues, with 8 virtual CPUs on both sides.
pub(crate) const DEFAULT_QUEUES: usize = 8;
/// Mb/s with one queue: XenServer 6.5.
pub(crate) const ONE_QUEUE: f64 = 17_000.0;
/// Mb/s with the default number of queues.
pub(crate) const DEFAULT: f64 = 41_000.0;
/// The least factor from one queue to four.
pub(crate) const FOUR_QUEUES: f64 = 2.0;

/// The article's rate in Mb/s with `queues` queues, if its text has one.
pub(crate) fn mbps(queues: usize) -> Option<f64> {
    match queues {
        1 => Some(ONE_QUEUE),
        DEFAULT_QUEUES => Some(DEFAULT),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(options: &[&str]) -> Xenserver7Args {
        crate::options(options).unwrap_or_else(|error| panic!("{error}"))
    }

    #[test]
    fn a_large_machine_measures_the_whole_plot() {
        let points = args(&[]).points(8);
        assert_eq!(points.len(), 8);
        assert!(points.iter().all(|point| point.queues == point.workers));
    }

    #[test]
    fn a_small_machine_measures_one_and_two_workers() {
        let points = args(&[]).points(2);
        assert_eq!(points.iter().filter(|point| point.workers == 1).count(), 8);
        assert_eq!(points.iter().filter(|point| point.workers == 2).count(), 7);
        assert_eq!(args(&["--queues", "2,1,2"]).points(1).len(), 2);
    }

    #[test]
    fn wrong_numbers_are_refused() {
        for line in [["--queues", "0"], ["--queues", "65"], ["--streams", "0"], ["--rounds", "0"]] {
            assert!(crate::options::<Xenserver7Args>(&line).is_err(), "{line:?}");
        }
    }

    #[test]
    fn the_default_is_140_percent_more() {
        assert_eq!((DEFAULT / ONE_QUEUE * 10.0 - 10.0).round(), 14.0);
        assert_eq!((mbps(1), mbps(5)), (Some(ONE_QUEUE), None));
    }
}
