//! Programs in user space that people use between guests of one host. Each connects two namespaces here.
//!
//! ```text
//!  pasta:  guest ── tap ── pasta ── sockets of a host's namespace ── pasta ── tap ── guest
//!  VDE:    guest ── tap ── vde_plug2tap ── vde_switch ── vde_plug2tap ── tap ── guest
//!  QEMU:   guest ── tap ── hub of a QEMU ── socket ── hub of another ── tap ── guest
//! ```

use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};

use accounting::Carried;
use lab::{Endpoint, Interrupt, Namespace, Process, Progress, TempDir};

use crate::error::{Error, Result};
use crate::testbed::Subject;

/// A program that people use in pvnet's place.
pub struct Rival {
    /// Its name in tables.
    pub label: &'static str,
    key: &'static str,
    /// What separates the guests.
    pub wall: &'static str,
    programs: &'static [&'static str],
    package: &'static str,
    start: fn(&mut RunningRival) -> Result<()>,
}

/// All rivals.
pub const RIVALS: [Rival; 3] = [
    Rival {
        label: "pasta (passt)",
        key: "pasta",
        wall: "a process each",
        programs: &["pasta"],
        package: "passt",
        start: RunningRival::pasta,
    },
    Rival {
        label: "VDE's switch",
        key: "vde",
        wall: "a process",
        programs: &["vde_switch", "vde_plug2tap"],
        package: "vde2",
        start: RunningRival::vde,
    },
    Rival {
        label: "QEMU's hub and sockets",
        key: "qemu-hub",
        wall: "a process each",
        programs: &["qemu-system-x86_64"],
        package: "qemu-system-x86",
        start: RunningRival::qemu,
    },
];

impl Rival {
    /// Whether all its programs are installed.
    pub fn is_installed(&self) -> bool {
        self.programs.iter().all(|program| lab::command(program).is_ok())
    }
}

/// How long apt-get may take.
const INSTALL: Duration = Duration::from_secs(600);

/// Installs the missing ones.
pub fn install(quiet: bool) -> Result<()> {
    let missing: Vec<_> = RIVALS.iter().filter(|rival| !rival.is_installed()).collect();
    let packages: Vec<_> = missing.iter().map(|rival| rival.package).collect();
    if packages.is_empty() {
        return Ok(());
    }
    let progress = Progress::new(1, quiet);
    progress.step(format!("install {}, for the last step", packages.join(", ")));
    let run = |words: &[&str]| {
        let mut command = lab::command("apt-get")?;
        command.args(words).env("DEBIAN_FRONTEND", "noninteractive");
        lab::run(command, INSTALL).map(drop)
    };
    // A fresh machine has no lists of packages. If the update fails, old lists may still do; if not, the installation fails.
    match run(&["update", "-q"]) {
        Err(lab::Error::Failed { .. }) | Ok(()) => {}
        Err(error) => return Err(error.into()),
    }
    let install = ["install", "-y", "-q", "--no-install-recommends"];
    Ok(run(&[&install[..], &packages[..]].concat())?)
}

/// The interface in each guest.
const DEVICE: &str = "eth0";
/// How long a program may take to start.
const START: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(20);

/// A running rival. Dropping it removes everything.
pub struct RunningRival {
    // Fields are dropped in this order, each before what it uses.
    processes: Vec<Process>,
    key: &'static str,
    left: Endpoint,
    right: Endpoint,
    host: Option<Namespace>,
    folder: TempDir,
}

impl RunningRival {
    /// Starts it between two guests. On return they reach each other.
    pub fn start(rival: &Rival) -> Result<Self> {
        let end = |host: u8| -> Result<Endpoint> {
            Ok(Endpoint {
                namespace: Namespace::create("pvnet-rival")?,
                device: DEVICE,
                ipv4: Ipv4Addr::new(192, 0, 2, host),
                ipv6: Ipv6Addr::UNSPECIFIED,
            })
        };
        let mut running = Self {
            processes: Vec::new(),
            key: rival.key,
            left: end(77)?,
            right: end(1)?,
            host: None,
            folder: TempDir::new()?,
        };
        (rival.start)(&mut running)?;
        running.wait()?;
        Ok(running)
    }

    /// pasta connects each guest to the sockets of a host's namespace. The second guest has the host's address.
    fn pasta(&mut self) -> Result<()> {
        let host = self.host.insert(Namespace::create("pvnet-rival")?);
        // pasta copies the host's interface that has the default route.
        host.ip(&["link", "add", "host0", "type", "veth", "peer", "name", "host1"])?;
        let address = format!("{}/24", self.right.ipv4);
        host.ip(&["addr", "add", &address, "dev", "host0"])?;
        for device in ["host0", "host1"] {
            host.ip(&["link", "set", device, "up"])?;
        }
        host.ip(&["route", "add", "default", "via", "192.0.2.254"])?;
        // pasta forwards only the ports that it gets at its start: iperf3's, and those that programs in the guest may get.
        let narrow = || {
            std::fs::write("/proc/sys/net/ipv4/ip_local_port_range", "40000 40063").map_err(
                |cause| lab::Error::Io { what: "cannot limit the guest's ports".to_owned(), cause },
            )
        };
        self.right.namespace.inside(narrow)?;
        let ports = "5201,40000-40063";
        let address = self.left.ipv4.to_string();
        let own = ["-a", &address, "-n", "24", "-g", "192.0.2.254", "-t", "none", "-u", "none"];
        for (end, more) in [(&self.left, &own[..]), (&self.right, &["-t", ports, "-u", ports])] {
            let mut command = host.exec("pasta")?;
            command.args(["--foreground", "-4", "--runas", "0", "--config-net", "-T", "none"]);
            command.args(["-U", "none", "-I", DEVICE]).args(more);
            command.arg("--netns").arg(end.namespace.path());
            self.processes.push(Process::capture(command)?);
        }
        Ok(())
    }

    fn vde(&mut self) -> Result<()> {
        let socket = self.folder.path().join("switch");
        let mut command = lab::command("vde_switch")?;
        command.arg("--sock").arg(&socket);
        // vde_switch ends when its standard input ends.
        let mut switch = Process::interactive(command)?;
        switch.makes(&socket.join("ctl"), START)?;
        self.processes.push(switch);
        for end in [&self.left, &self.right] {
            let mut command = end.namespace.exec("vde_plug2tap")?;
            command.arg("--sock").arg(&socket).arg(DEVICE);
            self.processes.push(Process::capture(command)?);
        }
        self.configure()
    }

    fn qemu(&mut self) -> Result<()> {
        let socket = self.folder.path().join("qemu.sock");
        for (end, is_server) in [(&self.left, "on"), (&self.right, "off")] {
            let mut command = end.namespace.exec("qemu-system-x86_64")?;
            command.args(["-M", "none", "-nodefaults", "-display", "none"]);
            command.args(["-monitor", "none", "-serial", "none"]);
            let tap = format!("tap,id=guest,ifname={DEVICE},script=no,downscript=no");
            let stream = format!(
                "stream,id=other,server={is_server},addr.type=unix,addr.path={}",
                socket.display()
            );
            let hubs =
                ["guest", "other"].map(|of| format!("hubport,id=hub-{of},hubid=0,netdev={of}"));
            for netdev in [tap, stream].iter().chain(&hubs) {
                command.args(["-netdev", netdev]);
            }
            let mut qemu = Process::capture(command)?;
            if is_server == "on" {
                qemu.makes(&socket, START)?;
            }
            self.processes.push(qemu);
        }
        self.configure()
    }

    /// Waits for the guests' devices, and gives them their addresses.
    fn configure(&mut self) -> Result<()> {
        for number in 0..2 {
            let start = Instant::now();
            while self.ends()[number].namespace.ip(&["link", "show", DEVICE]).is_err() {
                self.check(start)?;
            }
            let end = self.ends()[number];
            end.namespace.ip(&["addr", "add", &format!("{}/24", end.ipv4), "dev", DEVICE])?;
            end.namespace.ip(&["link", "set", DEVICE, "up"])?;
        }
        Ok(())
    }

    /// Waits until both guests have addresses and one answers the other.
    fn wait(&mut self) -> Result<()> {
        let start = Instant::now();
        loop {
            let has_address = |end: &Endpoint| {
                let shown = end.namespace.ip(&["-4", "addr", "show", "dev", DEVICE]);
                shown.is_ok_and(|shown| shown.contains(&end.ipv4.to_string()))
            };
            if self.ends().into_iter().all(has_address) {
                return Ok(());
            }
            self.check(start)?;
        }
    }

    /// Sleeps a little. Fails if one of its processes has ended, or too much time has passed.
    fn check(&mut self, start: Instant) -> Result<()> {
        for process in &mut self.processes {
            if let Some(status) = process.ended()? {
                let who = process.name().to_owned();
                return Err(Error::Ended { who, status, said: process.stderr() });
            }
        }
        if start.elapsed() > START {
            let said = self.processes.iter().map(Process::stderr).collect::<String>();
            return Err(Error::Late {
                what: format!("the start of {}", self.key),
                limit: START,
                said,
            });
        }
        Ok(Interrupt::sleep(POLL)?)
    }
}

impl Subject for RunningRival {
    fn name(&self) -> &'static str {
        self.key
    }

    fn ends(&self) -> [&Endpoint; 2] {
        [&self.left, &self.right]
    }

    /// The rival's frames are not counted.
    fn carried(&self) -> Result<Carried> {
        Ok(Carried::default())
    }
}
