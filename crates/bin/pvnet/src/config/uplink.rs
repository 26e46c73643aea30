//! `[[uplink]]`: a tap or a NIC, and what it can do, a port of another switch, or a card's context.

use std::path::{Path, PathBuf};

use offload::Features;
use port::Coalescing;
use serde::Deserialize;
use switch::multicast::Router;
use vhost_user::Mode;
use wire::ethernet::MacAddr;

use super::attach::check_mtu;
use super::capabilities::Capabilities;
use super::coalescing::coalescing;
use super::daemon::{group, socket_mode_if_any};
use super::nic::Protection;
use super::port_keys::port_table;
use super::ports::{SocketFile, SocketMode};
use super::text::parsed_if_any;

/// `receive_buffers`: the memory that frames from an uplink are read into.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ReceiveBuffers {
    /// Buffers for a whole frame, reused without zeroing.
    #[default]
    Recycled,
    /// Pages zeroed for each frame, as pages that may be flipped must be.
    ZeroedPages,
}

port_table! {
    /// `[[uplink]]`
    #[derive(Clone, Debug, PartialEq, Deserialize)]
    #[serde(deny_unknown_fields)]
    pub struct Uplink {
        /// The port's name.
        pub name: String,
        /// What it is.
        #[serde(default)]
        pub kind: UplinkKind,
        /// The tap's name.
        #[serde(default)]
        pub tap: String,
        /// The Linux bridge that the tap is put into. It must be there.
        pub bridge: Option<String>,
        /// The name of the physical or virtual NIC.
        #[serde(default)]
        pub device: String,
        /// The socket that a vhost-user back-end and the daemon meet at.
        #[serde(default)]
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
        /// Whether packed rings are accepted.
        #[serde(default = "super::yes")]
        pub packed: bool,
        /// The card whose first context it is.
        pub nic: Option<String>,
        /// The context's MAC address.
        #[serde(default, deserialize_with = "parsed_if_any")]
        pub mac: Option<MacAddr>,
        /// How the context is protected. The driver domain is trusted.
        #[serde(default = "no_protection")]
        pub protection: Protection,
        /// The network namespace of the device; the daemon's if absent.
        pub namespace: Option<String>,
        /// Whether the device stays after the daemon ends, with its addresses and its bridge.
        #[serde(default)]
        pub persistent: bool,
        /// IP addresses for the host's end.
        #[serde(default)]
        pub addresses: Vec<String>,
        /// The NIC's capabilities on transmit.
        #[serde(default)]
        pub capabilities: Capabilities,
        /// Whether frames beyond the MTU arrive unsegmented.
        #[serde(default = "super::yes")]
        pub large_receive: bool,
        /// The memory that frames are read into.
        #[serde(default)]
        pub receive_buffers: ReceiveBuffers,
        /// Whether these buffers have 2 MiB pages.
        #[serde(default)]
        pub huge_pages: bool,
        /// Who shares its receive queues, or how many it has.
        #[serde(default)]
        pub queues: Queues,
        /// How many guests can have a queue at a time; by default all in the configuration that want one.
        pub guest_queues: Option<u16>,
        /// The longest packet that the network behind it takes, which guests in the switch are told.
        pub mtu: Option<u16>,
        /// A worker is woken up for so many frames,
        pub coalesce_frames: Option<u32>,
        /// or so many microseconds after the last one; see [`Uplink::coalescing`].
        pub coalesce_us: Option<u32>,
    }
    in_place: mtu, coalesce_frames, coalesce_us
}

fn no_protection() -> Protection {
    Protection { mode: contexts::Protection::None, ..Protection::default() }
}

impl Uplink {
    /// Whether multicast routers are behind it by default.
    const ROUTER: Router = Router::Always;

    /// Checks what TOML cannot express.
    pub(super) fn check(&self) -> Result<(), String> {
        let Self { kind, queues, guest_queues, .. } = self;
        self.coalescing()?;
        check_mtu(self.mtu)?;
        let in_vlans = self.membership()?.is_some_and(|one| one.tagging.is_some());
        if in_vlans && *queues == Queues::PerGuest {
            return Err("vlan and trunk are not for queues = \"per-guest\", whose frames are put into guests' buffers".into());
        }
        match (queues, guest_queues) {
            (Queues::Shared | Queues::Pairs(_), Some(_)) => {
                return Err("guest_queues is for queues = \"per-guest\"".into());
            }
            (_, Some(count)) if !(1..=GUEST_QUEUES_MAX).contains(count) => {
                return Err(format!("guest_queues is not 1 to {GUEST_QUEUES_MAX}"));
            }
            _ => {}
        }
        if *kind != UplinkKind::VirtioUser {
            let has_socket = !self.socket.as_os_str().is_empty() || !self.packed;
            let has_file = self.socket_mode.is_some() || self.socket_group.is_some();
            if has_socket || self.mode != SocketMode::default() || has_file {
                return Err("socket, mode, socket_mode, socket_group and packed are for kind = \"virtio-user\"".into());
            }
            if matches!(queues, Queues::Pairs(_)) {
                return Err("a number of queues is for kind = \"virtio-user\"".into());
            }
        }
        self.check_bridge()?;
        match kind {
            UplinkKind::Tap | UplinkKind::Cdna => self.check_tap_or_context(),
            UplinkKind::Macvtap | UplinkKind::AfPacket | UplinkKind::AfXdp => self.check_device(),
            UplinkKind::VirtioUser => self.check_socket(),
        }
    }

    /// What it is at: no two uplinks can be at the same.
    pub fn place(&self) -> (Option<&str>, [&str; 2], &Path, Option<&str>) {
        let Self { namespace, tap, device, socket, nic, .. } = self;
        (namespace.as_deref(), [tap, device], socket, nic.as_deref())
    }

    fn check_bridge(&self) -> Result<(), String> {
        let Self { kind, bridge, addresses, .. } = self;
        match bridge.as_deref() {
            None => Ok(()),
            Some("") => Err("bridge is empty".into()),
            Some(_) if *kind != UplinkKind::Tap => Err("bridge is for kind = \"tap\"".into()),
            Some(bridge) if !addresses.is_empty() => Err(format!(
                "addresses belong to the bridge, not to what is in it: ip address add … dev {bridge}"
            )),
            Some(_) => Ok(()),
        }
    }

    fn check_socket(&self) -> Result<(), String> {
        let Self { tap, device, nic, mac, queues, .. } = self;
        if self.socket.as_os_str().is_empty() {
            return Err("socket is missing: where the back-end and pvnet meet".into());
        }
        self.socket_file().check(self.mode)?;
        if !tap.is_empty() || !device.is_empty() || nic.is_some() || mac.is_some() {
            return Err("tap, device, nic and mac are not for kind = \"virtio-user\"".into());
        }
        let has_device_keys = self.namespace.is_some() || !self.addresses.is_empty();
        if has_device_keys || self.persistent {
            return Err("namespace, persistent and addresses are for a device of this host".into());
        }
        if self.huge_pages || self.receive_buffers != ReceiveBuffers::default() {
            return Err("huge_pages and receive_buffers are not for kind = \"virtio-user\"".into());
        }
        match queues {
            Queues::PerGuest => Err(
                "kind = \"virtio-user\" has no queues for guests: a back-end never sees their memory"
                    .into(),
            ),
            Queues::Pairs(pairs) if !(1..=virtio_user::Options::QUEUES_MAX).contains(pairs) => {
                Err(format!("queues is not 1 to {}", virtio_user::Options::QUEUES_MAX))
            }
            Queues::Pairs(_) | Queues::Shared => Ok(()),
        }
    }

    /// Whose the socket's file is.
    pub fn socket_file(&self) -> SocketFile {
        SocketFile { mode: self.socket_mode, group: self.socket_group }
    }

    /// Who makes the socket.
    pub fn socket_side(&self) -> Mode {
        self.mode.into()
    }

    /// What is wanted of a back-end: by default a pair of rings for each worker.
    pub fn wanted_of_back_end(&self, workers: usize) -> virtio_user::Options {
        let queues = match self.queues {
            Queues::Pairs(pairs) => pairs,
            Queues::Shared | Queues::PerGuest => u16::try_from(workers).unwrap_or(u16::MAX),
        };
        let sends = self.capabilities.features();
        let receives = match self.large_receive {
            true => Features::ALL,
            false => Features { tso_v4: false, tso_v6: false, ..Features::NETIF },
        };
        virtio_user::Options {
            queues: queues.clamp(1, virtio_user::Options::QUEUES_MAX),
            packed: self.packed,
            sends,
            receives,
        }
    }

    fn check_tap_or_context(&self) -> Result<(), String> {
        let Self { kind, tap, device, nic, mac, protection, guest_queues, .. } = self;
        match kind {
            _ if !device.is_empty() => {
                Err("device is for kind = \"macvtap\", \"af-packet\" or \"af-xdp\"".into())
            }
            UplinkKind::Tap if tap.is_empty() => Err("tap is missing".into()),
            UplinkKind::Tap if nic.is_some() || mac.is_some() => {
                Err("nic and mac are for kind = \"cdna\"".into())
            }
            UplinkKind::Cdna if nic.is_none() || mac.is_none() => {
                Err("kind = \"cdna\" needs nic and mac".into())
            }
            UplinkKind::Cdna if guest_queues.is_some() => {
                Err("guest_queues is for a tap; a card has as many as contexts".into())
            }
            UplinkKind::Cdna if !tap.is_empty() => Err("tap is not for kind = \"cdna\"".into()),
            _ => protection.check(),
        }
    }

    fn check_device(&self) -> Result<(), String> {
        let Self { kind, tap, device, nic, mac, queues, .. } = self;
        if device.is_empty() {
            return Err("device is missing: the name of the NIC".into());
        }
        if !tap.is_empty() || nic.is_some() || mac.is_some() {
            return Err("tap, nic and mac are not for a kind with a device".into());
        }
        if self.persistent || !self.addresses.is_empty() {
            return Err("persistent and addresses are for a tap, which pvnet makes".into());
        }
        match (kind, queues) {
            (UplinkKind::AfPacket, Queues::PerGuest) => Err(
                "a packet socket has no queues for guests: set kind = \"af-xdp\" or \"macvtap\"".into(),
            ),
            (UplinkKind::AfXdp, Queues::Shared)
                if self.receive_buffers != ReceiveBuffers::default() =>
            {
                Err("receive_buffers is not for kind = \"af-xdp\": the kernel has its buffers all the time".into())
            }
            _ => Ok(()),
        }
    }

    /// When a worker is woken up for frames that come in; none if each wakes one that sleeps.
    ///
    /// # Errors
    /// A value is out of range.
    pub fn coalescing(&self) -> Result<Option<Coalescing>, String> {
        coalescing(self.coalesce_frames, self.coalesce_us)
    }
}

/// `queues`: who shares the receive queues of an uplink, or how many pairs of rings a back-end's port has at most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(from = "QueuesValue")]
pub enum Queues {
    /// All frames.
    #[default]
    Shared,
    /// Each guest with `rx = "direct"` has one, whose frames are put into the guest's buffers; on Xen each with
    /// `rx = "guest-copy"`, whose frames are put into its pool.
    PerGuest,
    /// All frames; there are at most so many pairs.
    Pairs(u16),
}

/// `queues` as it is written.
#[derive(Deserialize)]
#[serde(untagged, expecting = "queues is not \"shared\", \"per-guest\" or a number")]
enum QueuesValue {
    Number(u16),
    Name(QueuesName),
}

#[derive(Deserialize)]
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
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

#[cfg(test)]
mod tests {
    use super::*;

    const BACK_END: &str = "name = \"up\"\nkind = \"virtio-user\"\nsocket = \"/run/up.sock\"\n";

    fn parse(text: &str) -> Result<Uplink, String> {
        let uplink: Uplink = toml::from_str(text).map_err(|error| error.to_string())?;
        uplink.check().map(|()| uplink)
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
            ("queues = 0\n", "queues is not 1 to 64"),
            ("queues = \"many\"\n", "queues is not \"shared\", \"per-guest\" or a number"),
            ("queues = \"per-guest\"\n", "never sees their memory"),
            ("tap = \"tap0\"\n", "not for kind = \"virtio-user\""),
            ("namespace = \"x\"\n", "a device of this host"),
            ("huge_pages = true\n", "not for kind"),
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
