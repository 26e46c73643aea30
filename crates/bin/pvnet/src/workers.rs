//! `pvnet worker`: which worker has which queue.

use std::str::FromStr;

use clap::Subcommand;
use control_socket::{MoveReport, MoveStatus, WorkerRequest, WorkerStatus, control_socket};
use document::Document;
use report::Table;
use schemars::JsonSchema;
use serde::Serialize;

use crate::args::DaemonArgs;
use crate::program::{show, text};
use crate::status::place;

/// What `pvnet worker list --json` prints.
#[derive(Serialize, JsonSchema)]
pub struct WorkerDocument {
    /// Every worker, by number.
    workers: Vec<WorkerStatus>,
    /// The last queues that got another worker, the newest first.
    moves: Vec<MoveStatus>,
}

impl Document for WorkerDocument {
    const SCHEMA: &str = "pvnet-worker/1";
}

/// `pvnet worker`
#[derive(Subcommand)]
pub enum WorkerCommand {
    /// List the workers, their queues, and what these cost them in the last one to two seconds.
    List {
        #[command(flatten)]
        output: OutputArgs,
    },
    /// Give a queue to another worker, while it carries: no frame is lost or overtaken.
    ///
    /// Rebalancing may move it again. To keep it there, set `workers` of its port.
    ///
    ///   pvnet worker move red/0 1
    #[command(verbatim_doc_comment)]
    Move {
        /// The queue: a port and a number.
        #[arg(value_name = "PORT/QUEUE")]
        queue: QueueArg,
        /// The worker's number.
        worker: usize,
        #[command(flatten)]
        output: OutputArgs,
    },
    /// Spread the queues over the workers by what they cost in the last one to two seconds.
    ///
    /// The daemon does the same by itself, unless `rebalance = "off"` in `[daemon]`.
    Rebalance {
        /// Only say what would move.
        #[arg(long)]
        dry_run: bool,
        #[command(flatten)]
        output: OutputArgs,
    },
}

/// Which daemon, and how to print.
#[derive(clap::Args)]
pub struct OutputArgs {
    #[command(flatten)]
    daemon: DaemonArgs,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// Moves that are listed.
const SHOWN: usize = 5;

/// `PORT/QUEUE`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueArg {
    port: String,
    queue: usize,
}

impl FromStr for QueueArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let unclear = || format!("{text:?} is not a port and the number of a queue, such as red/0");
        let (port, queue) = text.rsplit_once('/').ok_or_else(unclear)?;
        Ok(Self { port: port.to_owned(), queue: queue.parse().map_err(|_| unclear())? })
    }
}

/// Runs `pvnet worker`.
pub fn run(command: WorkerCommand) -> Result<(), String> {
    match command {
        WorkerCommand::List { output } => list(&output),
        WorkerCommand::Move { queue: QueueArg { port, queue }, worker, output } => {
            ask(&WorkerRequest::Move { port, queue, worker }, &output)
        }
        WorkerCommand::Rebalance { dry_run, output } => {
            ask(&WorkerRequest::Rebalance { dry_run }, &output)
        }
    }
}

fn ask(request: &WorkerRequest, OutputArgs { daemon, json }: &OutputArgs) -> Result<(), String> {
    let report = control_socket::worker(&control_socket(&daemon.directory), request)?;
    show(*json, &report, || said(&report))
}

/// What has moved, or would.
fn said(report: &MoveReport) -> String {
    let MoveReport { dry_run, busiest_before, busiest_after, moves } = report;
    let verb = if *dry_run { "would move" } else { "moved" };
    let line = |moved: &MoveStatus| {
        let MoveStatus { queue, from, to, load, .. } = moved;
        format!("{queue} {verb} from worker {from} to {to}: {:.0} % of a worker\n", load * 100.0)
    };
    let lines: String = moves.iter().filter(|moved| moved.from != moved.to).map(line).collect();
    let Some((before, after)) = busiest_before.zip(*busiest_after) else {
        return if lines.is_empty() { "it is there already\n".to_owned() } else { lines };
    };
    match lines.is_empty() {
        true => format!(
            "nothing to move: the busiest worker spends {:.0} % on queues\n",
            before * 100.0
        ),
        false => format!(
            "{lines}the busiest worker spends {:.0} % on queues, and an estimated {:.0} % with this\n",
            before * 100.0,
            after * 100.0
        ),
    }
}

fn list(OutputArgs { daemon, json }: &OutputArgs) -> Result<(), String> {
    let status = control_socket::status(&control_socket(&daemon.directory))?;
    if *json {
        let document = WorkerDocument { workers: status.workers, moves: status.moves };
        print!("{}", document::line(&document).map_err(text)?);
        return Ok(());
    }
    let percent = |part: f64| format!("{:.1}", part * 100.0);
    let mut table = Table::new()
        .right("worker")
        .left("on")
        .right("carrying %")
        .right("polling %")
        .right("asleep %")
        .left("queue")
        .right("load %");
    for (number, worker) in status.workers.iter().enumerate() {
        let recent = worker.recent;
        let mut head = [
            number.to_string(),
            place(worker).unwrap_or_else(|| "any CPU".to_owned()),
            percent(recent.carrying),
            percent(recent.polling),
            percent(recent.asleep),
        ];
        let none = [(String::new(), String::new())];
        let queues = worker.queues.iter().map(|queue| (queue.to_string(), percent(queue.load)));
        let queues: Vec<_> = queues.collect();
        for (queue, load) in if queues.is_empty() { &none[..] } else { &queues } {
            let [number, on, carrying, polling, asleep] = std::mem::take(&mut head);
            table.row([number, on, carrying, polling, asleep, queue.clone(), load.clone()]);
        }
    }
    table.print().map_err(text)?;
    for MoveStatus { queue, from, to, reason, .. } in status.moves.iter().take(SHOWN) {
        println!("{queue} moved from worker {from} to {to} ({reason})");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_is_a_port_and_a_number() {
        let queue = |port: &str, queue| Ok(QueueArg { port: port.to_owned(), queue });
        assert_eq!("red/0".parse(), queue("red", 0));
        assert_eq!("vm-1.2/15".parse(), queue("vm-1.2", 15));
        for wrong in ["red", "red/", "red/x", "red/-1"] {
            assert!(wrong.parse::<QueueArg>().unwrap_err().contains("red/0"), "{wrong}");
        }
    }

    #[test]
    fn a_report_says_what_moves_and_what_that_brings() {
        let moved =
            MoveStatus { queue: "red/1".to_owned(), to: 1, load: 0.25, ..MoveStatus::default() };
        let report = MoveReport {
            dry_run: true,
            busiest_before: Some(0.8),
            busiest_after: Some(0.55),
            moves: vec![moved.clone()],
        };
        assert_eq!(
            said(&report),
            "red/1 would move from worker 0 to 1: 25 % of a worker\n\
             the busiest worker spends 80 % on queues, and an estimated 55 % with this\n"
        );
        let one = MoveReport { moves: vec![moved], ..MoveReport::default() };
        assert_eq!(said(&one), "red/1 moved from worker 0 to 1: 25 % of a worker\n");
        let none = MoveReport { moves: Vec::new(), ..report };
        assert_eq!(said(&none), "nothing to move: the busiest worker spends 80 % on queues\n");
        assert_eq!(said(&MoveReport::default()), "it is there already\n");
    }
}
