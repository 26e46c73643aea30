//! `pvnet bench stream`: throughput between two kernel stacks.

use clap::Args;
use lab::{Offloads, Progress, VethBridge};
use report::{Benchmark, human};

use super::common::{Common, in_turn};
use super::rows::Rows;
use crate::error::Result;
use crate::testbed::{Case, Setup, Subject, Testbed, find_pace, measure};

/// Options of this benchmark.
#[derive(Args)]
pub struct StreamArgs {
    #[command(flatten)]
    pub common: Common,
    /// Seconds of each transfer.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    pub seconds: u32,
}

/// The transfers, as `docs` and rows name them.
const KEYS: [&str; 4] = ["tcp-1", "tcp-4", "tcp-1-no-offload", "udp"];

/// Both subjects with the same offloads.
struct Pair {
    pvnet: Testbed,
    bridge: VethBridge,
}

impl Pair {
    fn start(offloads: Offloads) -> Result<Self> {
        let pvnet = Testbed::start(&Setup { offloads, meter: true, ..Setup::default() })?;
        Ok(Self { pvnet, bridge: VethBridge::create("pvnet-veth", offloads)? })
    }

    fn subjects(&self) -> [&dyn Subject; 2] {
        [&self.pvnet, &self.bridge]
    }
}

/// Runs the benchmark.
pub fn run(args: &StreamArgs) -> Result<Benchmark> {
    lab::preflight(&["iperf3", "ethtool"])?;
    let cases: Vec<&Case> = KEYS.into_iter().filter_map(Case::find).collect();
    let rounds = args.common.rounds;
    let transfers = 2 * rounds as usize * cases.len();
    let progress = Progress::new(3 + transfers, args.common.quiet);
    progress.step("start pvnet and veth + bridge, with offloads and without");
    let with = Pair::start(Offloads::ALL)?;
    let without = Pair::start(Offloads::NONE)?;
    let paces = paces(&with, &cases, &progress)?;
    let mut rows = Rows::default();
    for round in 0..rounds {
        for case in &cases {
            let pair = if case.offloads == Offloads::ALL { &with } else { &without };
            let [pvnet, bridge] = pair.subjects();
            for (subject, pace) in in_turn(round, [(pvnet, paces[0]), (bridge, paces[1])]) {
                let name = format!("{}/{}", case.key, subject.name());
                progress.step(format!("round {} of {rounds}: {name}", round + 1));
                let transfer = || case.run(subject, args.seconds, pace);
                let measured = measure(subject, transfer)?;
                let mbps = measured.result.mbps;
                progress.done(&format!("{} Mb/s", human(mbps)));
                rows.push_with_cpu(&name, "Mb/s", mbps, measured.cpu);
            }
        }
    }
    Ok(rows.finish("stream"))
}

/// The pace of UDP for each subject: found once, so that rounds compare.
fn paces(pair: &Pair, cases: &[&Case], progress: &Progress) -> Result<[u64; 2]> {
    let mut paces = [0; 2];
    for (pace, subject) in paces.iter_mut().zip(pair.subjects()) {
        progress.step(format!("find the pace of UDP over {}", subject.name()));
        for udp in cases.iter().filter(|case| case.is_udp()) {
            *pace = find_pace(subject, udp)?;
            progress.done(&format!("{} Mb/s", human(*pace as f64 / 1e6)));
        }
    }
    Ok(paces)
}
