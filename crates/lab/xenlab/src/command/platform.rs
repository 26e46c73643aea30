//! `pvnet-lab xen platform`: checks the services of Xen that pvnet uses.

use std::path::PathBuf;

use crate::scenario;
use crate::{Error, Host, HostFile, Result};
use clap::Args;
use lab::Progress;

use super::args::{BootArgs, PvnetArgs};

/// Its arguments.
#[derive(Args)]
pub struct PlatformArgs {
    #[command(flatten)]
    pvnet: PvnetArgs,
    /// The program loopback, an example of the crate xen [default: the one beside this program].
    #[arg(long, value_name = "FILE")]
    loopback: Option<PathBuf>,
    /// Write the results to this file, as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    #[command(flatten)]
    boot: BootArgs,
}

/// Runs all checks. Returns whether all passed.
pub fn run(args: &PlatformArgs) -> Result<bool> {
    let mut options = args.boot.options()?;
    let loopback = args.loopback.clone().or_else(|| scenario::program("examples/loopback"));
    let loopback = HostFile::new(loopback.ok_or(Error::NotBuilt("loopback"))?)?;
    options.files.extend([args.pvnet.file()?, loopback]);
    let images = args.boot.build.images()?;
    let progress = Progress::new(scenario::PLATFORM_STEPS + 1, args.boot.build.quiet);
    progress.step("boot Xen and dom0");
    let host = Host::boot(&images, &options)?;
    let steps = scenario::platform(&host, &progress)?;
    progress.finish();
    scenario::report("xen platform", &steps, args.json.as_deref())
}
