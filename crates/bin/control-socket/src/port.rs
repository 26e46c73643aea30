//! One port of the switch.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::AddAssign;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::batches::BatchStatus;
use crate::counts::{Drops, serialize_nonzero};
use crate::memory::{MappedMemory, MemoryStatus, PersistentStatus};
use crate::toolstack::ToolstackStatus;
use crate::{GroStatus, GuardStatus, LimitStatus};

/// One port at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PortStatus {
    /// Its name.
    pub name: String,
    /// What is plugged in.
    pub kind: PortKind,
    /// The guest's domain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain: Option<u16>,
    /// The guest's address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac: Option<String>,
    /// The guest's interface on the host; absent if the guest is in the switch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// Whether it carries traffic.
    pub state: PortState,
    /// Why it carries no traffic, or not well.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Reason>,
    /// The reason as a sentence, as `pvnet status` prints it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason_text: Option<String>,
    /// When it was last disabled, and why, although another reason or none is given now; absent if it never was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_disabled: Option<LastDisabled>,
    /// The sources that the guest's frames may have; absent for an uplink.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guard: Option<GuardStatus>,
    /// What the port may carry; absent if unlimited in both directions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<LimitStatus>,
    /// What became of the toolstack's keys of the guest's interface; absent if there is nothing to say.
    #[serde(default, skip_serializing_if = "ToolstackStatus::is_empty")]
    pub toolstack: ToolstackStatus,
    /// What the port may reach; absent if it is in no VLAN and not isolated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vlans: Option<VlanStatus>,
    /// The guest's memory, at the first of its ports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemoryStatus>,
    /// The memory of the virtual machine that is mapped; absent for other ports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mapped_memory: Option<MappedMemory>,
    /// The guest's pages that stay mapped; absent if none may.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub persistent_grants: Option<PersistentStatus>,
    /// What the guest copies itself; absent if its frontend does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guest_copy: Option<GuestCopyStatus>,
    /// Queues in each direction.
    pub queues: usize,
    /// The queues of an uplink that are kept for guests.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub guest_queues: Vec<GuestQueueStatus>,
    /// From the port into the switch.
    pub ingress: Traffic,
    /// From the switch out of the port.
    pub egress: Traffic,
    /// TCP segments that were merged on their way out of the port; absent if none were.
    #[serde(default, skip_serializing_if = "GroStatus::is_none")]
    pub gro: GroStatus,
    /// Unsegmented TCP frames from the port with a finished checksum, which was made unfinished; absent if there were none.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub gso_checksum_fixups: u64,
    /// How often and how long workers waited for each other at the port's egress queues; absent if they never did.
    #[serde(default, skip_serializing_if = "LockWaits::are_none")]
    pub lock_waits: LockWaits,
    /// What became of the source addresses of its frames.
    #[serde(default)]
    pub learning: Learning,
    /// Dropped frames by reason; JSON leaves out reasons without a frame.
    #[serde(serialize_with = "serialize_nonzero")]
    pub drops: Drops,
    /// Whether its guest has chosen the hash that spreads received flows over its queues.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub guest_hash: bool,
    /// Frames that the kernel dropped at the port's device; absent for a port without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_drops: Option<DeviceDrops>,
    /// Frames that the kernel dropped because the port's packet or AF_XDP sockets were full; absent for a port without any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub socket_drops: Option<u64>,
    /// The AF_XDP sockets of an uplink that has its NIC to itself.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub xdp: Vec<XdpQueueStatus>,
    /// Connections at its socket that were closed at once because another one had it; absent if there were none, and for a port without
    /// a socket.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub refused_connections: u64,
    /// Its batches of frames; absent before the first.
    #[serde(default, skip_serializing_if = "BatchStatus::is_empty")]
    pub batches: BatchStatus,
}

impl PortStatus {
    /// A port that has carried nothing yet.
    #[must_use]
    pub fn new(name: &str, kind: PortKind, state: PortState) -> Self {
        Self {
            name: name.to_owned(),
            kind,
            domain: None,
            mac: None,
            device: None,
            state,
            reason: None,
            reason_text: None,
            last_disabled: None,
            guard: None,
            limit: None,
            toolstack: ToolstackStatus::default(),
            vlans: None,
            memory: None,
            mapped_memory: None,
            persistent_grants: None,
            guest_copy: None,
            queues: 0,
            guest_queues: Vec::new(),
            ingress: Traffic::default(),
            egress: Traffic::default(),
            gro: GroStatus::default(),
            gso_checksum_fixups: 0,
            lock_waits: LockWaits::default(),
            learning: Learning::default(),
            drops: Drops::default(),
            guest_hash: false,
            device_drops: None,
            socket_drops: None,
            xdp: Vec::new(),
            refused_connections: 0,
            batches: BatchStatus::default(),
        }
    }
}

/// Whether there is nothing to show.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// What is plugged into a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PortKind {
    /// A guest's virtual interface.
    Guest,
    /// A device that leads out.
    Uplink,
}

impl fmt::Display for PortKind {
    /// The name that JSON has.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// Whether a port carries traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PortState {
    /// It does.
    Up,
    /// It does not.
    Down,
}

impl fmt::Display for PortState {
    /// The name that JSON has.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// Why a port carries no traffic, or not well. In JSON: an object with a `code` and, where there is
/// more to say, a `detail`. `Display` makes the sentence for an operator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema, thiserror::Error)]
#[serde(tag = "code", content = "detail", rename_all = "snake_case")]
pub enum Reason {
    /// The frontend has not connected yet.
    #[error("waiting for the frontend")]
    WaitingForFrontend,
    /// The frontend closed the interface, or its domain ended.
    #[error("the frontend closed")]
    FrontendClosed,
    /// No front-end of a virtual machine's port is connected; why the last one's session ended.
    #[error("no front-end is connected; the last session ended: {0}")]
    FrontendGone(String),
    /// A virtual machine's front-end is connected, and no driver in the guest has started the device yet.
    #[error("a front-end is connected, and its guest's driver has not started the device")]
    NoDriver,
    /// A virtual machine's front-end is connected, and the driver in the guest has stopped the device.
    #[error("a front-end is connected, and its guest's driver has stopped the device")]
    DriverStopped,
    /// A virtual machine's front-end shares no memory, or none that the guest writes to: QEMU without `share=on`. The port may be up.
    #[error("the front-end shares no memory with us (share=on)")]
    NoSharedMemory,
    /// The handshake failed: invalid keys of the frontend, or an error of the store.
    #[error("{0}")]
    NotConnected(String),
    /// No back-end has taken the uplink's socket yet.
    #[error("waiting for the back-end")]
    WaitingForBackend,
    /// The guest, or the back-end of an uplink, broke the protocol.
    #[error("disabled: {0}")]
    Disabled(String),
    /// The device behind an uplink failed.
    #[error("{0}; start the daemon again")]
    DeviceFailed(String),
    /// The card of this name does not serve the uplink's context.
    #[error("card {0} does not serve it; if the card is down: `pvnet nic {0}`")]
    NoCard(String),
    /// The guest posts no buffers, or the back-end or card of an uplink takes none from its ring, so frames for it are dropped. The port is up.
    #[error("its other side takes no frames, so those for it are dropped")]
    Stalled,
    /// Workers were held up by the front-end's memory or eventfds, so the port is served between rests. The port is up.
    #[error(
        "its memory or its eventfds have held workers up (swapped? huge pages that are not there?): it rests for a second after each time"
    )]
    HeldWorkersUp,
    /// The guest of this name has the same MAC address and gets the frames for it. The port is up.
    #[error("guest {0} has the same MAC address and gets the frames for it")]
    AddressTaken(String),
    /// The toolstack's script has not put the guest's device of this name into its place yet.
    #[error(
        "the toolstack's script has not put {0} into its place: no hotplug-status = connected in the store"
    )]
    WaitingForScript(String),
    /// The guest's device on the host is not there.
    #[error("{0}; pvnet makes it again every second")]
    NoDevice(String),
    /// The guest's device of this name is down, so what the guest sends is dropped.
    #[error("{0} is down: `ip link set {0} up`")]
    DeviceDown(String),
    /// `pvnet port down`, or `enabled = false` in the configuration.
    #[error("set down by operator")]
    SetDown,
    /// The daemon is stopping.
    #[error("the daemon is stopping")]
    Stopping,
}

/// An earlier [`Reason::Disabled`] of a port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LastDisabled {
    /// How its other side broke the protocol.
    pub reason: String,
    /// How long ago that was.
    pub seconds_ago: u64,
}

/// A receive queue that an uplink keeps for one guest at a time, and what came through it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct GuestQueueStatus {
    /// Its number in the device.
    pub queue: u32,
    /// The port of the guest that has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guest: Option<String>,
    /// Frames that the device put into the guest's buffers.
    pub direct: u64,
    /// Frames that the driver domain copied, by reason.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub copied: BTreeMap<String, u64>,
    /// Frames of others that were put into the guest's buffers, and wiped out there.
    #[serde(default)]
    pub misdirected: u64,
    /// Frames that came when their guest had gone.
    #[serde(default)]
    pub late: u64,
    /// Frames that the kernel dropped because the guest had no buffer for them.
    #[serde(default)]
    pub dropped: u64,
    /// Why it is no longer used, if so; frames for its guest are copied then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// An AF_XDP socket for all frames of one receive queue of a NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct XdpQueueStatus {
    /// The receive queue.
    pub queue: u32,
    /// Whether the NIC reads and writes the daemon's memory itself. Else the kernel copies.
    pub zero_copy: bool,
    /// Frames that the kernel dropped because the socket was full.
    pub dropped: u64,
}

/// What a guest copies itself, of all its queues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct GuestCopyStatus {
    /// Pages of its pools, if it copies out of pools: then only the guest knows the counts.
    pub pool_pages: usize,
    /// Buffers that are granted to it now and that it has not copied yet.
    pub granted: u64,
    /// Buffers that it did not copy in time: frames that it lost.
    pub expired: u64,
    /// Its hypercalls.
    pub hypercalls: u64,
    /// Copies that they did.
    pub copies: u64,
    /// Bytes that they copied.
    pub bytes: u64,
    /// Copies that were refused.
    pub refused: u64,
}

/// What a port may reach, by the names of the configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct VlanStatus {
    /// The VLAN of all its frames, which have no tags.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vlan: Option<u16>,
    /// The VLANs whose frames have tags.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub trunk: Vec<u16>,
    /// The VLAN of a trunk's frames without a tag.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub native: Option<u16>,
    /// Whether it reaches only ports that are not isolated.
    #[serde(default)]
    pub isolated: bool,
}

/// Frames and bytes in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Traffic {
    /// Frames; a GSO frame counts once.
    pub frames: u64,
    /// Bytes, Ethernet headers included.
    pub bytes: u64,
}

/// Frames that the kernel dropped at a device, since the device was made: by the interface's statistics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DeviceDrops {
    /// On their way to the daemon, mostly because it did not read them in time.
    pub ingress: u64,
    /// After the daemon had sent them.
    pub egress: u64,
}

/// Waits of workers for an egress queue that another one had locked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LockWaits {
    /// How many there were.
    pub count: u64,
    /// Their time together.
    pub nanoseconds: u64,
}

impl LockWaits {
    pub(crate) fn are_none(&self) -> bool {
        *self == Self::default()
    }
}

/// What became of the source addresses of frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Learning {
    /// Stations that moved to the port from another.
    pub moves: u64,
    /// Frames whose source address another port kept.
    pub refused_moves: u64,
    /// Frames whose source address was not learnt: the port has as many as it may, or the switch's table is full.
    pub refused_addresses: u64,
}

impl AddAssign for Traffic {
    fn add_assign(&mut self, other: Self) {
        self.frames += other.frames;
        self.bytes += other.bytes;
    }
}

impl AddAssign for LockWaits {
    fn add_assign(&mut self, other: Self) {
        self.count += other.count;
        self.nanoseconds += other.nanoseconds;
    }
}

impl AddAssign for Learning {
    fn add_assign(&mut self, other: Self) {
        self.moves += other.moves;
        self.refused_moves += other.refused_moves;
        self.refused_addresses += other.refused_addresses;
    }
}

#[cfg(test)]
mod tests {
    use frame::DropReason;
    use guard::GuardStatus;
    use limit::{LimitStatus, LimitedPackets, Rates};
    use serde_json::json;

    use super::*;
    use crate::{PortKind, PortState, PortStatus};

    #[test]
    fn a_port_in_json_is_readable() {
        let port = PortStatus {
            domain: Some(2),
            reason: Some(Reason::Disabled("req_prod 1".to_owned())),
            ingress: Traffic { frames: 1, bytes: 60 },
            gso_checksum_fixups: 5,
            lock_waits: LockWaits { count: 3, nanoseconds: 900 },
            learning: Learning { refused_moves: 2, ..Learning::default() },
            drops: [(DropReason::Stalled, 4)].into_iter().collect(),
            ..PortStatus::new("red", PortKind::Guest, PortState::Down)
        };
        let value = serde_json::to_value(&port).unwrap();
        assert_eq!(
            value,
            json!({
                "name": "red", "kind": "guest", "domain": 2, "state": "down", "queues": 0,
                "reason": { "code": "disabled", "detail": "req_prod 1" },
                "ingress": { "frames": 1, "bytes": 60 },
                "egress": { "frames": 0, "bytes": 0 },
                "gso_checksum_fixups": 5,
                "lock_waits": { "count": 3, "nanoseconds": 900 },
                "learning": { "moves": 0, "refused_moves": 2, "refused_addresses": 0 },
                "drops": { "stalled": 4 },
            })
        );
        assert_eq!(serde_json::from_value::<PortStatus>(value).unwrap(), port);
    }

    #[test]
    fn what_operators_read() {
        assert_eq!(format!("{} {}", PortKind::Uplink, PortState::Up), "uplink up");
        assert_eq!(Reason::Disabled("x".to_owned()).to_string(), "disabled: x");
        let taken = Reason::AddressTaken("red".to_owned()).to_string();
        assert!(taken.starts_with("guest red has the same MAC address"), "{taken}");
        let stalled = serde_json::to_value(Reason::Stalled).unwrap();
        assert_eq!(stalled, json!({ "code": "stalled" }));
    }

    #[test]
    fn guard_and_limits_in_json_are_readable() {
        let addresses = vec!["10.77.0.1".to_owned(), "fd00:77::/64".to_owned()];
        let rates = Rates { bytes_per_second: Some(125_000), packets_per_second: None };
        let port = PortStatus {
            guard: Some(GuardStatus::Addresses { addresses }),
            limit: Some(LimitStatus {
                ingress: Some(rates),
                egress: None,
                packets: LimitedPackets::default(),
            }),
            ..PortStatus::new("red", PortKind::Guest, PortState::Up)
        };
        let value = serde_json::to_value(&port).unwrap();
        let guard = json!({ "mode": "addresses", "addresses": ["10.77.0.1", "fd00:77::/64"] });
        assert_eq!(value["guard"], guard);
        let packets = json!({ "ingress": 0, "egress": 0 });
        let limit = json!({ "ingress": { "bytes_per_second": 125_000 }, "packets": packets });
        assert_eq!(value["limit"], limit);
        assert_eq!(serde_json::from_value::<PortStatus>(value).unwrap(), port);
        for (guard, mode) in [(GuardStatus::Off, "off"), (GuardStatus::Mac, "mac")] {
            assert_eq!(serde_json::to_value(guard).unwrap(), json!({ "mode": mode }));
        }
    }
}
