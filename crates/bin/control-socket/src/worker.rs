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
    /// Time in which it looked for work, since the start: all that is neither of the others.
    #[serde(default)]
    pub polling_nanoseconds: u64,
    /// Time in which it slept, since the start.
    #[serde(default)]
    pub asleep_nanoseconds: u64,
    /// The same in the last one to two seconds.
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
    /// Looking for work.
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
    /// How long its turns were, since it is there.
    pub busy_nanoseconds: u64,
    /// The part of the last one to two seconds in which it had a turn: what it costs its worker.
    pub load: f64,
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
