//! A packet's stages: the purpose of each instruction in its span.

use schemars::JsonSchema;
use scope_result::{Domain, Mode};
use serde::Serialize;

use super::flow::{Flow, Tally, Visit};
use super::span::Span;
use crate::summary::{Who, plain};

named::named! {
    /// A stage, after Figure 6 of Chadha et al.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, JsonSchema, Serialize)]
    #[serde(rename_all = "snake_case")]
    pub enum Stage {
        /// The guest's kernel and programs, and Xen's work for them.
        Guest => "guest",
        /// Grants and events: their hypercalls, and the kernel functions that make them.
        GrantAndEvent => "grant and event",
        /// The switch from one domain to another.
        Switch => "switch",
        /// The driver domain's kernel and programs, and Xen's work for them.
        Driver => "driver domain",
        /// After delivery: buffers and grants are returned.
        Completion => "completion",
        /// The idle domain.
        Idle => "idle",
    }
}

/// Work of one domain or the hypervisor for one stage, without interruption.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize)]
pub struct Run {
    /// Instructions since the span's start.
    pub from: u64,
    /// Instructions since the span's start at its end.
    pub to: u64,
    /// Who works.
    #[serde(serialize_with = "in_words")]
    #[schemars(with = "String")]
    pub who: Who,
    /// The stage.
    pub stage: Stage,
    /// The counts.
    pub tally: Tally,
}

fn in_words<S: serde::Serializer>(who: &Who, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(who)
}

/// The runs of a span, in their order.
pub fn runs(flow: &Flow<'_>, span: &Span) -> Vec<Run> {
    let visits = &flow.visits[span.from..span.to];
    let start = visits.first().map_or(0, |visit| visit.at);
    let mut runs = Vec::<Run>::new();
    // Xen's work until it returns to a domain belongs to the stage that it was entered for.
    let mut within = None;
    for (at, visit) in (span.from..).zip(visits) {
        within =
            if visit.mode() == Mode::Hypervisor { enters(flow, visit).or(within) } else { None };
        let stage = match within.or_else(|| kernel_grants(flow, visit)) {
            Some(Stage::Switch) => Stage::Switch,
            _ if flow.domain(visit) == Some(&Domain::Idle) => Stage::Idle,
            _ if span.completion.is_some_and(|completion| at >= completion) => Stage::Completion,
            Some(stage) => stage,
            None => side(flow, visit),
        };
        let (who, tally) = (flow.who(visit), visit.tally());
        let to = visit.at - start + tally.instructions;
        match runs.last_mut() {
            Some(run) if run.stage == stage && run.who == who => {
                run.to = to;
                run.tally += tally;
            }
            _ => runs.push(Run { from: visit.at - start, to, who, stage, tally }),
        }
    }
    runs
}

/// The stage that certain functions of Xen begin.
fn enters(flow: &Flow<'_>, visit: &Visit<'_>) -> Option<Stage> {
    match plain(&flow.function(visit.block)?.name) {
        "schedule" | "sched_context_switch" | "context_switch" => Some(Stage::Switch),
        "do_grant_table_op" | "do_event_channel_op" | "evtchn_send" => Some(Stage::GrantAndEvent),
        _ => None,
    }
}

/// Whether a kernel function works on grants or events.
fn kernel_grants(flow: &Flow<'_>, visit: &Visit<'_>) -> Option<Stage> {
    let name = &flow.function(visit.block)?.name;
    let is = visit.mode() == Mode::Kernel
        && (name.starts_with("gnttab_") || name == "notify_remote_via_irq");
    is.then_some(Stage::GrantAndEvent)
}

fn side(flow: &Flow<'_>, visit: &Visit<'_>) -> Stage {
    match flow.domain(visit) {
        Some(Domain::Xen(0)) => Stage::Driver,
        _ => Stage::Guest,
    }
}

/// The sums of each stage that occurs, in the order of stages.
pub fn sums(runs: &[Run]) -> Vec<(Stage, Tally)> {
    let sum = |stage: Stage| {
        let mut tally = Tally::default();
        runs.iter().filter(|run| run.stage == stage).for_each(|run| tally += run.tally);
        (stage, tally)
    };
    Stage::ALL.into_iter().map(sum).filter(|(_, tally)| *tally != Tally::default()).collect()
}
