//! `pvscope export`: a recording in the formats of other tools.

mod callgrind;
mod firefox;
mod objects;
#[cfg(test)]
pub mod tests;

use std::fmt::Write as _;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use objects::Objects;
use report::html::FlameGraph;

use crate::call_graph::{CallGraph, label};
use crate::error::{Error, Result};
use crate::filter::{EventFilter, FilterArgs};
use crate::model_args::CostArgs;
use crate::report::show;
use crate::summary::Event;
use crate::summary::{Summary, function_name};

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
        Some(graph) => of_calls(graph, &summary, args.event, &args.filter),
        None => of_functions(&summary, args.event),
    };
    let text = match args.format {
        Format::Callgrind => {
            let objects = |out| callgrind::objects(&summary, &args.filter, out);
            let objects = args.out.as_deref().map(objects).transpose()?;
            objects.iter().try_for_each(Objects::write)?;
            callgrind::text(&summary, graph.as_ref(), &args.filter, objects.as_ref())
        }
        Format::Folded => text(&stacks()),
        Format::Svg => flame_graph(&recording.work.what, args.event, &stacks()).document(),
        Format::Firefox => firefox::json(&recording)?,
    };
    match &args.out {
        Some(path) => Ok(::report::write_atomic(path, text.as_bytes())?),
        None => show(&text),
    }
}

fn flame_graph(what: &str, event: Event, stacks: &[Stack]) -> FlameGraph {
    let graph = FlameGraph::new(what, event.name());
    stacks.iter().fold(graph, |graph, stack| graph.stack(&stack.names, stack.weight))
}

/// A chain of calls and its weight.
#[derive(Clone, Debug, PartialEq)]
pub struct Stack {
    /// Who works, and the functions from the first caller on.
    pub names: Vec<String>,
    /// The weight of the last function alone.
    pub weight: f64,
}

/// The stacks of a call graph, of the functions that the filter selects.
pub fn of_calls(
    graph: &CallGraph<'_>,
    summary: &Summary<'_>,
    event: Event,
    filter: &FilterArgs,
) -> Vec<Stack> {
    let selected = graph.nodes().filter(|(number, _)| filter.selects(graph.part(*number)));
    let stacks = selected.map(|(number, node)| {
        let chain = graph.chain(number);
        let first = chain.first().map(|first| graph.part(*first).who.to_string());
        let names = chain.iter().map(|node| label(&graph.part(*node).function));
        let weight = event.of(&node.counters, summary.costs());
        Stack { names: first.into_iter().chain(names).collect(), weight }
    });
    stacks.filter(|stack| stack.weight >= 0.5).collect()
}

/// Without a call graph: who works, the module, the function.
pub fn of_functions(summary: &Summary<'_>, event: Event) -> Vec<Stack> {
    let parts = summary.by(Clone::clone);
    let stacks = parts.into_iter().map(|(part, counters)| {
        let (module, name) = function_name(&part.function);
        let names = vec![part.who.to_string(), module, name];
        Stack { names, weight: event.of(&counters, summary.costs()) }
    });
    stacks.filter(|stack| stack.weight >= 0.5).collect()
}

/// A line for each stack.
pub fn text(stacks: &[Stack]) -> String {
    let mut text = String::new();
    // These two letters have a meaning in the format.
    let plain = |name: &String| name.replace([';', '\n'], " ");
    for stack in stacks {
        let names: Vec<String> = stack.names.iter().map(plain).collect();
        let _ = writeln!(text, "{} {:.0}", names.join(";"), stack.weight);
    }
    text
}
