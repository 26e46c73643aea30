//! `xenlab`: boots a Xen host in QEMU and runs experiments on it.

#![forbid(unsafe_code)]

mod args;
mod domains;
mod hostile;
mod matrix;
mod platform;
mod steps;

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use args::{BootArgs, BuildArgs};
use clap::{Parser, Subcommand};
use domains::DomainsArgs;
use hostile::HostileArgs;
use lab::Interrupt;
use matrix::MatrixArgs;
use platform::PlatformArgs;
use xenlab::{Error, Result};

/// Boots a whole Xen host in QEMU, under software emulation: the hypervisor, dom0 and paravirtual guests.
///
/// Needs no root and no virtualisation; the first run makes images of Debian's packages.
#[derive(Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Make the images, if they are not there yet.
    Build(BuildArgs),
    /// Boot, and run a shell script in dom0; its exit status becomes this program's.
    Run {
        /// The script, for busybox's sh.
        script: PathBuf,
        /// How long the script may take.
        #[arg(long, value_name = "SECONDS", default_value_t = 600)]
        limit: u64,
        #[command(flatten)]
        boot: BootArgs,
    },
    /// Boot, and open a shell in dom0; `Ctrl-]` or `exit` leaves it, and ends the host.
    Shell {
        #[command(flatten)]
        boot: BootArgs,
    },
    /// Connect frontends and backends, of the kernel and pvnet's, each pair on a host of its own:
    /// ping, a file compared, TCP, and what they agreed upon.
    Matrix(MatrixArgs),
    /// Do with two guests on pvnet what operators do with theirs: connect them, plug and unplug
    /// interfaces, restart pvnet, reboot, save, restore and destroy guests, all while they talk.
    Domains(DomainsArgs),
    /// Ask pvnet to start without what it needs, for what it says; then prove every service of Xen
    /// that it uses, in dom0 alone and between dom0 and a guest.
    Platform(PlatformArgs),
    /// Attack pvnet from a guest, one rule after the other, and see that nobody else suffers.
    Hostile(HostileArgs),
}

fn main() -> ExitCode {
    lab::exit_code("xenlab", run(&Cli::parse().command), Error::is_interrupt)
}

fn verdict(sound: bool) -> ExitCode {
    if sound { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn run(command: &Command) -> Result<ExitCode> {
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
        Command::Domains(args) => domains::run(args).map(verdict),
        Command::Platform(args) => platform::run(args).map(verdict),
        Command::Hostile(args) => hostile::run(args).map(verdict),
        Command::Shell { boot } => {
            let mut host = boot.boot()?;
            eprintln!("dom0's shell; Ctrl-] or exit leaves it and ends the host\r");
            host.interact().map(|()| ExitCode::SUCCESS)
        }
    }
}
