//! `pvnet-lab bench uplink`: what a frame between a guest and a NIC costs, by each kind of uplink.
//!
//! A worker in lockstep, a guest, and one end of a veth pair as the NIC, on one CPU. The kinds carry frames in turn. At the other
//! end of the wire, an outgoing frame ends in a network stack in which nobody listens, and an incoming one comes from a packet
//! socket: that is the same for all kinds.

use clap::Args;
use lab::{Interrupt, Progress};
use report::{Benchmark, human};

use super::pps::lockstep::{Direction, NicKind, NicPath, Size, Times, enter};
use super::rows::{Common, Rows};
use crate::error::{Error, Result};

/// Options of this benchmark.
#[derive(Args)]
pub struct UplinkArgs {
    #[command(flatten)]
    pub common: Common,
    /// Frames of each measurement. It consists of 20 slices that alternate between the kinds.
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(20..=100_000_000))]
    pub frames: u64,
}

const SLICES: u32 = 20;
/// Frames before the first measurement: more than any ring has slots, and more than there are buffers.
const WARM_UP: u64 = 4096;

const CASES: [(Direction, Size); 5] = [
    (Direction::In, Size::Small),
    (Direction::In, Size::Full),
    (Direction::Out, Size::Small),
    (Direction::Out, Size::Full),
    (Direction::Out, Size::Large),
];

/// Runs the benchmark.
pub fn run(args: &UplinkArgs) -> Result<Benchmark> {
    lab::preflight(&["ip", "ethtool"])?;
    let Some(_network) = enter()? else {
        return Err(Error::Failed("run this as root: it makes network interfaces".into()));
    };
    let rounds = args.common.rounds;
    let progress = Progress::new(CASES.len() * rounds as usize, args.common.quiet);
    let cpu = lab::cpus()?.pop();
    let mut rows = Rows::default();
    for (direction, size) in CASES {
        let case = name(direction, size);
        let failed = |reason| Error::Failed(format!("{case}: {reason}"));
        lab::on_cpu(cpu, || {
            let mut paths = Vec::new();
            for kind in NicKind::ALL {
                let mut path = NicPath::new(kind, direction, size).map_err(failed)?;
                path.carry(if size.is_large() { WARM_UP / 8 } else { WARM_UP }).map_err(failed)?;
                paths.push((kind, path));
            }
            for round in 0..rounds {
                progress.step(format!("round {} of {rounds}: {case}", round + 1));
                let times = alternate(&mut paths, frames(args.frames, size))?;
                let mut shown = Vec::new();
                for (kind, [total, worker]) in times {
                    let row = format!("{case} {}", kind.name());
                    rows.push(&row, "ns/frame", total);
                    rows.push(&format!("{row} worker"), "ns/frame", worker);
                    shown.push(format!("{} {}", kind.name(), human(total)));
                }
                progress.done(&shown.join(", "));
            }
            Ok::<_, Error>(())
        })?;
    }
    Ok(compared(rows.finish("uplink")))
}

/// Fewer frames of 64 KiB: one takes as long as dozens of others.
fn frames(frames: u64, size: Size) -> u64 {
    if size.is_large() { (frames / 20).max(SLICES.into()) } else { frames }
}

/// Nanoseconds per frame for each kind, in all and of the worker, in slices that alternate.
fn alternate(paths: &mut [(NicKind, NicPath)], frames: u64) -> Result<Vec<(NicKind, [f64; 2])>> {
    let frames = frames / u64::from(SLICES);
    let mut times = vec![Times::default(); paths.len()];
    let kinds = paths.len();
    for first in (0..kinds).cycle().take(SLICES as usize) {
        Interrupt::check()?;
        for n in (0..kinds).map(|n| (n + first) % kinds) {
            let slice = paths[n].1.carry(frames).map_err(Error::Failed)?;
            times[n].total += slice.total;
            times[n].worker += slice.worker;
        }
    }
    let per_frame =
        |time: std::time::Duration| time.as_nanos() as f64 / (frames * u64::from(SLICES)) as f64;
    let times = times.into_iter().map(|times| [per_frame(times.total), per_frame(times.worker)]);
    Ok(paths.iter().map(|(kind, _)| *kind).zip(times).collect())
}

fn name(direction: Direction, size: Size) -> String {
    let direction = if direction == Direction::In { "in" } else { "out" };
    format!("{direction}-{}", size.name())
}

/// Compares each kind with the packet socket.
fn compared(mut benchmark: Benchmark) -> Benchmark {
    let [first, others @ ..] = NicKind::ALL;
    for case in CASES.map(|(direction, size)| name(direction, size)) {
        for part in ["", " worker"] {
            let row = |kind: NicKind| format!("{case} {}{part}", kind.name());
            others.iter().for_each(|kind| benchmark.compare(&row(*kind), &row(first)));
        }
    }
    benchmark
}
