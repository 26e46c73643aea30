//! `pvnet-lab bench vhost`: compares virtual machines' ports with the rivals that are installed.
//!
//! The back-end has one CPU, and a front-end program, which is two guests, another. All back-ends exist during the whole
//! run, and all but the measured one are stopped (SIGSTOP). Each round measures every one for a moment, in alternating
//! order. Ratios are within a round, so a machine whose speed changes from round to round changes them little.

mod back_end;
mod front_end;
mod guest;
mod open_vswitch;
mod subject;
mod table;

use std::path::PathBuf;
use std::time::Duration;

use back_end::Contender;
use clap::Args;
use front_end::{Reply, Request, RingLayout};
use lab::Progress;
use report::html::Report;
use subject::Subject;
use table::{Polling, Rounds, Sample};

use super::pps::{Cpus, Extra, Pair};
use super::rows::Common;
use super::show::Shown;
use crate::error::Result;

pub use front_end::{FrontEndArgs, run as front_end};

/// Options of this benchmark.
#[derive(Args)]
pub struct VhostArgs {
    #[command(flatten)]
    pub common: Common,
    /// Milliseconds of each measurement of frames per second.
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u64).range(10..=10_000))]
    pub slice_ms: u64,
    /// Frame lengths in bytes, without the checksum that a wire would add.
    #[arg(long, value_name = "LEN,…", value_delimiter = ',', default_values_t = [64, 1514], value_parser = clap::value_parser!(u16).range(60..=1514))]
    pub sizes: Vec<u16>,
    /// Measure frames per second only, not round trips and idle back-ends.
    #[arg(long)]
    pub rate_only: bool,
    /// Layouts of the rings.
    #[arg(long, value_enum, value_name = "LAYOUT,…", value_delimiter = ',', default_values_t = LAYOUTS)]
    pub layouts: Vec<RingLayout>,
    /// Compare with no rival.
    #[arg(long)]
    pub alone: bool,
    /// Compare with another build of pvnet as well.
    #[arg(long, value_name = "PROGRAM")]
    pub other: Option<PathBuf>,
    /// Lines for the daemon's configuration, after those of [daemon]: `low_latency = true`.
    #[arg(long, value_name = "TOML")]
    pub daemon: Vec<String>,
}

/// Round trips of a sample; `FIRST` is its frames after a pause.
const ROUND_TRIPS: u32 = 20_000;
const FIRST: u32 = 15;
/// The pause before such a frame. A back-end sleeps by then, and its CPU too.
const PAUSE_US: u64 = 10_000;
/// How long an idle back-end is measured.
const IDLE: Duration = Duration::from_millis(400);

/// The name of netif's generator guests in rows.
const NETIF: &str = "pvnet-netif";
const LAYOUTS: [RingLayout; 2] = [RingLayout::Split, RingLayout::Packed];

/// Everything that is measured.
struct Testbed {
    cpus: Cpus,
    contenders: Vec<Contender>,
    subjects: Vec<Subject>,
    /// Generator guests of netif, for frames per second.
    netif: Pair,
    rounds: Rounds,
    discarded: u32,
    neighbours: u32,
}

/// Runs the benchmark.
pub fn run(args: &VhostArgs) -> Result<Shown> {
    let steps = 1 + args.common.rounds as usize;
    let progress = Progress::new(steps, args.common.quiet);
    progress.step("start the back-ends on one CPU and the front-ends on another");
    let mut testbed = Testbed::start(args)?;
    for round in 0..args.common.rounds {
        progress.step(format!("round {} of {}", round + 1, args.common.rounds));
        testbed.round(round, args)?;
    }
    drop(progress);
    testbed.cpus.leave()?;
    let notes = testbed.notes(args);
    let benchmark = testbed.rounds.finish("vhost", &testbed.ratios(&args.layouts));
    let table = table::table(&benchmark);
    let mut page = Report::new("pvnet-lab bench vhost");
    page.lead(&notes);
    page.table("", &table);
    Ok(Shown { benchmark, table, notes, page })
}

impl Testbed {
    fn start(args: &VhostArgs) -> Result<Self> {
        let cpus = Cpus::take_two()?;
        let contenders = Contender::all(args.other.as_ref(), args.alone);
        let mut subjects = Vec::new();
        for &layout in &args.layouts {
            for contender in &contenders {
                let back_end = contender.start(&cpus, &args.daemon)?;
                let name = contender.name(layout);
                subjects.push(Subject::start(name, &cpus, back_end, layout)?);
            }
        }
        let config = netfront::Config { persistent_grants: true, ..netfront::Config::default() };
        let netif = Pair::start(&cpus, Extra::default(), &config)?;
        let rounds = Rounds::default();
        Ok(Self { cpus, contenders, subjects, netif, rounds, discarded: 0, neighbours: 0 })
    }

    fn round(&mut self, round: u32, args: &VhostArgs) -> Result<()> {
        let Self { cpus, subjects, netif, rounds, discarded, neighbours, .. } = self;
        let distance = cpus.distance()?;
        *neighbours += u32::from(cpus::are_neighbours(distance));
        rounds.round = round;
        rounds.push("one cache line, one way", "ns", "machine", distance);
        // Each round begins with another subject, and every second round goes backwards.
        let count = subjects.len();
        let order = (0..count).map(|n| match round % 2 {
            0 => (n + round as usize) % count,
            _ => (2 * count - 1 - n + round as usize) % count,
        });
        let order: Vec<usize> = order.collect();
        for len in &args.sizes {
            let case = format!("{len} B");
            for n in &order {
                let request = Request::Throughput { len: *len, ms: args.slice_ms };
                let sample = subjects[*n].sample(request)?;
                *discarded += sample.discarded;
                if let Some(Reply::Throughput(rate)) = sample.value {
                    rounds.push(&case, "Mpps", subjects[*n].name, rate / 1e6);
                }
            }
            // The generator guests are in this process.
            let processes = [netif.pid(), std::process::id()];
            let processes = processes.map(|pid| Polling { pid, threads: "" });
            let slice = Duration::from_millis(args.slice_ms);
            let sample = Sample::take(processes, || netif.slice(*len, slice))?;
            *discarded += sample.discarded;
            if let Some(rate) = sample.value {
                rounds.push(&case, "Mpps", NETIF, rate);
            }
        }
        if args.rate_only {
            return Ok(());
        }
        for n in order {
            let subject = &mut subjects[n];
            let name = subject.name;
            for (request, case, percentiles) in [
                (
                    Request::RoundTrips { count: ROUND_TRIPS, pause_us: 0 },
                    "round trip, polling",
                    ["p50", "p99"],
                ),
                (
                    Request::First { count: FIRST, pause_us: PAUSE_US },
                    "first frame after a pause",
                    ["p50", "longest"],
                ),
            ] {
                let sample = subject.sample(request)?;
                *discarded += sample.discarded;
                if let Some(Reply::Times(times)) = sample.value {
                    for (percentile, time) in percentiles.into_iter().zip(times) {
                        let case = format!("{case}, {percentile}");
                        rounds.push(&case, "µs", name, time as f64 / 1e3);
                    }
                }
            }
            rounds.push("idle", "% of a CPU", name, 100.0 * subject.idle(IDLE)?);
        }
        Ok(())
    }

    fn notes(&self, args: &VhostArgs) -> String {
        let rounds = args.common.rounds;
        let mut notes = format!(
            "Medians (minimum–maximum) of {rounds} rounds. {} samples in which a process lost its CPU were thrown away.",
            self.discarded
        );
        if self.neighbours > 0 {
            notes += &format!(
                " In {} of the rounds both CPUs were neighbours of one core, where all frame rates are higher.",
                self.neighbours
            );
        }
        let missing = [
            (Contender::Testpmd, "dpdk-testpmd"),
            (Contender::OpenVswitch, "Open vSwitch with DPDK"),
        ];
        for (_, name) in missing.iter().filter(|(rival, _)| !self.contenders.contains(rival)) {
            notes +=
                &format!(" Without {name}: not installed, not permitted, or --alone was given.");
        }
        notes
    }

    /// The pairs whose ratio becomes a row: this program and each other contender with the same layout, and the netif guests and testpmd.
    fn ratios(&self, layouts: &[RingLayout]) -> Vec<(&'static str, &'static str)> {
        let ours = |layout| Contender::Pvnet.name(layout);
        let mut ratios = Vec::new();
        for rival in self.contenders.iter().filter(|rival| **rival != Contender::Pvnet) {
            ratios.extend(layouts.iter().map(|layout| (ours(*layout), rival.name(*layout))));
        }
        ratios.extend(layouts.iter().map(|layout| (NETIF, Contender::Testpmd.name(*layout))));
        ratios
    }
}
