//! The programs that are compared: pvnet, and the rivals that are installed.

use std::path::{Path, PathBuf};
use std::time::Duration;

use lab::{Process, TempDir};
use rustix::process::{Pid, Signal, kill_process};

use super::front_end::MACS;
use crate::error::{Error, Result};
use crate::testbed::Daemon;

/// How long a rival may take to start.
const LIMIT: Duration = Duration::from_secs(30);
/// Statistics that testpmd never comes to print. Without them it would wait for a key.
const NEVER: &str = "--stats-period=1000000";

/// Packets' buffers, which fit into its memory.
const MBUFS: &str = "--total-num-mbufs=16384";
/// Large pages that it needs. Without them it has small ones.
const HUGE_PAGES: u64 = 130;

/// A program that carries frames between two vhost-user ports.
pub struct BackEnd {
    sockets: TempDir,
    program: Program,
}

/// Its process. Dropping it ends it.
enum Program {
    Pvnet(Daemon),
    Rival(Process),
}

impl BackEnd {
    /// A daemon with the learning switch and its guard, and one worker: this program, or another build of it. `lines` are
    /// further ones of `[daemon]`.
    pub fn pvnet(other: Option<&Path>, lines: &[String]) -> Result<Self> {
        let sockets = TempDir::new()?;
        let config = |folder: &Path| config_text(folder, sockets.path(), lines);
        let daemon = match other {
            Some(program) => Daemon::start_other(program, config)?,
            None => Daemon::start(config)?,
        };
        Ok(Self { sockets, program: Program::Pvnet(daemon) })
    }

    /// `dpdk-testpmd`, which sends each frame of one port out of the other, unread. It polls the CPU it is started on.
    pub fn testpmd(cpu: usize) -> Result<Self> {
        let sockets = TempDir::new()?;
        let mut command = lab::command("dpdk-testpmd")?;
        // The first of both threads only waits.
        command.args(["--lcores", &format!("0@{cpu},1@{cpu}"), "--no-pci", "--no-telemetry"]);
        command.args(["--iova-mode=va", "-m", "256"]);
        let memory = match free_huge_pages() {
            0..HUGE_PAGES => ["--no-huge", "--no-shconf"],
            _ => ["--in-memory", "--single-file-segments"],
        };
        command.args(memory);
        for (n, socket) in socket_paths(sockets.path()).iter().enumerate() {
            let device = format!("net_vhost{n},iface={},queues=1", socket.display());
            command.args(["--vdev", &device]);
        }
        command.args(["--", "--nb-cores=1", "--forward-mode=io", NEVER, MBUFS]);
        let mut process = Process::capture(command)?;
        process.says("io packet forwarding - ports=2", LIMIT)?;
        Ok(Self { sockets, program: Program::Rival(process) })
    }

    /// Its ports' sockets.
    pub fn sockets(&self) -> [PathBuf; 2] {
        socket_paths(self.sockets.path())
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        match &self.program {
            Program::Pvnet(daemon) => daemon.pid(),
            Program::Rival(process) => process.pid(),
        }
    }

    /// Stops it until [`go_on`](Self::go_on), so that it does not poll while another is measured.
    pub fn pause(&self) -> Result<()> {
        self.signal(Signal::STOP)
    }

    /// Continues it.
    pub fn go_on(&self) -> Result<()> {
        self.signal(Signal::CONT)
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        let pid = i32::try_from(self.pid()).ok().and_then(Pid::from_raw);
        // Not reaped yet, so its process id is not used again.
        let sent = pid.map(|pid| kill_process(pid, signal));
        match sent {
            Some(Ok(())) => Ok(()),
            _ => Err(Error::Failed("a back-end cannot be signalled".into())),
        }
    }
}

impl Drop for BackEnd {
    fn drop(&mut self) {
        // A stopped process would end only when it is killed.
        let _ = self.go_on();
    }
}

fn socket_paths(folder: &Path) -> [PathBuf; 2] {
    ["one", "two"].map(|name| folder.join(name))
}

/// Pages of 2 MiB that nobody uses.
fn free_huge_pages() -> u64 {
    let file = "/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages";
    std::fs::read_to_string(file).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
}

fn config_text(folder: &Path, sockets: &Path, lines: &[String]) -> String {
    // TOML quotes names of files, which may have any character.
    let quoted = |path: &Path| toml::Value::from(path.to_string_lossy().into_owned());
    let mut text =
        format!("[daemon]\ndirectory = {}\nworkers = 1\n{}\n", quoted(folder), lines.join("\n"));
    for (n, (socket, mac)) in socket_paths(sockets).iter().zip(MACS).enumerate() {
        let mac = mac.map(|byte| format!("{byte:02x}")).join(":");
        text += &format!(
            "[[port]]\nname = \"vm{n}\"\nkind = \"vhost-user\"\nsocket = {}\nmac = \"{mac}\"\n",
            quoted(socket)
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_port_has_its_socket_and_its_address() {
        let text = config_text(Path::new("/a"), Path::new("/b"), &["poll_us = 7".into()]);
        assert!(text.contains("poll_us = 7\n[[port]]"), "{text}");
        assert!(text.contains("socket = \"/b/two\"\nmac = \"02:70:76:6e:02:01\""), "{text}");
    }
}
