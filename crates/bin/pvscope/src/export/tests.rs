//! A recording that all formats can show.

use scope_model::{Costs, Counters};
use scope_result::{Block, Domain, Function, Recording, Step, Work};

use super::{of_calls, of_functions, *};
use crate::call_graph::CallGraph;
use crate::call_graph::tests::recording as with_calls;
use crate::filter::{EventFilter, FilterArgs};
use crate::summary::{Event, Summary};

/// Three functions: of Xen, of dom0's kernel with a name that needs quotes, and without a name in a program.
pub fn recording() -> Recording {
    let block = |address, function, domain: u8, instructions| Block {
        // nopl 0x0(%rax,%rax,1)
        code: vec![0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0],
        domain,
        function,
        counters: vec![(domain, Counters { executions: 1, instructions, ..Counters::default() })],
        ..Block::at(address)
    };
    let step = |block, domain| Step { block, domain, ..Step::default() };
    Recording {
        instructions: 111,
        domains: vec![Domain::Xen(0), Domain::Xen(1)],
        functions: vec![
            Function::default(),
            Function::new("xen", "do_iret"),
            Function::new("vmlinux", "tcp \"ack\""),
        ],
        blocks: vec![
            block(0xffff_82d0_4000_0000, 1, 0, 10),
            block(0xffff_ffff_8100_0000, 2, 0, 100),
            block(0x40_0000, 0, 1, 1),
        ],
        flow: vec![step(1, 0), step(0, 0), step(1, 0), step(2, 1)],
        work: Work { what: "work".to_owned(), frames: 2, ..Work::default() },
        ..Recording::default()
    }
}

#[test]
fn a_function_has_a_line() {
    let recording = recording();
    let costs = Costs { instruction: 1.0, ..Costs::default() };
    let summary = Summary::new(&recording, costs);
    let expected = "dom0;vmlinux;tcp \"ack\" 100\nXen;xen;do_iret 10\ndomU 1;unknown;unknown 1\n";
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
