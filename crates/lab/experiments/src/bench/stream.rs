//! `pvnet-lab bench stream`: throughput between two kernel stacks.

use clap::Args;
use lab::{Offloads, Progress, VethBridge};
use report::{Benchmark, human};

use super::rows::{Common, Rows, Settings, in_turn};
use crate::error::Result;
use crate::testbed::{Case, SameShape, Setup, Subject, Testbed, find_pace, measure};

/// Options of this benchmark.
#[derive(Args)]
pub struct StreamArgs {
    #[command(flatten)]
    pub common: Common,
    /// Seconds of each transfer.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    pub seconds: u32,
    /// TCP's congestion controls at both ends, each measured for itself.
    #[arg(long, value_name = "NAME", value_delimiter = ',', default_values = ["cubic", "bbr"], value_parser = name)]
    pub congestion: Vec<String>,
    /// Also measure the least program with pvnet's threads and copies: two taps, three threads, three copies, and no check or protocol.
    #[arg(long)]
    pub same_shape: bool,
    #[command(flatten)]
    pub settings: Settings,
}

/// The name of a congestion control, as the kernel has it.
fn name(text: &str) -> std::result::Result<String, String> {
    let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-_".contains(c);
    match text {
        "" => Err("a name is missing".into()),
        _ if text.chars().all(allowed) => Ok(text.to_owned()),
        _ => Err(format!("{text:?} names no congestion control; try cubic or bbr")),
    }
}

/// The transfers, as `docs` and rows name them.
const KEYS: [&str; 4] = ["tcp-1", "tcp-4", "tcp-1-no-offload", "udp"];

/// The subjects with the same offloads.
struct Subjects {
    pvnet: Testbed,
    bridge: VethBridge,
    same_shape: Option<SameShape>,
}

impl Subjects {
    fn start(settings: &Settings, offloads: Offloads) -> Result<Self> {
        let pvnet = Testbed::start(&Setup { offloads, meter: true, ..settings.setup() })?;
        let bridge = VethBridge::create("pvnet-veth", offloads)?;
        Ok(Self { pvnet, bridge, same_shape: None })
    }

    /// All of them; the last one has no pace for UDP.
    fn all(&self) -> impl Iterator<Item = &dyn Subject> {
        let both: [&dyn Subject; 2] = [&self.pvnet, &self.bridge];
        both.into_iter().chain(self.same_shape.iter().map(|shape| shape as &dyn Subject))
    }
}

/// Runs the benchmark.
pub fn run(args: &StreamArgs) -> Result<Benchmark> {
    lab::preflight(&["iperf3", "ethtool"])?;
    let cases: Vec<&Case> = KEYS.into_iter().filter_map(Case::find).collect();
    let rounds = args.common.rounds;
    let controls = |case: &Case| -> Vec<Option<&str>> {
        match case.is_tcp() {
            true => args.congestion.iter().map(|name| Some(&**name)).collect(),
            false => vec![None],
        }
    };
    let variants: Vec<_> =
        cases.iter().flat_map(|case| controls(case).into_iter().map(move |c| (*case, c))).collect();
    let of_same_shape = variants.iter().filter(|(case, _)| args.same_shape && has_same_shape(case));
    let transfers = rounds as usize * (2 * variants.len() + of_same_shape.count());
    let progress = Progress::new(3 + transfers, args.common.quiet);
    progress.step("start pvnet and veth + bridge, with offloads and without");
    let mut with = Subjects::start(&args.settings, Offloads::ALL)?;
    let without = Subjects::start(&args.settings, Offloads::NONE)?;
    if args.same_shape {
        with.same_shape = Some(SameShape::create("pvnet-shape")?);
    }
    let paces = paces(&with, &cases, &progress)?;
    let mut rows = Rows::default();
    for round in 0..rounds {
        for (case, congestion) in &variants {
            let subjects = if case.offloads == Offloads::ALL { &with } else { &without };
            let count = if has_same_shape(case) { 3 } else { 2 };
            let paced = subjects.all().zip(paces.into_iter().chain([0])).take(count);
            for (subject, pace) in in_turn(round, paced) {
                let control = congestion.map_or(String::new(), |name| format!("-{name}"));
                let name = format!("{}{control}/{}", case.key, subject.name());
                progress.step(format!("round {} of {rounds}: {name}", round + 1));
                let transfer = || case.run(subject, args.seconds, pace, *congestion);
                let measured = measure(subject, transfer)?;
                let mbps = measured.result.mbps;
                progress.done(&format!("{} Mb/s", human(mbps)));
                rows.push_with_cpu(&name, "Mb/s", mbps, measured.cpu);
            }
        }
    }
    Ok(rows.finish("stream"))
}

/// Whether the program of the same shape can carry it: TCP with offloads.
fn has_same_shape(case: &Case) -> bool {
    case.is_tcp() && case.offloads == Offloads::ALL
}

/// The pace of UDP for pvnet and the bridge. It is found once, so that rounds are comparable.
fn paces(subjects: &Subjects, cases: &[&Case], progress: &Progress) -> Result<[u64; 2]> {
    let mut paces = [0; 2];
    for (pace, subject) in paces.iter_mut().zip(subjects.all()) {
        progress.step(format!("find the pace of UDP over {}", subject.name()));
        for udp in cases.iter().filter(|case| case.is_udp()) {
            *pace = find_pace(subject, udp)?;
            progress.done(&format!("{} Mb/s", human(*pace as f64 / 1e6)));
        }
    }
    Ok(paces)
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_congestion_control_has_a_plain_name() {
        assert_eq!(super::name("cubic").as_deref(), Ok("cubic"));
        for text in ["", "Cubic", "-C x", "bbr;"] {
            assert!(super::name(text).is_err(), "{text}");
        }
    }
}
