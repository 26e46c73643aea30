//! A daemon under test: a process in a namespace that steps stop, kill and start again.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use control_socket::{PortState, PortStatus, Status, control_socket};
use lab::{Interrupt, Namespace, Process, TempDir};
use xenlab::{Error, Result, scenario};

/// How long the daemon and its ports may take on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(10);

/// The program `pvnet`: the one given, which must exist, or the one beside this program.
pub fn pvnet(given: Option<&Path>) -> Result<PathBuf> {
    let Some(path) = given else {
        return scenario::program("pvnet").ok_or(Error::NotBuilt("pvnet"));
    };
    path.canonicalize().map_err(|cause| Error::Path { path: path.to_owned(), cause })
}

/// A daemon that may run or not. Dropping it stops it and removes its files.
#[derive(Debug)]
pub struct Daemon {
    // Dropped in this order: the process before the folder of its sockets.
    process: Option<Process>,
    program: PathBuf,
    namespace: String,
    folder: TempDir,
}

/// What the daemon holds for its front-ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holdings {
    /// Open descriptors.
    pub descriptors: usize,
    /// Threads.
    pub threads: usize,
    /// Mappings of memfds.
    pub mappings: usize,
}

impl fmt::Display for Holdings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { descriptors, threads, mappings } = self;
        write!(f, "{descriptors} descriptors, {threads} threads, {mappings} mappings")
    }
}

impl Daemon {
    /// Starts a daemon in a namespace. `config` gets the folder for its sockets.
    pub fn start(
        program: &Path,
        namespace: &Namespace,
        config: impl FnOnce(&Path) -> String,
    ) -> Result<Self> {
        let folder = TempDir::new()?;
        let file = folder.path().join("pvnet.toml");
        let written = std::fs::write(&file, config(folder.path()));
        written.map_err(|cause| Error::Path { path: file, cause })?;
        let (program, namespace) = (program.to_owned(), namespace.name().to_owned());
        let mut daemon = Self { process: None, program, namespace, folder };
        daemon.restart()?;
        Ok(daemon)
    }

    /// The folder of its sockets.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Starts it, after it was stopped or killed, and waits until it answers.
    pub fn restart(&mut self) -> Result<()> {
        let mut command =
            Namespace::open(&self.namespace)?.exec(&self.program.to_string_lossy())?;
        command.args(["run", "--config"]).arg(self.folder.path().join("pvnet.toml"));
        self.process = Some(Process::capture(command)?);
        self.until("the daemon's answer", |_| true)
    }

    /// Stops it (SIGTERM) and waits for its end.
    pub fn stop(&mut self) -> Result<()> {
        if let Some(mut process) = self.process.take() {
            process.stop()?;
        }
        Ok(())
    }

    /// Kills it (SIGKILL) and waits for its end.
    pub fn kill(&mut self) -> Result<()> {
        if let Some(mut process) = self.process.take() {
            process.kill()?;
        }
        Ok(())
    }

    /// The status of its ports and counters.
    pub fn status(&self) -> Result<Status> {
        control_socket::status(&control_socket(self.folder())).map_err(|cause| Error::Content {
            what: "the daemon".to_owned(),
            cause: format!("{cause}; it said: {}", self.said()),
        })
    }

    /// The port of this name.
    pub fn port(&self, name: &str) -> Result<PortStatus> {
        let found = self.status()?.ports.into_iter().find(|port| port.name == name);
        let (what, cause) = (format!("the port {name}"), "the daemon has no such port".to_owned());
        found.ok_or(Error::Content { what, cause })
    }

    /// Waits until `ready` accepts its status.
    pub fn until(&mut self, what: &str, ready: impl Fn(&Status) -> bool) -> Result<()> {
        let start = Instant::now();
        loop {
            if self.status().is_ok_and(|status| ready(&status)) {
                return Ok(());
            }
            let ended = self.process.as_mut().map(Process::ended).transpose()?.flatten();
            if let Some(status) = ended {
                let cause = format!("it ended ({status}) and said: {}", self.said());
                return Err(Error::Content { what: "the daemon".to_owned(), cause });
            }
            if start.elapsed() > LIMIT {
                let what = format!("{what} (the daemon said: {})", self.said());
                return Err(lab::Error::TimedOut { what, limit: LIMIT }.into());
            }
            Interrupt::sleep(POLL)?;
        }
    }

    /// Waits until a port is up, or down.
    pub fn until_port(&mut self, name: &str, state: PortState) -> Result<()> {
        self.until(&format!("{name} {state}"), |status| {
            status.ports.iter().any(|port| port.name == name && port.state == state)
        })
    }

    /// What it holds, once two reads agree. A session frees what it had only after its port is down, and the thread that answers who the
    /// daemon is ends even later.
    pub fn holdings(&self) -> Result<Holdings> {
        const PAUSE: Duration = Duration::from_millis(300);
        let pid = self.status()?.pid;
        let end = Instant::now() + LIMIT;
        let mut before = holdings_of(pid)?;
        while Instant::now() < end {
            Interrupt::sleep(PAUSE)?;
            let now = holdings_of(pid)?;
            if now == before {
                return Ok(now);
            }
            before = now;
        }
        Err(lab::Error::TimedOut { what: "the daemon's descriptors".to_owned(), limit: LIMIT }
            .into())
    }

    /// The lines that it has printed, except information.
    #[must_use]
    pub fn said(&self) -> String {
        let text = self.process.as_ref().map(Process::stderr).unwrap_or_default();
        let lines: Vec<&str> = text.lines().filter(|line| !line.contains(" INFO ")).collect();
        lines.join("; ")
    }
}

fn holdings_of(pid: u32) -> Result<Holdings> {
    let count = |what: &str| {
        let path = PathBuf::from(format!("/proc/{pid}/{what}"));
        let entries = std::fs::read_dir(&path).map(Iterator::count);
        entries.map_err(|cause| Error::Path { path, cause })
    };
    let path = PathBuf::from(format!("/proc/{pid}/maps"));
    let maps = std::fs::read_to_string(&path).map_err(|cause| Error::Path { path, cause })?;
    let mappings = maps.lines().filter(|line| line.contains("/memfd:")).count();
    Ok(Holdings { descriptors: count("fd")?, threads: count("task")?, mappings })
}
