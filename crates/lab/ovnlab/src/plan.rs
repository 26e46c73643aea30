//! What guests are, wherever they run.

use std::net::Ipv4Addr;

/// The longest packet in a Geneve tunnel over 1500 bytes: 58 bytes are for its headers.
pub(crate) const MTU: u16 = 1442;

/// How guests come to Open vSwitch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Attachment {
    /// Each has a device in the integration bridge.
    Device,
    /// They are behind a vhost-user port of Open vSwitch with DPDK, of which pvnet is the driver.
    VhostUser,
}

/// What a guest is, wherever it runs.
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
    /// What it may send, in 10⁶ bits per second.
    pub(crate) rate: Option<u32>,
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
        }
    }

    /// The same behind a vhost-user port.
    pub(crate) fn behind_port(self) -> Self {
        Self { device: format!("up{}", self.port), attachment: Attachment::VhostUser, ..self }
    }

    /// Its table in pvnet's configuration. OVN has its own guard of sources; the switch in user space takes frames with finished
    /// checksums only.
    pub(crate) fn table(&self) -> String {
        let Self { name, device, mac, address, rate, .. } = self;
        let rate =
            rate.map_or_else(String::new, |rate| format!("limit.ingress = {{ mbps = {rate} }}\n"));
        let common = format!(
            "[[guest]]\nname = \"{name}\"\nmac = \"{mac}\"\naddresses = [\"{address}/24\"]\nguard = \"off\"\n{rate}"
        );
        if self.attachment == Attachment::VhostUser {
            return common;
        }
        format!(
            "{common}\
             attach = \"device\"\ndevice = \"{device}\"\ndevice_capabilities = \"none\"\nmtu = {MTU}\n"
        )
    }
}
