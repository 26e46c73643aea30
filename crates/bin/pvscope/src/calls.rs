//! `pvscope calls`: the call graph as tables.

mod data;
mod processes;
mod tables;

use std::io::{IsTerminal as _, stdout};
use std::path::PathBuf;

use clap::Args;

use crate::call_graph::CallGraph;
use crate::error::Result;
use crate::event::Event;
use crate::filter::{EventFilter, FilterArgs};
use crate::model_args::CostArgs;
use crate::report::{json, show};
pub use data::CallsData;

/// Arguments of `pvscope calls`.
#[derive(Args)]
pub struct CallsArgs {
    /// A recording of `pvscope run --call-graph`.
    file: PathBuf,
    /// Show who calls this function, and what it calls.
    #[arg(long, value_name = "NAME")]
    of: Option<String>,
    /// Show the tree of calls instead, to this depth.
    #[arg(long, value_name = "DEPTH", conflicts_with = "of")]
    tree: Option<usize>,
    /// Show the costs of processes instead: of the program, and of the kernel and the hypervisor for it.
    #[arg(long, conflicts_with_all = ["of", "tree", "json"])]
    processes: bool,
    /// The number of functions to show.
    #[arg(long, value_name = "N", default_value_t = 30)]
    top: usize,
    /// Order by this, and show shares of it.
    #[arg(long, value_enum, default_value_t)]
    event: Event,
    /// Print a JSON document of all functions and calls instead; its field `schema` names its form.
    #[arg(long, conflicts_with_all = ["of", "tree"])]
    json: bool,
    #[command(flatten)]
    filter: FilterArgs,
    #[command(flatten)]
    within: EventFilter,
    #[command(flatten)]
    costs: CostArgs,
}

/// Runs the command.
pub fn run(args: &CallsArgs) -> Result<()> {
    let recording = scope_result::read(&args.file)?;
    let costs = args.costs.read(&recording.config)?;
    let graph = CallGraph::new(&recording, &args.within)?;
    let view = tables::View { graph: &graph, costs, event: args.event, filter: &args.filter };
    let bold = stdout().is_terminal();
    if args.json {
        return show(&json(&CallsData::new(&graph, &costs, &args.filter))?);
    }
    if args.processes {
        return show(&processes::table(&graph, &costs, args.top).render(bold));
    }
    show(&match (&args.of, args.tree) {
        (Some(name), _) => view.neighbours(name, args.top, bold)?,
        (None, Some(depth)) => view.tree(depth, args.top).render(bold),
        (None, None) => view.functions(args.top).render(bold),
    })
}
