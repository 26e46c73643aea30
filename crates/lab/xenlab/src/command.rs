//! `pvnet-lab xen`: the commands for a Xen host in QEMU.

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
    /// Boot, run a shell script in dom0, and exit with the script's status.
    Run {
        /// The script, for busybox's sh.
        script: PathBuf,
        /// Time limit of the script, in seconds.
        #[arg(long, value_name = "SECONDS", default_value_t = 600)]
        limit: u64,
        /// The host.
        #[command(flatten)]
        boot: BootArgs,
    },
    /// Boot, and open a shell in dom0. `Ctrl-]` or `exit` ends the shell and the host.
    Shell {
        /// The host.
        #[command(flatten)]
        boot: BootArgs,
    },
    /// Test every pair of frontend and backend, the kernel's and pvnet's, on a fresh host each: ping, a file,
    /// TCP throughput, and the negotiated features.
    Matrix(MatrixArgs),
    /// Check how many queues guest and backend agree on, for guests with 1, 2 and 4 virtual CPUs, a dom0 with 1 and 2, the
    /// kernel's backend and pvnet.
    Queues(LabArgs),
    /// Do what operators do with two guests on pvnet, under traffic: connect them, plug and unplug interfaces, restart
    /// pvnet, and reboot, save, restore and destroy guests.
    Domains(LabArgs),
    /// Test guests that copy an uplink's frames themselves, out of pages that pvnet grants: file transfers, a restart of
    /// pvnet, guests that are destroyed, and guests with the kernel's frontend.
    GuestCopy(LabArgs),
    /// Test interfaces with a device in the backend's domain, which the toolstack's scripts add to a Linux bridge or Open vSwitch.
    ///
    /// Operators' tools work on the device. It outlives pvnet, and is removed with its guest. The parts repeat this in a driver
    /// domain, for PVH and HVM guests, beside the kernel's backend, with OVN, and under libvirt.
    Device(DeviceArgs),
    /// Compare pvnet with the kernel's backend, for frontends that behave like those of Unikraft, iPXE, OpenBSD and others, and for
    /// the kernel's frontend with XDP.
    Clients(ClientsArgs),
    /// Check pvnet's messages when something that it needs is missing; then test every service of Xen that it uses, in dom0
    /// alone and between dom0 and a guest.
    Platform(PlatformArgs),
    /// Attack pvnet from a guest, in one way after another, and check that no other guest suffers.
    Hostile(HostileArgs),
}

fn verdict(passed: bool) -> ExitCode {
    if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Carries out a command.
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

/// The documents that these commands, and the other labs, write with `--json`.
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
