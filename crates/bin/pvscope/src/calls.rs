//! `pvscope calls`: the call graph as tables, or as a document for programs.

mod processes;
mod tables;

use std::path::PathBuf;

use clap::Args;
use document::Document;
use schemars::JsonSchema;
use scope_model::{Costs, Counters};
use serde::Serialize;

use crate::call_graph::CallGraph;
use crate::error::Result;
use crate::filter::{EventFilter, FilterArgs};
use crate::model_args::CostArgs;
use crate::report::{json, show};
use crate::summary::{Event, Part, function_name, mode_name};

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
    let bold = ::report::wants_bold();
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

/// All functions and calls.
#[derive(JsonSchema, Serialize)]
pub struct CallsData {
    functions: Vec<FunctionRow>,
    calls: Vec<CallRow>,
}

impl Document for CallsData {
    const SCHEMA: &str = "pvscope-calls/1";
}

#[derive(JsonSchema, Serialize)]
struct FunctionRow {
    who: String,
    code: &'static str,
    module: String,
    function: String,
    calls: u64,
    exclusive: Counts,
    inclusive: Counts,
}

/// A call: the caller and the callee are indices of functions.
#[derive(JsonSchema, Serialize)]
struct CallRow {
    caller: usize,
    callee: usize,
    calls: u64,
    inclusive: Counts,
}

/// Counts, in total.
#[derive(JsonSchema, Serialize)]
struct Counts {
    model_cycles: f64,
    instructions: u64,
    l1i_misses: u64,
    l1d_misses: u64,
    l2_misses: u64,
    memory: u64,
    itlb_misses: u64,
    dtlb_misses: u64,
    page_walks: u64,
}

impl Counts {
    fn new(counters: &Counters, costs: &Costs) -> Self {
        Self {
            model_cycles: costs.cycles(counters),
            instructions: counters.instructions,
            l1i_misses: counters.l1i_misses,
            l1d_misses: counters.read_misses + counters.write_misses,
            l2_misses: counters.l2i_misses + counters.l2d_misses,
            memory: counters.l3_misses,
            itlb_misses: counters.itlb_misses,
            dtlb_misses: counters.dtlb_misses,
            page_walks: counters.page_walks,
        }
    }
}

impl CallsData {
    /// The functions that the filter selects, and the calls between them.
    pub fn new(graph: &CallGraph<'_>, costs: &Costs, filter: &FilterArgs) -> Self {
        let functions = graph.functions();
        let selected: Vec<(&Part, _)> =
            functions.into_iter().filter(|(part, _)| filter.selects(part)).collect();
        let index = |part: &Part| selected.iter().position(|(own, _)| *own == part);
        let calls = graph.calls().into_iter().filter_map(|((caller, callee), cost)| {
            let inclusive = Counts::new(&cost.inclusive, costs);
            Some(CallRow {
                caller: index(caller)?,
                callee: index(callee)?,
                calls: cost.calls,
                inclusive,
            })
        });
        let calls = calls.collect();
        let functions = selected.iter().map(|(part, cost)| {
            let (module, function) = function_name(&part.function);
            FunctionRow {
                who: part.who.to_string(),
                code: mode_name(part.mode),
                module,
                function,
                calls: cost.calls,
                exclusive: Counts::new(&cost.exclusive, costs),
                inclusive: Counts::new(&cost.inclusive, costs),
            }
        });
        Self { functions: functions.collect(), calls }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call_graph::tests::recording;
    use crate::filter::EventFilter;

    #[test]
    fn calls_refer_to_functions() {
        let recording = recording();
        let graph = CallGraph::new(&recording, &EventFilter::default()).unwrap();
        let document = CallsData::new(&graph, &Costs::default(), &FilterArgs::default());
        let json = document::checked(&document);
        let name = |index: &serde_json::Value| {
            let index = usize::try_from(index.as_u64().unwrap()).unwrap();
            json["functions"][index]["function"].as_str().unwrap().to_owned()
        };
        let calls = json["calls"].as_array().unwrap();
        let pairs: Vec<_> =
            calls.iter().map(|call| (name(&call["caller"]), name(&call["callee"]))).collect();
        assert!(pairs.contains(&("write".to_owned(), "sys_write".to_owned())), "{pairs:?}");
        assert_eq!(pairs.len(), 5);
        let total = json["functions"].as_array().unwrap().iter();
        let exclusive = total.map(|row| row["exclusive"]["instructions"].as_u64().unwrap());
        assert_eq!(exclusive.sum::<u64>(), recording.instructions);
    }
}
