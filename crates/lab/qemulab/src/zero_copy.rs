//! pvnet inside a machine, with the machine's network card as its uplink by AF_XDP with zero copy.
//!
//! ```text
//!  namespace ── tap ── QEMU: virtio-net ══ memory ══ pvnet run ── pvnet guest
//! ```
//!
//! virtio-net's driver has zero copy for AF_XDP since Linux 6.13, if the device uses its bus's addresses
//! (`iommu_platform=on`).

use std::path::Path;

use control_socket::Status;
use lab::{Namespace, Progress};
use xenlab::scenario::{self, Step};
use xenlab::{Edition, Emulator, Error, HostFile, Images, Machine, MachineConfig, Result, Suite};

use crate::COMMAND;
use crate::traffic::{self, Peer};

/// Pairs of rings of the card, and CPUs of the machine.
const QUEUES: u32 = 2;
const TAP: &str = "wire0";
const WIRE: &str = "10.0.0.254";
const GUEST: &str = "10.0.0.1";
/// MiB of a file.
const FILE: u32 = 16;
/// The files of the daemon's configuration and of its output in the machine.
const CONFIG: &str = "/etc/pvnet.toml";
const LOG: &str = "/run/pvnet.log";

const CONFIGURATION: &str = r#"[daemon]
directory = "/run/pvnet"
[[uplink]]
name = "out"
kind = "af-xdp"
device = "eth0"
[[guest]]
name = "red"
mac = "02:00:00:00:00:01"
addresses = ["10.0.0.1/24"]
"#;

type StepFn = fn(&mut ZeroCopy) -> Result<(String, bool)>;

const STEPS: [(&str, StepFn); 4] = [
    ("the card reads and writes pvnet's memory", shared),
    ("a guest and the wire reach each other", reachable),
    ("files between them", files),
    ("kill -9, and a restart", kill),
];

/// The machine, and the wire of its card.
#[derive(Debug)]
pub struct ZeroCopy {
    // Dropped before the namespace that it runs in.
    machine: Machine,
    wire: Namespace,
}

impl ZeroCopy {
    /// The number of its progress steps.
    pub const STEPS: usize = STEPS.len() + 1;

    /// Images with a kernel that is new enough: that of Debian 13's backports, on every host.
    pub fn images(cache: &Path, quiet: bool) -> Result<Images> {
        Images::prepare_edition(Edition::Backports, Suite::Trixie, cache, quiet)
    }

    /// Boots the machine, and does all steps. Stops at the first that fails to run.
    pub fn run(
        images: &Images,
        emulator: &Emulator,
        pvnet: &Path,
        progress: &Progress,
    ) -> Result<Vec<Step>> {
        progress.step("boot a machine, and start pvnet and a guest in it");
        let mut this = Self::boot(images, emulator, pvnet)?;
        let begun = this.begin();
        let steps = begun.and_then(|()| scenario::run_all(&STEPS, progress, |act| act(&mut this)));
        steps.map_err(|cause| {
            let log = format!("cat {LOG} /run/guest.log");
            let log = this.machine.sh(&log, COMMAND).map(|output| output.text).unwrap_or_default();
            Error::Explained { cause: Box::new(cause), log }
        })
    }

    fn boot(images: &Images, emulator: &Emulator, pvnet: &Path) -> Result<Self> {
        let wire = Namespace::create("qemulab")?;
        wire.ip(&["tuntap", "add", TAP, "mode", "tap", "multi_queue", "vnet_hdr"])?;
        wire.ip(&["address", "add", &format!("{WIRE}/24"), "dev", TAP])?;
        wire.ip(&["link", "set", TAP, "up"])?;
        let netdev =
            format!("tap,id=net,ifname={TAP},queues={QUEUES},script=no,downscript=no,vhost=off");
        // A vector for each ring, one for the control ring, and one for changes of the device.
        let device = format!(
            "virtio-net-pci,netdev=net,mq=on,vectors={},romfile=,disable-legacy=on,iommu_platform=on",
            2 * QUEUES + 2
        );
        let config = MachineConfig {
            vcpus: QUEUES,
            memory_mib: 768,
            files: vec![HostFile::new(pvnet)?.at("/usr/local/bin/pvnet")],
            namespace: Some(wire.name().to_owned()),
            ..MachineConfig::new("zero-copy")
        };
        let config = config.with(["-netdev", &netdev, "-device", &device]);
        Ok(Self { machine: Machine::boot(images, emulator, &config)?, wire })
    }

    /// Starts the daemon and its guest.
    fn begin(&self) -> Result<()> {
        let prepare = format!(
            "modprobe -a tun veth\nuntil [ -e /sys/class/net/eth0 ]; do sleep 0.05; done\n\
             cat >{CONFIG} <<'END'\n{CONFIGURATION}END"
        );
        self.machine.run(&prepare, COMMAND)?;
        self.start()?;
        let there = "pvnet status --directory /run/pvnet >/run/status 2>&1";
        self.machine.shell().until("a daemon", there, COMMAND)?;
        let guest = "pvnet guest --directory /run/pvnet --rejoin 60 red >/run/guest.log 2>&1";
        self.machine.spawn(guest)?;
        self.wait_up()
    }

    fn start(&self) -> Result<()> {
        self.machine.spawn(&format!("pvnet run --config {CONFIG} >>{LOG} 2>&1")).map(drop)
    }

    fn wait_up(&self) -> Result<()> {
        let up = "pvnet status --directory /run/pvnet --json 2>/dev/null | grep -q '\"state\": \"up\"' && \
                  ! pvnet status --directory /run/pvnet | grep -q 'not started'";
        self.machine.shell().until("a guest that is up", up, COMMAND).map(drop)
    }

    fn status(&self) -> Result<Status> {
        let text = self.machine.run("pvnet status --directory /run/pvnet --json", COMMAND)?;
        Error::json("the daemon's status", &text)
    }

    /// How many sockets the card has, and whether each has zero copy.
    fn sockets(&self) -> Result<(usize, bool)> {
        let status = self.status()?;
        let sockets = status.ports.iter().flat_map(|port| &port.xdp);
        Ok((sockets.clone().count(), sockets.clone().all(|socket| socket.zero_copy)))
    }

    /// A command in the machine's namespace of the guest.
    fn in_guest(command: &str) -> String {
        format!("ip netns exec red sh -c '{command}'")
    }
}

fn shared(this: &mut ZeroCopy) -> Result<(String, bool)> {
    let (count, all) = this.sockets()?;
    let kernel = this.machine.run("uname -r", COMMAND)?;
    let seen = if all { "with" } else { "not all with" };
    let seen = format!("Linux {}: {count} sockets, {seen} zero copy", kernel.trim());
    Ok((seen, all && count == QUEUES as usize))
}

fn reachable(this: &mut ZeroCopy) -> Result<(String, bool)> {
    let ping = traffic::ping(Peer::Namespace(&this.wire), GUEST, 5)?;
    let back =
        this.machine.sh(&ZeroCopy::in_guest(&format!("ping -c 5 -i 0.2 {WIRE}")), COMMAND)?;
    let seen = format!("{} of {} echoes in, {} out", ping.received, ping.sent, summary(&back.text));
    Ok((seen, ping.received == ping.sent && back.text.contains(" 0% packet loss")))
}

/// The line of `ping` with its losses.
fn summary(text: &str) -> &str {
    text.lines().find(|line| line.contains("packet loss")).unwrap_or("no summary")
}

fn files(this: &mut ZeroCopy) -> Result<(String, bool)> {
    let port = traffic::FILE_PORT;
    let receive = ZeroCopy::in_guest(&format!("nc -l -p {port} | sha256sum"));
    let receiver = this.machine.spawn(&receive)?;
    let sent = traffic::send_from(&this.wire, GUEST, FILE)?;
    let is_in = receiver.wait(COMMAND)?.text.split_whitespace().next() == Some(sent.as_str());

    let receiver = traffic::receiver(&this.wire)?;
    let send = format!(
        "set -e; dd if=/dev/urandom of=/run/file bs=1M count={FILE} 2>/dev/null; \
         nc {WIRE} {port} </run/file >/dev/null; sha256sum </run/file; rm /run/file"
    );
    let printed = this.machine.run(&ZeroCopy::in_guest(&send), COMMAND * 2)?;
    let joined = receiver.join();
    let received = joined.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
    let is_out = printed.split_whitespace().next() == Some(received.as_str());
    let said = |is_same: bool| if is_same { "the same digest" } else { "ANOTHER DIGEST" };
    Ok((format!("{FILE} MiB in: {}, out: {}", said(is_in), said(is_out)), is_in && is_out))
}

fn kill(this: &mut ZeroCopy) -> Result<(String, bool)> {
    let pid = this.status()?.pid;
    this.machine.run(&format!("kill -9 {pid}"), COMMAND)?;
    this.start()?;
    this.wait_up()?;
    let (sockets, is_shared) = shared(this)?;
    let (echoes, all) = reachable(this)?;
    Ok((format!("{sockets}; {echoes}"), is_shared && all))
}
