//! Whether the workers still take turns.

use std::sync::mpsc;

use switch::PortId;

use crate::Datapath;
use crate::command::Command;
use crate::worker_state::WorkerHandle;

/// A port that no queue has.
const NOBODY: PortId = PortId(u16::MAX);

/// A question to all workers.
#[derive(Debug)]
pub struct LivenessCheck {
    /// By worker. Each sends one answer.
    answers: Vec<mpsc::Receiver<()>>,
    missing: Vec<bool>,
}

impl LivenessCheck {
    /// Whether all have answered by now. Does not wait.
    pub fn is_passed(&mut self) -> bool {
        !self.missing().contains(&true)
    }

    /// Whether each worker has yet to answer. Does not wait.
    pub fn missing(&mut self) -> &[bool] {
        for (missing, answers) in self.missing.iter_mut().zip(&self.answers) {
            *missing &= answers.try_recv().is_err();
        }
        &self.missing
    }
}

impl Datapath {
    /// Asks each worker to answer between two of its turns. Wakes those that sleep; for a watchdog, every few seconds.
    pub fn check_liveness(&self) -> LivenessCheck {
        let ask = |worker: &WorkerHandle| {
            let (done, answers) = mpsc::channel();
            worker.send(Command::Synchronise { port: NOBODY, done });
            answers
        };
        let answers: Vec<_> = self.workers.iter().map(ask).collect();
        LivenessCheck { missing: vec![true; answers.len()], answers }
    }
}
