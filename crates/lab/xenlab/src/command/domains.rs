//! `pvnet-lab xen domains`: an operator's everyday actions on guests that pvnet serves.

use std::path::PathBuf;

use crate::scenario;
use crate::{Host, Result};
use clap::Args;
use lab::Progress;

use super::args::{BootArgs, PvnetArgs};

/// Its arguments.
#[derive(Args)]
pub struct DomainsArgs {
    #[command(flatten)]
    pvnet: PvnetArgs,
    /// Write the results to this file, as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    #[command(flatten)]
    boot: BootArgs,
}

/// Runs all steps. Returns whether all passed.
pub fn run(args: &DomainsArgs) -> Result<bool> {
    let mut options = args.boot.options()?;
    options.outside = true;
    options.files.push(args.pvnet.file()?);
    let images = args.boot.build.images()?;
    let progress = Progress::new(scenario::STEPS + 1, args.boot.build.quiet);
    progress.step("boot Xen and dom0");
    let host = Host::boot(&images, &options)?;
    let steps = scenario::domains(&host, &progress)?;
    progress.finish();
    scenario::report("xen domains", &steps, args.json.as_deref())
}
