//! `pvnet repro menon06`: one server, on Linux, in the driver domain and in a guest.

mod claims;
mod config;
mod document;
mod measure;
mod orders;
mod page;
mod paper;
mod plan;
mod rows;
mod show;
mod topology;

use clap::Args;
use lab::Progress;
use report::human;

use crate::error::{Error, Result};
use crate::repro::cpus::Cpus;
use crate::repro::outcome::kept;
use crate::repro::results::Results;
use config::Server;
use document::{Document, Method};
use measure::measure;
use paper::Figure;
use plan::{Key, Planned, in_turn, keys, plan, servers, superpages};
use rows::Measurements;
use topology::Topology;

/// Options of `menon06`.
#[derive(Args)]
pub struct Menon06Args {
    /// Figures to reproduce [default: all].
    #[arg(long, value_name = "FIGURE,…", value_delimiter = ',')]
    figure: Vec<Figure>,
    /// Configurations of them, as the paper names them: none, high-ioc, Driver-MTU [default: all].
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
    let document = Document::new(&plan, &seen, method);
    show::print(&document)?;
    args.results.write(&document, || page::page(&document), seen.failures())
}

/// A configuration of every kind of daemon, as TOML.
#[must_use]
pub fn configurations() -> Vec<String> {
    let toml = |bar: paper::Bar| match bar.feasibility {
        paper::Feasibility::Measure(server) => server.toml("/run".as_ref(), "server", "client"),
        paper::Feasibility::Impossible(_) => None,
    };
    paper::bars().into_iter().filter_map(toml).collect()
}

/// Seconds that a transfer takes to start: a server listens, a client connects.
const OVERHEAD: f64 = 0.2;
/// Seconds until a server and its client reach each other.
const START: f64 = 0.8;

/// Measures everything, in interleaved rounds.
fn experiment(args: &Menon06Args, plan: &[Planned]) -> Result<(Measurements, Method)> {
    lab::preflight(&["iperf3", "ping", "ethtool"])?;
    let (cpus, keys) = (Cpus::choose()?, keys(plan));
    let servers = servers(&keys);
    let progress =
        Progress::new(servers.len() + args.rounds as usize * keys.len(), args.results.quiet);
    progress.note(&estimate(args, keys.len(), servers.len()));
    let mut seen = Measurements::default();
    let mut topologies = Vec::new();
    for kind in servers {
        progress.step(format!("start the server of {}", name(plan, |key| key.server == kind)));
        match kept(Topology::start(kind, &cpus))? {
            Ok(topology) => topologies.push((kind, topology)),
            Err(why) => {
                progress.done(&format!("failed: {why}"));
                let without = keys.iter().filter(|key| key.server == kind);
                without.for_each(|key| seen.fail(*key, why.clone()));
            }
        }
    }
    for round in 0..args.rounds {
        for key in in_turn(&keys, round) {
            let shown = name(plan, |other| *other == key);
            progress.step(format!("round {} of {}: {shown}", round + 1, args.rounds));
            let result = transfer(&topologies, &seen, key, args.seconds, &cpus)?;
            progress.done(&note_down(&mut seen, key, result));
        }
    }
    let method = Method {
        seconds: args.seconds,
        rounds: args.rounds,
        server_cpu: cpus.server,
        client_cpu: cpus.client,
        notes: notes(&cpus, &topologies, &seen),
    };
    Ok((seen, method))
}

/// A sample, or why there is none. `None` if the measurement is skipped.
type Outcome = Option<std::result::Result<measure::Sample, String>>;

/// Adds the outcome of a transfer, and returns it in words.
fn note_down(seen: &mut Measurements, key: Key, outcome: Outcome) -> String {
    match outcome {
        Some(Ok(sample)) => {
            let said = format!("{} Mb/s", human(sample.mbps));
            seen.push(key, sample);
            said
        }
        Some(Err(why)) => {
            let said = format!("failed: {why}");
            seen.fail(key, why);
            said
        }
        None => "skipped: it has failed before".to_owned(),
    }
}

/// Runs a transfer, unless it has failed before.
fn transfer(
    topologies: &[(Server, Topology)],
    seen: &Measurements,
    key: Key,
    seconds: u32,
    cpus: &Cpus,
) -> Result<Outcome> {
    let topology = topologies.iter().find(|(kind, _)| *kind == key.server);
    match topology {
        Some((_, topology)) if !seen.has_failed(key) => {
            kept(measure(topology, key, seconds, cpus)).map(Some)
        }
        _ => Ok(None),
    }
}

/// The name of the first bar with such a key, for people.
fn name(plan: &[Planned], is: impl Fn(&Key) -> bool) -> String {
    let bar = plan.iter().find(|planned| planned.key.as_ref().is_ok_and(&is)).map(|it| &it.bar);
    bar.map_or(String::new(), |bar| {
        let write = if bar.program == paper::Program::Write { ", write" } else { "" };
        format!("{} ({}{write})", bar.config, bar.direction.name())
    })
}

fn estimate(args: &Menon06Args, keys: usize, servers: usize) -> String {
    let rounds = f64::from(args.rounds);
    let transfers = keys as f64 * rounds * (f64::from(args.seconds) + OVERHEAD);
    let minutes = (transfers + servers as f64 * START) / 60.0;
    let rounds = args.rounds;
    format!("{keys} measurements on {servers} servers, {rounds} rounds: about {minutes:.1} minutes")
}

/// Notes for the reader.
fn notes(cpus: &Cpus, topologies: &[(Server, Topology)], seen: &Measurements) -> Vec<String> {
    let mut notes: Vec<String> = cpus.note.iter().cloned().collect();
    for note in topologies.iter().flat_map(|(_, topology)| &topology.notes) {
        // Most are the same on all of them.
        if !notes.contains(note) {
            notes.push(note.clone());
        }
    }
    let stolen = seen.stolen();
    if stolen > 0.01 {
        let percent = human(100.0 * stolen);
        notes.push(format!(
            "the host gave up to {percent} % of the server CPU's time to others during a transfer"
        ));
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_measurement_is_named_after_its_first_bar() {
        let plan = plan(&[Figure::Five, Figure::Seven, Figure::Ten], &[], Ok(()));
        let names: Vec<String> =
            keys(&plan).iter().map(|key| name(&plan, |other| other == key)).collect();
        assert_eq!(names[..2], ["none (tx)", "sp (tx)"]);
        assert!(names.contains(&"none (tx, write)".to_owned()), "{names:?}");
        assert!(names.contains(&"high/csum (tx)".to_owned()), "{names:?}");
    }
}
