//! `pvnet repro xenserver7`: two guests with one to eight queues each.

mod claims;
mod document;
mod flows;
mod measure;
mod model;
mod paper;
mod ports;
mod rows;
mod show;

use clap::Args;
use lab::Progress;
use report::human;

use crate::error::Result;
use crate::repro::outcome::kept;
use crate::repro::results::Results;
use crate::testbed::{Setup, Testbed};
use document::{Document, Method, Model};
use flows::Hashes;
use measure::{Sample, Transfer, transfer};
use paper::STREAMS;
use ports::port_sets;
use rows::{Measurements, Point, measured, modelled};

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
    /// TCP's congestion control at both ends. BBR, the default of some systems, sends at a pace of its choice.
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

/// From so many CPUs on, every number of queues is measured with a worker for each.
const ENOUGH_CPUS: usize = 8;
/// Sets of ports over which flows per queue are computed.
const PORT_SETS: usize = 1000;
/// Seconds that a transfer takes besides, and a testbed for its start, roughly.
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

    /// What is measured on a machine with so many CPUs.
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
    let seen = experiment(args, &points)?;
    let queues = args.queues();
    let mut rows = measured(&points, &seen);
    let model = seen.costs().map(|costs| Model { costs, checks: seen.checks(&sets, cpus) });
    if cpus < ENOUGH_CPUS
        && let Some(model) = &model
    {
        rows.extend(modelled(&queues, &model.costs, &sets));
    }
    let method = Method {
        seconds: args.seconds,
        rounds: args.rounds,
        streams: args.streams,
        congestion: args.congestion.clone(),
        cpus,
        port_sets: sets.len(),
        notes: notes(args, cpus, &seen),
    };
    let document = Document::new(rows, &queues, &sets, model, method);
    show::print(&document)?;
    args.results.write(&document, || show::page(&document), seen.failures())
}

/// What differs from the intended setup.
fn notes(args: &Xenserver7Args, cpus: usize, seen: &Measurements) -> Vec<String> {
    let few = (cpus < ENOUGH_CPUS).then(|| {
        format!(
            "this machine has {cpus} CPUs, so at most two workers were measured; rows of the model predict \
             one worker per queue with {ENOUGH_CPUS} CPUs for each guest"
        )
    });
    let others = seen.congestion().into_iter().filter(|name| *name != args.congestion);
    let others = others.map(|name| format!("iperf3 says that a transfer used {name}"));
    let threads = "iperf3 before version 3.16 sends all streams from one thread; the paper's iperf 2 had one for each";
    few.into_iter().chain(others).chain([threads.to_owned()]).collect()
}

/// Measures every point. All testbeds run throughout; the rounds are interleaved, forwards and backwards in turn.
fn experiment(args: &Xenserver7Args, points: &[Point]) -> Result<Measurements> {
    let mut seen = Measurements::default();
    let progress = Progress::new((1 + args.rounds as usize) * points.len(), args.results.quiet);
    let transfers = f64::from(args.rounds) * points.len() as f64;
    let seconds = transfers * (f64::from(args.seconds) + OVERHEAD) + START * points.len() as f64;
    progress.note(&format!("{transfers} transfers: about {:.1} minutes", seconds / 60.0));
    let mut testbeds = start(points, &progress, &mut seen)?;
    let like =
        Transfer { streams: args.streams, seconds: args.seconds, congestion: &args.congestion };
    for round in 0..args.rounds {
        if round > 0 {
            testbeds.reverse();
        }
        for (point, testbed) in &mut testbeds {
            progress.step(format!("round {} of {}: {}", round + 1, args.rounds, name(*point)));
            if seen.has_failed(*point) {
                progress.done("skipped: it has failed before");
                continue;
            }
            let result = kept(transfer(testbed, &like))?;
            progress.done(&note_down(&mut seen, *point, result));
        }
    }
    progress.finish();
    Ok(seen)
}

/// Starts a testbed for each point. One that does not start fails its measurements.
fn start(
    points: &[Point],
    progress: &Progress,
    seen: &mut Measurements,
) -> Result<Vec<(Point, Testbed)>> {
    let mut testbeds = Vec::new();
    for point in points {
        progress.step(format!("start {}", name(*point)));
        let queues = u32::try_from(point.queues).ok();
        let setup =
            Setup { workers: Some(point.workers), queues, meter: false, ..Setup::default() };
        match kept(Testbed::start(&setup))? {
            Ok(testbed) => testbeds.push((*point, testbed)),
            Err(why) => {
                progress.done(&format!("failed: {why}"));
                seen.fail(*point, why);
            }
        }
    }
    Ok(testbeds)
}

fn name(Point { queues, workers }: Point) -> String {
    format!("{queues} queues, {workers} workers")
}

/// Adds the outcome of a transfer, and returns it in words.
fn note_down(
    seen: &mut Measurements,
    point: Point,
    result: std::result::Result<Sample, String>,
) -> String {
    match result {
        Ok(sample) => {
            let full = sample.ring_full * 100.0;
            let said = format!("{} Mb/s, rings full for {full:.0} %", human(sample.mbps));
            seen.push(point, sample);
            said
        }
        Err(why) => {
            let said = format!("failed: {why}");
            seen.fail(point, why);
            said
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(clap::Parser)]
    struct Cli {
        #[command(flatten)]
        args: Xenserver7Args,
    }

    fn args(options: &[&str]) -> Xenserver7Args {
        let line = ["xenserver7"].iter().chain(options);
        Cli::try_parse_from(line).unwrap_or_else(|error| panic!("{error}")).args
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
            assert!(Cli::try_parse_from(["xenserver7"].iter().chain(&line)).is_err(), "{line:?}");
        }
    }
}
