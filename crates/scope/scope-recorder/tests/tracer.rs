//! Records programs with known accesses, group by group and one by one.

use proptest::prelude::*;
use scope_model::{Counters, Flush, FlushSite, PhysicalMemory, Policy};
use scope_recorder::{
    AccessCallback, Arguments, ControlRegisters, Covers, GroupWord, Instrumentation, Tracer,
};
use scope_result::{Mode, Recording};

const ROOT: u64 = 0x1000;
const CODE: u64 = 0x40_0000;
const DATA: u64 = 0x60_0000;
/// The size of memory. Virtual and physical addresses are equal, in pages of 2 MiB.
const BYTES: u64 = 1 << 30;

/// Memory that contains only page tables.
struct Memory;

impl PhysicalMemory for Memory {
    fn read(&self, address: u64) -> Option<u64> {
        const PRESENT: u64 = 3;
        const LARGE: u64 = 1 << 7;
        (address < BYTES).then_some(match address {
            0x1000 => 0x2000 | PRESENT,
            0x2000 => 0x3000 | PRESENT,
            0x3000..0x4000 => ((address - 0x3000) / 8 * 0x20_0000) | LARGE | PRESENT,
            // Virtual processors, each of the domain with the same number.
            VCPUS..DOMAINS if address % STRUCT == VCPU_DOMAIN => address - VCPU_DOMAIN + STRUCTS,
            DOMAINS..DOMAINS_END if address.is_multiple_of(STRUCT) => (address - DOMAINS) / STRUCT,
            _ => 0,
        })
    }

    fn end(&self) -> u64 {
        BYTES
    }
}

/// Where virtual processors and domains lie in memory.
const VCPUS: u64 = 0x80_0000;
const STRUCTS: u64 = STRUCT << 15;
const DOMAINS: u64 = VCPUS + STRUCTS;
const DOMAINS_END: u64 = DOMAINS + STRUCTS;
const STRUCT: u64 = 32;
const VCPU_DOMAIN: u64 = 0x10;

#[derive(Clone, Copy)]
enum Register {
    Rsi,
    Rdi,
    Rsp,
}
use Register::{Rdi, Rsi, Rsp};

/// An access: its instruction, whether it writes, the register and the constant of its address, its bytes.
type Access = (usize, bool, Register, u64, u8);

/// Blocks as GNU as assembles them, and their accesses.
const BLOCKS: [(&[&[u8]], &[Access]); 6] = [
    // mov r8, [rsi]; mov r9, [rsi + 8]; lea rsi, [rsi + 32]; mov [rdi], r8; mov [rdi + 8], r9; mov r10, [rsi - 16]
    (
        &[
            &[0x4c, 0x8b, 0x06],
            &[0x4c, 0x8b, 0x4e, 0x08],
            &[0x48, 0x8d, 0x76, 0x20],
            &[0x4c, 0x89, 0x07],
            &[0x4c, 0x89, 0x4f, 0x08],
            &[0x4c, 0x8b, 0x56, 0xf0],
        ],
        &[
            (0, false, Rsi, 0, 8),
            (1, false, Rsi, 8, 8),
            (3, true, Rdi, 0, 8),
            (4, true, Rdi, 8, 8),
            (5, false, Rsi, 16, 8),
        ],
    ),
    // push rbp; push r12; mov [rsp + 128], rdi; add [rdi], ecx
    (
        &[&[0x55], &[0x41, 0x54], &[0x48, 0x89, 0xbc, 0x24, 0x80, 0, 0, 0], &[0x01, 0x0f]],
        &[
            (0, true, Rsp, 8, 8),
            (1, true, Rsp, 0, 8),
            (2, true, Rsp, 128, 8),
            (3, false, Rdi, 0, 4),
            (3, true, Rdi, 0, 4),
        ],
    ),
    // nop; bts [rdi], rax; mov rax, [rsi]: the code does not tell the address of the second.
    (
        &[&[0x90], &[0x48, 0x0f, 0xab, 0x07], &[0x48, 0x8b, 0x06]],
        &[(1, false, Rdi, 24, 8), (1, true, Rdi, 24, 8), (2, false, Rsi, 0, 8)],
    ),
    // test eax, eax; jne
    (&[&[0x85, 0xc0], &[0x75, 0x00]], &[]),
    // mov r8, [rsi]; jne
    (&[&[0x4c, 0x8b, 0x06], &[0x75, 0x00]], &[(0, false, Rsi, 0, 8)]),
    // mov r8, [rsi]
    (&[&[0x4c, 0x8b, 0x06]], &[(0, false, Rsi, 0, 8)]),
];

/// An executed block, and RSI, RDI and RSP before it.
type Executed = (usize, u64, u64, u64);

/// Makes the accesses of a group, the first at `address`.
fn make(tracer: &mut Tracer<Memory>, group: GroupWord, address: u64) {
    match group.shape() {
        (false, false) => tracer.group::<false, false>(group, address),
        (false, true) => tracer.group::<false, true>(group, address),
        (true, false) => tracer.group::<true, false>(group, address),
        (true, true) => tracer.group::<true, true>(group, address),
    }
}

fn record(program: &[Executed], check: bool) -> Recording {
    let arguments = Arguments { check, ..Arguments::default() };
    let start = ControlRegisters { cr3: ROOT, cr4: 1 << 7 };
    let mut tracer = Tracer::new(Memory, &arguments, start).unwrap();
    let plans: Vec<Instrumentation> = (0..)
        .zip(BLOCKS)
        .map(|(number, (code, _))| tracer.translate(CODE + number * 0x1010, code, None, false))
        .collect();
    for (block, rsi, rdi, rsp) in program {
        let plan = &plans[*block];
        if let Some(block) = plan.block {
            tracer.execute(block);
        }
        for (instruction, write, register, plus, bytes) in BLOCKS[*block].1 {
            let base = match register {
                Rsi => rsi,
                Rdi => rdi,
                Rsp => rsp,
            };
            let is_called = |callback: &&AccessCallback| {
                (callback.instruction, callback.write) == (*instruction, *write)
            };
            for callback in plan.accesses.iter().filter(is_called) {
                match callback.covers {
                    Covers::Access => tracer.data(base + plus, *bytes, *write),
                    Covers::Group(group) => make(&mut tracer, group, base + plus),
                }
            }
        }
    }
    tracer.finish().unwrap()
}

fn total(recording: &Recording) -> Counters {
    let mut total = Counters::default();
    recording.blocks.iter().for_each(|block| total += &block.total());
    total
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn groups_count_the_same_as_single_accesses(
        program in
            prop::collection::vec((0..BLOCKS.len(), 0u64..1 << 16, 0u64..1 << 16, 0u64..64), 1..2000),
    ) {
        // Each register has its own part of memory. The pages of all parts share slots.
        let at = |part: u64, more: u64| DATA + part * 0x40_0000 + more;
        let program: Vec<Executed> = program
            .into_iter()
            .map(|(block, rsi, rdi, rsp)| (block, at(0, rsi), at(1, rdi), at(2, rsp * 8)))
            .collect();
        let (groups, single) = (record(&program, false), record(&program, true));
        let (by_group, one_by_one) = (total(&groups), total(&single));
        let instructions: usize = program.iter().map(|executed| BLOCKS[executed.0].0.len()).sum();
        prop_assert_eq!(groups.instructions, instructions as u64);
        prop_assert_eq!(by_group.instructions, instructions as u64);
        let accesses = program.iter().flat_map(|executed| BLOCKS[executed.0].1);
        let writes = accesses.filter(|access| access.1).count() as u64;
        prop_assert_eq!(by_group.writes, writes);
        let same: [fn(&Counters) -> u64; 5] = [
            |counters| counters.l1i,
            |counters| counters.l1i_misses,
            |counters| counters.reads,
            |counters| counters.l2i_misses,
            |counters| counters.itlb_misses,
        ];
        for count in same {
            prop_assert_eq!(count(&by_group), count(&one_by_one));
        }
        // The groups of a block are used in another order than its accesses.
        let near: [fn(&Counters) -> u64; 3] = [
            |counters| counters.read_misses + counters.write_misses,
            |counters| counters.l2d_misses,
            |counters| counters.dtlb_misses,
        ];
        for count in near {
            let (one, other) = (count(&by_group), count(&one_by_one));
            prop_assert!(one.abs_diff(other) <= one / 50 + 4, "{} {}", one, other);
        }
    }
}

/// QEMU may translate one instruction again without the block's callback. Then it must not count as a block.
#[test]
fn only_a_block_of_a_single_instruction_has_a_callback_besides_that_of_its_access() {
    let start = ControlRegisters { cr3: ROOT, cr4: 1 << 7 };
    let mut tracer = Tracer::new(Memory, &Arguments::default(), start).unwrap();
    let mut has_own = |code| tracer.translate(CODE, code, None, false).block.is_some();
    assert_eq!([4, 5].map(|block: usize| has_own(BLOCKS[block].0)), [false, true]);
    tracer.finish().unwrap();
}

/// A domain that runs again after the idle one keeps its pages under `guest-global`; after another domain it does not.
#[test]
fn idling_flushes_no_pages_of_guests_and_another_domain_all() {
    const IDLE: u64 = 0x7fff;
    let vcpu = |domain: u64| VCPUS + domain * STRUCT;
    let misses = |domains: &[u64]| {
        let arguments =
            Arguments { switch: Some(1), vcpu_domain: VCPU_DOMAIN, ..Arguments::default() };
        let start = ControlRegisters { cr3: ROOT, cr4: 1 << 7 };
        let mut tracer = Tracer::new(Memory, &arguments, start).unwrap();
        let block = tracer.translate(CODE, BLOCKS[2].0, None, true).block.expect("a block");
        let mut before = 1;
        for domain in domains {
            tracer.execute(block);
            tracer.data(DATA, 8, false);
            tracer.switch(vcpu(before), vcpu(*domain));
            before = *domain;
        }
        tracer.execute(block);
        tracer.data(DATA, 8, false);
        // The switch of domains flushes, and not this write of CR3.
        tracer.flush(Flush::Cr3(ROOT), FlushSite::Elsewhere);
        let recording = tracer.finish().unwrap();
        let sweeps = recording.sweeps.iter();
        sweeps.map(|(_, sweep)| sweep.dtlb[Policy::GuestGlobal as usize][0]).sum::<u64>()
    };
    assert_eq!(misses(&[IDLE, 1, IDLE, 1]), 1);
    assert_eq!(misses(&[2, 1]), 3);
    assert_eq!(misses(&[IDLE, 2, IDLE, 1]), 3);
}

/// Code below the middle of the address space is a program's, unless the processor is privileged: a unikernel's.
#[test]
fn the_privilege_level_tells_unikernels_from_programs() {
    let start = ControlRegisters { cr3: ROOT, cr4: 1 << 7 };
    let mut tracer = Tracer::new(Memory, &Arguments::default(), start).unwrap();
    for level in [Some(0), Some(3), None] {
        let block = tracer.translate(CODE, BLOCKS[3].0, level, true).block.expect("a block");
        tracer.execute(block);
    }
    let recording = tracer.finish().unwrap();
    let modes: Vec<_> = recording.blocks.iter().map(|block| block.mode).collect();
    assert_eq!(modes, [Mode::Kernel, Mode::User], "the same code without a level is the program's");
    let executions = recording.blocks.iter().map(|block| block.total().executions);
    assert_eq!(executions.collect::<Vec<_>>(), [1, 2]);
}

/// The bytes of a block are those of its first execution, also if the code is written over.
#[test]
fn blocks_have_the_bytes_of_their_code() {
    let start = ControlRegisters { cr3: ROOT, cr4: 1 << 7 };
    let mut tracer = Tracer::new(Memory, &Arguments::default(), start).unwrap();
    for (number, (code, _)) in (0..).zip(BLOCKS) {
        tracer.translate(CODE + number * 0x100, code, None, true);
    }
    let jump_always: &[&[u8]] = &[BLOCKS[3].0[0], &[0xeb, 0x00]];
    tracer.translate(CODE + 0x300, jump_always, None, true);
    let recorded = tracer.finish().unwrap().blocks;
    let recorded: Vec<_> = recorded.into_iter().map(|block| (block.address, block.code)).collect();
    let expected =
        (0..).zip(BLOCKS).map(|(number, (code, _))| (CODE + number * 0x100, code.concat()));
    assert_eq!(recorded, expected.collect::<Vec<_>>());
}
