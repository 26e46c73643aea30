//! Folded stacks for tools that draw flame graphs: a line `who;function;function weight` for each chain of calls.

use std::fmt::Write as _;

use super::stacks::Stack;

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
    use crate::call_graph::{CallGraph, tests::recording as with_calls};
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
