//! Jumps, links and thunks, one by one.

use super::*;
use crate::functions::KnownFunction;

/// A program calls a library's function through its table of links, which only jumps.
#[test]
fn a_jump_from_a_table_of_links_is_to_another_function() {
    let mut graph = CallGraph::new(0);
    let user = Some(Mode::User);
    let block = |start, ending| BlockFlow {
        start,
        end: start + 5,
        ending,
        mode: user,
        ..BlockFlow::default()
    };
    for flow in [
        block(0x1000, Ending::IndirectCall),
        block(0x2000, Ending::IndirectJump),
        block(0x7000, Ending::Return),
        block(0x1005, Ending::Next),
    ] {
        graph.add(flow);
    }
    let slots = [Some(0x800), None, Some(0x800), None];
    let mut last = Executed::default();
    for (number, slot) in (0..).zip(slots) {
        graph.arrive(last, BlockId(number), 0, u64::from(number));
        last = Executed { block: Some(BlockId(number)), slot };
    }
    let nodes = graph.finish(4, &[]);
    let seen = nodes.iter().skip(1).map(|node| (node.kind, node.block, node.counters.instructions));
    let expected = [(CallKind::Unknown, 0, 2), (CallKind::Call, 1, 1), (CallKind::Jump, 2, 1)];
    assert_eq!(seen.collect::<Vec<_>>(), expected);
}

/// The kernel's entry runs into the function behind it within a block, which ends with a jump over an alternative.
#[test]
fn a_direct_jump_into_the_middle_of_a_function_is_no_return() {
    let mut graph = CallGraph::new(0);
    let known = |start| Some(KnownFunction { number: 0, start, entry: EntryKind::None });
    let kernel = Some(Mode::Kernel);
    let jump = BlockFlow {
        start: 0x1000,
        end: 0x1020,
        ending: Ending::Jump,
        target: Some(0x1030),
        function: known(0x1000),
        mode: kernel,
        ..BlockFlow::default()
    };
    let middle = BlockFlow { start: 0x1030, end: 0x1040, function: known(0x1010), ..jump };
    graph.add(jump);
    graph.add(middle);
    graph.arrive(Executed::default(), BlockId(0), 0, 0);
    graph.arrive(Executed { block: Some(BlockId(0)), slot: None }, BlockId(1), 0, 1);
    let nodes = graph.finish(2, &[]);
    assert_eq!((nodes[2].parent, nodes[2].kind), (1, CallKind::Jump));
}

/// The nodes of a retpoline. It calls over its own trap, writes the target over the return address and returns. The target returns to
/// the retpoline's caller. `thunk` is how the retpoline's function is known.
fn retpoline(thunk: EntryKind) -> Vec<CallNode> {
    let mut graph = CallGraph::new(0);
    let (caller, trampoline, target) = (0x1000, 0x2000, 0x3000);
    let block = |start, end, ending, target, function| {
        let entry = if function == trampoline { thunk } else { EntryKind::None };
        let function = Some(KnownFunction { number: 0, start: function, entry });
        let mode = Some(Mode::Kernel);
        BlockFlow { start, end, ending, target, function, mode, ..BlockFlow::default() }
    };
    for flow in [
        block(caller, 0x1005, Ending::Call, Some(trampoline), caller),
        block(trampoline, 0x2005, Ending::Call, Some(0x200a), trampoline),
        block(0x200a, 0x2010, Ending::Return, None, trampoline),
        block(target, 0x3001, Ending::Return, None, target),
        block(0x1005, 0x1006, Ending::Next, None, caller),
    ] {
        graph.add(flow);
    }
    let slots = [Some(0x800), Some(0x7f8), Some(0x7f8), Some(0x800), None];
    let mut last = Executed::default();
    for (number, slot) in (0..).zip(slots) {
        graph.arrive(last, BlockId(number), 0, u64::from(number));
        last = Executed { block: Some(BlockId(number)), slot };
    }
    graph.finish(5, &[]).into_iter().skip(1).collect()
}

#[test]
fn a_return_to_an_address_that_was_written_is_a_jump() {
    let nodes = retpoline(EntryKind::None);
    let seen = nodes
        .iter()
        .map(|node| (node.parent, node.kind, node.block, node.counters.instructions))
        .collect::<Vec<_>>();
    let expected =
        [(0, CallKind::Unknown, 0, 2), (1, CallKind::Call, 1, 2), (2, CallKind::Jump, 3, 1)];
    assert_eq!(seen, expected);
}

/// The same retpoline, known as a thunk: the target has the retpoline's caller.
#[test]
fn what_a_retpoline_leads_to_is_called_by_whoever_called_the_retpoline() {
    let nodes = retpoline(EntryKind::Thunk);
    let seen: Vec<_> =
        nodes.iter().map(|node| (node.parent, node.kind, node.block, node.site)).collect();
    let call = |block| (1, CallKind::Call, block, Some(0));
    assert_eq!(seen, [(0, CallKind::Unknown, 0, None), call(1), call(3)]);
}
