//! Which worker has which queue.

use std::time::UNIX_EPOCH;

use control_socket::{MoveReport, MoveStatus, WorkerRequest};
use datapath::{MoveReason, PastMove, QueueMove, QueueName};
use tracing::info;

use crate::daemon::control::Control;
use crate::daemon::worker_check::queue_name;

impl Control {
    /// Gives queues other workers, as an operator wants it.
    pub(super) fn move_queues(&self, request: &WorkerRequest) -> Result<MoveReport, String> {
        let datapath = &self.host.datapath;
        match request {
            WorkerRequest::Move { port, queue, worker } => {
                let mut records = self.ports.values().map(|port| &port.record);
                let named = records.find(|record| record.name() == port);
                let attached = named.ok_or_else(|| format!("no port {port:?}"))?.port.as_ref();
                let attached = attached.ok_or_else(|| format!("port {port:?} is down"))?;
                let moved = datapath.move_queue(attached, QueueName::Queue(*queue), *worker);
                let moved = moved.map_err(|error| format!("{port}/{queue}: {error}"))?;
                Ok(MoveReport { moves: vec![status(&moved)], ..MoveReport::default() })
            }
            WorkerRequest::Rebalance { dry_run } => {
                let planned = datapath.balance();
                let balance = if *dry_run { planned } else { datapath.rebalance(&planned) };
                Ok(MoveReport {
                    dry_run: *dry_run,
                    busiest_before: Some(balance.busiest_before),
                    busiest_after: Some(balance.busiest_after),
                    moves: balance.moves.iter().map(status).collect(),
                })
            }
        }
    }

    /// Gives queues other workers, if the configuration wants that and it helps.
    pub(super) fn rebalance(&self) {
        let Some(rule) = self.host.config.daemon.balance_rule() else { return };
        if let Some(balance) = self.host.datapath.rebalance_by(&rule) {
            info!(
                moves = balance.moves.len(),
                busiest_before = balance.busiest_before,
                busiest_after = balance.busiest_after,
                "queues are spread anew"
            );
        }
    }
}

fn status(moved: &QueueMove) -> MoveStatus {
    let QueueMove { port, queue, from, to, share } = moved;
    MoveStatus {
        queue: queue_name(port.name(), *queue).to_string(),
        from: *from,
        to: *to,
        load: *share,
        ..MoveStatus::default()
    }
}

/// One that has happened.
pub(super) fn past(moved: &PastMove) -> MoveStatus {
    let PastMove { at, port, queue, from, to, share, reason } = moved;
    MoveStatus {
        queue: queue_name(port, *queue).to_string(),
        from: *from,
        to: *to,
        load: *share,
        at: at.duration_since(UNIX_EPOCH).ok().map(|since| since.as_secs()),
        reason: match reason {
            MoveReason::Asked => control_socket::MoveReason::Asked,
            MoveReason::Load => control_socket::MoveReason::Load,
            MoveReason::Placed => control_socket::MoveReason::Placed,
        },
    }
}
