//! `[[uplink]]`: a tap or a NIC, and what it can do, a port of another switch, or a card's context.

use std::net::IpAddr;
use std::path::Path;

use offload::Features;
use schemars::JsonSchema;
use serde::Deserialize;
use switch::multicast::Router;

use super::Config;
use super::capabilities::Capabilities;
use super::nic::Protection;
use super::port_settings::{Rules, SinglePort, changes, check_interface};
use super::table::{CARDS, Effort, table};

/// `receive_buffers`: the memory that frames from an uplink are read into.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ReceiveBuffers {
    /// Buffers for a whole frame, reused without zeroing.
    #[default]
    Recycled,
    /// Pages zeroed for each frame, as pages that may be flipped must be.
    ZeroedPages,
}

table! {
    /// `[[uplink]]`
    Uplink is Uplink [Effort::Device] {
        /// The port's name.
        name: String = String::new();
        /// What it is.
        kind: UplinkKind = UplinkKind::Tap;
        /// The tap's name.
        tap: String = String::new();
        /// The Linux bridge that the tap is put into. It must be there.
        bridge: Option<String> = None;
        /// The card whose first context it is.
        nic: Option<String> = None;
        /// How the context is protected. The driver domain is trusted.
        protection: Protection =
            Protection { mode: contexts::Protection::None, ..Protection::default() };
        /// The network namespace of the device; the daemon's if absent.
        namespace: Option<String> = None;
        /// Whether the device stays after the daemon ends, with its addresses and its bridge.
        persistent: bool = false;
        /// The NIC's capabilities on transmit.
        capabilities: Capabilities = Capabilities::default();
        /// Whether frames beyond the MTU arrive unsegmented.
        large_receive: bool = true;
        /// The memory that frames are read into.
        receive_buffers: ReceiveBuffers = ReceiveBuffers::Recycled;
        /// Whether the receive buffers have 2 MiB pages.
        huge_pages: bool = false;
        /// Who shares its receive queues, or how many it has.
        queues: Queues = Queues::Shared;
        /// How many guests can have a queue at a time; by default all in the configuration that want one.
        guest_queues: Option<u16> = None;
    }
}

use UplinkKind::{AfPacket, AfXdp, Cdna, Macvtap, Tap, VirtioUser};

/// The keys that some kinds of uplinks have and others have not, with these kinds.
const KINDS_WITH: [(&[&str], &[UplinkKind]); 7] = [
    (&["tap", "bridge"], &[Tap]),
    (&["device"], &[Macvtap, AfPacket, AfXdp]),
    (&["socket", "mode", "socket_mode", "socket_group", "packed"], &[VirtioUser]),
    (&["nic", "mac"], &[Cdna]),
    (&["persistent", "addresses"], &[Tap, Cdna]),
    (&["namespace"], &[Tap, Macvtap, AfPacket, AfXdp, Cdna]),
    (&["huge_pages", "receive_buffers"], &[Tap, Macvtap, AfPacket, AfXdp, Cdna]),
];

impl SinglePort for Uplink {
    fn all(config: &Config) -> &Vec<Self> {
        &config.uplinks
    }

    fn all_mut(config: &mut Config) -> &mut Vec<Self> {
        &mut config.uplinks
    }

    fn fixed(&self) -> Option<Effort> {
        (self.kind == Cdna).then_some(CARDS)
    }

    fn check(&self, config: &Config) -> Result<(), String> {
        self.check_keys()?;
        let shares = |other: &&Self| other.name != self.name && other.place() == self.place();
        if let Some(Self { name, .. }) = config.uplinks.iter().find(shares) {
            return Err(format!("uplink {name:?} has its device, socket or context already"));
        }
        match &self.nic {
            Some(nic) if config.nics.iter().all(|other| other.name != *nic) => {
                Err(format!("there is no [[nic]] with the name {nic:?}"))
            }
            _ => Ok(()),
        }
    }
}

impl Uplink {
    /// Checks what TOML cannot express.
    fn check_keys(&self) -> Result<(), String> {
        let Self { kind, tap, nic, queues, guest_queues, settings, .. } = self;
        settings.check()?;
        for (key, _) in changes(&Self::default(), self) {
            self.check_kind_has(key)?;
        }
        let in_vlans = settings.membership()?.is_some_and(|one| one.tagging.is_some());
        if in_vlans && *queues == Queues::PerGuest {
            return Err("vlan and trunk are not for queues = \"per-guest\", whose frames are put into guests' buffers".into());
        }
        match (queues, guest_queues) {
            (Queues::Shared | Queues::Pairs(_), Some(_)) => {
                return Err("guest_queues is for queues = \"per-guest\"".into());
            }
            (_, Some(count)) if !(1..=GUEST_QUEUES_MAX).contains(count) => {
                return Err(format!("guest_queues must be 1 to {GUEST_QUEUES_MAX}"));
            }
            _ => {}
        }
        self.check_bridge()?;
        self.protection.check()?;
        let bridge = self.bridge.as_deref().unwrap_or_default();
        for (key, name) in [("tap", &**tap), ("bridge", bridge), ("device", self.nic_name())] {
            check_interface(key, name)?;
        }
        settings.addresses.iter().try_for_each(|address| check_prefix(address))?;
        match (kind, queues) {
            (Tap, _) if tap.is_empty() => Err("tap is missing".into()),
            (Macvtap | AfPacket | AfXdp, _) if self.nic_name().is_empty() => {
                Err("device is missing: the name of the NIC".into())
            }
            (VirtioUser, _) if settings.socket.as_os_str().is_empty() => {
                Err("socket is missing: where the back-end and pvnet meet".into())
            }
            (Cdna, _) if nic.is_none() || settings.mac.is_none() => {
                Err("kind = \"cdna\" needs nic and mac".into())
            }
            (Cdna, _) if guest_queues.is_some() => {
                Err("guest_queues is for a tap; a card has as many as contexts".into())
            }
            (AfPacket, Queues::PerGuest) => Err(
                "a packet socket has no queues for guests: set kind = \"af-xdp\" or \"macvtap\"".into(),
            ),
            (VirtioUser, Queues::PerGuest) => Err(
                "kind = \"virtio-user\" has no queues for guests: a back-end never sees their memory".into(),
            ),
            (AfXdp, Queues::Shared) if self.receive_buffers != ReceiveBuffers::default() => Err(
                "receive_buffers is not for kind = \"af-xdp\": the kernel has its buffers all the time".into(),
            ),
            (VirtioUser, Queues::Pairs(pairs))
                if !(1..=virtio_user::Options::QUEUES_MAX).contains(pairs) =>
            {
                Err(format!("queues must be 1 to {}", virtio_user::Options::QUEUES_MAX))
            }
            (Tap | Macvtap | AfPacket | AfXdp | Cdna, Queues::Pairs(_)) => {
                Err("a number of queues is for kind = \"virtio-user\"".into())
            }
            _ => Ok(()),
        }
    }

    /// Refuses a key of other kinds.
    fn check_kind_has(&self, key: &str) -> Result<(), String> {
        let row = KINDS_WITH.iter().find(|(keys, _)| keys.contains(&key));
        let Some((_, kinds)) = row.filter(|(_, kinds)| !kinds.contains(&self.kind)) else {
            return Ok(());
        };
        let kinds: Vec<_> = kinds.iter().map(|kind| format!("{:?}", kind.name())).collect();
        Err(format!("{key} is for kind = {}", kinds.join(" or ")))
    }

    /// The name of the NIC of a kind that has one.
    pub fn nic_name(&self) -> &str {
        self.settings.device.as_deref().unwrap_or_default()
    }

    /// Its device, socket or context; must be unique.
    pub fn place(&self) -> (Option<&str>, [&str; 2], &Path, Option<&str>) {
        let Self { namespace, tap, nic, settings, .. } = self;
        (namespace.as_deref(), [tap, self.nic_name()], &settings.socket, nic.as_deref())
    }

    fn check_bridge(&self) -> Result<(), String> {
        match self.bridge.as_deref() {
            Some("") => Err("bridge is empty".into()),
            Some(bridge) if !self.settings.addresses.is_empty() => Err(format!(
                "addresses belong to the bridge, not to what is in it: ip address add … dev {bridge}"
            )),
            _ => Ok(()),
        }
    }

    /// What is wanted of a back-end: by default a pair of rings for each worker.
    pub fn wanted_of_back_end(&self, workers: usize) -> virtio_user::Options {
        let queues = match self.queues {
            Queues::Pairs(pairs) => pairs,
            Queues::Shared | Queues::PerGuest => u16::try_from(workers).unwrap_or(u16::MAX),
        };
        let receives = match self.large_receive {
            true => Features::ALL,
            false => Features { tso_v4: false, tso_v6: false, ..Features::NETIF },
        };
        virtio_user::Options {
            queues: queues.clamp(1, virtio_user::Options::QUEUES_MAX),
            packed: self.settings.packed.unwrap_or(true),
            sends: self.capabilities.features(),
            receives,
        }
    }

    /// What is enforced of it. It has no guard: its frames come from many sources.
    pub fn rules(&self) -> Result<Rules, String> {
        self.settings.rules(None, Router::Always)
    }
}

/// Checks an address of the host's end, and the prefix length of its network.
fn check_prefix(text: &str) -> Result<(), String> {
    let (address, length) = text.split_once('/').unwrap_or((text, "0"));
    let most = match address.parse() {
        Ok(IpAddr::V4(_)) => 32,
        Ok(IpAddr::V6(_)) => 128,
        Err(_) => return Err(format!("addresses: {text:?} is not an IPv4 or IPv6 address")),
    };
    match length.parse::<u8>() {
        Ok(length) if length <= most => Ok(()),
        _ => Err(format!("addresses: {text:?} has no prefix length from 0 to {most}")),
    }
}

/// `queues`: who shares the receive queues of an uplink, or how many pairs of rings a back-end's port has at most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(from = "QueuesValue")]
pub enum Queues {
    /// All frames.
    #[default]
    Shared,
    /// Each guest with `rx = "direct"` has one, whose frames are put into the guest's buffers; on Xen each with
    /// `rx = "guest-copy"`, whose frames are put into its pool.
    PerGuest,
    /// At most this many pairs, for all frames.
    Pairs(u16),
}

/// `queues` as it is written.
#[derive(Deserialize, JsonSchema)]
#[serde(untagged, expecting = "is not \"shared\", \"per-guest\" or a number")]
enum QueuesValue {
    Number(u16),
    Name(QueuesName),
}

#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
enum QueuesName {
    Shared,
    PerGuest,
}

impl From<QueuesValue> for Queues {
    fn from(value: QueuesValue) -> Self {
        match value {
            QueuesValue::Number(pairs) => Self::Pairs(pairs),
            QueuesValue::Name(QueuesName::Shared) => Self::Shared,
            QueuesValue::Name(QueuesName::PerGuest) => Self::PerGuest,
        }
    }
}

/// The most guests with a queue: a tap has 256 queues, of which workers read some.
const GUEST_QUEUES_MAX: u16 = 192;

/// `kind`: what an uplink is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum UplinkKind {
    /// A tap device.
    #[default]
    Tap,
    /// A macvtap over a NIC, which it takes over.
    Macvtap,
    /// Packet sockets on a NIC, which the host goes on using.
    AfPacket,
    /// AF_XDP sockets on a NIC, which they take over; with queues for guests, sockets for those, and packet sockets for all others.
    AfXdp,
    /// A port of a vhost-user back-end, such as OVS-DPDK or VPP, of which the daemon is the driver.
    VirtioUser,
    /// A card's context that is kept for the driver domain.
    Cdna,
}

impl UplinkKind {
    /// The word for it in the file.
    fn name(self) -> &'static str {
        match self {
            Tap => "tap",
            Macvtap => "macvtap",
            AfPacket => "af-packet",
            AfXdp => "af-xdp",
            VirtioUser => "virtio-user",
            Cdna => "cdna",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BACK_END: &str = "name = \"up\"\nkind = \"virtio-user\"\nsocket = \"/run/up.sock\"\n";

    fn parse(text: &str) -> Result<Uplink, String> {
        let config = Config::parse(&format!("[[uplink]]\n{text}"));
        let uplink = config.map_err(|fault| fault.to_string())?.uplinks.remove(0);
        uplink.check(&Config::default()).map(|()| uplink)
    }

    #[test]
    fn a_back_end_has_a_socket_and_a_number_of_queues() {
        let wanted =
            |text: &str| parse(&format!("{BACK_END}{text}")).unwrap().wanted_of_back_end(3);
        assert_eq!(wanted("").queues, 3, "one for each worker");
        assert_eq!(wanted("queues = 2\n").queues, 2);
        let plain = wanted("capabilities = \"none\"\nlarge_receive = false\npacked = false\n");
        assert_eq!((plain.sends, plain.packed), (Features::NONE, false));
        assert!(plain.receives.csum_v4 && !plain.receives.tso_v4 && !plain.receives.uso_v4);
        for (text, said) in [
            ("queues = 0\n", "queues must be 1 to 64"),
            ("queues = \"many\"\n", "\"many\" is not \"shared\", \"per-guest\" or a number"),
            ("queues = \"per-guest\"\n", "never sees their memory"),
            ("tap = \"tap0\"\n", "tap is for kind = \"tap\""),
            ("namespace = \"x\"\n", "namespace is for kind = \"tap\" or"),
            ("huge_pages = true\n", "huge_pages is for kind"),
            ("mode = \"client\"\nsocket_mode = 0o660\n", "the other side makes this socket"),
        ] {
            let error = parse(&format!("{BACK_END}{text}")).unwrap_err();
            assert!(error.contains(said), "{error}");
        }
        assert!(parse("name = \"up\"\nkind = \"virtio-user\"\n").unwrap_err().contains("socket"));
        for text in [
            "socket = \"/x\"\n",
            "packed = false\n",
            "mode = \"client\"\n",
            "queues = 2\n",
            "socket_mode = 0o660\n",
        ] {
            let error = parse(&format!("name = \"up\"\ntap = \"tap0\"\n{text}")).unwrap_err();
            assert!(error.contains("virtio-user"), "{error}");
        }
    }
}
