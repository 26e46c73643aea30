//! `attach = "device"`: each interface of a guest has a device in the backend's domain, which the toolstack's scripts connect.

mod bridge;
mod hash;
mod ipxe;
mod libvirt;
mod lifecycle;
mod netback;
mod open_vswitch;
mod ovn;
mod restart;
mod route;
mod testbed;
mod tools;

use std::fmt;
use std::str::FromStr;

use lab::Progress;
use testbed::{BRIDGE, BRIDGE_ADDRESS, Testbed, address, verdict};

use super::backend::{self, Backend};
use super::step::{self, Step};
use super::{COMMAND_TIMEOUT, check};
use crate::host::{GuestType, Host};
use crate::{Edition, Result, UnknownName};

type StepFn = fn(&mut Testbed<'_>) -> Result<(String, bool)>;

named::named! {
    /// The steps that share a host.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum DevicePart {
        /// pvnet in dom0, with a Linux bridge and Open vSwitch, and an operator's tools.
        Dom0 => "dom0",
        /// pvnet in a driver domain, where `xl devd` runs the scripts.
        DriverDomain => "driver-domain",
        /// PVH and HVM guests.
        GuestTypes => "guest-types",
        /// iPXE's own frontend, on pvnet and on the kernel's backend.
        Ipxe => "ipxe",
        /// pvnet beside the kernel's backend.
        Netback => "netback",
        /// Guests as logical ports of OVN, with pvnet in dom0.
        Ovn => "ovn",
        /// libvirt as the toolstack, with pvnet in dom0.
        Libvirt => "libvirt",
        /// The same, with pvnet in a driver domain.
        LibvirtDomain => "libvirt-domain",
    }
}

impl DevicePart {
    /// Progress steps of [`device`].
    #[must_use]
    pub fn steps(self) -> usize {
        self.all().len() + 1
    }

    /// Whether the hypervisor needs virtualisation by the processor: see [`Options::nested`](crate::Options::nested).
    #[must_use]
    pub fn needs_virtualisation(self) -> bool {
        matches!(self, Self::GuestTypes | Self::Ipxe)
    }

    /// The images that it needs.
    #[must_use]
    pub fn edition(self) -> Edition {
        match self {
            Self::Libvirt | Self::LibvirtDomain => Edition::Libvirt,
            Self::Dom0
            | Self::DriverDomain
            | Self::GuestTypes
            | Self::Ipxe
            | Self::Netback
            | Self::Ovn => Edition::Network,
        }
    }

    fn backend(self) -> Backend {
        match self {
            Self::DriverDomain | Self::LibvirtDomain => Backend::PvnetDomain,
            Self::Dom0
            | Self::GuestTypes
            | Self::Ipxe
            | Self::Netback
            | Self::Ovn
            | Self::Libvirt => Backend::Pvnet,
        }
    }

    fn all(self) -> &'static [(&'static str, StepFn)] {
        match self {
            Self::Dom0 => &DOM0,
            Self::DriverDomain => &DRIVER_DOMAIN,
            Self::GuestTypes => &GUEST_TYPES,
            Self::Ipxe => &IPXE,
            Self::Netback => &NETBACK,
            Self::Ovn => &OVN,
            Self::Libvirt | Self::LibvirtDomain => &LIBVIRT,
        }
    }
}

impl fmt::Display for DevicePart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for DevicePart {
    type Err = UnknownName;

    fn from_str(name: &str) -> std::result::Result<Self, UnknownName> {
        let known = Self::ALL.into_iter().find(|part| part.name() == name);
        known.ok_or_else(|| UnknownName::new("part", name, &Self::ALL))
    }
}

const CREATE: (&str, StepFn) = ("xl create, with the default script and bridge=", bridge::create);
const CONNECTED: (&str, StepFn) =
    ("the script finds the device, and puts it into the bridge with its MTU", bridge::connected);
const REACHABLE: (&str, StepFn) =
    ("guests and the bridge's address reach each other, and files arrive", bridge::reachable);
const KILL: (&str, StepFn) = ("kill -9 and a restart under a TCP connection", restart::kill);
const HOT_PLUG: (&str, StepFn) =
    ("an interface comes and goes while its guest runs", lifecycle::hot_plug);
const REBOOT: (&str, StepFn) = ("a guest reboots", lifecycle::reboot);
const SAVE: (&str, StepFn) = ("a guest is saved and restored", lifecycle::save_and_restore);
const SHUTDOWN: (&str, StepFn) = ("all guests shut down, and nothing is left", lifecycle::shutdown);

const DOM0: [(&str, StepFn); 20] = [
    CREATE,
    CONNECTED,
    REACHABLE,
    ("two queues and offloads", bridge::offloads),
    ("tcpdump on a device", tools::tcpdump),
    ("tc delays and polices on a device", tools::traffic_control),
    ("nftables drops on a device", tools::nftables),
    ("Open vSwitch, with vif-openvswitch", open_vswitch::connected),
    KILL,
    ("what an operator has switched off stays off", restart::operators_features),
    ("the same in Open vSwitch", open_vswitch::kill),
    ("a route, with vif-route", route::connected),
    ("the same behind the route, and its end", route::kill),
    HOT_PLUG,
    ("a script that fails", lifecycle::failing_script),
    REBOOT,
    SAVE,
    ("a guest is destroyed in the middle of traffic", lifecycle::destroy),
    ("a guest chooses its hash, on the control ring", hash::chosen),
    SHUTDOWN,
];

const DRIVER_DOMAIN: [(&str, StepFn); 8] =
    [CREATE, CONNECTED, REACHABLE, KILL, HOT_PLUG, REBOOT, SAVE, SHUTDOWN];

const GUEST_TYPES: [(&str, StepFn); 2] =
    [("a PVH guest", pvh), ("an HVM guest, which unplugs its card", hvm)];

const IPXE: [(&str, StepFn); 2] = [
    ("iPXE boots a guest over its own frontend, on pvnet", ipxe::on_pvnet),
    ("the same on the kernel's backend", ipxe::on_netback),
];

const NETBACK: [(&str, StepFn); 2] = [
    ("one guest with an interface of each backend, on one bridge", netback::connected),
    ("the same traffic through each in turn", netback::compared),
];

const OVN: [(&str, StepFn); 4] = [
    CREATE,
    ("interfaces are logical ports, whose guests have their addresses from OVN", ovn::connected),
    ("an access rule holds, and the ports go with the interfaces", ovn::protected),
    SHUTDOWN,
];

const LIBVIRT: [(&str, StepFn); 8] = [
    ("virsh define and start, with type='bridge'", libvirt::create),
    CONNECTED,
    REACHABLE,
    KILL,
    ("virsh attach-device and detach-device", libvirt::hot_plug),
    ("virsh destroy in the middle of traffic", libvirt::destroy),
    SHUTDOWN,
    ("virsh start with type='ethernet', on pvnet's own switch", libvirt::own_switch),
];

/// Runs all steps of a part on a freshly booted host with the program `pvnet` and images of the part's
/// [edition](DevicePart::edition). Stops at the first step that fails to run.
pub fn device(host: &Host, part: DevicePart, progress: &Progress) -> Result<Vec<Step>> {
    progress.step("start pvnet");
    let mut testbed = Testbed::begin(host, part.backend())?;
    step::run_all(part.all(), progress, |act| {
        act(&mut testbed).map_err(|error| backend::explain(error, &testbed.backend))
    })
}

const FILE: u32 = 1;

/// Network cards on the emulated PCI bus, and the drivers of the guest's interfaces.
const CARDS: &str = "grep -l ^0x0200 /sys/bus/pci/devices/*/class 2>/dev/null | wc -l\n\
     for link in /sys/class/net/eth*/device/driver; do basename $(readlink $link); done";

/// Counts the emulators that have a network card for their guest.
const EMULATED: &str = "grep -l '[r]tl8139' /proc/[0-9]*/cmdline | wc -l";

fn pvh(testbed: &mut Testbed<'_>) -> Result<(String, bool)> {
    guest(testbed, GuestType::Pvh)
}

fn hvm(testbed: &mut Testbed<'_>) -> Result<(String, bool)> {
    guest(testbed, GuestType::Hvm)
}

fn guest(testbed: &mut Testbed<'_>, guest_type: GuestType) -> Result<(String, bool)> {
    let guest = testbed.create(2, guest_type, &[])?;
    let id = guest.id();
    let mut wrong =
        testbed.store(&guest, 0)?.wrong(&[("hotplug-status", "connected"), ("state", "4")]);
    wrong.extend(testbed.device(&guest, 0)?.wrong(&[
        ("master", BRIDGE),
        ("hook", "1"),
        ("carrier", "1"),
    ]));
    let cards = guest.run(CARDS, COMMAND_TIMEOUT)?;
    wrong.extend((cards.split_whitespace().ne(["0", "vif"])).then(|| format!("cards {cards:?}")));
    let emulated = testbed.shell().run(EMULATED, COMMAND_TIMEOUT)?.trim() == "1";
    wrong.extend((emulated != (guest_type == GuestType::Hvm)).then(|| "the emulator".to_owned()));
    let (inner, outer) = (guest.shell(), testbed.shell());
    let pings = [check::ping(inner, BRIDGE_ADDRESS, 5)?, check::ping(outer, &address(2), 5)?];
    let received: u64 = pings.iter().map(|ping| ping.received).sum();
    let files = check::same_file(inner, outer, BRIDGE_ADDRESS, FILE)?
        && check::same_file(outer, inner, &address(2), FILE)?;
    wrong.extend((received < 10 || !files).then(|| "frames".to_owned()));
    guest.destroy()?;
    wrong.extend(testbed.left(id, 0)?);
    let names = testbed.shell().run("ls /sys/class/net", COMMAND_TIMEOUT)?;
    wrong.extend(names.split_whitespace().filter(|name| name.ends_with("-emu")).map(str::to_owned));
    Ok(verdict(
        format!(
            "no card but its vif; {received} of 10 echoes; files arrive both ways; nothing is left"
        ),
        &wrong,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parts_name_is_read_back_and_its_steps_have_names_of_their_own() {
        for part in DevicePart::ALL {
            assert_eq!(part.to_string().parse::<DevicePart>().expect("known"), part);
            let names: std::collections::BTreeSet<_> =
                part.all().iter().map(|(what, _)| what).collect();
            assert_eq!(names.len() + 1, part.steps());
        }
        assert!("domU".parse::<DevicePart>().is_err());
    }
}
