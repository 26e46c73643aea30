//! `[[port]]`: a virtual machine's network device.

use std::sync::LazyLock;

use guard::GuardMode;
use offload::Features;
use schemars::JsonSchema;
use serde::Deserialize;
use switch::multicast::Router;
use vhost_user::DeviceOptions;

use super::Config;
use super::port_settings::{HostDevice, PortSettings, Rules, SinglePort};
use super::table::{Effort, table};

table! {
    /// `[[port]]`
    Port is Port [Effort::Connection] {
        /// The port's name.
        name: String = String::new();
        /// What it is; every port needs it.
        kind: Option<BackendKind> = None, Effort::Device;
        /// The most pairs of rings.
        queues: u16 = 1;
        /// MiB of the guest's memory that its front-end may have mapped, logs not counted; this machine's memory if absent.
        memory_mib: Option<u64> = None, Effort::InPlace;
        /// Whether the device's configuration space is offered to the front-end, which some versions of QEMU do not survive.
        config_space: bool = false;
        /// UDP frames beyond the MTU: by default, where TCP's are allowed.
        udp_segmentation_offload: Option<bool> = None;
    }
}

/// `kind`: what a port is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum BackendKind {
    /// A device of a virtual machine, over vhost-user.
    VhostUser,
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

impl SinglePort for Port {
    fn all(config: &Config) -> &Vec<Self> {
        &config.ports
    }

    fn all_mut(config: &mut Config) -> &mut Vec<Self> {
        &mut config.ports
    }

    fn check(&self, config: &Config) -> Result<(), String> {
        let Self { queues, settings, .. } = self;
        if self.kind.is_none() {
            return Err("kind is missing: kind = \"vhost-user\"".into());
        }
        settings.check()?;
        if !(1..=DeviceOptions::QUEUES_MAX).contains(queues) {
            return Err(format!("queues must be 1 to {}", DeviceOptions::QUEUES_MAX));
        }
        if self.memory_mib.is_some_and(|mib| !(1..=MEMORY_MIB_MAX).contains(&mib)) {
            return Err(format!("memory_mib must be 1 to {MEMORY_MIB_MAX}"));
        }
        if settings.mac.is_none() && settings.guard != Some(GuardMode::Off) {
            return Err("mac is missing; only guard = \"off\" does without it".into());
        }
        let [csum, tso, uso] = self.offloads();
        for (key, is_on) in [("tcp_segmentation_offload", tso), ("udp_segmentation_offload", uso)] {
            if is_on && !csum {
                return Err(format!("{key} needs checksum_offload; switch it off as well"));
            }
        }
        if settings.socket.as_os_str().is_empty() {
            return Err("socket is empty".into());
        }
        settings.check_attachment(false)?;
        if settings.mtu.is_some() && self.device().is_none() {
            return Err("mtu is for attach = \"device\"; otherwise a virtual machine's MTU is its front-end's (QEMU: host_mtu)".into());
        }
        let mut others = config.single_ports().filter(|(name, _)| *name != self.name);
        if settings.mac.is_some() && others.any(|(_, other)| other.mac == settings.mac) {
            return Err("its mac is given twice".into());
        }
        settings.sources().map(drop)
    }
}

impl Port {
    /// Its device on the host, if it has one.
    pub fn device(&self) -> Option<HostDevice> {
        self.settings.own_device(&self.name)
    }

    /// What is enforced of it.
    pub fn rules(&self) -> Result<Rules, String> {
        let sources = self.settings.sources()?;
        let guard = self.settings.mac.and_then(|mac| sources.policy(mac));
        self.settings.rules(guard, Router::Never)
    }

    /// Bytes of its guest's memory, at most.
    ///
    /// By default as much as this machine has. A virtual machine that this host can run fits, and the page tables that a hostile front-end
    /// can make this process fill are 1/512 of this machine's memory.
    pub fn memory(&self) -> u64 {
        self.memory_mib.map_or_else(machine_memory, |mib| mib << 20)
    }

    /// Whether checksums, TCP and UDP frames beyond the MTU are left to others.
    fn offloads(&self) -> [bool; 3] {
        let PortSettings { checksum_offload, tcp_segmentation_offload, .. } = self.settings;
        let [csum, tso] =
            [checksum_offload, tcp_segmentation_offload].map(|key| key.unwrap_or(true));
        [csum, tso, self.udp_segmentation_offload.unwrap_or(tso)]
    }

    /// What its device offers.
    pub fn offered(&self) -> DeviceOptions {
        let [csum, tso, uso] = self.offloads();
        DeviceOptions {
            queues: self.queues,
            packed: self.settings.packed.unwrap_or(false),
            guest_offloads: self.settings.guest_offloads,
            offloads: Features {
                sg: true,
                csum_v4: csum,
                csum_v6: csum,
                tso_v4: tso,
                tso_v6: tso,
                uso_v4: uso,
                uso_v6: uso,
                tagged: true,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::SocketFile;

    const GOOD: &str =
        "[[port]]\nname = \"vm\"\nkind = \"vhost-user\"\nsocket = \"/run/vm.sock\"\n";

    fn parse(text: &str) -> Result<Port, String> {
        let config = Config::parse(&format!("{GOOD}{text}")).map_err(|fault| fault.to_string());
        config.map(|mut config| config.ports.remove(0))
    }

    fn check(text: &str) -> Result<(), String> {
        let port = parse(text)?;
        port.check(&Config::default())
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
            let port = parse(text).unwrap();
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
            let port = parse(text).unwrap();
            (port.offered().packed, port.offered().bits() >> 34 & 1)
        };
        assert_eq!(offered(""), (false, 0));
        assert_eq!(offered("packed = true\n"), (true, 1));
    }

    #[test]
    fn offloads_to_the_guest_can_be_kept_off_alone() {
        let offered = |text: &str| {
            let port = parse(text).unwrap();
            let bits = port.offered().bits();
            // `CSUM` and `HOST_TSO4`; `GUEST_CSUM` and `GUEST_TSO4`.
            [[0, 11], [1, 7]].map(|pair| pair.map(|bit| bits >> bit & 1))
        };
        assert_eq!(offered(""), [[1, 1]; 2]);
        assert_eq!(offered("guest_offloads = false\n"), [[1, 1], [0, 0]]);
    }

    #[test]
    fn a_front_end_may_map_what_its_table_says_or_what_the_machine_has() {
        let memory = |text: &str| parse(text).unwrap().memory();
        assert_eq!(memory("memory_mib = 4096\n"), 4 << 30);
        assert_eq!(memory(""), machine_memory());
        let info = "MemTotal:       16384 kB\nMemFree:  1 kB\n";
        assert_eq!((memory_in(info), memory_in("")), (Some(16 << 20), None));
    }

    #[test]
    fn a_socket_has_the_permissions_and_the_group_of_its_table() {
        let text = "mac = \"02:00:00:00:00:01\"\nsocket_mode = 0o660\nsocket_group = 7\n";
        let port = parse(text).unwrap();
        assert_eq!(port.check(&Config::default()), Ok(()));
        assert_eq!(port.settings.socket_file(), SocketFile { mode: Some(0o660), group: Some(7) });
    }

    #[test]
    fn values_out_of_range_are_refused() {
        for (text, said) in [
            ("queues = 0\n", "queues must be 1 to 64"),
            ("queues = 65\n", "queues must be 1 to 64"),
            ("memory_mib = 0\n", "memory_mib must be 1 to"),
            ("memory_mib = 4294967297\n", "memory_mib must be 1 to"),
            ("checksum_offload = false\n", "switch it off as well"),
            (
                "checksum_offload = false\ntcp_segmentation_offload = false\n\
                 udp_segmentation_offload = true\n",
                "udp_segmentation_offload needs checksum_offload",
            ),
            ("guard = \"addresses\"\n", "guard_addresses"),
            ("mode = \"both\"\n", "unknown value"),
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
