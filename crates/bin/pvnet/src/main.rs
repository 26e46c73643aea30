//! `pvnet`: the userspace driver domain.

#![forbid(unsafe_code)]

mod args;
mod attach;
mod balloon;
mod capture;
mod change;
mod config;
mod config_check;
mod context;
mod daemon;
mod doctor;
mod guest;
mod log;
mod mirrors;
mod netns;
mod nic;
mod program;
mod revoke;
mod rootless;
mod save;
mod schema;
mod start;
mod status;
mod steering_rule;
mod top;
mod workers;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use args::{CpuArgs, DaemonArgs, LogArgs};
use attach::VifArgs;
use change::{ChangeArgs, PortCommand};
use clap::{Args, CommandFactory, Parser, Subcommand};
use config::{ConfigFile, Override};
use control_socket::{control_socket, join_socket, nic_socket};
use doctor::DoctorArgs;
use log::LogFormat;
use mirrors::MirrorCommand;
use report::SchemaArgs;
use top::TopArgs;
use wire::ethernet::MacAddr;
use workers::WorkerCommand;

use crate::capture::CaptureArgs;

/// Gives the virtual machines of one host their network: a driver domain in user space.
///
/// Start the daemon with a configuration, then its guests, then run commands in them. The example is in
/// the sources and in /usr/share/doc/pvnet:
///
///   pvnet run --config examples/pvnet.toml &
///   pvnet guest red &
///   pvnet guest blue &
///   pvnet exec red -- ping 10.77.0.2
///
/// To see everything at once: pvnet-lab demo
#[derive(Parser)]
#[command(version, verbatim_doc_comment)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run the driver domain until SIGINT or SIGTERM.
    Run {
        /// The configuration; pvnet.toml(5) explains every key.
        #[arg(long, short, value_name = "FILE")]
        config: PathBuf,
        /// Set a key of a guest, of one of its vifs (as `pvnet status` names it) or of an uplink, instead
        /// of the file's value; NAME may be * for every guest.
        #[arg(long, value_name = "NAME.KEY=VALUE")]
        set: Vec<Override>,
        /// Only check the configuration, and print its errors.
        #[arg(long)]
        check: bool,
        /// With --check: print one JSON object, also for a configuration with an error.
        #[arg(long, requires = "check")]
        json: bool,
        #[command(flatten)]
        log: LogArgs,
    },
    /// Run a guest: a network namespace with its own Linux TCP/IP stack, and all its interfaces.
    Guest(GuestArgs),
    /// Run a card of the daemon's configuration: a network card with a protected context for every guest.
    ///
    /// The card is a process, so a guest that attacks it finds no other guest's memory in it. It gets
    /// its settings from the daemon's [[nic]] of this name, and needs root for its wire, a tap device. When
    /// it ends, its guests see their links go down, and up again with the next `pvnet nic` of this name.
    ///
    ///   pvnet nic card0 &                     the card of [[nic]] name = "card0"
    ///   pvnet guest red &                     a guest with nic = "card0"
    ///   pvnet status                          its contexts: whose, how protected, their faults
    ///   pvnet revoke card0 red                take red's context away
    #[command(verbatim_doc_comment)]
    Nic {
        /// The card's name in the daemon's configuration.
        name: String,
        #[command(flatten)]
        cpus: CpuArgs,
        #[command(flatten)]
        daemon: DaemonArgs,
        #[command(flatten)]
        log: LogArgs,
    },
    /// In a Xen domain: run the frontend of one of its interfaces, instead of the kernel's.
    ///
    /// The domain's network stack uses it through a tap device. Needs root and the modules
    /// xen-gntalloc and xen-evtchn; xen-netfront must not use the interface (not loaded, or unbound).
    Frontend {
        /// The interface: the N of device/vif/N.
        #[arg(long, default_value_t = 0, value_name = "N")]
        vif: u32,
        #[command(flatten)]
        interface: guest::Options,
        #[command(flatten)]
        log: LogArgs,
    },
    /// On a Xen host: give a domain an interface whose backend has another type than the kernel's.
    /// pvnet and xen-netback can then serve one host side by side.
    Attach {
        #[command(flatten)]
        vif: VifArgs,
        /// Its MAC address [default: a random one of Xen's].
        #[arg(long)]
        mac: Option<MacAddr>,
        /// Print one JSON object.
        #[arg(long)]
        json: bool,
    },
    /// Remove an interface that `pvnet attach` created.
    Detach {
        #[command(flatten)]
        vif: VifArgs,
        /// Print one JSON object.
        #[arg(long)]
        json: bool,
    },
    /// Run a command inside a guest.
    Exec {
        /// The guest's name.
        name: String,
        /// The command and its arguments, after `--`.
        #[arg(last = true, required = true)]
        command: Vec<String>,
    },
    /// Show the daemon's ports: their traffic, and why a port is down.
    Status {
        #[command(flatten)]
        daemon: DaemonArgs,
        /// Print one JSON object.
        #[arg(long)]
        json: bool,
    },
    /// Have the daemon read its configuration again, and change what differs; so does SIGHUP.
    ///
    /// Ports whose tables are unchanged carry on undisturbed. A line says what happens to each of the others. Changes by
    /// `pvnet port` and `pvnet mirror` end. A file with an error changes nothing. Exits with 1 if a part of the file is not in force: it waits for a
    /// guest's next connection (see --reconnect), or for a restart of the daemon.
    Reload(ChangeArgs),
    /// Change the ports of a running daemon, until it reads its configuration again.
    #[command(subcommand)]
    Port(PortCommand),
    /// Copy the frames of some ports to another port or to files, for an analyser.
    ///
    /// As with `pvnet port`, a change lasts until the next reload or restart. `--save` writes it into the
    /// configuration.
    #[command(subcommand)]
    Mirror(MirrorCommand),
    /// Show and change which worker has which queue.
    #[command(subcommand)]
    Worker(WorkerCommand),
    /// Take a guest's contexts of a card away, until the guest starts again.
    ///
    /// Returns when the card touches none of the guest's memory. The guest sees its link down.
    Revoke {
        #[command(flatten)]
        daemon: DaemonArgs,
        /// The card's name.
        card: String,
        /// The guest's name.
        guest: String,
        /// Print one JSON object.
        #[arg(long)]
        json: bool,
    },
    /// Capture the frames that pass a port, in both directions.
    ///
    /// Shows a line per frame, or writes pcapng, until Ctrl-C. Dropped frames have the reason. A frame of
    /// up to 64 KiB is recorded as one, and its checksum may be unfinished; see --segmented.
    ///
    ///   pvnet capture red                                   a line per frame
    ///   pvnet capture red -c 10 icmp or arp                 the first ten of these
    ///   pvnet capture red dropped                           dropped frames, and why
    ///   pvnet capture red -w red.pcapng                     to a file
    ///   pvnet capture red -w - | wireshark -k -i -          live in Wireshark
    ///   pvnet capture red -w - --segmented tcp port 80 | tcpdump -n -r -
    #[command(verbatim_doc_comment)]
    Capture(CaptureArgs),
    /// Reduce or increase a guest's memory to this many MiB.
    ///
    /// The guest gives up free memory, whole 2 MiB blocks first. It never gets more than memory_mib in
    /// its configuration, which must also have `balloon = true`.
    Balloon {
        #[command(flatten)]
        daemon: DaemonArgs,
        /// The guest's name.
        name: String,
        /// Its new size in MiB.
        mib: usize,
        /// Print one JSON object.
        #[arg(long)]
        json: bool,
    },
    /// Show the daemon's traffic live, with processor time by domain and each kind of operation, per
    /// second and per packet.
    ///
    /// The daemon's meter is on while this runs. Draws in place on a terminal, otherwise one block
    /// after the other, until Ctrl-C. `others` are guests and all other programs of the machine. A packet is
    /// counted at ingress; a GSO frame counts once. A gigabyte is 10⁹ bytes.
    Top(TopArgs),
    /// Say what this machine lacks for each feature, and what to do about it.
    ///
    /// Every check does what the feature does, and undoes it: it makes a tap, a namespace, a sandbox. The exit code is 1 if
    /// one of the named features lacks something that it needs.
    Doctor(DoctorArgs),
    /// Run a command, or a shell, in which pvnet needs no root: in a user namespace with an empty network.
    ///
    /// Daemons, guests and the demo run in it, cut off from the host's network. The kernel must allow user namespaces.
    ///
    ///   pvnet rootless pvnet-lab demo
    #[command(verbatim_doc_comment)]
    Rootless {
        /// The command and its arguments [default: $SHELL].
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        command: Vec<String>,
    },
    /// Print what a command's JSON looks like, or the configuration (`config`), as a JSON Schema (2020-12); without a name, list all.
    ///
    /// Each document names its schema and the version of it in its first field, `schema`. Fields may be added to a version, so a
    /// program that reads a document should ignore those that it does not know.
    Schema(SchemaArgs),
    /// Write man pages, completions of bash, zsh and fish, and the schemas of JSON documents into a folder.
    #[command(hide = true)]
    Manual {
        /// The folder; it is created if missing.
        folder: PathBuf,
    },
    /// These have become commands of `pvnet-lab`.
    #[command(hide = true, aliases = ["bench", "repro", "load"], disable_help_flag = true)]
    Demo {
        /// Their arguments.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
}

impl Command {
    /// Whether it runs until it is stopped, with a log.
    fn is_service(&self) -> bool {
        matches!(self, Self::Run { .. } | Self::Guest(_) | Self::Nic { .. } | Self::Frontend { .. })
    }
}

#[derive(Args)]
struct GuestArgs {
    /// The guest's name in the daemon's configuration, and the name of its namespace.
    name: String,
    #[command(flatten)]
    daemon: DaemonArgs,
    /// The file with the secret that the daemon wants from this guest: the same as in its
    /// configuration's `token_file`.
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Keep the interfaces when the daemon ends, and join the next one if it starts within this time; 0: end with the
    /// daemon.
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    rejoin: u32,
    #[command(flatten)]
    cpus: CpuArgs,
    #[command(flatten)]
    interface: guest::Options,
    #[command(flatten)]
    log: LogArgs,
}

/// The exit code for an error in the configuration or command line, the same as clap's.
pub const USAGE: u8 = 2;

fn main() -> ExitCode {
    let cli = Cli::parse();
    program::end_when_it_is_closed();
    host::exit_code("pvnet", dispatch(cli.command), |_| false)
}

fn success((): ()) -> ExitCode {
    ExitCode::SUCCESS
}

fn dispatch(command: Command) -> Result<ExitCode, String> {
    if !command.is_service() {
        log::start(LogFormat::Text);
    }
    match command {
        Command::Run { config, set, check: true, json, .. } => {
            config_check::run(&ConfigFile::new(config, set), json)
        }
        Command::Run { config, set, log, .. } => run(&ConfigFile::new(config, set), &log),
        Command::Guest(GuestArgs {
            name,
            daemon,
            token_file,
            rejoin,
            cpus,
            mut interface,
            log,
        }) => {
            cpus.bind()?;
            let identity = guest::Identity { name, token_file };
            let socket = join_socket(&daemon.directory);
            interface.rejoin = Duration::from_secs(rejoin.into());
            service(&log, || guest::run(&identity, &socket, &interface))
        }
        Command::Nic { name, cpus, daemon, log } => {
            cpus.bind()?;
            service(&log, || nic::run(&name, &nic_socket(&daemon.directory)))
        }
        Command::Frontend { vif, interface, log } => {
            service(&log, || guest::run_on_xen(vif, &interface))
        }
        Command::Attach { vif, mac, json } => attach::attach(&vif, mac, json).map(success),
        Command::Detach { vif, json } => attach::detach(&vif, json).map(success),
        Command::Exec { name, command } => exec(&name, &command),
        Command::Status { daemon, json } => {
            status::show(&control_socket(&daemon.directory), json).map(success)
        }
        Command::Reload(args) => change::reload(&args).map(exit_code),
        Command::Port(command) => change::port(command).map(exit_code),
        Command::Mirror(command) => mirrors::run(command).map(exit_code),
        Command::Worker(command) => workers::run(command).map(success),
        Command::Balloon { daemon, name, mib, json } => {
            let socket = control_socket(&daemon.directory);
            balloon::run(&socket, &name, mib, json).map(success)
        }
        Command::Revoke { daemon, card, guest, json } => {
            let socket = control_socket(&daemon.directory);
            revoke::run(&socket, card, guest, json).map(success)
        }
        Command::Capture(args) => capture::run(&args).map(success),
        Command::Top(args) => top::run(&args).map(success),
        Command::Doctor(args) => doctor::run(&args),
        Command::Rootless { command } => match rootless::run(&command)? {},
        Command::Schema(args) => schema::print(&args).map(success),
        Command::Manual { folder } => {
            let kinds = schema::KINDS.iter().copied();
            let written = report::write_manual(Cli::command(), &folder, kinds).and_then(|()| {
                std::fs::write(folder.join(config::manual::FILE), config::manual::page())
            });
            written.map(success).map_err(program::text)
        }
        Command::Demo { .. } => {
            eprintln!(
                "pvnet: demo, bench, repro and load are commands of the program `pvnet-lab` now, with the same arguments"
            );
            Ok(ExitCode::from(USAGE))
        }
    }
}

/// Runs a service other than the daemon.
fn service(log: &LogArgs, run: impl FnOnce() -> Result<(), String>) -> Result<ExitCode, String> {
    log::serve(log.format(), |log| log.limit.spawn().and_then(|()| run()))
}

fn run(file: &ConfigFile, log: &LogArgs) -> Result<ExitCode, String> {
    match file.read() {
        Err(error) => {
            eprintln!("pvnet: {error}");
            Ok(ExitCode::from(USAGE))
        }
        Ok(loaded) => {
            let format = log.log_format.unwrap_or(loaded.config.daemon.log);
            log::serve(format, |log| daemon::run(file, loaded, log).map_err(program::text))
        }
    }
}

/// The exit code of a change.
fn exit_code(is_complete: bool) -> ExitCode {
    ExitCode::from(u8::from(!is_complete))
}

/// Replaces this process with the command, inside the guest's namespace. A guest that has just been started gets a moment to come up.
fn exec(name: &str, command: &[String]) -> Result<ExitCode, String> {
    use std::os::unix::process::CommandExt;
    start::await_namespace(name);
    netns::open(name)?.enter().map_err(program::text)?;
    start::await_interface();
    let [program, arguments @ ..] = command else { return Err("no command".into()) };
    let error = std::process::Command::new(program).args(arguments).exec();
    Err(format!("{program}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn the_commands_of_all_documents_are_known() {
        lab::documents::check_calls("pvnet", 21, |words| Cli::try_parse_from(words).err());
    }

    #[test]
    fn a_command_of_the_laboratory_is_answered_with_its_new_name() {
        for command in ["demo", "bench", "repro", "load"] {
            let cli = Cli::try_parse_from(["pvnet", command, "pps", "--rounds", "1"]);
            assert!(matches!(cli.map(|cli| cli.command), Ok(Command::Demo { .. })), "{command}");
        }
    }
}
