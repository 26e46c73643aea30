//! `[[port]]`: a virtual machine's network device.

use std::path::PathBuf;
use std::sync::LazyLock;

use guard::Allowed;
use offload::Features;
use serde::Deserialize;
use switch::multicast::Router;
use vhost_user::{DeviceOptions, Mode};
use wire::ethernet::MacAddr;

use super::attach::{Attach, Device, Keys};
use super::capabilities::Capabilities;
use super::daemon::{group, socket_mode_if_any};
use super::port_keys::port_table;
use super::sources::{GuardMode, Sources, deserialize_allowed};
use super::text::parsed_if_any;

port_table! {
    /// `[[port]]`
    #[derive(Clone, Debug, PartialEq, Deserialize)]
    #[serde(deny_unknown_fields)]
    pub struct Port {
        /// The port's name.
        pub name: String,
        /// What it is.
        pub kind: PortKind,
        /// The socket that the front-end and the daemon meet at.
        pub socket: PathBuf,
        /// Who makes the socket.
        #[serde(default)]
        pub mode: SocketMode,
        /// The permissions of the socket's file; 0600 if absent, or 0660 with a group.
        #[serde(default, deserialize_with = "socket_mode_if_any")]
        pub socket_mode: Option<u32>,
        /// The group of the socket's file; the daemon's, or the folder's, if absent.
        #[serde(default, deserialize_with = "group")]
        pub socket_group: Option<u32>,
        /// The most pairs of rings.
        #[serde(default = "one")]
        pub queues: u16,
        /// The guest's memory, in units of 1 MiB: its front-end may have so much mapped, and logs beside it. This machine's memory if absent.
        pub memory_mib: Option<u64>,
        /// Whether packed rings are offered. They are not by default: under QEMU no device continues one after a restart.
        #[serde(default)]
        pub packed: bool,
        /// The guest's MAC address.
        #[serde(default, deserialize_with = "parsed_if_any")]
        pub mac: Option<MacAddr>,
        /// Whether the device's configuration space is offered to the front-end, which some versions of QEMU do not survive.
        #[serde(default)]
        pub config_space: bool,
        /// Partial checksums.
        #[serde(default = "super::yes")]
        pub checksum_offload: bool,
        /// TCP frames beyond the MTU.
        #[serde(default = "super::yes")]
        pub tcp_segmentation_offload: bool,
        /// UDP frames beyond the MTU: by default, where TCP's are allowed.
        pub udp_segmentation_offload: Option<bool>,
        /// Whether frames for the guest may have unfinished checksums and be longer than its MTU.
        #[serde(default = "super::yes")]
        pub guest_offloads: bool,
        /// The sources that the guest's frames may have.
        pub guard: Option<GuardMode>,
        /// The IP addresses and networks that the guest may send from.
        #[serde(default, deserialize_with = "deserialize_allowed")]
        pub guard_addresses: Vec<Allowed>,
        /// What it is joined to.
        pub attach: Option<Attach>,
        /// The name of its device on the host; `vif-` and its name if absent.
        pub device: Option<String>,
        /// What the network behind its device can do with the guest's frames.
        pub device_capabilities: Option<Capabilities>,
        /// The MTU of a new device.
        pub mtu: Option<u16>,
    }
    in_place: guard, guard_addresses, memory_mib;
    reopened: kind, socket, mode, socket_mode, socket_group, attach, device, device_capabilities, mtu
}

/// `kind`: what a port is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PortKind {
    /// A device of a virtual machine, over vhost-user.
    VhostUser,
}

/// `mode`: who makes the socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SocketMode {
    /// The daemon.
    #[default]
    Server,
    /// The other side.
    Client,
}

impl From<SocketMode> for Mode {
    fn from(mode: SocketMode) -> Self {
        match mode {
            SocketMode::Server => Self::Server,
            SocketMode::Client => Self::Client,
        }
    }
}

/// Whose the file of a socket is, which the daemon makes. Its permissions are 0600, or 0660 with a group, if absent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketFile {
    /// Its permissions.
    pub mode: Option<u32>,
    /// Its group.
    pub group: Option<u32>,
}

impl SocketFile {
    /// Checks that the daemon makes it.
    pub(super) fn check(self, mode: SocketMode) -> Result<(), String> {
        match (mode, self) {
            (SocketMode::Server, _) | (_, Self { mode: None, group: None }) => Ok(()),
            (SocketMode::Client, _) => Err(
                "socket_mode and socket_group are for mode = \"server\"; the other side makes this socket".into(),
            ),
        }
    }
}

fn one() -> u16 {
    1
}

/// More than any process can map, in units of 1 MiB.
const MEMORY_MIB_MAX: u64 = 1 << 32;

/// Bytes of this machine's memory. No bound where /proc does not say.
fn machine_memory() -> u64 {
    static BYTES: LazyLock<u64> = LazyLock::new(|| {
        let info = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
        memory_in(&info).unwrap_or(u64::MAX)
    });
    *BYTES
}

/// Bytes of memory that `/proc/meminfo` names.
fn memory_in(info: &str) -> Option<u64> {
    let total = info.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = total.split_ascii_whitespace().next()?.parse().ok()?;
    kib.checked_mul(1024)
}

impl Port {
    /// Whether multicast routers are behind it by default.
    const ROUTER: Router = Router::Never;

    /// Checks what TOML cannot express.
    pub(super) fn check(&self) -> Result<(), String> {
        let Self { mac, queues, .. } = self;
        if !(1..=DeviceOptions::QUEUES_MAX).contains(queues) {
            return Err(format!("queues is not 1 to {}", DeviceOptions::QUEUES_MAX));
        }
        if self.memory_mib.is_some_and(|mib| !(1..=MEMORY_MIB_MAX).contains(&mib)) {
            return Err(format!("memory_mib is not 1 to {MEMORY_MIB_MAX}"));
        }
        match mac {
            Some(mac) if mac.is_multicast() || mac.is_zero() => {
                return Err(format!("mac {mac} is not a unicast address"));
            }
            None if self.guard != Some(GuardMode::Off) => {
                return Err("mac is missing; only guard = \"off\" does without it".into());
            }
            _ => {}
        }
        if self.tcp_segmentation_offload && !self.checksum_offload {
            return Err(
                "tcp_segmentation_offload needs checksum_offload; switch it off as well".into()
            );
        }
        if self.segments_udp() && !self.checksum_offload {
            return Err(
                "udp_segmentation_offload needs checksum_offload; switch it off as well".into()
            );
        }
        if self.socket.as_os_str().is_empty() {
            return Err("socket is empty".into());
        }
        self.socket_file().check(self.mode)?;
        self.attach_keys().check(false)?;
        if self.mtu.is_some() && self.device().is_none() {
            return Err("mtu is for attach = \"device\"; otherwise a virtual machine's MTU is its front-end's (QEMU: host_mtu)".into());
        }
        self.membership()?;
        self.sources().map(drop)
    }

    /// The sources that its frames may have.
    ///
    /// # Errors
    /// Its addresses are to check, but unknown.
    pub fn sources(&self) -> Result<Sources, String> {
        Sources::new(self.guard, &self.guard_addresses, &[])
    }

    fn attach_keys(&self) -> Keys<'_> {
        Keys {
            attach: self.attach,
            device: self.device.as_deref(),
            capabilities: self.device_capabilities,
            mtu: self.mtu,
        }
    }

    /// Its device on the host, if it has one.
    pub fn device(&self) -> Option<Device> {
        self.attach_keys().device(Attach::Switch, Some(&self.name))
    }

    /// Whose the socket's file is.
    pub fn socket_file(&self) -> SocketFile {
        SocketFile { mode: self.socket_mode, group: self.socket_group }
    }

    /// Bytes of its guest's memory, at most.
    ///
    /// By default as much as this machine has. A virtual machine that this host can run fits, and the page tables that a hostile front-end
    /// can make this process fill are 1/512 of this machine's memory.
    pub fn memory(&self) -> u64 {
        self.memory_mib.map_or_else(machine_memory, |mib| mib << 20)
    }

    /// Who makes the socket.
    pub fn mode(&self) -> Mode {
        self.mode.into()
    }

    fn segments_udp(&self) -> bool {
        self.udp_segmentation_offload.unwrap_or(self.tcp_segmentation_offload)
    }

    /// What its device offers.
    pub fn offered(&self) -> DeviceOptions {
        let (csum, tso) = (self.checksum_offload, self.tcp_segmentation_offload);
        let uso = self.segments_udp();
        let offloads = Features {
            sg: true,
            csum_v4: csum,
            csum_v6: csum,
            tso_v4: tso,
            tso_v6: tso,
            uso_v4: uso,
            uso_v6: uso,
            tagged: true,
        };
        match self.kind {
            PortKind::VhostUser => {
                let Self { queues, packed, guest_offloads, .. } = *self;
                DeviceOptions { queues, packed, offloads, guest_offloads }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "name = \"vm\"\nkind = \"vhost-user\"\nsocket = \"/run/vm.sock\"\n";

    fn check(text: &str) -> Result<(), String> {
        let port: Port = toml::from_str(&format!("{GOOD}{text}")).map_err(|e| e.to_string())?;
        port.check()
    }

    #[test]
    fn a_port_has_an_address_or_no_guard() {
        assert_eq!(check("mac = \"02:00:00:00:00:01\"\n"), Ok(()));
        assert_eq!(check("guard = \"off\"\n"), Ok(()));
        assert!(check("").unwrap_err().contains("mac is missing"));
        assert!(check("mac = \"03:00:00:00:00:01\"\n").unwrap_err().contains("unicast"));
    }

    #[test]
    fn udp_is_segmented_where_tcp_is_unless_the_port_says_otherwise() {
        let uso = |text: &str| {
            let port: Port = toml::from_str(&format!("{GOOD}{text}")).unwrap();
            let offloads = port.offered().offloads;
            (offloads.tso_v4, offloads.uso_v4 && offloads.uso_v6)
        };
        assert_eq!(uso(""), (true, true));
        assert_eq!(uso("tcp_segmentation_offload = false\n"), (false, false));
        assert_eq!(uso("udp_segmentation_offload = false\n"), (true, false));
    }

    #[test]
    fn packed_rings_are_offered_where_the_operator_says_so() {
        let offered = |text: &str| {
            let port: Port = toml::from_str(&format!("{GOOD}{text}")).unwrap();
            (port.offered().packed, port.offered().bits() >> 34 & 1)
        };
        assert_eq!(offered(""), (false, 0));
        assert_eq!(offered("packed = true\n"), (true, 1));
    }

    #[test]
    fn offloads_to_the_guest_can_be_kept_off_alone() {
        let offered = |text: &str| {
            let port: Port = toml::from_str(&format!("{GOOD}{text}")).unwrap();
            let bits = port.offered().bits();
            // `CSUM` and `HOST_TSO4`; `GUEST_CSUM` and `GUEST_TSO4`.
            [[0, 11], [1, 7]].map(|pair| pair.map(|bit| bits >> bit & 1))
        };
        assert_eq!(offered(""), [[1, 1]; 2]);
        assert_eq!(offered("guest_offloads = false\n"), [[1, 1], [0, 0]]);
    }

    #[test]
    fn a_front_end_may_map_what_its_table_says_or_what_the_machine_has() {
        let memory =
            |text: &str| toml::from_str::<Port>(&format!("{GOOD}{text}")).unwrap().memory();
        assert_eq!(memory("memory_mib = 4096\n"), 4 << 30);
        assert_eq!(memory(""), machine_memory());
        let info = "MemTotal:       16384 kB\nMemFree:  1 kB\n";
        assert_eq!((memory_in(info), memory_in("")), (Some(16 << 20), None));
    }

    #[test]
    fn a_socket_has_the_permissions_and_the_group_of_its_table() {
        let text = "mac = \"02:00:00:00:00:01\"\nsocket_mode = 0o660\nsocket_group = 7\n";
        let port: Port = toml::from_str(&format!("{GOOD}{text}")).unwrap();
        assert_eq!(port.check(), Ok(()));
        assert_eq!(port.socket_file(), SocketFile { mode: Some(0o660), group: Some(7) });
    }

    #[test]
    fn values_out_of_range_are_refused() {
        for (text, said) in [
            ("queues = 0\n", "queues is not 1 to 64"),
            ("queues = 65\n", "queues is not 1 to 64"),
            ("memory_mib = 0\n", "memory_mib is not 1 to"),
            ("memory_mib = 4294967297\n", "memory_mib is not 1 to"),
            ("checksum_offload = false\n", "switch it off as well"),
            (
                "checksum_offload = false\ntcp_segmentation_offload = false\n\
                 udp_segmentation_offload = true\n",
                "udp_segmentation_offload needs checksum_offload",
            ),
            ("guard = \"addresses\"\n", "guard_addresses"),
            ("mode = \"both\"\n", "unknown variant"),
            ("socket_mode = 660\n", "such as 0o660"),
            ("mode = \"client\"\nsocket_mode = 0o660\n", "the other side makes this socket"),
            ("mode = \"client\"\nsocket_group = 0\n", "the other side makes this socket"),
            ("socket_group = \"no such group\"\n", "no group \"no such group\""),
        ] {
            let error = check(&format!("mac = \"02:00:00:00:00:01\"\n{text}")).unwrap_err();
            assert!(error.contains(said), "{error}");
        }
    }
}
