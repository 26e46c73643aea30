//! `pvnet-lab bench scale`: many guests, which attach, are idle, and all send at once.
//!
//! Each number of guests has a daemon, which sleeps while another one is measured. The daemons have one CPU, and all
//! guests, which have no kernel stack, another.

mod curve;
mod group;

use std::time::Duration;

use clap::Args;
use curve::{Curve, Point};
use group::Group;
use lab::Progress;
use report::human;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::pps::Cpus;
use super::rows::Common;
use super::show::Shown;
use crate::error::{Error, Result};

/// Options of this benchmark.
#[derive(Args)]
pub struct ScaleArgs {
    #[command(flatten)]
    pub common: Common,
    /// Seconds of each measurement.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    seconds: u32,
    /// The numbers of guests. The others are compared with the first.
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_values_t = [2, 8, 24, 64, 256], value_parser = clap::value_parser!(u16).range(2..=4096))]
    guests: Vec<u16>,
}

/// Runs the benchmark.
pub fn run(args: &ScaleArgs) -> Result<Shown> {
    let (rounds, seconds) = (args.common.rounds, Duration::from_secs(args.seconds.into()));
    let steps = 1 + args.guests.len() * (1 + rounds as usize);
    let progress = Progress::new(steps, args.common.quiet);
    progress.step(format!("start {} daemons", args.guests.len()));
    let cpus = Cpus::take_two()?;
    cpus.enter(0)?;
    let groups: Result<Vec<_>> = args.guests.iter().map(|guests| Group::start(*guests)).collect();
    let mut groups = groups?;
    cpus.enter(1)?;
    // The limit is raised only now: the daemons must do with the default.
    raise_file_limit()?;
    let mut curve = Curve(Vec::new());
    for group in &mut groups {
        progress.step(format!("attach {} guests", group.size()));
        let attached = match group.attach() {
            Err(error) if error.is_interrupt() => return Err(error),
            attached => attached.map_err(|error| error.to_string()),
        };
        curve.0.push(Point::new(group.size(), attached));
    }
    for round in 0..rounds {
        for (group, point) in groups.iter_mut().zip(&mut curve.0) {
            progress.step(format!("round {} of {rounds}: {} guests", round + 1, group.size()));
            if point.attached.is_err() {
                continue;
            }
            let idle = group.idle(seconds)?;
            let sent = group.send(seconds)?;
            point.idle.push(idle);
            point.mpps.push(sent.mpps);
            point.jain.push(sent.jain);
            progress.done(&format!(
                "idle {} %, {} Mpps, Jain's index {}",
                human(idle),
                human(sent.mpps),
                human(sent.jain)
            ));
        }
    }
    progress.finish();
    cpus.leave()?;
    let benchmark = curve.benchmark();
    let (table, page) = (curve.table(), curve.page(&benchmark));
    Ok(Shown { benchmark, table, notes: curve::rules(), page })
}

/// Raises this process's limit of descriptors as far as possible: it is all guests, and each needs a dozen.
fn raise_file_limit() -> Result<()> {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    let raised = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    raised.map_err(|errno| Error::Failed(format!("cannot raise the limit of open files: {errno}")))
}
