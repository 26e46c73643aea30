//! Chains of calls as names, for folded stacks and flame graphs.

use crate::call_graph::{CallGraph, label};
use crate::event::Event;
use crate::filter::FilterArgs;
use crate::summary::{Summary, function_name};

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
