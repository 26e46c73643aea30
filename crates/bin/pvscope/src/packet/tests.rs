use scope_model::{Costs, Counters};
use scope_result::{Block, CallKind, CallNode, Domain, Function, Recording, Step, Work};

use super::span::Span;
use super::stages::Stage;
use super::*;
use crate::packet::flow::{Line, Row, brief, by_function, fold, lines};

const KERNEL: u64 = 0xffff_ffff_8100_0000;
const HYPERVISOR: u64 = 0xffff_82d0_4000_0000;
const DOM0: u8 = 0;
const GUEST: u8 = 1;

/// A recording whose flow has the calls `(domain, "module:function")`. A name that begins with `+` continues the function. Each block has two instructions and misses one line.
fn recording(calls: &[(u8, &str)]) -> Recording {
    let mut recording = Recording {
        domains: vec![Domain::Xen(0), Domain::Xen(1)],
        functions: vec![Function::default()],
        work: Work { what: "a test".to_owned(), ..Work::default() },
        ..Recording::default()
    };
    for (domain, call) in calls {
        let goes_on = call.starts_with('+');
        let (module, name) = call.trim_start_matches('+').split_once(':').expect("module:function");
        let function = function(&mut recording, module, name);
        let block = (function - 1) * 2 + u32::from(goes_on);
        recording.flow.push(Step { block, domain: *domain, l1: 1, ..Step::default() });
    }
    recording
}

/// The index of a function; adds it with two blocks if it is new.
fn function(recording: &mut Recording, module: &str, name: &str) -> u32 {
    let function = Function::new(module, name);
    let known = recording.functions.iter().position(|other| *other == function);
    let place = known.unwrap_or(recording.functions.len());
    let place_number = u32::try_from(place).expect("few functions");
    if known.is_none() {
        recording.functions.push(function);
        let base = match module {
            "xen" => HYPERVISOR,
            "pvnet" | "iperf3" => 0x40_0000,
            _ => KERNEL,
        };
        for part in 0..2 {
            let block = Block::at(base + 0x100 * place as u64 + 0x10 * part);
            recording.blocks.push(Block { instructions: 2, function: place_number, ..block });
        }
    }
    place_number
}

fn shown(recording: &Recording, all: bool) -> Vec<(String, bool, u32, u64)> {
    let flow = Flow::new(recording);
    let line = |line: Line| {
        let name = recording.functions[line.function as usize].name.clone();
        (name, line.entered, line.times, line.tally.instructions)
    };
    fold(&lines(&flow, &flow.visits, all)).into_iter().map(line).collect()
}

fn row(name: &str, entered: bool, times: u32, instructions: u64) -> (String, bool, u32, u64) {
    (name.to_owned(), entered, times, instructions)
}

#[test]
fn each_call_has_a_line_and_code_after_a_return_is_the_callers() {
    let calls = [(0, "v:a"), (0, "v:b"), (0, "v:__x86_return_thunk"), (0, "+v:a"), (0, "v:c")];
    let recording = recording(&calls);
    let expected = [row("a", true, 1, 4), row("b", true, 1, 4), row("c", true, 1, 2)];
    assert_eq!(shown(&recording, false), expected);
    let all = shown(&recording, true);
    assert_eq!(all.len(), 5);
    assert_eq!(all[3], row("a", false, 1, 2));
}

#[test]
fn with_a_call_graph_lines_nest() {
    let calls = [
        (1, "v:send"),
        (1, "v:xmit"),
        (1, "xen:hypercall"),
        (1, "+v:xmit"),
        (1, "+v:send"),
        (1, "v:timer"),
        (1, "+v:send"),
        (1, "v:xmit"),
    ];
    let mut recording = recording(&calls);
    let node = |parent, kind, block| CallNode {
        parent,
        kind,
        block,
        site: None,
        domain: 1,
        space: 0,
        counters: Counters::default(),
    };
    recording.calls = vec![
        node(0, CallKind::Unknown, 0),
        node(0, CallKind::Unknown, 0),
        node(1, CallKind::Call, 2),
        node(2, CallKind::Trap, 4),
        node(0, CallKind::Interrupt, 6),
    ];
    let nodes = [1, 2, 3, 2, 1, 4, 1, 2];
    recording.flow.iter_mut().zip(nodes).for_each(|(step, node)| step.node = node);
    let flow = Flow::new(&recording);
    let lines = lines(&flow, &flow.visits, false);
    let shown: Vec<_> = lines
        .iter()
        .map(|line| (line.node(), line.depth, line.entered, line.tally.instructions))
        .collect();
    let expected =
        [(1, 0, false, 6), (2, 1, true, 4), (3, 2, true, 2), (4, 0, true, 2), (2, 1, true, 2)];
    assert_eq!(shown, expected);
}

#[test]
fn a_function_that_ran_before_continues() {
    let recording = recording(&[(0, "+v:a"), (0, "v:b"), (0, "+v:a")]);
    assert_eq!(shown(&recording, false), [row("a", false, 1, 4), row("b", true, 1, 2)]);
}

#[test]
fn the_same_function_for_another_domain_is_another_line() {
    let recording = recording(&[(0, "xen:a"), (1, "xen:a"), (0, "xen:b"), (1, "+xen:a")]);
    let rows = shown(&recording, false);
    let counts: Vec<_> = rows.iter().map(|(name, _, _, count)| (name.as_str(), *count)).collect();
    assert_eq!(counts, [("a", 2), ("a", 4), ("b", 2)]);
}

#[test]
fn loops_are_folded_and_counts_are_complete() {
    let mut calls = vec![(0, "v:start")];
    for _ in 0..5 {
        calls.extend([(0, "v:a"), (0, "v:b")]);
    }
    calls.extend([(0, "v:a"), (0, "v:c"), (0, "v:c"), (0, "v:c")]);
    let recording = recording(&calls);
    let rows = shown(&recording, false);
    // Nothing else runs between the calls of c, so the three are one line.
    let expected = [
        row("start", true, 1, 2),
        row("a", true, 5, 10),
        row("b", true, 5, 10),
        row("a", true, 1, 2),
        row("c", true, 1, 6),
    ];
    assert_eq!(rows, expected);
    let sum: u64 = rows.iter().map(|(_, _, _, count)| count).sum();
    assert_eq!(sum, 2 * calls.len() as u64);
}

#[test]
fn in_brief_each_function_is_shown_once_and_counts_are_complete() {
    let calls = [
        (0, "v:a"),
        (0, "v:b"),
        (0, "v:a"),
        (0, "v:b"),
        (1, "v:a"),
        (1, "v:b"),
        (0, "v:b"),
        (1, "v:b"),
        (0, "v:c"),
    ];
    let recording = recording(&calls);
    let flow = Flow::new(&recording);
    let lines = lines(&flow, &flow.visits, false);
    let shown: Vec<_> = brief(&lines)
        .into_iter()
        .map(|row| match row {
            Row::First(line) => (line.who.to_string(), 0, line.tally.instructions),
            Row::Known(known) => (known.who.to_string(), known.lines, known.tally.instructions),
        })
        .collect();
    let row = |who: &str, lines, instructions| (who.to_owned(), lines, instructions);
    let expected = [
        row("dom0", 0, 2),
        row("dom0", 0, 2),
        row("dom0", 2, 4),
        row("domU 1", 0, 2),
        row("domU 1", 0, 2),
        row("dom0", 1, 2),
        row("domU 1", 1, 2),
        row("dom0", 0, 2),
    ];
    assert_eq!(shown, expected);
    let sums = by_function(&lines);
    assert_eq!(sums.len(), 5);
    let b = sums.iter().find(|(who, function, ..)| who.to_string() == "dom0" && *function == 2);
    assert_eq!(b.map(|(_, _, calls, tally)| (*calls, tally.instructions)), Some((3, 6)));
}

/// A transmit's beginning in the guest, up to the event.
const GUEST_SENDS: [(u8, &str); 9] = [
    (GUEST, "iperf3:write"),
    (GUEST, "vmlinux:tcp_sendmsg_locked"),
    (GUEST, "vmlinux:__tcp_transmit_skb"),
    (GUEST, "xen_netfront:xennet_start_xmit"),
    (GUEST, "vmlinux:gnttab_grant_foreign_access_ref"),
    (GUEST, "vmlinux:__tcp_transmit_skb"),
    (GUEST, "xen_netfront:xennet_start_xmit"),
    (GUEST, "xen:evtchn_send"),
    (DOM0, "xen:common/sched/core.c#sched_context_switch"),
];

const GUEST_REAPS: [(u8, &str); 5] = [
    (GUEST, "xen:context_switch"),
    (GUEST, "xen_netfront:xennet_tx_interrupt"),
    (GUEST, "xen_netfront:xennet_tx_buf_gc"),
    (GUEST, "+xen_netfront:xennet_tx_interrupt"),
    (GUEST, "vmlinux:later"),
];

fn transmit(served: &[(u8, &str)]) -> Recording {
    recording(&[&GUEST_SENDS[..], served, &GUEST_REAPS[..]].concat())
}

fn only(recording: &Recording, direction: Direction) -> Vec<Span> {
    span::spans(&Flow::new(recording), direction)
}

#[test]
fn a_transmit_through_xen_netback_ends_when_the_guest_has_its_buffers_back() {
    let recording = transmit(&[
        (DOM0, "xen_netback:xenvif_tx_action"),
        (DOM0, "vmlinux:netif_receive_skb"),
        // The event of an acknowledgement is no response.
        (DOM0, "xen:evtchn_send"),
        (DOM0, "xen_netback:xenvif_idx_release"),
    ]);
    let spans = only(&recording, Direction::Tx);
    assert_eq!(spans.len(), 2);
    let first = spans[0];
    assert!(first.complete);
    assert_eq!((first.from, first.to, first.frames), (1, 16, 2));
    assert_eq!((first.taken, first.done), (Some(9), Some(12)));
    // The second was sent in the same call, so it begins with its own segment.
    assert_eq!((spans[1].from, spans[1].to, spans[1].frames), (5, 16, 1));
}

#[test]
fn a_transmit_through_pvnet_is_answered_by_an_event() {
    let recording = transmit(&[
        (DOM0, "pvnet:netback::tx::Tx::receive"),
        (DOM0, "tun:tun_get_user"),
        (DOM0, "xen:evtchn_send"),
    ]);
    let span = only(&recording, Direction::Tx)[0];
    assert!(span.complete);
    assert_eq!((span.from, span.taken, span.done, span.to), (1, Some(9), Some(11), 15));
    // If the program has no names, the tap's functions mark the progress.
    let recording = transmit(&[(DOM0, "tun:tun_get_user"), (DOM0, "xen:evtchn_send")]);
    assert!(only(&recording, Direction::Tx)[0].complete);
}

#[test]
fn a_receive_ends_when_the_guest_has_polled() {
    for served in [
        [(DOM0, "xen_netback:xenvif_start_xmit"), (DOM0, "xen_netback:xenvif_rx_skb")],
        [(DOM0, "tun:tun_net_xmit"), (DOM0, "tun:tun_do_read")],
    ] {
        let ends = [
            (DOM0, "xen:evtchn_send"),
            (GUEST, "xen:context_switch"),
            (GUEST, "vmlinux:__napi_poll"),
            (GUEST, "xen_netfront:xennet_poll"),
            (GUEST, "vmlinux:tcp_v4_rcv"),
            (GUEST, "xen_netfront:xennet_alloc_rx_buffers"),
            (GUEST, "+vmlinux:__napi_poll"),
        ];
        let starts = [(DOM0, "vmlinux:tcp_sendmsg_locked"), (DOM0, "vmlinux:__tcp_transmit_skb")];
        let recording = recording(&[&starts[..], &served[..], &ends[..]].concat());
        let span = only(&recording, Direction::Rx)[0];
        assert!(span.complete);
        assert_eq!((span.from, span.to, span.completion), (0, 10, Some(9)));
        assert_eq!(only(&recording, Direction::Tx), []);
    }
}

#[test]
fn stages_add_up_to_the_span() {
    let recording = transmit(&[
        (DOM0, "xen_netback:xenvif_tx_action"),
        (DOM0, "xen:do_grant_table_op"),
        (DOM0, "xen_netback:xenvif_idx_release"),
    ]);
    let packet = Packet::pick(&Flow::new(&recording), Direction::Tx, None, false).expect("one");
    let stages: Vec<_> = stages::sums(&packet.runs)
        .into_iter()
        .map(|(stage, tally)| (stage, tally.instructions / 2))
        .collect();
    assert_eq!(
        stages,
        [
            (Stage::Guest, 5),
            (Stage::GrantAndEvent, 3),
            (Stage::Switch, 2),
            (Stage::Driver, 1),
            (Stage::Completion, 3),
        ]
    );
    let of_lines: u64 = packet.lines.iter().map(|line| line.tally.instructions).sum();
    assert_eq!(of_lines, packet.tally().instructions);
    assert_eq!(packet.missing(), None);
}

#[test]
fn a_flow_that_ends_early_says_how_far_it_came() {
    let whole = transmit(&[
        (DOM0, "xen_netback:xenvif_tx_action"),
        (DOM0, "xen_netback:xenvif_idx_release"),
    ]);
    for (steps, words) in
        [(9, "before the other side"), (10, "took the packet, before"), (11, "notified the guest")]
    {
        let mut recording = whole.clone();
        recording.flow.truncate(steps);
        let packet = Packet::pick(&Flow::new(&recording), Direction::Tx, None, false).expect("one");
        let missing = packet.missing().expect("something is missing");
        assert!(missing.contains(words) && missing.contains("--flow"), "{missing}");
        assert!(packet.lead(&Costs::default()).contains("the end of the flow"));
        assert_eq!(packet.span.to, steps);
    }
}

#[test]
fn errors_say_what_to_do() {
    let error = |recording: &Recording, nth| {
        let packet = Packet::pick(&Flow::new(recording), Direction::Tx, nth, false);
        packet.err().expect("an error").to_string()
    };
    assert!(error(&recording(&[]), None).contains("has no flow: `pvscope run --flow N`"));
    let mut other = recording(&[(DOM0, "vmlinux:f")]);
    assert!(error(&other, None).contains("with a larger N has one"));
    other.domains = vec![Domain::Machine];
    assert!(error(&other, None).contains("has no Xen"));
    let text = error(&recording(&GUEST_SENDS), Some(3));
    assert!(text.starts_with("the flow has 2 packets, and no number 3"), "{text}");
}

#[test]
fn the_direction_is_that_of_the_bytes() {
    let with = |name: &str| {
        let mut recording = recording(&[(GUEST, name)]);
        let counters = scope_model::Counters { instructions: 9, ..Default::default() };
        recording.blocks[0].counters = vec![(GUEST, counters)];
        Direction::of(&recording)
    };
    assert_eq!(with("xen_netfront:xennet_tx_setup_grant"), Direction::Tx);
    assert_eq!(with("xen_netfront:xennet_alloc_rx_buffers"), Direction::Rx);
    assert_eq!(with("vmlinux:f"), Direction::Tx);
}

#[test]
fn the_document_and_the_page_have_the_same_packet() {
    let recording = transmit(&[
        (DOM0, "xen_netback:xenvif_tx_action"),
        (DOM0, "xen_netback:xenvif_idx_release"),
    ]);
    let packet = Packet::pick(&Flow::new(&recording), Direction::Tx, Some(2), false).expect("one");
    let costs = Costs::default();
    let document = document::checked(&PacketData::new(&packet, &costs));
    assert_eq!((&document["nth"], &document["complete"]), (&2.into(), &true.into()));
    assert_eq!(document["lines"][0]["function"], "__tcp_transmit_skb");
    assert_eq!(document["stages"][0]["stage"], "guest");
    let html = page::page(&packet, &costs).to_html();
    assert!(html.contains("<svg") && html.contains("xennet_tx_buf_gc"));
    let flow = Flow::new(&recording);
    let distribution = Distribution::new(&flow, Direction::Tx, &costs).expect("a complete packet");
    document::checked(&distribution.data());
}
