//! A running Xen host, and the connections to its domains.
//!
//! ```text
//!  Host ── QEMU ── Xen ┬─ dom0 ── agent ── port 1 ──────────── Channel ── Shell of dom0
//!                      │    └──── link ─── port 3.. ─────────┐
//!                      └─ domU ── agent ── console ── link ──┴─ Channel ── Shell of the guest
//! ```
//!
//! Ports are virtio-serial ports, which pass bytes unchanged. A [`Channel`](channel::Channel) carries
//! scripts in and their results out.

mod batch;
mod channel;
mod domu;
mod frame;
mod libvirt;
mod machine;
mod monitor;
mod options;
mod overlay;
mod port;
mod qemu;
mod shell;
mod stream;

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use lab::Process;

use crate::image::Images;
use crate::{Error, Result};
pub use batch::{Batch, BatchFiles, BatchHost, NO_ASLR};
use channel::{Channel, WaitError};
use domu::GuestPorts;
pub use domu::{Domu, DomuConfig, GuestType};
use lab::TempDir;
pub use libvirt::interface_xml;
pub use machine::{Machine, MachineConfig};
pub use monitor::Monitor;
pub use options::{CLOCK, Options, PROCESSOR};
pub use overlay::HostFile;
use overlay::Roots;
pub use shell::{Job, Output, Shell};

/// A running Xen host. It and all its guests end when this value is dropped, or when this process dies.
///
/// Start it from a thread that outlives it (see [`lab::command`]).
#[derive(Debug)]
pub struct Host {
    // Dropped before its working folder.
    qemu: Process,
    dom0: Shell,
    ports: Arc<GuestPorts>,
    lines: qemu::Lines,
    log: PathBuf,
    uptime: f64,
    _folder: TempDir,
}

impl Deref for Host {
    type Target = Shell;

    fn deref(&self) -> &Shell {
        &self.dom0
    }
}

impl Host {
    /// Boots a host from images. Returns once dom0 takes commands.
    pub fn boot(images: &Images, options: &Options) -> Result<Self> {
        let folder = TempDir::new()?;
        let roots = Roots::write(images, &options.files, folder.path())?;
        let log = options.log.clone().unwrap_or_else(|| folder.path().join("console.log"));
        let (qemu, lines, agents) = qemu::start(images, options, &roots, &log, folder.path())?;
        let mut agents = agents.into_iter().map(|stream| Channel::new(stream).map(Arc::new));
        let own = agents.next().unwrap_or_else(|| Err(Error::content("QEMU", "no port")))?;
        let ports = Arc::new(GuestPorts::new(agents.collect::<Result<_>>()?));
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

    /// dom0's shell. It may outlive this value; its commands then fail.
    #[must_use]
    pub fn dom0(&self) -> &Shell {
        &self.dom0
    }

    /// Creates a guest and waits until it takes commands, for `limit` at most.
    pub fn create(&self, config: &DomuConfig, limit: Duration) -> Result<Domu> {
        Domu::create(&self.dom0, &self.ports, config, limit)
    }

    /// Starts a guest by a script in dom0, for example one for another toolstack. The last line that the script prints is the
    /// domain id. Waits until the guest takes commands, for `limit` at most.
    pub fn start(&self, name: &str, script: &str, limit: Duration) -> Result<Domu> {
        Domu::start(&self.dom0, &self.ports, name, script, limit)
    }

    /// Runs a script in dom0 and copies its output to `out` at once. Returns its exit status.
    pub fn stream(
        &mut self,
        script: &str,
        out: &mut dyn std::io::Write,
        limit: Duration,
    ) -> Result<i32> {
        stream::run(&self.dom0, &mut self.lines.stream, script, out, limit)
    }

    /// Connects this process's terminal to a shell in dom0, until the shell ends or `Ctrl-]` is typed.
    pub fn interact(&mut self) -> Result<()> {
        stream::interact(&self.dom0, &mut self.lines.terminal)
    }

    /// The console's log: the hypervisor's and dom0's.
    #[must_use]
    pub fn log(&self) -> &Path {
        &self.log
    }

    fn wait_up(&mut self, limit: Duration) -> Result<f64> {
        let cause = match self.dom0.channel().wait_up(0, limit)? {
            Ok(uptime) => return Ok(uptime),
            Err(WaitError::TimedOut) => format!("nothing after {} s", limit.as_secs()),
            Err(WaitError::Closed) => match self.qemu.stop()? {
                status if status.success() => "it shut down".to_owned(),
                status => format!("QEMU ended ({status})"),
            },
        };
        let console = console_tail(&self.log);
        Err(Error::Boot { what: "the Xen host".to_owned(), cause, console })
    }
}

/// How many bytes of a log a message shows.
const TAIL: u64 = 2000;

/// The last lines of a console's log, for error messages.
fn console_tail(log: &Path) -> String {
    let read = || -> std::io::Result<Vec<u8>> {
        let mut file = File::open(log)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(TAIL)))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    let bytes = read().unwrap_or_else(|error| error.to_string().into_bytes());
    let text = String::from_utf8_lossy(&bytes).replace('\r', "");
    // The first line is probably incomplete.
    match text.split_once('\n') {
        Some((_, whole)) if bytes.len() as u64 == TAIL => whole.to_owned(),
        _ => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tail_of_a_log_is_whole_lines() {
        let folder = lab::TempDir::new().expect("folder");
        let log = folder.path().join("log");
        std::fs::write(&log, "one\r\ntwo\r\n").expect("write");
        assert_eq!(console_tail(&log), "one\ntwo\n");
        std::fs::write(&log, "0123456789 12345678\n".repeat(200)).expect("write");
        let tail = console_tail(&log);
        assert!(tail.lines().all(|line| line == "0123456789 12345678"));
        assert_eq!(tail.lines().count(), 99);
    }
}
