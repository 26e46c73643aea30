//! `pvnet-lab xen clients`: frontends with the habits of real ones, beside netback.

use std::path::PathBuf;

use crate::scenario;
use crate::{Error, Host, HostFile, Result};
use clap::Args;
use lab::Progress;

use super::args::{BootArgs, PvnetArgs};

/// Its arguments.
#[derive(Args)]
pub struct ClientsArgs {
    #[command(flatten)]
    pvnet: PvnetArgs,
    /// The program client [default: the one beside this program].
    #[arg(long, value_name = "FILE")]
    client: Option<PathBuf>,
    /// Write the results to this file, as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    #[command(flatten)]
    boot: BootArgs,
}

/// Runs all steps. Returns whether all passed.
pub fn run(args: &ClientsArgs) -> Result<bool> {
    let mut options = args.boot.options()?;
    let client = args.client.clone().or_else(|| scenario::program("client"));
    let client = HostFile::new(client.ok_or(Error::NotBuilt("client"))?)?;
    options.files.extend([args.pvnet.file()?, client]);
    // Rates are compared.
    options.counts_instructions = true;
    let images = args.boot.build.images()?;
    let progress = Progress::new(scenario::CLIENT_STEPS + 1, args.boot.build.quiet);
    progress.step("boot Xen and dom0");
    let host = Host::boot(&images, &options)?;
    let steps = scenario::clients(&host, &progress)?;
    progress.finish();
    scenario::report("xen clients", &steps, args.json.as_deref())
}
