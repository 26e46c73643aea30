//! `pvnet-lab xen`: what can be done with a Xen host in QEMU.

mod args;
mod hostile;
mod matrix;
mod queues;
mod steps;

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use args::{BootArgs, BuildArgs, LabArgs};
use clap::Subcommand;
use document::Kind;
use hostile::{HostileArgs, HostileDocument};
use lab::Interrupt;
use matrix::{MatrixArgs, MatrixDocument};
use queues::QueuesDocument;
use steps::{ClientsArgs, DeviceArgs, PlatformArgs};

use crate::scenario::StepsDocument;
use crate::{Error, Result};

/// What to do with a Xen host.
#[derive(Subcommand)]
pub enum Command {
    /// Make the images, unless they exist.
    Build(BuildArgs),
    /// Boot, and run a shell script in dom0; this program exits with its status.
    Run {
        /// The script, for busybox's sh.
        script: PathBuf,
        /// How long the script may take, in seconds.
        #[arg(long, value_name = "SECONDS", default_value_t = 600)]
        limit: u64,
        /// The host.
        #[command(flatten)]
        boot: BootArgs,
    },
    /// Boot, and open a shell in dom0; `Ctrl-]` or `exit` leaves it and ends the host.
    Shell {
        /// The host.
        #[command(flatten)]
        boot: BootArgs,
    },
    /// Connect each frontend with each backend, the kernel's and pvnet's, every pair on a fresh host:
    /// ping, compare a file, measure TCP, and show the negotiated features.
    Matrix(MatrixArgs),
    /// Connect guests with 1, 2 and 4 virtual CPUs to a dom0 with 1 and 2, with the kernel's backend and with pvnet: how
    /// many queues they agree on.
    Queues(LabArgs),
    /// Do with two guests on pvnet what operators do: connect them, plug and unplug
    /// interfaces, restart pvnet, reboot, save, restore and destroy guests, all under traffic.
    Domains(LabArgs),
    /// Let a guest copy an uplink's frames out of pages that pvnet grants it: a file, a restart of pvnet, guests that
    /// are destroyed, and guests with the kernel's frontend.
    GuestCopy(LabArgs),
    /// Give each interface of a guest a device in the backend's domain, which the toolstack's own scripts put into a Linux bridge or
    /// Open vSwitch: an operator's tools act on it, it outlives pvnet, and it goes with its guest. Also in a driver domain, beside the
    /// kernel's backend, for PVH and HVM guests, and under libvirt.
    Device(DeviceArgs),
    /// Connect frontends that have the habits of Unikraft's, iPXE's, OpenBSD's and others, and the kernel's with XDP, to the kernel's backend
    /// and to pvnet in turn: what the kernel's does is the measure.
    Clients(ClientsArgs),
    /// Start pvnet where something it needs is missing, and check its messages; then test every service of Xen
    /// that it uses, in dom0 alone and between dom0 and a guest.
    Platform(PlatformArgs),
    /// Attack pvnet from a guest, one rule after another, and check that no other guest suffers.
    Hostile(HostileArgs),
}

fn verdict(passed: bool) -> ExitCode {
    if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Does it.
///
/// # Errors
/// Something is missing, or the host fails.
pub fn run(command: &Command) -> Result<ExitCode> {
    Interrupt::install()?;
    match command {
        Command::Build(args) => args.images().map(|_| ExitCode::SUCCESS),
        Command::Run { script, limit, boot } => {
            let read = std::fs::read_to_string(script);
            let text = read.map_err(|cause| Error::Path { path: script.clone(), cause })?;
            let mut out = std::io::stdout();
            let status = boot.boot()?.stream(&text, &mut out, Duration::from_secs(*limit))?;
            let _ = out.flush();
            Ok(ExitCode::from(u8::try_from(status).unwrap_or(u8::MAX)))
        }
        Command::Matrix(args) => matrix::run(args).map(verdict),
        Command::Queues(args) => queues::run(args).map(verdict),
        Command::Domains(args) => steps::domains(args).map(verdict),
        Command::GuestCopy(args) => steps::guest_copy(args).map(verdict),
        Command::Device(args) => steps::device(args).map(verdict),
        Command::Clients(args) => steps::clients(args).map(verdict),
        Command::Platform(args) => steps::platform(args).map(verdict),
        Command::Hostile(args) => hostile::run(args).map(verdict),
        Command::Shell { boot } => {
            let mut host = boot.boot()?;
            eprintln!("dom0's shell; Ctrl-] or exit leaves it and ends the host\r");
            host.interact().map(|()| ExitCode::SUCCESS)
        }
    }
}

/// What these commands, and the other labs, write with `--json`.
pub const DOCUMENTS: &[Kind] = &[
    Kind::of::<StepsDocument<'_>>(
        "steps",
        &[
            "xen domains",
            "xen guest-copy",
            "xen device",
            "xen clients",
            "xen platform",
            "qemu",
            "ovn",
        ],
    ),
    Kind::of::<MatrixDocument<'_>>("matrix", &["xen matrix"]),
    Kind::of::<QueuesDocument<'_>>("queues", &["xen queues"]),
    Kind::of::<HostileDocument<'_>>("hostile", &["xen hostile"]),
];
