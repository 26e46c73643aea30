//! `pvnet-lab bench nic`: frames per second of a card alone, and what each protection costs the card and the host.
//!
//! Two guests with a context each, the hypervisor's part and the card's firmware take turns in one thread. The card's
//! time is the CPU time of its own turns. No process, socket or tap is measured.

mod calls;
mod instructions;
mod machine;

use std::time::Duration;

use clap::Args;
use lab::Progress;
use report::{Benchmark, human};

use super::rows::{Common, Rows, in_turn};
use crate::error::{Error, Result};

pub use instructions::{CountedArgs, run_counted};
pub use machine::{CardProtection, Machine, To};

/// Options of this benchmark.
#[derive(Args)]
pub struct NicArgs {
    #[command(flatten)]
    pub common: Common,
    /// Milliseconds of each measurement.
    #[arg(long, value_name = "N", default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..=60_000))]
    pub milliseconds: u64,
    /// The frames' length in bytes, without the checksum that a wire would add.
    #[arg(long, value_name = "LEN", default_value_t = 64, value_parser = clap::value_parser!(u16).range(60..=1514))]
    pub size: u16,
    /// Protections to measure [default: all].
    #[arg(long, value_name = "PROTECTION,…", value_delimiter = ',')]
    pub protection: Vec<CardProtection>,
    /// Do not count instructions. They are counted if valgrind is installed.
    #[arg(long)]
    pub no_instructions: bool,
}

/// Runs the benchmark.
pub fn run(args: &NicArgs) -> Result<Benchmark> {
    let chosen =
        |kind: &CardProtection| args.protection.is_empty() || args.protection.contains(kind);
    let kinds: Vec<CardProtection> = CardProtection::ALL.into_iter().filter(chosen).collect();
    let counts = !args.no_instructions && instructions::are_countable();
    let rounds = args.common.rounds;
    let steps = (rounds as usize + usize::from(counts)) * kinds.len();
    let progress = Progress::new(steps, args.common.quiet);
    if !counts && !args.no_instructions {
        progress.note("valgrind is not installed: instructions are not counted");
    }
    let cpu = lab::cpus()?.last().copied();
    let mut rows = Rows::default();
    for round in 0..rounds {
        for kind in in_turn(round, kinds.iter().copied()) {
            progress.step(format!("round {} of {rounds}: {}", round + 1, kind.name()));
            let mpps = lab::on_cpu(cpu, || measure(args, kind, &mut rows))?;
            progress.done(&format!("{} Mpps to the wire", human(mpps)));
        }
    }
    if counts {
        for kind in kinds {
            progress.step(format!("count instructions: {}", kind.name()));
            let count = instructions::per_frame(kind, args.size)?;
            rows.push(&kind.row(&format!("instructions-{}", args.size)), "per frame", count);
            progress.done(&format!("{} per frame", human(count)));
        }
    }
    Ok(rows.finish("nic"))
}

/// Measures one protection, and returns millions of frames per second to the wire.
fn measure(args: &NicArgs, kind: CardProtection, rows: &mut Rows) -> Result<f64> {
    let size = args.size;
    let duration = Duration::from_millis(args.milliseconds);
    let mut to_wire = 0.0;
    for (to, name) in [(To::Wire, "wire"), (To::Context, "pair")] {
        lab::Interrupt::check()?;
        let mut machine =
            Machine::new(kind.protection(), to, size.into()).map_err(Error::Failed)?;
        // The first batches fill caches and rings.
        machine.run(duration / 10).map_err(Error::Failed)?;
        let before = machine.carried();
        let sample = machine.run(duration).map_err(Error::Failed)?;
        let carried = machine.carried() - before;
        if carried != sample.frames {
            let sent = sample.frames;
            return Err(Error::Failed(format!("the card carried {carried} of {sent} frames")));
        }
        rows.push(&kind.row(&format!("{name}-{size}")), "Mpps", sample.mpps());
        rows.push(&kind.row(&format!("{name}-host-{size}")), "ns per frame", sample.host_ns());
        if to == To::Wire {
            to_wire = sample.mpps();
        }
    }
    Ok(to_wire)
}
