//! A daemon with ports for virtual machines, a process guest and a tap.

use std::path::Path;
use std::time::Duration;

use control_socket::PortState;
use lab::{Namespace, Process};
use xenlab::{Emulator, HostFile, Images, Machine, MachineConfig, Result, scenario};

use crate::COMMAND;
use crate::card::Card;
use crate::daemon::Daemon;
use crate::virtio_net::VirtioNet;

/// The address of the process guest.
pub const GUEST: &str = "10.0.0.253";
/// The address at the other end of the tap.
pub const WIRE: &str = "10.0.0.254";
/// The tap.
pub(crate) const TAP: &str = "wire0";

/// How long the process guest may take to start.
const LIMIT: Duration = Duration::from_secs(30);

/// A running daemon and its surroundings. Dropping it ends everything.
#[derive(Debug)]
pub struct Testbed {
    // Dropped in this order: guests before the daemon, processes before their namespaces.
    guest: Option<Process>,
    /// The daemon.
    pub daemon: Daemon,
    /// The namespace of the process guest's interface.
    pub guest_namespace: Namespace,
    /// The namespace of the daemon and its tap.
    pub wire_namespace: Namespace,
    /// A card that may run or not.
    pub(crate) card: Card,
    devices: Vec<VirtioNet>,
    /// Programs of this machine that all machines get.
    pub(crate) programs: Vec<HostFile>,
}

impl Testbed {
    /// Starts a daemon with these devices' ports. The tap has no offloads: frames to it are segmented and have
    /// checksums.
    pub fn start(program: &Path, devices: Vec<VirtioNet>) -> Result<Self> {
        let wire_namespace = Namespace::create("qemulab")?;
        let guest_namespace = Namespace::create("qemulab")?;
        let card = Card::new()?;
        let daemon = Daemon::start(program, &wire_namespace, |folder| {
            let ports: String = devices.iter().map(|device| device.table(folder)).collect();
            format!(
                "[daemon]\ndirectory = {folder:?}\nmeter = true\n\n\
                 [[uplink]]\nname = \"wire\"\ntap = \"{TAP}\"\naddresses = [\"{WIRE}/24\"]\n\
                 capabilities = \"none\"\npersistent = true\n\n\
                 [[guest]]\nname = \"{}\"\nmac = \"02:00:00:00:00:03\"\naddresses = [\"{GUEST}/24\"]\n{ports}{}",
                guest_namespace.name(),
                card.tables()
            )
        })?;
        let programs = Vec::new();
        Ok(Self { guest: None, daemon, guest_namespace, wire_namespace, card, devices, programs })
    }

    /// Starts the process guest.
    pub fn join(&mut self, program: &Path) -> Result<()> {
        let mut command = lab::command(&program.to_string_lossy())?;
        command.args(["guest", "--rejoin", "60", "--directory"]).arg(self.daemon.folder());
        command.arg(self.guest_namespace.name());
        let mut guest = Process::capture(command)?;
        guest.says("is up", LIMIT)?;
        self.guest = Some(guest);
        Ok(())
    }

    /// Boots a machine with device `number`, and gives its interface an address.
    pub fn boot(&mut self, images: &Images, emulator: &Emulator, number: usize) -> Result<Machine> {
        let config = self.config(emulator, number)?;
        let mut machine = Machine::boot(images, emulator, &config)?;
        self.bring_up(&mut machine, number)?;
        Ok(machine)
    }

    /// The machine with device `number`.
    pub(crate) fn config(&self, emulator: &Emulator, number: usize) -> Result<MachineConfig> {
        let config = Self::machine(&self.devices[number], emulator, &self.daemon)?;
        Ok(MachineConfig { files: self.programs.clone(), ..config })
    }

    /// A machine with this device at a daemon. Its kernel fills free pages with a pattern, and checks it when they are used again.
    pub(crate) fn machine(
        device: &VirtioNet,
        emulator: &Emulator,
        daemon: &Daemon,
    ) -> Result<MachineConfig> {
        let config = MachineConfig {
            vcpus: device.queues,
            // Room for two kernels and two archives while one kernel starts the other.
            memory_mib: 512,
            kernel_arguments: scenario::POISON.to_owned(),
            ..MachineConfig::new(&device.name)
        };
        device.plug(config, emulator, daemon.folder())
    }

    /// The address of the machine with device `number`.
    #[must_use]
    pub fn address(number: usize) -> String {
        format!("10.0.0.{}", number + 1)
    }

    /// Gives a machine's interface its address, and waits until the port is up.
    pub fn bring_up(&mut self, machine: &mut Machine, number: usize) -> Result<()> {
        let address = Self::address(number);
        let script = format!(
            "until [ -e /sys/class/net/eth0 ]; do sleep 0.05; done\n\
             ip addr add {address}/24 dev eth0 && ip link set eth0 up"
        );
        machine.run(&script, COMMAND)?;
        self.daemon.until_port(&self.devices[number].name, PortState::Up)?;
        let carrier = "grep -q 1 /sys/class/net/eth0/carrier";
        machine.shell().until("a carrier", carrier, COMMAND).map(drop)
    }

    /// A device.
    #[must_use]
    pub fn device(&self, number: usize) -> &VirtioNet {
        &self.devices[number]
    }
}
