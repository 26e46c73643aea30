//! Workers, and which queues they have.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One worker.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct WorkerStatus {
    /// How long it has not answered a question that an earlier status asked; 0 if it has answered. A worker that takes turns
    /// answers within microseconds.
    pub silent_nanoseconds: u64,
    /// The CPU that it is bound to; absent if the scheduler places it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<usize>,
    /// The NUMA node of that CPU; absent where the kernel does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<usize>,
    /// Time in turns of queues with work, since the start.
    #[serde(default)]
    pub carrying_nanoseconds: u64,
    /// Time in which it polled, since the start: all that is neither of the others.
    #[serde(default)]
    pub polling_nanoseconds: u64,
    /// Time in which it slept, since the start.
    #[serde(default)]
    pub asleep_nanoseconds: u64,
    /// The parts of its time in the last one to two seconds.
    #[serde(default)]
    pub recent: WorkerShares,
    /// The queues and tasks that it serves.
    #[serde(default)]
    pub queues: Vec<QueueStatus>,
}

/// Parts of a worker's time, which together are 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct WorkerShares {
    /// Turns of queues with work.
    pub carrying: f64,
    /// Polling for work.
    pub polling: f64,
    /// Sleep.
    pub asleep: f64,
}

/// A queue or a task of a worker.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct QueueStatus {
    /// Its port.
    pub port: String,
    /// What it is.
    pub kind: QueueKind,
    /// Its number; of a queue for guests its serial number. Absent for a task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<u64>,
    /// The time of its turns, since it was attached.
    pub busy_nanoseconds: u64,
    /// The part of the last one to two seconds in which it had a turn: what it costs its worker.
    pub load: f64,
}

/// A queue that has another worker, or would get one.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MoveStatus {
    /// Its name, as [`QueueStatus`] shows it.
    pub queue: String,
    /// The worker that had it.
    pub from: usize,
    /// The one that gets it.
    pub to: usize,
    /// The part of a worker's time that it took.
    pub load: f64,
    /// When it moved, in seconds since 1970; absent if it has not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<u64>,
    /// Why.
    pub reason: MoveReason,
}

/// Why a queue moves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum MoveReason {
    /// An operator asked for it.
    #[default]
    Asked,
    /// Its worker had too much to do.
    Load,
    /// A port names its workers, or has one to itself.
    Placed,
}

impl fmt::Display for MoveReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Asked => "asked for",
            Self::Load => "load",
            Self::Placed => "workers of a port",
        })
    }
}

/// What an operator wants of the workers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WorkerRequest {
    /// A queue at another worker.
    Move {
        /// Its port.
        port: String,
        /// Its number.
        queue: usize,
        /// The worker's number.
        worker: usize,
    },
    /// Queues spread by what they cost.
    Rebalance {
        /// Only say what would move.
        dry_run: bool,
    },
}

/// What has moved, or would.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MoveReport {
    /// Whether nothing was done.
    pub dry_run: bool,
    /// The part of its time that the busiest worker spent on queues, in the last one to two seconds. Absent if one move was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub busiest_before: Option<f64>,
    /// The same after the moves, as estimated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub busiest_after: Option<f64>,
    /// What moves.
    pub moves: Vec<MoveStatus>,
}

impl document::Document for MoveReport {
    const SCHEMA: &str = "pvnet-move/1";
}

/// What a worker serves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum QueueKind {
    /// A queue of the port.
    #[default]
    Queue,
    /// A queue that an uplink keeps for a guest.
    ForGuest,
    /// A task, such as a control ring.
    Task,
}

/// As operators name it: `red/0`.
impl fmt::Display for QueueStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { port, kind, queue, .. } = self;
        let number = queue.unwrap_or_default();
        match kind {
            QueueKind::Queue => write!(f, "{port}/{number}"),
            QueueKind::ForGuest => write!(f, "{port}/guest-{number}"),
            QueueKind::Task => write!(f, "{port}/task"),
        }
    }
}
