//! `pvnet-lab xen device`: each interface of a guest has a device in the backend's domain, where the toolstack's scripts put it.

use std::path::PathBuf;

use crate::scenario::{self, DevicePart, Step};
use crate::{Edition, Host, Result};
use clap::Args;
use lab::Progress;

use super::args::{BootArgs, PvnetArgs};

/// Its arguments.
#[derive(Args)]
pub struct DeviceArgs {
    /// Only this part; repeatable [default: all].
    #[arg(long, value_name = "PART")]
    only: Vec<DevicePart>,
    #[command(flatten)]
    pvnet: PvnetArgs,
    /// Write the results to this file, as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    #[command(flatten)]
    boot: BootArgs,
}

/// Runs the chosen parts, each on a host that is freshly booted. Returns whether all steps passed.
pub fn run(args: &DeviceArgs) -> Result<bool> {
    let mut options = args.boot.options()?;
    options.files.push(args.pvnet.file()?);
    let parts = if args.only.is_empty() { DevicePart::ALL.to_vec() } else { args.only.clone() };
    let build = &args.boot.build;
    let images = |part: &DevicePart| build.images_of(part.edition());
    let images = parts.iter().map(images).collect::<Result<Vec<_>>>()?;
    let count = parts.iter().map(|part| part.steps() + 1).sum();
    let progress = Progress::new(count, build.quiet);
    let mut steps = Vec::new();
    for (part, images) in parts.into_iter().zip(images) {
        progress.step(format!("boot Xen for: {part}"));
        options.nested = part.needs_virtualisation();
        options.intel = part.edition() == Edition::Libvirt;
        let host = Host::boot(&images, &options)?;
        let done = scenario::device(&host, part, &progress)?.into_iter();
        steps.extend(done.map(|step| Step { what: format!("{part}: {}", step.what), ..step }));
    }
    progress.finish();
    scenario::report("xen device", &steps, args.json.as_deref())
}
