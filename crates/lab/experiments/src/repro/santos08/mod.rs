//! `pvnet repro santos08`: what a received packet costs, by each way into a guest.

mod claims;
mod config;
mod document;
mod measure;
mod paper;
mod rows;
mod show;

use clap::Args;
use lab::Progress;
use report::human;

use crate::error::Result;
use crate::repro::cpus::Cpus;
use crate::repro::results::Results;
use crate::repro::rounds::{self, Experiment, Outcome, in_rounds};
use crate::repro::server::{Machine, Network, Server, Setup as _};
use config::{Coalesced, LINES, Line};
use document::{Document, Method};
use measure::{Sample, Stream, measure};
use paper::MTU;
use rows::{Measurements, Received, rows};

/// Options of `santos08`.
#[derive(Args)]
pub struct Santos08Args {
    /// Lines: linux, original, guest-copy, multiqueue-reuse, direct, and beside the paper's copy, steered and
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
    /// Packets per second that the peer sends. All lines must keep up.
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pps: u32,
    /// Seconds of each stream.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..))]
    seconds: u32,
    /// The number of rounds; costs are medians, with minimum and maximum.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    #[command(flatten)]
    results: Results,
}

/// Small ones.
const SMALL: u16 = 100;
/// Seconds that a stream takes besides, and a server for its start, roughly.
const OVERHEAD: f64 = 2.5;
const START: f64 = 1.0;
/// The wait after the last packet as a multiple of the time between two packets: the paper's 18 µs at its 1 Gb/s. The
/// sender here pauses after each burst, and the wait must not end before the next.
const WAIT: u32 = 2;

impl Santos08Args {
    /// The chosen lines.
    fn lines(&self) -> Vec<Line> {
        let is_chosen = |line: &Line| self.config.is_empty() || self.config.contains(line);
        LINES.into_iter().filter(is_chosen).collect()
    }

    /// What has to be measured. Keys of a group follow each other.
    fn keys(&self) -> Vec<Received> {
        let mut keys = Vec::new();
        for coalesce in &self.coalesce {
            for line in self.lines() {
                let key = |size: &u16| Received { line, coalesce: *coalesce, size: *size };
                keys.extend(self.size.iter().map(key));
            }
        }
        keys
    }

    /// A line's server.
    fn setup(&self, line: Line, frames: u16) -> Coalesced {
        let burst = u32::from(frames) * 1_000_000 / self.pps;
        Coalesced { line, frames, us: (WAIT * burst).max(1) }
    }

    /// A stream whose bursts are as long as what shares an interrupt, so that Linux, which has no card here, has as many
    /// packets per interrupt.
    fn stream(&self, key: Received) -> Stream {
        Stream { size: key.size, pps: self.pps, burst: key.coalesce, seconds: self.seconds }
    }
}

/// Runs the experiment.
pub fn run(args: &Santos08Args) -> Result<()> {
    args.results.prepare()?;
    let keys = args.keys();
    let (seen, method) = experiment(args, &keys)?;
    let document = Document::new(rows(&keys, &seen), method);
    show::print(&document)?;
    args.results.write(&document, || show::page(&document), seen.failures())
}

/// The configuration of every daemon, as TOML.
#[must_use]
pub fn configurations() -> Vec<String> {
    let machine =
        Machine { guests: &["server"], peer: "peer", nics: 1, rate_mbps: 0, coalesce_us: 0 };
    let toml = |line| Coalesced { line, frames: 64, us: 18 }.toml("/run".as_ref(), &machine);
    LINES.into_iter().filter_map(toml).collect()
}

/// Measures everything. The servers with the same coalescing run at once.
fn experiment(args: &Santos08Args, keys: &[Received]) -> Result<(Measurements, Method)> {
    lab::preflight(&["ip", "ethtool", "iperf3"])?;
    let cpus = Cpus::choose()?;
    let starts = rounds::starts(keys);
    let progress = Progress::new(starts + args.rounds as usize * keys.len(), args.results.quiet);
    let streams = f64::from(args.rounds) * keys.len() as f64;
    let minutes = (streams * (f64::from(args.seconds) + OVERHEAD) + START * starts as f64) / 60.0;
    progress.note(&format!("{} measurements: about {minutes:.1} minutes", keys.len()));
    let streams = Streams { args, cpus: &cpus };
    let Outcome { seen, notes } = in_rounds(&streams, keys, args.rounds, &progress)?;
    let method = Method {
        seconds: args.seconds,
        rounds: args.rounds,
        pps: args.pps,
        server_cpu: cpus.server,
        client_cpu: cpus.client,
        notes: cpus.note.into_iter().chain(notes).collect(),
    };
    Ok((seen, method))
}

/// Streams of datagrams to servers.
struct Streams<'a> {
    args: &'a Santos08Args,
    cpus: &'a Cpus,
}

impl Experiment<Received> for Streams<'_> {
    type Running = Server;
    type Sample = Sample;

    fn start(&self, line: Line, frames: u16) -> Result<Server> {
        let network = Network { nics: 1, rate_mbps: 0, coalesce_us: 0 };
        Server::start(self.args.setup(line, frames), 1, network, self.cpus)
    }

    fn notes<'a>(&self, server: &'a Server) -> &'a [String] {
        &server.notes
    }

    fn measure(&self, server: &Server, key: Received) -> Result<Sample> {
        measure(server, self.args.stream(key), self.cpus)
    }

    fn words(&self, sample: &Sample) -> String {
        format!("{} ns per packet", human(sample.cost.total))
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(clap::Parser)]
    struct Cli {
        #[command(flatten)]
        args: Santos08Args,
    }

    fn args(options: &[&str]) -> Santos08Args {
        let line = ["santos08"].iter().chain(options);
        Cli::try_parse_from(line).unwrap_or_else(|error| panic!("{error}")).args
    }

    #[test]
    fn every_measurement_is_made_once() {
        let keys = args(&["--coalesce", "6,64"]).keys();
        assert_eq!(keys.len(), LINES.len() * 2 * 2);
        assert!(keys.is_sorted_by_key(|key| key.coalesce));
        let few = args(&["--config", "direct,linux", "--coalesce", "8", "--size", "1500"]).keys();
        assert_eq!(few.iter().map(|key| key.line.name()).collect::<Vec<_>>(), ["linux", "direct"]);
    }

    #[test]
    fn the_wait_is_longer_than_the_pause_between_bursts() {
        let args = args(&["--pps", "20000"]);
        let Coalesced { frames, us, .. } = args.setup(Line::Direct, 64);
        assert_eq!((frames, us), (64, 6400));
    }

    #[test]
    fn wrong_names_are_refused() {
        for line in [["--config", "xen"], ["--coalesce", "65"], ["--size", "9000"]] {
            assert!(Cli::try_parse_from(["santos08"].iter().chain(&line)).is_err(), "{line:?}");
        }
    }
}
