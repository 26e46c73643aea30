//! The names, addresses and attachments of guests, and their tables in pvnet's configuration.

use std::net::Ipv4Addr;
use std::path::Path;

/// The longest packet in a Geneve tunnel over 1500 bytes: 58 bytes are for its headers.
pub(crate) const MTU: u16 = 1442;

/// How guests are attached to Open vSwitch, or to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Attachment {
    /// Each has a device in the integration bridge.
    Device,
    /// They are behind a vhost-user port of Open vSwitch with DPDK, of which pvnet is the driver.
    VhostUser,
    /// They are in the switch of one pvnet, without Open vSwitch.
    Switch,
    /// The same with the limits of OVN's userspace datapath: no offloads, and packets of [`MTU`].
    PlainSwitch,
    /// A virtual machine, whose port has a device in the integration bridge.
    Machine,
    /// A context of a card, whose wire is a device in the integration bridge.
    Card,
}

/// A guest, wherever it runs.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// Its namespace, by which pvnet knows it.
    pub(crate) name: String,
    /// Its logical port.
    pub(crate) port: String,
    /// Its device on the host, or the name of the port that it is behind.
    pub(crate) device: String,
    pub(crate) attachment: Attachment,
    pub(crate) mac: String,
    pub(crate) address: Ipv4Addr,
    /// The router's address.
    pub(crate) router: Ipv4Addr,
    /// Its limit for sending, in 10⁶ bits per second.
    pub(crate) rate: Option<u32>,
    /// Whether it gets its address, MTU and router from OVN by DHCP. pvnet then knows none of them.
    pub(crate) asks: bool,
}

impl Plan {
    /// Guest `number` of logical switch `switch`.
    pub(crate) fn new(switch: u8, number: u8, name: &str, rate: Option<u32>) -> Self {
        Self {
            name: name.to_owned(),
            port: format!("p{number}"),
            device: format!("vif{number}.0"),
            attachment: Attachment::Device,
            mac: format!("0e:aa:00:00:00:{number}"),
            address: Ipv4Addr::new(10, switch, 0, number),
            router: Ipv4Addr::new(10, switch, 0, 1),
            rate,
            asks: false,
        }
    }

    /// The same with DHCP.
    pub(crate) fn asking(self) -> Self {
        Self { asks: true, ..self }
    }

    /// The same with this logical port behind this device.
    pub(crate) fn named(self, port: &str, device: &str) -> Self {
        Self { port: port.to_owned(), device: device.to_owned(), ..self }
    }

    /// The same behind a vhost-user port.
    fn behind_port(self) -> Self {
        Self { device: format!("up{}", self.port), attachment: Attachment::VhostUser, ..self }
    }

    /// The same, attached in this way.
    pub(crate) fn attached(self, attachment: Attachment) -> Self {
        match attachment {
            Attachment::VhostUser => self.behind_port(),
            _ => Self { attachment, ..self },
        }
    }

    /// Its tables in pvnet's configuration, whose files are in a folder.
    pub(crate) fn table(&self, folder: &Path) -> String {
        match self.attachment {
            Attachment::Machine => self.machine(folder),
            Attachment::Card => self.card(),
            _ => self.guest(),
        }
    }

    fn guest(&self) -> String {
        let Self { rate, attachment, .. } = self;
        let rate =
            rate.map_or_else(String::new, |rate| format!("limit.ingress = {{ mbps = {rate} }}\n"));
        let own = match attachment {
            Attachment::PlainSwitch => {
                format!("checksum_offload = false\ntcp_segmentation_offload = false\nmtu = {MTU}\n")
            }
            Attachment::Device => self.device(),
            _ => String::new(),
        };
        format!("{}guard = \"off\"\n{rate}{own}", self.process())
    }

    /// The keys that every process guest has.
    fn process(&self) -> String {
        let Self { name, mac, address, asks, .. } = self;
        let addresses =
            if *asks { String::new() } else { format!("addresses = [\"{address}/24\"]\n") };
        format!("[[guest]]\nname = \"{name}\"\nmac = \"{mac}\"\n{addresses}")
    }

    /// The device in the integration bridge. Open vSwitch's userspace datapath takes frames with finished checksums only.
    fn device(&self) -> String {
        let Self { device, asks, .. } = self;
        let mtu = if *asks { String::new() } else { format!("mtu = {MTU}\n") };
        format!("attach = \"device\"\ndevice = \"{device}\"\ndevice_capabilities = \"none\"\n{mtu}")
    }

    fn machine(&self, folder: &Path) -> String {
        let table = self.vhost_user().table(folder);
        format!("{table}guard = \"off\"\n{}", self.device())
    }

    /// The device of a virtual machine.
    pub(crate) fn vhost_user(&self) -> qemulab::VirtioNet {
        let (name, mac) = (self.name.clone(), self.mac.clone());
        let (side, guest_offloads) = (qemulab::Side::Pvnet, true);
        qemulab::VirtioNet { name, mac, queues: 1, side, packed: false, guest_offloads }
    }

    /// The card has the name of its wire.
    fn card(&self) -> String {
        let Self { device, .. } = self;
        format!(
            "[[nic]]\nname = \"{device}\"\nwire = {{ tap = \"{device}\", checksum_offload = false }}\n{}nic = \"{device}\"\n",
            self.process()
        )
    }

    /// The table of the uplink that it is behind, if there is one. Guests get this port's MTU.
    pub(crate) fn uplink(&self, folder: &Path) -> Option<String> {
        let Self { device, attachment, .. } = self;
        let socket = folder.join(format!("{device}.sock"));
        (*attachment == Attachment::VhostUser).then(|| {
            format!(
                "[[uplink]]\nname = \"{device}\"\nkind = \"virtio-user\"\nsocket = {socket:?}\nmtu = {MTU}\n"
            )
        })
    }
}

/// pvnet's configuration for these guests, whose files are in a folder.
pub(crate) fn configuration(folder: &Path, guests: &[Plan]) -> String {
    let tables: String = guests.iter().map(|plan| plan.table(folder)).collect();
    let uplinks: String = guests.iter().filter_map(|plan| plan.uplink(folder)).collect();
    format!("[daemon]\ndirectory = {folder:?}\nworkers = 1\n{uplinks}{tables}")
}
