//! Chains of calls as names, for folded stacks and flame graphs.

use std::fmt::Write as _;

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

#[cfg(test)]
mod tests {
    use scope_model::Costs;

    use super::*;
    use crate::call_graph::CallGraph;
    use crate::call_graph::tests::recording as with_calls;
    use crate::event::Event;
    use crate::export::stacks::{of_calls, of_functions};
    use crate::export::tests::recording;
    use crate::filter::{EventFilter, FilterArgs};
    use crate::summary::Summary;

    #[test]
    fn a_function_has_a_line() {
        let recording = recording();
        let costs = Costs { instruction: 1.0, ..Costs::default() };
        let summary = Summary::new(&recording, costs);
        let expected =
            "dom0;vmlinux;tcp \"ack\" 100\nXen;xen;do_iret 10\ndomU 1;unknown;unknown 1\n";
        assert_eq!(text(&of_functions(&summary, Event::Cycles)), expected);
        let of_xen = summary.only(|part| part.function.module == "xen");
        assert_eq!(text(&of_functions(&of_xen, Event::Cycles)), "Xen;xen;do_iret 10\n");
    }

    #[test]
    fn a_chain_of_calls_has_a_line() {
        let recording = with_calls();
        let summary = Summary::new(&recording, Costs::default());
        let graph = CallGraph::new(&recording, &EventFilter::default()).unwrap();
        let stacks = of_calls(&graph, &summary, Event::Instructions, &FilterArgs::default());
        let expected = "machine;main 1\nmachine;main;write 10\nmachine;main;write;sys_write 100\n\
            machine;main;write;sys_write;sys_write 20\nmachine;main;write;sys_write;sys_write;copy 3000\n\
            machine;timer 10000\nmachine;timer;copy 500\n";
        assert_eq!(text(&stacks), expected);
    }
}
