//! `pvnet-lab repro willmann07`: guests with contexts of cards, beside guests behind a driver domain.

mod claims;
mod config;
mod document;
mod measure;
mod paper;
mod rows;
mod show;

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use report::human;

use crate::error::{Error, Result};
use crate::repro::cpus::Cpus;
use crate::repro::results::Results;
use crate::repro::rounds::{Experiment, Outcome, Schedule, in_rounds};
use crate::repro::server::{Machine, Network, Server, Setup as _};
use config::Config;
pub use document::Document;
use document::{Method, document};
use measure::{Sample, Transfer, measure};
use paper::Part;
use rows::{Measurements, Transferred, rows};

/// Options of `willmann07`.
#[derive(Args)]
pub struct Willmann07Args {
    /// Tables to reproduce [default: all tables and figures].
    #[arg(long, value_name = "TABLE,…", value_delimiter = ',', value_parser = numbered(["1", "2", "3", "4"], Part::table))]
    table: Vec<Part>,
    /// Figures to reproduce.
    #[arg(long, value_name = "FIGURE,…", value_delimiter = ',', value_parser = numbered(["3", "4"], Part::figure))]
    figure: Vec<Part>,
    /// The numbers of guests in figures.
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_values_t = [1, 2, 4, 8, 12, 16, 20, 24],
          value_parser = clap::value_parser!(u8).range(1..=24))]
    guests: Vec<u8>,
    /// Configurations: native, xen-intel, xen-ricenic, cdna-none, cdna-hypervisor, cdna-iommu-static,
    /// cdna-iommu-strict, cdna-iommu-deferred, cdna-hypervisor-tso [default: all].
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', value_parser = Config::find)]
    config: Vec<Config>,
    /// NICs of every server. Each guest has an interface on each.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=4))]
    nics: u8,
    /// The line rate of each NIC in 10⁶ bits per second; 0 for none. A card keeps it on its wire. The native server has no
    /// card: its client keeps it.
    #[arg(long, value_name = "N", default_value_t = RATE_MBPS)]
    rate_mbps: u32,
    /// Microseconds after a received frame until a context's guest is interrupted, unless 64 have come before.
    #[arg(long, value_name = "N", default_value_t = COALESCE_US)]
    coalesce_us: u32,
    /// TCP connections of each guest on each NIC.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=64))]
    connections: u32,
    /// TCP's congestion control at both ends; /proc/sys/net/ipv4/tcp_available_congestion_control lists the available ones.
    #[arg(long, value_name = "NAME", default_value = "cubic")]
    congestion: String,
    /// Seconds of each transfer.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..))]
    seconds: u32,
    /// The number of rounds; rates are medians, with minimum and maximum, and shares are means.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    #[command(flatten)]
    results: Results,
}

/// The line rate of a NIC.
const RATE_MBPS: u32 = 500;
/// Microseconds of coalescing. The paper tuned its NICs' for the best results (§5.1).
const COALESCE_US: u32 = 2000;
/// Microseconds of coalescing where latency counts too.
const UNHURRIED_US: u32 = 50;
/// Bytes of a frame of the MTU, and of TCP's payload in it.
const FRAME: u64 = 1514;
const PAYLOAD: u64 = 1448;
/// Rough overhead of a transfer in seconds; `START` is that of a server's start.
const OVERHEAD: f64 = 2.0;
const START: f64 = 2.0;

/// Parses the numbers of parts. `of` gives a part's number, if it has one.
fn numbered<const N: usize>(
    numbers: [&'static str; N],
    of: fn(Part) -> Option<&'static str>,
) -> impl TypedValueParser<Value = Part> {
    let part = move |number: String| {
        Part::ALL.into_iter().find(|part| of(*part) == Some(&number)).ok_or("no such part")
    };
    PossibleValuesParser::new(numbers).try_map(part)
}

impl Willmann07Args {
    /// The chosen tables and figures.
    fn parts(&self) -> Vec<Part> {
        let chosen = [&*self.table, &self.figure].concat();
        let all = Part::ALL.into_iter();
        all.filter(|part| chosen.is_empty() || chosen.contains(part)).collect()
    }

    /// All measurements, each once, ordered by the number of guests.
    fn keys(&self) -> Vec<Transferred> {
        let mut keys: Vec<Transferred> = Vec::new();
        for (config, direction, guests) in self.parts().iter().flat_map(|it| it.rows(&self.guests))
        {
            let key = Transferred { config, direction, guests };
            let is_chosen = self.config.is_empty() || self.config.contains(&config);
            if is_chosen && !keys.contains(&key) {
                keys.push(key);
            }
        }
        keys.sort_by_key(|key| key.guests);
        keys
    }

    /// The client's limit, if no card keeps the line rate.
    fn limit(&self, config: Config) -> Option<u32> {
        let is_limited = self.rate_mbps > 0 && !config.has_cards();
        let rate = u64::from(self.rate_mbps) * u64::from(self.nics) * PAYLOAD / FRAME;
        is_limited.then(|| u32::try_from(rate.max(1)).unwrap_or(u32::MAX))
    }
}

/// Runs the experiment.
pub fn run(args: &Willmann07Args) -> Result<()> {
    args.results.prepare()?;
    let keys = args.keys();
    if keys.is_empty() {
        return Err(Error::Failed("none of the chosen parts has such a configuration".to_owned()));
    }
    let (seen, method) = experiment(args, &keys)?;
    let document = document(rows(&args.parts(), &keys, &args.guests, &seen), method);
    let sections = show::sections(&document);
    args.results.write(&document, &sections, || show::page(&document), seen.failures())
}

/// The configuration of every daemon with one guest, as TOML.
#[must_use]
pub fn configurations() -> Vec<String> {
    let (rate_mbps, coalesce_us) = (RATE_MBPS, COALESCE_US);
    let machine = Machine { nics: 2, rate_mbps, coalesce_us, ..Machine::EXAMPLE };
    Config::ALL.iter().filter_map(|config| config.toml("/run".as_ref(), &machine)).collect()
}

/// Starts a server with one guest, whose only interface is a context of a card without a line rate. The card segments the guest's
/// frames.
pub fn on_a_card() -> Result<Server> {
    let network = Network { coalesce_us: UNHURRIED_US, ..Network::ONE_NIC };
    Server::start(Config::CdnaTso, 1, network, &Cpus::any())
}

/// Measures everything. All servers with the same number of guests run at once.
fn experiment(args: &Willmann07Args, keys: &[Transferred]) -> Result<(Measurements, Method)> {
    lab::preflight(&["ip", "ethtool"])?;
    let cpus = Cpus::choose()?;
    let each = f64::from(args.seconds) + OVERHEAD;
    let is_quiet = args.results.quiet;
    let schedule = Schedule { rounds: args.rounds, each, start: START, is_quiet };
    let transfers = Transfers { args, cpus: &cpus };
    let Outcome { seen, mut notes } = in_rounds(&transfers, keys, &schedule)?;
    notes.extend(cpus.note.clone());
    let own = document::Network {
        nics: args.nics,
        rate_mbps: args.rate_mbps,
        coalesce_us: args.coalesce_us,
        connections: args.connections,
        congestion: args.congestion.clone(),
        cpus,
    };
    Ok((seen, Method { seconds: args.seconds, rounds: args.rounds, own, notes }))
}

/// Transfers to and from servers whose guests run the benchmark program.
struct Transfers<'a> {
    args: &'a Willmann07Args,
    cpus: &'a Cpus,
}

impl Experiment<Transferred> for Transfers<'_> {
    type Running = Server;
    type Sample = Sample;

    fn start(&self, config: Config, guests: u16) -> Result<Server> {
        let Willmann07Args { nics, rate_mbps, coalesce_us, .. } = *self.args;
        let network = Network { nics, rate_mbps, coalesce_us };
        let guests = u8::try_from(guests).unwrap_or(u8::MAX);
        let mut server = Server::start(config, guests, network, self.cpus)?;
        let congestion = &self.args.congestion;
        server.run_in_guests(&["load", "server", "--congestion", congestion], self.cpus)?;
        Ok(server)
    }

    fn notes<'a>(&self, server: &'a Server) -> &'a [String] {
        &server.notes
    }

    fn name(&self, key: Transferred) -> String {
        key.name()
    }

    fn measure(&self, server: &mut Server, key: Transferred) -> Result<Sample> {
        let transfer = Transfer {
            direction: key.direction,
            seconds: self.args.seconds,
            connections: self.args.connections,
            limit: self.args.limit(key.config),
            congestion: &self.args.congestion,
        };
        measure(server, transfer, self.cpus)
    }

    fn words(&self, sample: &Sample) -> String {
        let idle = sample.share.idle * 100.0;
        format!("{} Mb/s, {idle:.0} % idle", human(sample.mbps))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(options: &[&str]) -> Willmann07Args {
        crate::options(options).unwrap_or_else(|error| panic!("{error}"))
    }

    #[test]
    fn every_measurement_is_made_once_for_all_parts() {
        let keys = args(&["--guests", "1,2"]).keys();
        // Eight configurations with one guest both ways, two of them with two guests, and one more on transmit.
        assert_eq!(keys.len(), 2 * 8 + 2 * 2 + 2);
        assert!(keys.is_sorted_by_key(|key| key.guests));
        let few = args(&["--table", "2", "--config", "xen-intel,cdna-hypervisor"]).keys();
        assert_eq!(
            few.iter().map(|key| key.config.name()).collect::<Vec<_>>(),
            ["xen-intel", "cdna-hypervisor"]
        );
        assert!(args(&["--table", "2", "--config", "native"]).keys().is_empty());
    }

    #[test]
    fn the_client_keeps_the_rate_where_no_card_does() {
        let args = args(&["--rate-mbps", "1000"]);
        assert_eq!(args.limit(Config::Native), Some(1912));
        assert_eq!(args.limit(config::CDNA), None);
        assert_eq!(super::tests::args(&["--rate-mbps", "0"]).limit(Config::XenIntel), None);
    }

    #[test]
    fn wrong_names_are_refused() {
        for line in [["--table", "5"], ["--figure", "2"], ["--guests", "25"], ["--config", "xen"]] {
            assert!(crate::options::<Willmann07Args>(&line).is_err(), "{line:?}");
        }
    }
}
