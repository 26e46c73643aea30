//! `pvnet-lab xen guest-copy`: guests that copy an uplink's frames themselves.

use std::path::PathBuf;

use crate::scenario::{self, Backend, Step};
use crate::{Host, Result};
use clap::Args;
use lab::Progress;

use super::args::{BootArgs, PvnetArgs};

/// Its arguments.
#[derive(Args)]
pub struct GuestCopyArgs {
    #[command(flatten)]
    pvnet: PvnetArgs,
    /// Write the results to this file, as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    #[command(flatten)]
    boot: BootArgs,
}

/// The domains of pvnet, each on a host that is freshly booted.
const BACKENDS: [(Backend, &str); 2] =
    [(Backend::Pvnet, "dom0"), (Backend::PvnetDomain, "a driver domain")];

/// Runs all steps with pvnet in dom0, then in a driver domain. Returns whether all passed.
pub fn run(args: &GuestCopyArgs) -> Result<bool> {
    let mut options = args.boot.options()?;
    options.files.push(args.pvnet.file()?);
    let images = args.boot.build.images()?;
    let count = BACKENDS.len() * (scenario::GUEST_COPY_STEPS + 1);
    let progress = Progress::new(count, args.boot.build.quiet);
    let mut steps = Vec::new();
    for (backend, place) in BACKENDS {
        progress.step(format!("boot Xen for pvnet in {place}"));
        let host = Host::boot(&images, &options)?;
        let done = scenario::guest_copy(&host, backend, &progress)?;
        let done = done.into_iter();
        steps.extend(done.map(|step| Step { what: format!("{place}: {}", step.what), ..step }));
    }
    progress.finish();
    scenario::report("xen guest copy", &steps, args.json.as_deref())
}
