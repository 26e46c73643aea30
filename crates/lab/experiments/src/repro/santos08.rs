//! `pvnet-lab repro santos08`: what a received packet costs, by each way into a guest.

mod claims;
mod config;
mod document;
mod measure;
mod reads;
mod rows;
mod show;

use clap::Args;
use config::{Coalesced, Line, Placement};
use document::{Method, document};
use measure::{Sample, Stream, measure};
use reads::{Reading, Readings};
use report::human;
use rows::{Received, rows};

use super::shares::copy_ns;
use crate::error::Result;
use crate::repro::cpus::Cpus;
use crate::repro::results::Results;
use crate::repro::rounds::{Experiment, Outcome, Schedule, in_rounds};
use crate::repro::server::{Machine, Network, Server, Setup as _};

pub use document::Document;

/// Options of `santos08`.
#[derive(Args)]
pub struct Santos08Args {
    /// Lines: linux, original, guest-copy, multiqueue-reuse, direct; and beyond the paper's: copy, steered and
    /// copy-from-card [default: all].
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', value_parser = Line::find)]
    config: Vec<Line>,
    /// Packets per interrupt.
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_values_t = [6, 8, 16, 32, 64],
          value_parser = clap::value_parser!(u16).range(1..=64))]
    coalesce: Vec<u16>,
    /// Bytes of a packet, with its IP and UDP headers.
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_values_t = [MTU, SMALL],
          value_parser = clap::value_parser!(u16).range(64..=1500))]
    size: Vec<u16>,
    /// Where the guest and the driver domain run: together on one CPU, with cards and peer on another; or apart,
    /// the driver domain with cards and peer, as in the paper.
    #[arg(long, value_name = "PLACEMENT,…", value_delimiter = ',', default_value = "together")]
    cpus: Vec<Placement>,
    /// Do not measure what reading the payload costs a guest without a stack.
    #[arg(long)]
    no_reads: bool,
    /// Packets per second that the peer sends. All lines must keep up.
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pps: u32,
    /// Seconds of each stream.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    seconds: u32,
    /// The number of rounds; costs are medians, with minimum and maximum.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    #[command(flatten)]
    results: Results,
}

/// Bytes of a small packet.
const SMALL: u16 = 100;
/// Rough overhead of a stream in seconds; `START` is that of a server's start.
const OVERHEAD: f64 = 0.4;
const START: f64 = 0.2;
/// The wait after the last packet, as a multiple of the time between two packets: in the paper, 18 µs at 1 Gb/s. The
/// sender here pauses after each burst, and the wait must last until the next one.
const WAIT: u32 = 2;

impl Santos08Args {
    /// The chosen lines.
    fn lines(&self) -> Vec<Line> {
        let is_chosen = |line: &Line| self.config.is_empty() || self.config.contains(line);
        Line::ALL.into_iter().filter(is_chosen).collect()
    }

    /// All measurements. Keys of a group follow each other.
    fn keys(&self) -> Vec<Received> {
        let mut keys = Vec::new();
        for (placement, coalesce) in
            self.cpus.iter().flat_map(|cpus| self.coalesce.iter().map(move |it| (*cpus, *it)))
        {
            for line in self.lines() {
                let key = |size: &u16| Received { line, placement, coalesce, size: *size };
                keys.extend(self.size.iter().map(key));
            }
        }
        keys
    }

    /// The readings to measure. Those on one CPU, which has one cache, are a control.
    fn readings(&self) -> Vec<Reading> {
        let lines = reads::LINES.into_iter().filter(|line| self.lines().contains(line));
        let reading = |line| [Placement::Together, Placement::Apart].map(|it| (line, it));
        let all = lines.flat_map(reading).filter(|_| !self.no_reads);
        all.map(|(line, placement)| Reading { line, placement }).collect()
    }

    /// The longest wait after the last packet, in microseconds.
    fn wait_us(&self, frames: u16) -> u32 {
        (WAIT * (u32::from(frames) * 1_000_000 / self.pps)).max(1)
    }

    /// A stream whose bursts have as many packets as share an interrupt. So Linux, which has no card here, has as many
    /// packets per interrupt, too.
    fn stream(&self, size: u16, burst: u16) -> Stream {
        Stream { size, pps: self.pps, burst, seconds: self.seconds }
    }

    fn schedule(&self) -> Schedule {
        let each = f64::from(self.seconds) + OVERHEAD;
        Schedule { rounds: self.rounds, each, start: START, is_quiet: self.results.quiet }
    }
}

/// Runs the experiment.
pub fn run(args: &Santos08Args) -> Result<()> {
    args.results.prepare()?;
    lab::preflight(&["ip", "ethtool"])?;
    let (keys, readings, cpus) = (args.keys(), args.readings(), Cpus::choose()?);
    let copy_ns = lab::on_cpu(cpus.server, || Ok::<_, lab::Error>(copy_ns(MTU)))?;
    let streams = Streams { args, cpus: &cpus };
    let Outcome { seen, mut notes } = in_rounds(&streams, &keys, &args.schedule())?;
    let reader = Readings { cpus: &cpus, stream: args.stream(MTU, MOST), us: args.wait_us(MOST) };
    let read = in_rounds(&reader, &readings, &args.schedule())?;
    notes.extend(cpus.note.clone());
    let failures = seen.failures() + read.seen.failures();
    let own = document::Stream { pps: args.pps, copy_ns, cpus };
    let method = Method { seconds: args.seconds, rounds: args.rounds, own, notes };
    let document = document(rows(&keys, &seen), reads::rows(&readings, &read.seen), method);
    args.results.write(&document, &show::sections(&document), || show::page(&document), failures)
}

/// The configuration of every daemon, as TOML.
#[must_use]
pub fn configurations() -> Vec<String> {
    let coalesced = |line| Coalesced { line, frames: 64, us: 18 };
    let toml = |line| coalesced(line).toml("/run".as_ref(), &Machine::EXAMPLE);
    Line::ALL.into_iter().filter_map(toml).collect()
}

/// Streams of datagrams to servers.
struct Streams<'a> {
    args: &'a Santos08Args,
    cpus: &'a Cpus,
}

impl Experiment<Received> for Streams<'_> {
    type Running = Server;
    type Sample = Sample;

    fn start(&self, (line, placement): (Line, Placement), group: u16) -> Result<Server> {
        let frames = rows::coalesce(group);
        let setup = Coalesced { line, frames, us: self.args.wait_us(frames) };
        Server::start(setup, 1, Network::ONE_NIC, &placement.cpus(self.cpus))
    }

    fn notes<'a>(&self, server: &'a Server) -> &'a [String] {
        &server.notes
    }

    fn name(&self, key: Received) -> String {
        key.name()
    }

    fn measure(&self, server: &mut Server, key: Received) -> Result<Sample> {
        let stream = self.args.stream(key.size, key.coalesce);
        measure(server, stream, &key.placement.cpus(self.cpus))
    }

    fn words(&self, sample: &Sample) -> String {
        format!("{} ns per packet", human(sample.cost.total))
    }
}

// The paper's numbers: Santos, Turner, Janakiraman, Pratt, "Bridging the Gap between Software and Hardware Techniques
// for I/O Virtualization", USENIX 2008. Figures without numbers in the text are plots.

/// The default of the paper's NIC for packets per interrupt (§5.2).
pub(crate) const DEFAULT: u16 = 6;
/// Bytes of the paper's packets.
pub(crate) const MTU: u16 = 1500;
/// The most packets per interrupt that the paper tries.
pub(crate) const MOST: u16 = 64;

/// The extra cost of a packet over Linux's, as a part of Linux's. `None` where the text has no number.
///
/// The original has the default coalescing, the others 64 packets per interrupt (§6).
pub(crate) const fn over_linux(line: Line, coalesce: u16) -> Option<f64> {
    match (line, coalesce) {
        (Line::Linux, _) => Some(0.0),
        (Line::Original, DEFAULT) => Some(3.55),
        (Line::GuestCopy, MOST) => Some(0.97),
        (Line::MultiqueueReuse, MOST) => Some(0.25),
        (Line::Direct, MOST) => Some(0.11),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(options: &[&str]) -> Santos08Args {
        crate::options(options).unwrap_or_else(|error| panic!("{error}"))
    }

    #[test]
    fn every_measurement_is_made_once() {
        let keys = args(&["--coalesce", "6,64"]).keys();
        assert_eq!(keys.len(), Line::ALL.len() * 2 * 2);
        assert!(keys.is_sorted_by_key(|key| key.coalesce));
        let few = args(&["--config", "direct,linux", "--coalesce", "8", "--size", "1500"]).keys();
        assert_eq!(few.iter().map(|key| key.line.name()).collect::<Vec<_>>(), ["linux", "direct"]);
        let placements = args(&["--cpus", "together,apart", "--coalesce", "6"]).keys();
        assert!(
            placements.len() == Line::ALL.len() * 4
                && placements.is_sorted_by_key(|key| key.placement as u8)
        );
    }

    #[test]
    fn the_wait_is_longer_than_the_pause_between_bursts() {
        assert_eq!(args(&["--pps", "20000"]).wait_us(64), 6400);
    }

    #[test]
    fn readings_are_of_the_chosen_lines_in_both_placements() {
        assert_eq!(args(&[]).readings().len(), 2 * reads::LINES.len());
        assert_eq!(args(&["--config", "copy,linux"]).readings().len(), 2);
        assert!(args(&["--no-reads"]).readings().is_empty());
    }

    #[test]
    fn wrong_names_are_refused() {
        for line in [["--config", "xen"], ["--coalesce", "65"], ["--size", "9000"]] {
            assert!(crate::options::<Santos08Args>(&line).is_err(), "{line:?}");
        }
    }
}
