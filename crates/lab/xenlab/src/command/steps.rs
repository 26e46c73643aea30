//! The labs that do steps in order. Each step passes or fails.

use std::path::PathBuf;

use clap::Args;
use lab::Progress;

use super::args::{LabArgs, built};
use crate::scenario::{self, Backend, DevicePart, Step};
use crate::{Edition, Host, Options, Result};

/// Does the steps of a lab on one host. Returns whether all passed.
fn on_one_host(
    lab: &'static str,
    args: &LabArgs,
    options: &Options,
    count: usize,
    steps: impl FnOnce(&Host, &Progress) -> Result<Vec<Step>>,
) -> Result<bool> {
    let images = args.boot.build.images()?;
    let progress = args.progress(count + 1);
    progress.step("boot Xen and dom0");
    let host = Host::boot(&images, options)?;
    let steps = steps(&host, &progress)?;
    progress.finish();
    scenario::report(lab, &steps, args.json.as_deref())
}

/// Adds the name of their host to steps.
fn named(part: impl std::fmt::Display, steps: Vec<Step>) -> impl Iterator<Item = Step> {
    steps.into_iter().map(move |step| Step { what: format!("{part}: {}", step.what), ..step })
}

/// An operator's everyday actions on guests that pvnet serves.
pub fn domains(args: &LabArgs) -> Result<bool> {
    let options = Options { outside: true, ..args.options()? };
    on_one_host("xen domains", args, &options, scenario::STEPS, scenario::domains)
}

/// The arguments of `pvnet-lab xen clients`.
#[derive(Args)]
pub struct ClientsArgs {
    /// The program client [default: the one beside this program].
    #[arg(long, value_name = "FILE")]
    client: Option<PathBuf>,
    #[command(flatten)]
    lab: LabArgs,
}

/// Frontends with the habits of real ones, on pvnet and on the kernel's backend.
pub fn clients(args: &ClientsArgs) -> Result<bool> {
    // Counting instructions makes rates comparable.
    let mut options = Options { counts_instructions: true, ..args.lab.options()? };
    options.files.push(built(args.client.as_ref(), "client")?);
    let count = scenario::CLIENT_STEPS;
    on_one_host("xen clients", &args.lab, &options, count, scenario::clients)
}

/// The arguments of `pvnet-lab xen platform`.
#[derive(Args)]
pub struct PlatformArgs {
    /// The program loopback, an example of the crate xen [default: the one beside this program].
    #[arg(long, value_name = "FILE")]
    loopback: Option<PathBuf>,
    #[command(flatten)]
    lab: LabArgs,
}

/// Checks the services of Xen that pvnet uses.
pub fn platform(args: &PlatformArgs) -> Result<bool> {
    let mut options = args.lab.options()?;
    options.files.push(built(args.loopback.as_ref(), "examples/loopback")?);
    let count = scenario::PLATFORM_STEPS;
    on_one_host("xen platform", &args.lab, &options, count, scenario::platform)
}

/// Guests that copy an uplink's frames themselves, with pvnet in dom0, then in a driver domain.
pub fn guest_copy(args: &LabArgs) -> Result<bool> {
    let backends = [(Backend::Pvnet, "dom0"), (Backend::PvnetDomain, "a driver domain")];
    let (options, images) = (args.options()?, args.boot.build.images()?);
    let progress = args.progress(backends.len() * (scenario::GUEST_COPY_STEPS + 1));
    let mut steps = Vec::new();
    for (backend, place) in backends {
        progress.step(format!("boot Xen for pvnet in {place}"));
        let host = Host::boot(&images, &options)?;
        steps.extend(named(place, scenario::guest_copy(&host, backend, &progress)?));
    }
    progress.finish();
    scenario::report("xen guest copy", &steps, args.json.as_deref())
}

/// The arguments of `pvnet-lab xen device`.
#[derive(Args)]
pub struct DeviceArgs {
    /// Run only this part; repeatable [default: all].
    #[arg(long, value_name = "PART")]
    only: Vec<DevicePart>,
    #[command(flatten)]
    lab: LabArgs,
}

/// Guests whose interfaces have devices in the backend's domain, which the toolstack's scripts connect. Each part boots its own host.
pub fn device(args: &DeviceArgs) -> Result<bool> {
    let mut options = args.lab.options()?;
    let parts = if args.only.is_empty() { DevicePart::ALL.to_vec() } else { args.only.clone() };
    let images = |part: &DevicePart| args.lab.boot.build.images_of(part.edition());
    let images = parts.iter().map(images).collect::<Result<Vec<_>>>()?;
    let progress = args.lab.progress(parts.iter().map(|part| part.steps() + 1).sum());
    let mut steps = Vec::new();
    for (part, images) in parts.into_iter().zip(images) {
        progress.step(format!("boot Xen for: {part}"));
        options.nested = part.needs_virtualisation();
        options.intel = part.edition() == Edition::Libvirt;
        let host = Host::boot(&images, &options)?;
        steps.extend(named(part, scenario::device(&host, part, &progress)?));
    }
    progress.finish();
    scenario::report("xen device", &steps, args.lab.json.as_deref())
}
