//! Whatever a guest puts into its TX ring, grant table and pages, before the backend reads and
//! between any two of its reads: it does not panic, sends on the header that it read, and
//! leaves the memory of others alone.
//!
//! Input: features and channel (1 byte), then steps of a tag byte and what it needs, see `step`. Run with
//! `cargo fuzz run --features libfuzzer --sanitizer none netback_tx`.
#![no_main]

#[path = "../../crates/ports/netback/tests/common/mod.rs"]
mod common;

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use common::guest::{self, DATA, PAGE, PAGES, REQ_PROD, RSP_PROD, Raw, TX_RING};
use common::taker::{BEHIND, Taker, pass};
use common::tampered::Tampered;
use libfuzzer_sys::fuzz_target;
use machine::Machine;
use netback::{RxChannel, TxChannel, Vif};
use offload::Features;
use wire::netif::header_channel;

/// What every data page starts with: headers of a TCP segment over IPv4.
const HEADERS: [u8; 54] = [
    2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0, // Ethernet
    0x45, 0, 0, 0, 0, 0, 0, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0,
    2, // of no length: all of it
    0, 1, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0x50, 0x10, 0, 0, 0, 0, 0, 0,
];

/// What lasts from one input to the next.
struct World {
    hypervisor: Tampered,
    /// One for each way to its headers: granted, supplied beside the ring, mapped.
    senders: [(Arc<Raw>, Vif<Tampered>); 3],
    /// With all offloads, and with none.
    takers: [Taker; 2],
    /// What lies behind their buffers.
    behind: Vec<u8>,
}

impl World {
    fn new() -> Self {
        let machine = Machine::new();
        let hypervisor = Tampered::new(&machine);
        let senders = [0, 1, 2].map(|way| {
            let raw = Raw::new(&machine);
            if way == 1 {
                raw.supply_headers();
            }
            let tx = if way == 2 { TxChannel::Remap } else { TxChannel::Header };
            let vif = raw.announce_by(hypervisor.clone(), tx, RxChannel::Copy);
            (Arc::new(raw), vif)
        });
        let takers = [Features::ALL, Features { sg: true, ..Features::NONE }]
            .map(|features| Taker::new(&machine, hypervisor.clone(), features));
        let behind = takers[0].raw.snapshot().split_off(BEHIND);
        assert!(behind.iter().all(|byte| *byte == 0xa5));
        Self { hypervisor, senders, takers, behind }
    }
}

thread_local! {
    static WORLD: RefCell<World> = RefCell::new(World::new());
}

/// What the guest writes in one step.
enum Write {
    /// Its index, its reference, and the rest of it.
    Slot(u8, u8, [u8; 8]),
    Grant(u8, [u8; 8]),
    Bytes {
        page: u8,
        offset: u16,
        bytes: Vec<u8>,
    },
    /// So far beyond the last response.
    ReqProd(u16),
}

impl Write {
    fn perform(&self, raw: &Raw) {
        match self {
            Self::Slot(index, gref, rest) => {
                let at = Raw::slot::<[u8; 12]>((*index).into());
                // Small ones are likely to be granted.
                let gref = u32::from(*gref);
                raw.write(TX_RING, at, if gref < PAGES { gref } else { gref << 24 });
                raw.write(TX_RING, at + 4, *rest);
            }
            Self::Grant(gref, entry) => raw.write(0, usize::from(*gref) * 8, *entry),
            Self::Bytes { page, offset, bytes } => {
                // Those of the header channel too.
                let page = guest::HEADERS + u32::from(*page) % (PAGES - guest::HEADERS);
                let at = usize::from(*offset) % (PAGE - bytes.len());
                raw.memory.copy_in(page as usize * PAGE + at, bytes).unwrap();
            }
            Self::ReqProd(ahead) => {
                let answered: u32 = raw.read(TX_RING, RSP_PROD);
                raw.write(TX_RING, REQ_PROD, answered.wrapping_add((*ahead).into()));
            }
        }
    }
}

/// A step: a write at once, a write between the backend's reads, or a pass of the backend.
enum Step {
    Now(Write),
    Meanwhile(Write),
    Pass,
}

/// Takes a step off the input. The tag's high bit puts a write off until the backend reads.
fn step(input: &mut &[u8]) -> Option<Step> {
    let [tag] = take(input)?;
    let write = match tag & 0x7f {
        0..40 => {
            let [index, gref] = take(input)?;
            Write::Slot(index, gref, take(input)?)
        }
        40..60 => Write::Grant(take::<1>(input)?[0] % 64, take(input)?),
        60..80 => {
            let [page, len] = take(input)?;
            let offset = u16::from_le_bytes(take(input)?);
            let (bytes, rest) = input.split_at_checked(len.into())?;
            *input = rest;
            Write::Bytes { page, offset, bytes: bytes.to_vec() }
        }
        80..100 => Write::ReqProd(u16::from_le_bytes(take(input)?) % 300),
        _ => return Some(Step::Pass),
    };
    Some(if tag & 0x80 == 0 { Step::Now(write) } else { Step::Meanwhile(write) })
}

fn take<const N: usize>(input: &mut &[u8]) -> Option<[u8; N]> {
    let (taken, rest) = input.split_first_chunk()?;
    *input = rest;
    Some(*taken)
}

fuzz_target!(|input: &[u8]| {
    WORLD.with_borrow_mut(|world| run(world, input));
});

fn run(world: &mut World, mut input: &[u8]) {
    let Some([features]) = take(&mut input) else { return };
    let World { hypervisor, senders, takers, behind } = world;
    let taker = &mut takers[usize::from(features & 1)];
    let (sender, vif) = &mut senders[usize::from(features >> 1) % 3];
    hypervisor.set(|| ());
    sender.reset();
    (DATA..PAGES).for_each(|page| sender.write(page, 0, HEADERS));
    (0..256).for_each(|n| sender.write(guest::HEADERS, header_channel::place(n), HEADERS));
    let mut queue = sender.connect(vif, Features::ALL);
    let mut meanwhile = VecDeque::new();
    let mut now = Duration::ZERO;
    loop {
        let next = step(&mut input);
        match next {
            Some(Step::Now(write)) => write.perform(sender),
            Some(Step::Meanwhile(write)) => meanwhile.push_back(write),
            Some(Step::Pass) | None => {
                let (raw, mut writes) = (sender.clone(), std::mem::take(&mut meanwhile));
                hypervisor.set(move || {
                    if let Some(write) = writes.pop_front() {
                        write.perform(&raw);
                    }
                });
                now += Duration::from_millis(20);
                let broken = pass(&mut queue, taker, now).is_err();
                hypervisor.set(|| ());
                if broken || next.is_none() {
                    break;
                }
            }
        }
    }
    let responses: u32 = sender.read(TX_RING, RSP_PROD);
    assert!(responses <= 1 << 20, "more answers than anybody could ask for");
    assert!(taker.raw.snapshot()[BEHIND..] == *behind);
}
