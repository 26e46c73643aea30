//! A daemon under test: a process with its own folder.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use control_socket::{PortStatus, Status, control_socket};
use hypervisor::Counted;
use lab::{Interrupt, Namespace, Process, TempDir};

use crate::error::{Error, Result};

/// How long a daemon or a guest may take to start on a busy machine.
const LIMIT: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(10);
/// The program: beside this one, or else in the PATH.
const PVNET: &str = "pvnet";

/// How a daemon ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// A signal asks it to stop.
    Planned,
    /// `kill -9`.
    Killed,
}

/// A running daemon. Dropping it stops it and removes its files.
#[derive(Debug)]
pub struct Daemon {
    // Fields are dropped in this order: the process before the folder of its sockets.
    process: Process,
    folder: TempDir,
}

impl Daemon {
    /// Starts a daemon and waits until it answers. `config` gets the folder for its sockets.
    pub fn start(config: impl FnOnce(&Path) -> String) -> Result<Self> {
        Self::launch(pvnet(None)?, config)
    }

    /// The same with another build of pvnet.
    pub fn start_other(program: &Path, config: impl FnOnce(&Path) -> String) -> Result<Self> {
        Self::launch(lab::command(&program.to_string_lossy())?, config)
    }

    /// The same in a namespace.
    pub fn start_inside(
        namespace: &Namespace,
        config: impl FnOnce(&Path) -> String,
    ) -> Result<Self> {
        Self::launch(pvnet(Some(namespace))?, config)
    }

    fn launch(command: Command, config: impl FnOnce(&Path) -> String) -> Result<Self> {
        let folder = TempDir::new()?;
        let file = folder.path().join("pvnet.toml");
        std::fs::write(&file, config(folder.path()))
            .map_err(|source| Error::Path { path: file.clone(), source })?;
        let mut daemon = Self { process: run(command, folder.path())?, folder };
        daemon.wait("the daemon's start", &mut [], |_, _| true)?;
        Ok(daemon)
    }

    /// Ends it, and at once starts pvnet with the same configuration. Its guests may still be away on return.
    pub fn restart(&mut self, ending: Ending) -> Result<()> {
        match ending {
            Ending::Planned => self.process.stop()?,
            Ending::Killed => self.process.kill()?,
        };
        self.process = run(pvnet(None)?, self.folder())?;
        self.wait("the daemon's start", &mut [], |_, _| true)
    }

    /// The folder of its sockets.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Its ports and counters, or why it does not answer.
    pub fn status(&self) -> std::result::Result<Status, String> {
        control_socket::status(&self.socket())
    }

    /// Switches the meter on while `work` runs. Returns how many operations of this kind it counted.
    pub fn metered(&self, what: Counted, work: impl FnOnce() -> Result<()>) -> Result<u64> {
        let count = || {
            let status = self.status().map_err(Error::Failed)?;
            Ok::<_, Error>(status.meter.counts.of(what))
        };
        let _on = control_socket::meter(&self.socket()).map_err(Error::Failed)?;
        let before = count()?;
        work()?;
        Ok(count()? - before)
    }

    fn socket(&self) -> PathBuf {
        control_socket(self.folder())
    }

    /// Waits until the daemon answers and `ready` returns true. Fails if the daemon or a guest ends.
    pub fn wait(
        &mut self,
        what: &str,
        guests: &mut [Process],
        ready: impl Fn(&Status, &[Process]) -> bool,
    ) -> Result<()> {
        let start = Instant::now();
        loop {
            // Read the status first: once the process has ended, an answer would be another daemon's.
            let status = self.status();
            for process in std::iter::once(&mut self.process).chain(&mut *guests) {
                check(process)?;
            }
            let problem = match &status {
                Ok(status) if ready(status, guests) => return Ok(()),
                Ok(status) => ports(status),
                Err(problem) => problem.clone(),
            };
            if start.elapsed() > LIMIT {
                let said = problem + &self.said(guests);
                return Err(Error::Late { what: what.to_owned(), limit: LIMIT, said });
            }
            Interrupt::sleep(POLL)?;
        }
    }

    /// The last complaints of the processes, to append to a problem.
    pub fn said(&self, guests: &[Process]) -> String {
        let all = std::iter::once(&self.process).chain(guests);
        all.filter_map(complaint).map(|line| format!("; {line}")).collect()
    }
}

fn run(mut command: Command, folder: &Path) -> Result<Process> {
    command.args(["run", "--config"]).arg(folder.join("pvnet.toml"));
    Ok(Process::capture(command)?)
}

/// The program pvnet, in a namespace if one is given. It dies with the thread that starts it.
pub fn pvnet(namespace: Option<&Namespace>) -> Result<Command> {
    let beside = this_program()?.with_file_name(PVNET);
    command(if beside.is_file() { &beside } else { Path::new(PVNET) }, namespace)
}

/// This program, in a namespace if one is given.
pub fn this(namespace: Option<&Namespace>) -> Result<Command> {
    command(&this_program()?, namespace)
}

/// The file of this program.
pub fn this_program() -> Result<PathBuf> {
    let failed = |source| Error::Path { path: "/proc/self/exe".into(), source };
    std::env::current_exe().map_err(failed)
}

fn command(program: &Path, namespace: Option<&Namespace>) -> Result<Command> {
    let program = program.to_string_lossy();
    Ok(match namespace {
        Some(namespace) => namespace.exec(&program)?,
        None => lab::command(&program)?,
    })
}

/// Fails if a process has ended.
fn check(process: &mut Process) -> Result<()> {
    let Some(status) = process.ended()? else { return Ok(()) };
    let said = complaint(process).unwrap_or_else(|| "it said nothing".to_owned());
    Err(Error::Ended { who: process.name().to_owned(), status, said })
}

/// The ports' states in one line.
pub fn ports(status: &Status) -> String {
    let port = |port: &PortStatus| {
        let reason = port.reason.as_ref().map(|reason| format!(" ({reason})"));
        format!("{} is {}{}", port.name, port.state, reason.unwrap_or_default())
    };
    let absent = status.absent.iter().map(|name| format!("{name} is absent"));
    status.ports.iter().map(port).chain(absent).collect::<Vec<_>>().join(", ")
}

/// The last line of a process's standard error that is a complaint.
fn complaint(process: &Process) -> Option<String> {
    let text = process.stderr();
    let news = |line: &str| line.contains(" INFO ") || line.trim().is_empty();
    text.lines().rfind(|line| !news(line)).map(str::to_owned)
}

/// The beginning of a daemon's configuration, with the folder for its sockets: more lines of the table `[daemon]` may follow.
pub fn table(folder: &Path) -> String {
    format!("[daemon]\ndirectory = {}\n", quoted(folder))
}

/// A path as a quoted TOML value: it may have any character.
pub fn quoted(path: &Path) -> toml::Value {
    toml::Value::from(path.to_string_lossy().into_owned())
}
