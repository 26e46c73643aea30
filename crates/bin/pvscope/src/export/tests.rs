//! A recording that all formats can show.

use scope_model::Counters;
use scope_result::{Block, Domain, Function, Mode, Recording, Step, Work};

/// Three functions: of Xen, of dom0's kernel with a name that needs quotes, and without a name in a program.
pub fn recording() -> Recording {
    let block = |address, function, domain: u8, instructions| Block {
        address,
        // nopl 0x0(%rax,%rax,1)
        code: vec![0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0],
        instructions: 1,
        mode: Mode::of(address, None),
        space: 0,
        domain,
        function,
        counters: vec![(domain, Counters { executions: 1, instructions, ..Counters::default() })],
    };
    let function =
        |module: &str, name: &str| Function { module: module.to_owned(), name: name.to_owned() };
    let step = |block, domain| Step { block, domain, ..Step::default() };
    Recording {
        instructions: 111,
        domains: vec![Domain::Xen(0), Domain::Xen(1)],
        functions: vec![
            Function::default(),
            function("xen", "do_iret"),
            function("vmlinux", "tcp \"ack\""),
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
