//! The keys of ports that more than one kind of table has: those of guests' interfaces, uplinks and virtual machines' ports.

mod attach;
pub(super) mod socket;

use std::path::PathBuf;

use control_socket::TableKind;
use datapath::Workers;
use guard::{Allowed, GuardMode, Policy, Sources, deserialize_allowed};
use limit::Limits;
use port::Coalescing;
use schemars::JsonSchema;
use serde::Deserialize;
use socket::{Group, SocketMode, group, socket_mode_if_any};
use switch::multicast::Router;
use switch::{Membership, Tagging, VlanId};
use vhost_user::Mode;
use wire::ethernet::MacAddr;

use super::Config;
use super::capabilities::Capabilities;
use super::coalescing::coalescing;
use super::flooding::{Flooding, RouterKey, multicast_router};
use super::table::{Changes, Effort, Table, parsed_if_any, table};
pub(super) use attach::check_interface;
pub use attach::{Attach, HostDevice};
pub use socket::SocketFile;

/// The longest path of a socket (`sun_path`, without the zero behind it).
const SOCKET_MAX: usize = 107;
/// The smallest MTU that IPv4 allows (RFC 791).
const MTU_MIN: u16 = 68;

/// What it takes to change a key, by the kind of the port's table; none if that has no such key.
#[derive(Clone, Copy)]
pub struct ByTable {
    vif: Option<Effort>,
    uplink: Option<Effort>,
    port: Option<Effort>,
    /// Why there is no such key in the others.
    why: &'static str,
}

const IN_PLACE: ByTable = ByTable {
    vif: Some(Effort::InPlace),
    uplink: Some(Effort::InPlace),
    port: Some(Effort::InPlace),
    why: "",
};
/// Agreed with a front-end, and an uplink is opened with it.
const AGREED: ByTable = ByTable {
    vif: Some(Effort::Connection),
    uplink: Some(Effort::Device),
    port: Some(Effort::Connection),
    why: "",
};
/// Of a device or a socket.
const OPENED: ByTable = ByTable { port: Some(Effort::Device), ..AGREED };

impl ByTable {
    const fn not_for_vifs(self, why: &'static str) -> Self {
        Self { vif: None, why, ..self }
    }

    const fn not_for_uplinks(self, why: &'static str) -> Self {
        Self { uplink: None, why, ..self }
    }

    const fn not_for_ports(self, why: &'static str) -> Self {
        Self { port: None, why, ..self }
    }

    /// What it takes to change the key in a table of this kind.
    pub(super) fn in_table(self, kind: TableKind) -> Option<Effort> {
        match kind {
            TableKind::Guest => self.vif,
            TableKind::Uplink => self.uplink,
            TableKind::Port => self.port,
            TableKind::Daemon
            | TableKind::Switch
            | TableKind::Xen
            | TableKind::Mirror
            | TableKind::Nic => None,
        }
    }
}

const NO_SOCKET: &str = "a guest's interface has no socket of its own";
const BY_CAPABILITIES: &str = "an uplink's offloads are its capabilities and large_receive";
const FROM_EVERYBODY: &str =
    "frames of everybody outside come through an uplink, so it has no guard";
const LEADS_OUT: &str = "an uplink leads out of the switch itself";
const NO_ADDRESSES: &str =
    "a virtual machine gets its addresses inside; what it may send from is guard_addresses";
const BY_FRONT_END: &str = "a virtual machine's driver says when it wants to be notified";

table! {
    /// What a port's table says that other kinds of ports have too.
    PortSettings [ByTable = IN_PLACE] {
        /// The MAC address of what is behind it: a guest, or a card's context. On Xen the toolstack gives it.
        #[serde(deserialize_with = "parsed_if_any")]
        #[schemars(with = "Option<String>")]
        mac: Option<MacAddr> = None, AGREED;
        /// IP addresses: for a guest's namespace, or for the host's end of an uplink.
        addresses: Vec<String> = Vec::new(), AGREED.not_for_ports(NO_ADDRESSES);
        /// The socket where its other side and the daemon meet.
        socket: PathBuf = PathBuf::new(), OPENED.not_for_vifs(NO_SOCKET);
        /// Who makes the socket.
        mode: SocketMode = SocketMode::Server, OPENED.not_for_vifs(NO_SOCKET);
        /// The permissions of the socket's file; 0600 if absent, or 0660 with a group.
        #[serde(deserialize_with = "socket_mode_if_any")]
        socket_mode: Option<u32> = None, OPENED.not_for_vifs(NO_SOCKET);
        /// The group of the socket's file; the daemon's, or the folder's, if absent.
        #[serde(deserialize_with = "group")]
        #[schemars(with = "Option<Group>")]
        socket_group: Option<u32> = None, OPENED.not_for_vifs(NO_SOCKET);
        /// Whether rings may be packed. An uplink accepts them by default. A virtual machine is not offered them: under QEMU no
        /// device continues one after a restart.
        packed: Option<bool> = None, AGREED.not_for_vifs(NO_SOCKET);
        /// Partial checksums. Of a guest's interface, this and the next depend on `interface` if absent.
        checksum_offload: Option<bool> = None, AGREED.not_for_uplinks(BY_CAPABILITIES);
        /// TCP frames beyond the MTU.
        tcp_segmentation_offload: Option<bool> = None, AGREED.not_for_uplinks(BY_CAPABILITIES);
        /// Whether the guest gets unfinished checksums and frames beyond the MTU, as far as its front-end takes them.
        guest_offloads: bool = true, AGREED.not_for_uplinks(BY_CAPABILITIES);
        /// The sources that its frames may have; "addresses" if these are known, otherwise "mac", if absent.
        guard: Option<GuardMode> = None, IN_PLACE.not_for_uplinks(FROM_EVERYBODY);
        /// The IP addresses and networks that it may send from; `addresses` if empty.
        #[serde(deserialize_with = "deserialize_allowed")]
        #[schemars(with = "Vec<String>")]
        guard_addresses: Vec<Allowed> = Vec::new(), IN_PLACE.not_for_uplinks(FROM_EVERYBODY);
        /// The rates at which frames may come from it and go to it.
        limit: Limits = Limits::default();
        /// Whether it carries frames; otherwise it drops them. A virtual machine's link is down then, if its front-end asks; QEMU does not.
        enabled: bool = true;
        /// The VLAN of all its frames, which have no tags.
        vlan: Option<u16> = None;
        /// The VLANs whose frames have tags.
        trunk: Option<Vec<u16>> = None;
        /// With `trunk`: the VLAN of frames without a tag.
        native: Option<u16> = None;
        /// Whether it reaches only ports that are not isolated.
        isolated: bool = false;
        /// Whether multicast routers are behind it; behind uplinks by default.
        #[serde(deserialize_with = "multicast_router")]
        #[schemars(with = "Option<RouterKey>")]
        multicast_router: Option<Router> = None;
        /// Copies of flooded frames that it may cause per second; as in `[switch]` if absent.
        flood_copies_per_second: Option<u32> = None;
        /// Whether TCP segments on their way to it are merged into frames beyond the MTU, if it takes these.
        gro: bool = false;
        /// Frames after which its guest is notified; of an uplink, after which a worker is woken up.
        coalesce_frames: Option<u32> = None, IN_PLACE.not_for_ports(BY_FRONT_END);
        /// Microseconds after the last frame after which that happens at the latest.
        coalesce_us: Option<u32> = None, IN_PLACE.not_for_ports(BY_FRONT_END);
        /// What it is joined to.
        attach: Option<Attach> = None, OPENED.not_for_uplinks(LEADS_OUT);
        /// Its device on the host: of a guest one that is made for it, `vif-` and its port's name if absent; of an uplink the NIC.
        device: Option<String> = None, OPENED;
        /// What the network behind a guest's device can do with the guest's frames.
        device_capabilities: Option<Capabilities> = None, OPENED.not_for_uplinks(LEADS_OUT);
        /// The MTU of a new device, and the one announced to a guest. Of an uplink the longest packet that the network behind it takes.
        mtu: Option<u16> = None, ByTable { uplink: Some(Effort::InPlace), ..OPENED };
        /// The workers that may have its queues, by number.
        workers: Option<Vec<usize>> = None;
        /// Whether it has a worker to itself.
        worker: Option<OwnWorker> = None;
    }
}

/// What is enforced of a port, whatever it is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rules {
    /// None if no source is checked.
    pub guard: Option<Policy>,
    /// The rates at which it may send and receive.
    pub limits: Limits,
    /// Whether frames pass at all.
    pub enabled: bool,
    /// In which VLANs the port is; none if in none. The datapath enforces it.
    pub membership: Option<Membership>,
    /// Who gets what it floods. The datapath enforces it.
    pub flooding: Flooding,
    /// Whether what goes to it is merged, where it takes that.
    pub gro: bool,
    /// Which workers may have its queues.
    pub workers: Workers,
}

/// `worker`
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum OwnWorker {
    /// A worker that serves no other port.
    Own,
}

impl PortSettings {
    /// The keys that a kind of table has.
    pub(super) fn keys_in(kind: TableKind) -> impl Iterator<Item = &'static str> {
        let keys = Self::KEYS.iter().filter(move |(_, known)| known.in_table(kind).is_some());
        keys.map(|(key, _)| *key)
    }

    /// Why a kind of table does not have a key; none if no table of a port has it.
    pub(super) fn refusal(key: &str, kind: TableKind) -> Option<&'static str> {
        Self::key(key).filter(|known| known.in_table(kind).is_none()).map(|known| known.why)
    }

    /// Checks what TOML cannot express, of any port.
    pub(super) fn check(&self) -> Result<(), String> {
        if let Some(mac) = self.mac.filter(|mac| mac.is_multicast() || mac.is_zero()) {
            return Err(format!("mac {mac} is not a unicast address"));
        }
        self.socket_file().check(self.mode)?;
        if self.socket.as_os_str().len() > SOCKET_MAX {
            return Err(format!("socket has more than {SOCKET_MAX} characters"));
        }
        self.coalescing()?;
        self.membership()?;
        match self.mtu {
            Some(mtu) if mtu < MTU_MIN => Err(format!("mtu is {mtu}, and at least {MTU_MIN}")),
            _ => Ok(()),
        }
    }

    /// The sources that its frames may have.
    ///
    /// # Errors
    /// Its addresses are to check, but unknown or malformed.
    pub fn sources(&self) -> Result<Sources, String> {
        Sources::new(self.guard, &self.guard_addresses, &self.addresses)
    }

    /// Whether its addresses must be checked and only the toolstack may know them.
    pub fn wants_addresses(&self) -> bool {
        let is_known = !(self.guard_addresses.is_empty() && self.addresses.is_empty());
        self.guard == Some(GuardMode::Addresses) && !is_known
    }

    /// The device on the host of a port with a table of its own, if it has one.
    pub(super) fn own_device(&self, port: &str) -> Option<HostDevice> {
        self.device(Attach::Switch, Some(port))
    }

    /// When its other side is notified of frames, or a worker woken up for an uplink's; none for the default, which costs a single
    /// frame nothing.
    ///
    /// # Errors
    /// A value is out of range.
    pub fn coalescing(&self) -> Result<Option<Coalescing>, String> {
        coalescing(self.coalesce_frames, self.coalesce_us)
    }

    /// Whose the socket's file is.
    pub fn socket_file(&self) -> SocketFile {
        SocketFile { mode: self.socket_mode, group: self.socket_group }
    }

    /// Who makes the socket.
    pub fn socket_side(&self) -> Mode {
        self.mode.into()
    }

    /// Which workers may have its queues.
    pub fn wanted_workers(&self) -> Result<Workers, String> {
        match (self.workers.as_deref(), self.worker) {
            (None, None) => Ok(Workers::Any),
            (None, Some(OwnWorker::Own)) => Ok(Workers::Own),
            (Some([]), None) => Err("workers lists no worker; leave it out for any".to_owned()),
            (Some(workers), None) => Ok(Workers::Of(workers.to_vec())),
            (Some(_), Some(_)) => Err("workers and worker = \"own\" exclude each other".to_owned()),
        }
    }

    /// What is enforced of it, with this guard. `router` is whether multicast routers are behind it if it does not say so.
    pub fn rules(&self, guard: Option<Policy>, router: Router) -> Result<Rules, String> {
        let router = self.multicast_router.unwrap_or(router);
        Ok(Rules {
            guard,
            limits: self.limit,
            enabled: self.enabled,
            membership: self.membership()?,
            flooding: Flooding { router, copies: self.flood_copies_per_second },
            gro: self.gro,
            workers: self.wanted_workers()?,
        })
    }
}

/// The key under which [`read`](super::read::read) puts the keys that all ports have. Nobody writes it.
pub(super) const SETTINGS: &str = "settings";

/// The table of a port: keys of its own, and those that all ports have.
pub trait PortTable: Table<Key = Effort> {
    /// Which it is.
    const KIND: TableKind;

    /// The keys that all ports have.
    fn settings(&self) -> &PortSettings;

    /// The same, to change them.
    fn settings_mut(&mut self) -> &mut PortSettings;
}

/// A table that is one port, whatever that is made of.
pub trait SinglePort: PortTable {
    /// All such tables.
    fn all(config: &Config) -> &Vec<Self>;

    /// The same, to change them.
    fn all_mut(config: &mut Config) -> &mut Vec<Self>;

    /// Checks what TOML cannot express, and that it fits the other tables.
    fn check(&self, config: &Config) -> Result<(), String>;

    /// Why it comes, goes and is opened only with the daemon, if that is so.
    fn fixed(&self) -> Option<Effort> {
        None
    }
}

/// What it takes to change a key of a port, by the kind of its table; none if that has no such key.
pub(super) fn effort_in<T: PortTable>(key: &str) -> Option<Effort> {
    let own = T::key(key).filter(|_| key != SETTINGS);
    own.or_else(|| PortSettings::key(key)?.in_table(T::KIND))
}

/// All keys of a port's table, those first that other ports have too.
pub(super) fn keys_of<T: PortTable>() -> impl Iterator<Item = &'static str> {
    let own = T::KEYS.iter().map(|(key, _)| *key).filter(|key| *key != SETTINGS);
    PortSettings::keys_in(T::KIND).chain(own)
}

/// The keys of a port with other values than in `new`.
pub(super) fn changes<T: PortTable>(old: &T, new: &T) -> Changes {
    let own = old.differing(new).into_iter().filter(|(key, _)| *key != SETTINGS);
    let common = old.settings().differing(new.settings()).into_iter();
    let common = common.filter_map(|(key, known)| Some((key, known.in_table(T::KIND)?)));
    own.chain(common).collect()
}

/// A port's table with those keys of another one that take a certain effort to change.
pub fn taking<T: PortTable>(table: T, other: &T, effort: Effort) -> T {
    let takes = |key: &str| effort_in::<T>(key) == Some(effort);
    let settings = table.settings().clone().with_keys_of(other.settings(), &takes);
    let mut taken = table.with_keys_of(other, &|key| key != SETTINGS && takes(key));
    *taken.settings_mut() = settings;
    taken
}

impl PortSettings {
    /// In which VLANs it is, and whether it is isolated; none for a port without that.
    ///
    /// # Errors
    /// There is no such VLAN, or the keys do not fit together.
    pub fn membership(&self) -> Result<Option<Membership>, String> {
        let Self { vlan, native, isolated, .. } = *self;
        let id = |key: &str, number: u16| {
            VlanId::new(number).ok_or_else(|| format!("{key} is {number}, not 1 to 4094"))
        };
        let native = native.map(|number| id("native", number)).transpose()?;
        let tagging = match (vlan, &self.trunk) {
            (Some(_), Some(_)) => {
                return Err("vlan is for frames without tags, and trunk for those with tags: set one of them".into());
            }
            (_, None) if native.is_some() => return Err("native is for a port with trunk".into()),
            (Some(number), None) => Some(Tagging::Access(id("vlan", number)?)),
            (None, Some(numbers)) => {
                let tagged = numbers.iter().map(|number| id("trunk", *number));
                Some(Tagging::Trunk { tagged: tagged.collect::<Result<_, _>>()?, native })
            }
            (None, None) => None,
        };
        let membership = Membership { tagging, isolated };
        Ok((membership != Membership::default()).then_some(membership))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_that_do_not_fit_are_refused() {
        let keys = |vlan, trunk: Option<&[u16]>, native| {
            let trunk = trunk.map(<[u16]>::to_vec);
            PortSettings { vlan, trunk, native, ..PortSettings::default() }
        };
        for (keys, said) in [
            (keys(Some(0), None, None), "vlan is 0"),
            (keys(Some(4095), None, None), "vlan is 4095"),
            (keys(None, Some(&[10, 4095][..]), None), "trunk is 4095"),
            (keys(None, Some(&[10][..]), Some(0)), "native is 0"),
            (keys(Some(10), Some(&[10][..]), None), "one of them"),
            (keys(Some(10), None, Some(10)), "for a port with trunk"),
            (keys(None, None, Some(10)), "for a port with trunk"),
        ] {
            let error = keys.membership().unwrap_err();
            assert!(error.contains(said), "{error}");
        }
        assert_eq!(keys(None, None, None).membership(), Ok(None));
        let isolated = PortSettings { isolated: true, ..keys(None, None, None) };
        assert!(isolated.membership().unwrap().unwrap().isolated);
    }
}
