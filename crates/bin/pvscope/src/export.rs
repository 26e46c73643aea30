//! `pvscope export`: a recording in the formats of other tools.

mod callgrind;
mod firefox;
mod objects;
mod stacks;
#[cfg(test)]
pub mod tests;

use std::path::PathBuf;

use ::report::html::FlameGraph;
use clap::{Args, ValueEnum};

use crate::call_graph::CallGraph;
use crate::error::{Error, Result};
use crate::event::Event;
use crate::filter::{EventFilter, FilterArgs};
use crate::model_args::CostArgs;
use crate::report::show;
use crate::summary::Summary;
use objects::Objects;
use stacks::Stack;

/// Arguments of `pvscope export`.
#[derive(Args)]
pub struct ExportArgs {
    /// A recording of `pvscope run`.
    file: PathBuf,
    /// The format.
    #[arg(long, value_enum)]
    format: Format,
    /// The file to write [default: standard output].
    #[arg(long, short, value_name = "FILE")]
    out: Option<PathBuf>,
    #[command(flatten)]
    filter: FilterArgs,
    #[command(flatten)]
    within: EventFilter,
    /// What the widths of --format svg and the numbers of --format folded mean.
    #[arg(long, value_enum, default_value_t)]
    event: Event,
    #[command(flatten)]
    costs: CostArgs,
}

/// A format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// For KCachegrind: counts by source line and instruction, with calls if the recording has a call graph. With --out FILE the
    /// code that ran is written too, to the folder FILE.objects.
    Callgrind,
    /// A line per chain of calls, or per function without a call graph, for tools that draw flame graphs, such as
    /// inferno-flamegraph.
    Folded,
    /// A flame graph: a picture of the same.
    Svg,
    /// For profiler.firefox.com: domains as processes, and the order of the recorded flow as time.
    Firefox,
}

/// Runs the command.
pub fn run(args: &ExportArgs) -> Result<()> {
    let recording = scope_result::read(&args.file)?;
    let summary = Summary::new(&recording, args.costs.read(&recording.config)?);
    let summary = summary.only(|part| args.filter.selects(part));
    if args.format == Format::Callgrind && !args.within.is_empty() {
        let what = "--within needs chains of calls: use --format folded or svg, or `pvscope calls`";
        return Err(Error::Usage(what.to_owned()));
    }
    if args.format == Format::Firefox && !(args.filter.is_empty() && args.within.is_empty()) {
        let what = "the flow of --format firefox has an order: it cannot be filtered";
        return Err(Error::Usage(what.to_owned()));
    }
    let graph = if recording.calls.is_empty() && args.within.is_empty() {
        None
    } else {
        Some(CallGraph::new(&recording, &args.within)?)
    };
    let stacks = || match &graph {
        Some(graph) => stacks::of_calls(graph, &summary, args.event, &args.filter),
        None => stacks::of_functions(&summary, args.event),
    };
    let text = match args.format {
        Format::Callgrind => {
            let objects = |out| callgrind::objects(&summary, &args.filter, out);
            let objects = args.out.as_deref().map(objects).transpose()?;
            objects.iter().try_for_each(Objects::write)?;
            callgrind::text(&summary, graph.as_ref(), &args.filter, objects.as_ref())
        }
        Format::Folded => stacks::text(&stacks()),
        Format::Svg => flame_graph(&recording.work.what, args.event, &stacks()).document(),
        Format::Firefox => firefox::json(&recording)?,
    };
    match &args.out {
        Some(path) => ::report::write_atomic(path, text.as_bytes())
            .map_err(|error| Error::Usage(error.to_string())),
        None => show(&text),
    }
}

fn flame_graph(what: &str, event: Event, stacks: &[Stack]) -> FlameGraph {
    let graph = FlameGraph::new(what, event.name());
    stacks.iter().fold(graph, |graph, stack| graph.stack(&stack.names, stack.weight))
}
