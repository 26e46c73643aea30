//! The programs that are compared: pvnet, and the rivals that are installed.

use std::path::{Path, PathBuf};

use lab::{Process, TempDir};
use rustix::process::{Pid, Signal, kill_process};

use super::front_end::{MACS, RingLayout};
use super::open_vswitch::{self, OpenVswitch};
use super::table::Polling;
use crate::bench::pps::Cpus;
use crate::error::{Error, Result};
use crate::testbed::{Daemon, quoted, table};

/// The names of its ports' sockets.
const PORTS: [&str; 2] = ["one", "two"];

/// A program that carries frames between two vhost-user ports.
pub struct BackEnd {
    // Dropped in this order.
    program: Program,
    sockets: TempDir,
}

/// Its process. Dropping it ends it.
enum Program {
    Pvnet(Daemon),
    Testpmd(Process),
    OpenVswitch(OpenVswitch),
}

impl BackEnd {
    /// A daemon with the learning switch, its guard and one worker: this program, or another build of it. `lines` are added to `[daemon]`.
    pub fn pvnet(other: Option<&Path>, lines: &[String]) -> Result<Self> {
        let sockets = TempDir::new()?;
        let config = |folder: &Path| config_text(folder, sockets.path(), lines);
        let daemon = match other {
            Some(program) => Daemon::start_other(program, config)?,
            None => Daemon::start(config)?,
        };
        Ok(Self { program: Program::Pvnet(daemon), sockets })
    }

    /// `dpdk-testpmd`, which sends each frame of one port out of the other, unread. It polls on the CPU that it is
    /// started on.
    pub fn testpmd(cpu: usize) -> Result<Self> {
        let sockets = TempDir::new()?;
        let process = open_vswitch::testpmd(cpu, &socket_paths(sockets.path()))?;
        Ok(Self { program: Program::Testpmd(process), sockets })
    }

    /// Open vSwitch with DPDK, whose bridge learns addresses. It polls on `cpu`, and must be started there.
    pub fn open_vswitch(cpu: usize) -> Result<Self> {
        let sockets = TempDir::new()?;
        let switch = OpenVswitch::start(sockets.path(), cpu, PORTS)?;
        Ok(Self { program: Program::OpenVswitch(switch), sockets })
    }

    /// Its ports' sockets.
    pub fn sockets(&self) -> [PathBuf; 2] {
        socket_paths(self.sockets.path())
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        match &self.program {
            Program::Pvnet(daemon) => daemon.pid(),
            Program::Testpmd(process) => process.pid(),
            Program::OpenVswitch(switch) => switch.pid(),
        }
    }

    /// Its threads that poll.
    pub fn polling(&self) -> Polling {
        let threads = match &self.program {
            Program::OpenVswitch(_) => open_vswitch::POLLERS,
            Program::Pvnet(_) | Program::Testpmd(_) => "",
        };
        Polling { pid: self.pid(), threads }
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
        // The process is not reaped yet, so its id is not reused.
        let sent = pid.map(|pid| kill_process(pid, signal));
        match sent {
            Some(Ok(())) => Ok(()),
            _ => Err(Error::Failed("a back-end cannot be signalled".into())),
        }
    }
}

impl Drop for BackEnd {
    fn drop(&mut self) {
        // A stopped process would end only by SIGKILL.
        let _ = self.go_on();
    }
}

fn socket_paths(folder: &Path) -> [PathBuf; 2] {
    PORTS.map(|name| folder.join(name))
}

fn config_text(folder: &Path, sockets: &Path, lines: &[String]) -> String {
    let mut text = format!("{}workers = 1\n{}\n", table(folder), lines.join("\n"));
    for (n, (socket, mac)) in socket_paths(sockets).iter().zip(MACS).enumerate() {
        let mac = mac.map(|byte| format!("{byte:02x}")).join(":");
        text += &format!(
            "[[port]]\nname = \"vm{n}\"\nkind = \"vhost-user\"\nsocket = {}\nmac = \"{mac}\"\npacked = true\n",
            quoted(socket)
        );
    }
    text
}

/// A program that carries frames between two guests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Contender {
    /// This program.
    Pvnet,
    /// Another build of it.
    Other(PathBuf),
    /// DPDK's testpmd, which forwards frames unread.
    Testpmd,
    /// Open vSwitch with DPDK, which learns addresses.
    OpenVswitch,
}

impl Contender {
    /// This program, another build if one is given, and the rivals that are installed, unless it is `alone`.
    pub fn all(other: Option<&PathBuf>, alone: bool) -> Vec<Self> {
        let mut all = vec![Self::Pvnet];
        all.extend(other.cloned().map(Self::Other));
        if !alone && lab::command("dpdk-testpmd").is_ok() {
            all.push(Self::Testpmd);
        }
        if !alone && OpenVswitch::is_there() {
            all.push(Self::OpenVswitch);
        }
        all
    }

    /// Starts it on the first CPU. `lines` are added to pvnet's `[daemon]`.
    pub fn start(&self, cpus: &Cpus, lines: &[String]) -> Result<BackEnd> {
        cpus.enter(0)?;
        match self {
            Self::Pvnet => BackEnd::pvnet(None, lines),
            Self::Other(program) => BackEnd::pvnet(Some(program), lines),
            Self::Testpmd => BackEnd::testpmd(cpus.number(0)),
            Self::OpenVswitch => BackEnd::open_vswitch(cpus.number(0)),
        }
    }

    /// Its name in rows, with this layout of its rings.
    pub fn name(&self, layout: RingLayout) -> &'static str {
        match (self, layout) {
            (Self::Pvnet, RingLayout::Split) => "pvnet-split",
            (Self::Pvnet, RingLayout::Packed) => "pvnet-packed",
            (Self::Other(_), RingLayout::Split) => "other-split",
            (Self::Other(_), RingLayout::Packed) => "other-packed",
            (Self::Testpmd, RingLayout::Split) => "testpmd-split",
            (Self::Testpmd, RingLayout::Packed) => "testpmd-packed",
            (Self::OpenVswitch, RingLayout::Split) => "ovs-split",
            (Self::OpenVswitch, RingLayout::Packed) => "ovs-packed",
        }
    }
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
