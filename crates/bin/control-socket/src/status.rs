//! The daemon and its ports at one moment: the answer to `status`, one JSON object.

use capture::RecordingStatus;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::counts::Operations;
use crate::nic::NicStatus;
use crate::port::{Learning, PortStatus};
use crate::worker::{MoveStatus, WorkerStatus};

/// The daemon and its ports at one moment.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct Status {
    /// The daemon's process.
    pub pid: u32,
    /// When it started, in seconds since 1970.
    #[serde(default)]
    pub started: u64,
    /// The configuration's file.
    #[serde(default)]
    pub config: String,
    /// Thread ids of the workers.
    pub worker_threads: Vec<u32>,
    /// Each worker, in the order of `worker_threads`.
    #[serde(default)]
    pub workers: Vec<WorkerStatus>,
    /// The last queues that got another worker, the newest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub moves: Vec<MoveStatus>,
    /// On Xen: whether frames to uplinks and devices are written several at a time, by io_uring. Absent elsewhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub writes_together: Option<bool>,
    /// Processor time; absent where the machine does not report it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<CpuStatus>,
    /// Operations of the hypervisor since the start, while the meter was on.
    pub meter: MeterStatus,
    /// On Xen: the pages that the daemon's domain grants to itself, so that copies between them and guests pin no page. Absent elsewhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub own_pages: Option<OwnPagesStatus>,
    /// Every port.
    pub ports: Vec<PortStatus>,
    /// Every card with contexts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nics: Vec<NicStatus>,
    /// Guests of the configuration that have not joined.
    pub absent: Vec<String>,
    /// Addresses in the switch's table.
    pub addresses: Vec<Address>,
    /// What is known of multicast groups; absent while their frames are flooded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub multicast: Option<MulticastStatus>,
    /// Every mirror.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mirrors: Vec<MirrorStatus>,
    /// What became of the source addresses of all ports' frames, since the start.
    #[serde(default)]
    pub learning: Learning,
    /// The last lines of the log, the newest first: errors, warnings and notices.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub events: Vec<LogEvent>,
}

/// A line of the log.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LogEvent {
    /// When it was written, in seconds since 1970.
    pub at: u64,
    /// `error`, `warn` or `info`.
    pub level: String,
    /// The message and its fields. Guests choose parts of it; control characters are escaped.
    pub text: String,
}

/// Pages that the daemon's domain grants to itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct OwnPagesStatus {
    /// Pages that are granted now: none if the driver `xen-gntalloc` is not there.
    pub granted: u64,
    /// Allocations that the driver refused because its `limit` is too low; copies pin pages instead.
    pub refused: u64,
}

impl document::Document for Status {
    const SCHEMA: &str = "pvnet-status/1";
}

/// What the meter has counted.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct MeterStatus {
    /// Whether it counts now.
    pub on: bool,
    /// How many operations of each kind there were.
    pub counts: Operations,
    /// Bytes that guests copied between their stacks' taps and their granted pages, also while the
    /// meter was off: the ingress and egress of their ports.
    pub guest_bytes: u64,
    /// Time in grant and event operations.
    pub nanoseconds: u64,
}

/// What is known of multicast groups.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MulticastStatus {
    /// Groups with members, per VLAN.
    pub groups: usize,
    /// Members of all of them.
    pub members: usize,
    /// Pruned ports: a querier has asked them twice, and they get only the groups that they have joined.
    #[serde(default)]
    pub pruned: usize,
    /// Joins beyond a limit, since the start: their ports got all groups from then on.
    pub refused: u64,
}

/// Ports whose frames are copied to another port, or to files.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MirrorStatus {
    /// Its name.
    pub name: String,
    /// The ports whose frames are copied.
    pub from: Vec<String>,
    /// The port that gets the copies; absent if they are written to files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// Where they are written to; absent if a port gets them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<RecordingStatus>,
    /// Frames that were copied, or written.
    pub copied: u64,
    /// Frames that were lost because the target was behind.
    pub lost: u64,
}

/// An address in the switch's table.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Address {
    /// The address.
    pub mac: String,
    /// Its VLAN; absent for ports without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vlan: Option<u16>,
    /// The number of its port.
    pub port: u16,
    /// Seconds since a frame with this source was last seen.
    pub age: u32,
    /// Whether it was configured: then it neither ages nor moves to another port.
    #[serde(default)]
    pub taught: bool,
}

/// Processor time since the daemon's start, in nanoseconds. The difference of two readings says
/// who used it in between.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CpuStatus {
    /// Processors that are online.
    pub processors: u32,
    /// Wall-clock time.
    pub wall_nanoseconds: u64,
    /// All processors, in programs, kernel and interrupts, the daemon included.
    pub busy_nanoseconds: u64,
    /// All processors, idle.
    pub idle_nanoseconds: u64,
    /// All processors, while a hypervisor below gave them to other machines.
    pub steal_nanoseconds: u64,
    /// The daemon's own threads.
    pub daemon_nanoseconds: u64,
}
