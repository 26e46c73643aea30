//! `pvnet-lab bench restart`: how long traffic between two guests pauses while the daemon is restarted.

use std::time::{Duration, Instant};

use clap::Args;
use lab::{Interrupt, Outage, OutageProbe, Progress};
use report::{Benchmark, human};

use super::rows::{Common, Rows, Settings};
use crate::error::{Error, Result};
use crate::testbed::{Ending, Setup, Subject, Testbed};

/// Options of this benchmark.
#[derive(Args)]
pub struct RestartArgs {
    #[command(flatten)]
    pub common: Common,
    #[command(flatten)]
    pub settings: Settings,
}

/// The number of bytes after which traffic counts as under way.
const UNDER_WAY: u64 = 4096;
/// How long traffic runs before and after an ending.
const STEADY: Duration = Duration::from_millis(500);
/// The time between two datagrams.
const INTERVAL: Duration = Duration::from_millis(1);
/// How long traffic may take to go on, on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(5);

/// How the daemon ends. The first row shows the pauses without a restart.
const ENDINGS: [(&str, Option<Ending>); 3] =
    [("undisturbed", None), ("planned", Some(Ending::Planned)), ("killed", Some(Ending::Killed))];

type Start = fn(&Testbed) -> lab::Result<OutageProbe>;

const DATAGRAMS: &str = "datagrams";

/// The traffic during a restart.
const TRAFFIC: [(&str, Start); 2] = [
    (DATAGRAMS, |testbed| {
        let (left, right) = (testbed.left(), testbed.right());
        OutageProbe::datagrams(&left.namespace, &right.namespace, right.ipv4, INTERVAL)
    }),
    ("tcp", |testbed| {
        let (left, right) = (testbed.left(), testbed.right());
        OutageProbe::stream(&left.namespace, &right.namespace, right.ipv4)
    }),
];

/// Runs the benchmark.
pub fn run(args: &RestartArgs) -> Result<Benchmark> {
    lab::preflight(&[])?;
    let rounds = args.common.rounds;
    let steps = 1 + rounds as usize * ENDINGS.len() * TRAFFIC.len();
    let progress = Progress::new(steps, args.common.quiet);
    progress.step("start pvnet");
    let mut testbed = Testbed::start(&Setup { rejoin: true, ..args.settings.setup() })?;
    let mut rows = Rows::default();
    for round in 0..rounds {
        for (ended, ending) in ENDINGS {
            for (sent, start) in TRAFFIC {
                let row = format!("{ended}-{sent}");
                progress.step(format!("round {} of {rounds}: {row}", round + 1));
                let outage = around(&mut testbed, start, ending)?;
                let longest = outage.longest.as_secs_f64() * 1e3;
                rows.push(&row, "ms", longest);
                let mut seen = format!("{} ms", human(longest));
                if sent == DATAGRAMS {
                    rows.push(&format!("{ended}-lost"), "datagrams", outage.lost as f64);
                    rows.push(&format!("{ended}-repeated"), "datagrams", outage.repeated as f64);
                    seen += &format!(", {} lost, {} repeated", outage.lost, outage.repeated);
                }
                progress.done(&seen);
            }
        }
    }
    Ok(rows.finish("restart"))
}

/// Sends this traffic around an ending and the next daemon's start.
fn around(testbed: &mut Testbed, start: Start, ending: Option<Ending>) -> Result<Outage> {
    let probe = start(testbed)?;
    until_more(&probe)?;
    Interrupt::sleep(STEADY)?;
    if let Some(ending) = ending {
        testbed.restart_daemon(ending)?;
    }
    until_more(&probe)?;
    Interrupt::sleep(STEADY)?;
    Ok(probe.finish()?)
}

/// Waits until [`UNDER_WAY`] more bytes have arrived.
fn until_more(probe: &OutageProbe) -> Result<()> {
    let (start, before) = (Instant::now(), probe.bytes());
    while probe.bytes() < before + UNDER_WAY {
        if start.elapsed() > LIMIT {
            return Err(Error::Failed(format!("nothing arrives for {} s", LIMIT.as_secs())));
        }
        Interrupt::sleep(POLL)?;
    }
    Ok(())
}
