//! Whether the workers still take turns.

use std::sync::mpsc;

use switch::PortId;

use crate::Datapath;
use crate::handle::Command;

/// A port that no queue has.
const NOBODY: PortId = PortId(u16::MAX);

/// A question to all workers.
#[derive(Debug)]
pub struct LivenessCheck {
    answers: mpsc::Receiver<()>,
    missing: usize,
}

impl LivenessCheck {
    /// Whether all have answered by now. Does not wait.
    pub fn is_passed(&mut self) -> bool {
        self.missing -= self.answers.try_iter().take(self.missing).count();
        self.missing == 0
    }
}

impl Datapath {
    /// Asks each worker to answer between two of its turns. Wakes those that sleep; for a watchdog, every few seconds.
    pub fn check_liveness(&self) -> LivenessCheck {
        let (done, answers) = mpsc::channel();
        for worker in &self.workers {
            worker.send(Command::Synchronise { port: NOBODY, done: done.clone() });
        }
        LivenessCheck { answers, missing: self.workers.len() }
    }
}
