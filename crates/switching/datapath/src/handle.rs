//! A worker as its datapath sees it: commands, and its end.

use std::sync::{Arc, mpsc};

use tracing::error;

use crate::command::Command;
use crate::shared::Shared;
use crate::worker_state::WorkerState;

/// A worker, for its datapath.
pub(crate) struct WorkerHandle {
    state: Arc<WorkerState>,
    shared: Arc<Shared>,
    commands: mpsc::Sender<Command>,
}

impl WorkerHandle {
    pub(crate) fn new(
        state: Arc<WorkerState>,
        shared: Arc<Shared>,
        commands: mpsc::Sender<Command>,
    ) -> Self {
        Self { state, shared, commands }
    }

    pub(crate) fn send(&self, command: Command) {
        // This fails after the worker has got `Stop`. Then the command needs no effect.
        let _ = self.commands.send(command);
        self.shared.doorbells[self.state.number].ring();
    }

    pub(crate) fn state(&self) -> &Arc<WorkerState> {
        &self.state
    }

    /// Waits for the end of its thread, after [`Command::Stop`].
    pub(crate) fn join(&self) {
        if self.state.join().is_err() {
            error!(worker = self.state.number, "worker panicked");
        }
    }
}
