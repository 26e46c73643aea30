//! `xenlab`: a Xen host for an hour.

#![forbid(unsafe_code)]

mod domains;
mod hostile;
mod matrix;
mod platform;

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use domains::DomainsArgs;
use hostile::HostileArgs;
use lab::{Interrupt, Progress};
use matrix::MatrixArgs;
use platform::PlatformArgs;
use xenlab::{Error, Host, HostFile, Images, Options, Result, Suite, default_cache, scenario};

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

/// Which pvnet.
#[derive(Args)]
struct PvnetArgs {
    /// The program pvnet [default: the one beside this program].
    #[arg(long, value_name = "FILE")]
    pvnet: Option<PathBuf>,
}

impl PvnetArgs {
    fn file(&self) -> Result<HostFile> {
        let program = self.pvnet.clone().or_else(|| scenario::program("pvnet"));
        HostFile::new(program.ok_or(Error::NotBuilt("pvnet"))?)
    }
}

#[derive(Args)]
struct BuildArgs {
    /// The release of Debian to take packages of [default: this machine's, if it is known].
    #[arg(long, value_name = "NAME")]
    suite: Option<Suite>,
    /// Where images are kept [default: xenlab in cargo's target folder].
    #[arg(long, value_name = "DIR")]
    cache: Option<PathBuf>,
    /// Show no progress on standard error.
    #[arg(long, short)]
    quiet: bool,
}

#[derive(Args)]
struct BootArgs {
    #[command(flatten)]
    build: BuildArgs,
    /// A file that dom0 and guests get: programs into /usr/local/bin, with the libraries they
    /// need, others into /lab; repeatable.
    #[arg(long, value_name = "FILE")]
    with: Vec<PathBuf>,
    /// Give dom0 a network card whose other end QEMU plays: 10.0.2.2 answers.
    #[arg(long)]
    outside: bool,
    /// The machine's memory.
    #[arg(long, value_name = "MIB", default_value_t = 2048)]
    memory: u32,
    /// More words for the hypervisor's command line.
    #[arg(long, value_name = "WORDS", default_value = "", allow_hyphen_values = true)]
    xen: String,
    /// More words for the command line of dom0's kernel.
    #[arg(long, value_name = "WORDS", default_value = "", allow_hyphen_values = true)]
    kernel: String,
    /// Keep the console's log there.
    #[arg(long, value_name = "FILE")]
    keep_log: Option<PathBuf>,
}

impl BuildArgs {
    fn images(&self) -> Result<Images> {
        let suite = self.suite.unwrap_or_else(Suite::of_this_machine);
        let cache = self.cache.clone().unwrap_or_else(default_cache);
        Images::prepare(suite, &absolute(&cache)?, self.quiet)
    }
}

impl BootArgs {
    fn options(&self) -> Result<Options> {
        Ok(Options {
            memory_mib: self.memory,
            files: self.with.iter().map(HostFile::new).collect::<Result<_>>()?,
            outside: self.outside,
            xen_arguments: self.xen.clone(),
            kernel_arguments: self.kernel.clone(),
            log: self.keep_log.clone(),
            ..Options::default()
        })
    }

    fn boot(&self) -> Result<Host> {
        let options = self.options()?;
        let images = self.build.images()?;
        let progress = Progress::new(1, self.build.quiet);
        progress.step("boot Xen and dom0");
        Host::boot(&images, &options)
    }
}

/// Tools that get this path may run elsewhere.
fn absolute(path: &Path) -> Result<PathBuf> {
    std::path::absolute(path).map_err(|cause| Error::Path { path: path.to_owned(), cause })
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
