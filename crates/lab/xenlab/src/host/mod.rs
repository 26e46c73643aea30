//! A booted Xen host, and the way into it.
//!
//! ```text
//!  Host ── QEMU ── Xen ┬─ dom0 ── agent ── port 1 ──────────── Channel ── Shell of dom0
//!                      │    └──── link ─── port 3.. ─────────┐
//!                      └─ domU ── agent ── console ── link ──┴─ Channel ── Shell of the guest
//! ```
//!
//! Ports are virtio-serial's: bytes arrive as they were sent, at any speed. A [`Channel`](channel::Channel) carries
//! scripts there and their ends back.

mod batch;
mod channel;
mod console;
mod domu;
mod frame;
mod overlay;
mod qemu;
mod shell;
mod stream;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use lab::Process;

use crate::image::Images;
use crate::{Error, Result};
pub use batch::{Batch, BatchFiles, BatchHost, CLOCK, PROCESSOR, SAME_PLACES};
use channel::{Channel, Silence};
use domu::Ports;
pub use domu::{Domu, DomuConfig};
use lab::Folder;
pub use overlay::HostFile;
use overlay::Roots;
pub use shell::{Job, Output, Shell};

/// How a host is booted.
#[derive(Clone, Debug)]
pub struct Options {
    /// The machine's memory, in MiB.
    pub memory_mib: u32,
    /// dom0's part of it.
    pub dom0_memory_mib: u32,
    /// Files of this machine that dom0 and guests get.
    pub files: Vec<HostFile>,
    /// Whether dom0 has a network card, `eth0`, behind which QEMU plays a network: 10.0.2.2 answers.
    pub outside: bool,
    /// More words for the hypervisor.
    pub xen_arguments: String,
    /// More words for dom0's kernel.
    pub kernel_arguments: String,
    /// Where to keep the console's log; in a temporary folder otherwise.
    pub log: Option<PathBuf>,
    /// How long booting may take.
    pub limit: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            memory_mib: 2048,
            dom0_memory_mib: 1024,
            files: Vec::new(),
            outside: false,
            xen_arguments: String::new(),
            kernel_arguments: String::new(),
            log: None,
            // Eight on a machine with a core to spare; one that is overloaded is slow, not broken.
            limit: Duration::from_secs(300),
        }
    }
}

/// A running Xen host. Dropping it ends it with all its guests; a crash or kill of this process does too.
///
/// Start it from a thread that outlives it (see [`lab::command`]).
#[derive(Debug)]
pub struct Host {
    // Ends before the folder goes that it works in.
    qemu: Process,
    dom0: Shell,
    ports: Arc<Ports>,
    lines: qemu::Lines,
    log: PathBuf,
    uptime: f64,
    _folder: Folder,
}

impl Host {
    /// Boots a host from images; returns once dom0 takes commands.
    ///
    /// # Errors
    /// [`Error::Boot`] with the end of the console's log; [`lab::Error::MissingTool`] and
    /// [`lab::Error::Interrupted`] as [`Error::Lab`]; [`Error::Path`]; [`Error::Content`] if a file needs a library
    /// that this machine lacks.
    pub fn boot(images: &Images, options: &Options) -> Result<Self> {
        let folder = Folder::new()?;
        let roots = Roots::write(images, &options.files, folder.path())?;
        let log = options.log.clone().unwrap_or_else(|| folder.path().join("console.log"));
        let (qemu, lines, agents) = qemu::start(images, options, &roots, &log, folder.path())?;
        let mut agents = agents.into_iter().map(|stream| Channel::new(stream).map(Arc::new));
        let own = agents.next().unwrap_or_else(|| Err(Error::content("QEMU", "no port")))?;
        let ports = Arc::new(Ports::new(agents.collect::<Result<_>>()?));
        let dom0 = Shell::new("dom0", own, Some(log.clone()));
        let mut host = Self { qemu, dom0, ports, lines, log, uptime: 0.0, _folder: folder };
        host.uptime = host.wait_up(options.limit)?;
        Ok(host)
    }

    /// dom0's uptime when it first took commands, in seconds.
    #[must_use]
    pub fn uptime(&self) -> f64 {
        self.uptime
    }

    /// The way into dom0; it outlives this value, but leads nowhere then.
    #[must_use]
    pub fn dom0(&self) -> &Shell {
        &self.dom0
    }

    /// Runs a command in dom0: [`Shell::sh`].
    ///
    /// # Errors
    /// Those of [`Shell::sh`].
    pub fn sh(&self, command: &str, limit: Duration) -> Result<Output> {
        self.dom0.sh(command, limit)
    }

    /// Runs a command in dom0 that shall succeed: [`Shell::run`].
    ///
    /// # Errors
    /// Those of [`Shell::run`].
    pub fn run(&self, command: &str, limit: Duration) -> Result<String> {
        self.dom0.run(command, limit)
    }

    /// Starts a command in dom0: [`Shell::spawn`].
    ///
    /// # Errors
    /// Those of [`Shell::spawn`].
    pub fn spawn(&self, command: &str) -> Result<Job> {
        self.dom0.spawn(command)
    }

    /// Creates a guest and waits until it takes commands, for `limit` at most.
    ///
    /// # Errors
    /// [`Error::Failed`] in the toolstack's words; [`Error::Boot`] with the end of the guest's console;
    /// [`Error::TooManyDomains`]; those of [`Shell::sh`].
    pub fn create(&self, config: &DomuConfig, limit: Duration) -> Result<Domu> {
        Domu::create(&self.dom0, &self.ports, config, limit)
    }

    /// Runs a script in dom0 and writes what it prints to `out` as it comes; returns its exit status. One at a time.
    ///
    /// # Errors
    /// [`Error::Lost`] after `limit` or if dom0 is gone; [`lab::Error::Interrupted`] as [`Error::Lab`].
    pub fn stream(
        &mut self,
        script: &str,
        out: &mut dyn std::io::Write,
        limit: Duration,
    ) -> Result<i32> {
        stream::run(&self.dom0, &mut self.lines.stream, script, out, limit)
    }

    /// Joins this process's terminal with a shell in dom0, until that ends or `Ctrl-]` is typed.
    ///
    /// # Errors
    /// [`Error::Path`] if standard input is no terminal; those of [`Shell::spawn`].
    pub fn interact(&mut self) -> Result<()> {
        stream::interact(&self.dom0, &mut self.lines.terminal)
    }

    /// The whole console's log: the hypervisor's and dom0's.
    #[must_use]
    pub fn log(&self) -> &Path {
        &self.log
    }

    fn wait_up(&mut self, limit: Duration) -> Result<f64> {
        let cause = match self.dom0.channel().wait_up(0, limit)? {
            Ok(uptime) => return Ok(uptime),
            Err(Silence::TimedOut) => format!("nothing after {} s", limit.as_secs()),
            Err(Silence::Closed) => match self.qemu.stop()? {
                status if status.success() => "it stopped by itself".to_owned(),
                status => format!("QEMU ended ({status})"),
            },
        };
        let console = console::tail(&self.log);
        Err(Error::Boot { what: "the Xen host".to_owned(), cause, console })
    }
}
