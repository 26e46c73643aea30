//! The setup of an operator's day: a testbed, and the machines that run on it.

use std::path::Path;

use control_socket::PortState;
use serde_json::json;
use xenlab::{Emulator, Error, Images, Machine, Result, Shell};

use crate::COMMAND;
use crate::firmware::Firmware;
use crate::testbed::{GUEST, Testbed, WIRE};
use crate::traffic::{self, Peer};
use crate::virtio_net::{Side, VirtioNet};

/// The machines that run from the beginning.
const MACHINES: usize = 2;

/// The first machine has one queue, and pvnet makes its socket. The second has two queues, QEMU makes its socket, and its port offers
/// packed rings. The third is booted by firmware, or runs XDP programs.
fn devices() -> Vec<VirtioNet> {
    let device =
        |name: &str, number: u8, queues, side, [packed, guest_offloads]: [bool; 2]| VirtioNet {
            name: name.to_owned(),
            mac: format!("52:54:00:00:00:{number:02x}"),
            queues,
            side,
            packed,
            guest_offloads,
        };
    vec![
        device("vm1", 1, 1, Side::Pvnet, [false, true]),
        device("vm2", 2, 2, Side::Qemu, [true, true]),
        device("vm3", 3, 1, Side::Pvnet, [false, false]),
    ]
}

/// The images, emulator and firmware of machines, and the program pvnet.
#[derive(Clone, Copy, Debug)]
pub struct Inputs<'a> {
    /// Debian's kernel and programs.
    pub images: &'a Images,
    /// QEMU.
    pub emulator: &'a Emulator,
    /// Firmware for machines that boot over the network, and `kexec`.
    pub firmware: &'a Firmware,
    /// The program pvnet.
    pub pvnet: &'a Path,
}

/// Everything that runs.
pub(crate) struct Setup<'a> {
    pub(crate) inputs: Inputs<'a>,
    // Dropped in this order: machines before their daemon.
    pub(crate) machines: Vec<Option<Machine>>,
    pub(crate) testbed: Testbed,
}

impl<'a> Setup<'a> {
    pub(crate) fn begin(inputs: Inputs<'a>) -> Result<Self> {
        let mut testbed = Testbed::start(inputs.pvnet, devices())?;
        testbed.programs.push(inputs.firmware.kexec()?);
        testbed.join(inputs.pvnet)?;
        let mut setup = Self { inputs, machines: Vec::new(), testbed };
        for number in 0..MACHINES {
            let machine = setup.boot(number)?;
            setup.machines.push(Some(machine));
        }
        Ok(setup)
    }

    /// Boots the machine with device `number`.
    pub(crate) fn boot(&mut self, number: usize) -> Result<Machine> {
        self.testbed.boot(self.inputs.images, self.inputs.emulator, number)
    }

    pub(crate) fn machine(&mut self, number: usize) -> Result<&mut Machine> {
        self.machines[number].as_mut().ok_or_else(gone)
    }

    pub(crate) fn shell(&self, number: usize) -> Result<&Shell> {
        self.machines[number].as_ref().map(Machine::shell).ok_or_else(gone)
    }

    pub(crate) fn bring_up(&mut self, number: usize) -> Result<()> {
        let machine = self.machines[number].as_mut().ok_or_else(gone)?;
        self.testbed.bring_up(machine, number)
    }

    /// Unplugs a machine's device, and plugs it in again with these properties.
    pub(crate) fn plug_again(&mut self, number: usize, properties: &[(&str, bool)]) -> Result<()> {
        let device = self.testbed.device(number).clone();
        let again = device.again(self.inputs.emulator, properties)?;
        let monitor = self.machine(number)?.monitor();
        monitor.execute("device_del", json!({ "id": "nic" }))?;
        // Another such event is for the device's part on the virtio bus.
        while monitor.event("DEVICE_DELETED", COMMAND)?["data"]["device"] != "nic" {}
        self.testbed.daemon.until_port(&device.name, PortState::Down)?;
        let machine = self.machine(number)?;
        machine.run("! [ -e /sys/class/net/eth0 ]", COMMAND)?;
        machine.monitor().execute("device_add", again)?;
        self.bring_up(number)
    }

    /// Pings between all kinds of ports. Returns a description, and whether all echoes were answered.
    pub(crate) fn ping_all(&self) -> Result<(String, bool)> {
        let (one, two) = (Peer::Machine(self.shell(0)?), Peer::Machine(self.shell(1)?));
        let guest = Peer::Namespace(&self.testbed.guest_namespace);
        let wire = Peer::Namespace(&self.testbed.wire_namespace);
        let [first, second] = [0, 1].map(Testbed::address);
        let (mut sent, mut received) = (0, 0);
        for (from, to) in [
            (one, second.as_str()),
            (two, &first),
            (one, GUEST),
            (two, WIRE),
            (guest, &second),
            (wire, &first),
            (guest, WIRE),
        ] {
            let ping = traffic::ping(from, to, 3)?;
            (sent, received) = (sent + ping.sent, received + ping.received);
        }
        Ok((format!("{received} of {sent} echoes on 7 paths"), sent == received))
    }
}

pub(crate) fn gone() -> Error {
    Error::Content { what: "the machine".to_owned(), cause: "it was ended before".to_owned() }
}
