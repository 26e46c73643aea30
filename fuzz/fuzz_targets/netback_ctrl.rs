//! Whatever a guest puts into its control ring, into the lists of pages that it wants kept mapped, into
//! the key and table of its hash, and into its grant table, before the backend reads and between any two of
//! its reads, with frames on their way out of these pages: the backend does not panic, maps no more than it offered, and
//! has nothing mapped when it is done.
//!
//! Input: steps of a tag byte and what it needs, see `step`. Run with
//! `cargo fuzz run --features libfuzzer --sanitizer none netback_ctrl`.
#![no_main]

#[path = "../../crates/ports/netback/tests/common/mod.rs"]
mod common;

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use common::guest::{CTRL_RING, DATA, LIST, PAGES, PERSISTENT, REQ_PROD, RSP_PROD, Raw, TX_RING};
use common::taker::{BEHIND, Taker, pass};
use common::tampered::Tampered;
use libfuzzer_sys::fuzz_target;
use machine::Machine;
use netback::Vif;
use offload::Features;
use port::Task;
use wire::netif::{CtrlRequest, GrefMapping, TxRequest};

/// What every data page starts with: an Ethernet header of no known protocol.
const HEADER: [u8; 14] = [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x88, 0xb5];
/// Slots of a control ring, and bytes of one.
const SLOTS: u32 = 128;
const SLOT: usize = 16;
/// Steps of the control ring in one pass: two lists as long as can be.
const SERVED: u32 = 64;

/// What lasts from one input to the next.
struct World {
    hypervisor: Tampered,
    guest: Arc<Raw>,
    vif: Vif<Tampered>,
    taker: Taker,
    /// What lies behind its buffers.
    behind: Vec<u8>,
}

impl World {
    fn new() -> Self {
        let machine = Machine::new();
        let hypervisor = Tampered::new(&machine);
        let guest = Raw::new(&machine);
        let vif = guest.announce(hypervisor.clone());
        let taker = Taker::new(&machine, hypervisor.clone(), Features::ALL);
        let behind = taker.raw.snapshot().split_off(BEHIND);
        Self { hypervisor, guest: Arc::new(guest), vif, taker, behind }
    }
}

thread_local! {
    static WORLD: RefCell<World> = RefCell::new(World::new());
}

/// What the guest writes in one step.
enum Write {
    /// A request: its slot, what it asks and the entries of its list.
    Request(u8, u8, u16),
    /// A request about hashes: its slot, what it asks and how much.
    Hash(u8, u8, [u8; 2]),
    /// A request of any bytes.
    Nonsense(u8, [u8; SLOT]),
    /// Entries of the list: the first one's number, and the reference and flags of each.
    List(u8, Vec<[u8; 2]>),
    Grant(u8, [u8; 8]),
    /// Frames of one page each: the first slot, and the reference and size of each.
    Frames(u8, Vec<[u8; 2]>),
    /// So far beyond the last response, on the control ring or not.
    ReqProd(bool, u16),
}

impl Write {
    fn perform(&self, raw: &Raw) {
        let slot = |index: u8| 64 + (u32::from(index) % SLOTS) as usize * SLOT;
        match self {
            Self::Request(index, kind, entries) => {
                let kind = u16::from(*kind) % 12;
                let data = [0, LIST, u32::from(*entries)];
                raw.write(CTRL_RING, slot(*index), CtrlRequest { id: 1, kind, data });
            }
            Self::Hash(index, kind, numbers) => {
                let kind = 1 + u16::from(*kind) % 7;
                let [a, b] = numbers.map(u32::from);
                let data = if kind == 3 || kind == 6 { [LIST, a, b] } else { [a % 20, 0, 0] };
                raw.write(CTRL_RING, slot(*index), CtrlRequest { id: 1, kind, data });
            }
            Self::Nonsense(index, bytes) => raw.write(CTRL_RING, slot(*index), *bytes),
            Self::List(first, entries) => {
                for (n, [gref, flags]) in (usize::from(*first)..).zip(entries) {
                    let gref = DATA + u32::from(*gref) % (PAGES + 4 - DATA);
                    let flags = u16::from(*flags % 3);
                    raw.write(LIST, n % 512 * 8, GrefMapping { gref, flags, status: 0 });
                }
            }
            Self::Grant(gref, entry) => raw.write(0, usize::from(*gref) * 8, *entry),
            Self::Frames(first, frames) => {
                for (n, [gref, size]) in (u32::from(*first)..).zip(frames) {
                    let gref = DATA + u32::from(*gref) % (PAGES - DATA);
                    let size = 60 + u16::from(*size) * 4;
                    let slot = TxRequest { gref, offset: 0, flags: 0, id: 1, size };
                    raw.write(TX_RING, Raw::slot::<TxRequest>(n), slot);
                }
            }
            Self::ReqProd(control, ahead) => {
                let ring = if *control { CTRL_RING } else { TX_RING };
                let answered: u32 = raw.read(ring, RSP_PROD);
                raw.write(ring, REQ_PROD, answered.wrapping_add((*ahead).into()));
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
        0..25 => {
            let [index, kind] = take(input)?;
            Write::Request(index, kind, u16::from_le_bytes(take(input)?) % 600)
        }
        25..30 => Write::Nonsense(take::<1>(input)?[0], take(input)?),
        30..55 => {
            let [first, count] = take(input)?;
            Write::List(first, take_pairs(input, count)?)
        }
        55..70 => Write::Grant(take::<1>(input)?[0] % 64, take(input)?),
        70..85 => {
            let [first, count] = take(input)?;
            Write::Frames(first, take_pairs(input, count % 16)?)
        }
        105..112 => {
            let [index, kind] = take(input)?;
            Write::Hash(index, kind, take(input)?)
        }
        85..105 => Write::ReqProd(tag & 1 == 0, u16::from_le_bytes(take(input)?) % 300),
        _ => return Some(Step::Pass),
    };
    Some(if tag & 0x80 == 0 { Step::Now(write) } else { Step::Meanwhile(write) })
}

fn take_pairs(input: &mut &[u8], count: u8) -> Option<Vec<[u8; 2]>> {
    (0..count).map(|_| take(input)).collect()
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
    let World { hypervisor, guest, vif, taker, behind } = world;
    hypervisor.set(|| ());
    guest.reset();
    (DATA..PAGES).for_each(|page| guest.write(page, 0, HEADER));
    let (mut queue, mut control) = guest.connect_with_control(vif);
    let rings = guest.domain.pinned();
    let mut meanwhile = VecDeque::new();
    let mut now = Duration::ZERO;
    loop {
        let next = step(&mut input);
        match next {
            Some(Step::Now(write)) => write.perform(guest),
            Some(Step::Meanwhile(write)) => meanwhile.push_back(write),
            Some(Step::Pass) | None => {
                let (raw, mut writes) = (guest.clone(), std::mem::take(&mut meanwhile));
                hypervisor.set(move || {
                    if let Some(write) = writes.pop_front() {
                        write.perform(&raw);
                    }
                });
                now += Duration::from_millis(20);
                let served = (0..SERVED).try_for_each(|_| control.step().map(drop));
                let broken = served.is_err() || pass(&mut queue, taker, now).is_err();
                hypervisor.set(|| ());
                assert!(guest.domain.pinned() <= rings + usize::from(PERSISTENT));
                if broken || next.is_none() {
                    break;
                }
            }
        }
    }
    drop((queue, control));
    assert_eq!(guest.domain.pinned(), 0, "a page stays mapped");
    assert!(taker.raw.snapshot()[BEHIND..] == *behind);
}
