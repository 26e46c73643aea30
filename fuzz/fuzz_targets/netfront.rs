//! Whatever a backend writes into the store and the rings: the frontend does not panic, takes no
//! page twice, and finds every received byte inside its own memory.
//!
//! Input: steps of a tag byte and what it needs, see `run`; the numbers the backend offers in the
//! store come first. Run with `cargo fuzz run --features libfuzzer --sanitizer none netfront`.
#![no_main]

#[path = "../../crates/ports/netfront/tests/hostile/store.rs"]
mod store;

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use hypervisor::{EvtchnPort, Hypervisor};
use libfuzzer_sys::fuzz_target;
use machine::{Domain, Machine, MachineGuest, MemorySize};
use netfront::{Config, Frontend, FrontendQueue, Received, TxBuffer};
use offload::{Checksum, Gso, GsoKind};
use shm::{Iovec, Region};

use store::Keys;

const PAGE: usize = 4096;
const RSP_PROD: usize = 8;

/// What lasts from one input to the next.
struct World {
    machine: Machine,
    domain: Arc<Domain>,
    guest: MachineGuest,
    memory: Region,
}

impl World {
    fn new() -> Self {
        let machine = Machine::new();
        let size = MemorySize { pages: 2048, grant_pages: 4, ..MemorySize::default() };
        let domain = machine.create(size).unwrap();
        let guest = MachineGuest::inside(&machine, &domain).unwrap();
        let memory = Region::map(guest.memory(), 0, size.pages * PAGE).unwrap();
        Self { machine, domain, guest, memory }
    }

    /// Where the page lies that a key grants.
    fn ring(&self, keys: &Keys, key: &str) -> usize {
        let gref = keys.number(key).unwrap_or(0) as usize;
        self.memory.read::<u32>(gref * 8 + 4).unwrap() as usize * PAGE
    }
}

thread_local! {
    static WORLD: RefCell<World> = RefCell::new(World::new());
}

fuzz_target!(|input: &[u8]| {
    WORLD.with_borrow(|world| run(world, input));
});

fn take<const N: usize>(input: &mut &[u8]) -> Option<[u8; N]> {
    let (taken, rest) = input.split_first_chunk()?;
    *input = rest;
    Some(*taken)
}

/// What the backend offers under a key.
fn offer([queues, split, a, b]: [u8; 4], key: &str) -> Option<String> {
    Some(match key {
        "multi-queue-max-queues" => queues.to_string(),
        "feature-split-event-channels" => (split & 1).to_string(),
        "rx-guest-copies" if b == 0 => return None,
        // Each offer by itself, or any text for all.
        _ if b == 0 => (a >> (key.bytes().fold(0, u8::wrapping_add) % 8) & 1).to_string(),
        _ => String::from_utf8_lossy(&[a, b]).into(),
    })
}

fn run(world: &World, mut input: &[u8]) {
    let Some(offered) = take(&mut input) else { return };
    let keys = Arc::new(Keys::new(move |key| offer(offered, key)));
    // Nobody would answer on a control ring.
    let config =
        Config { timeout: Duration::from_secs(5), persistent_grants: false, ..Config::default() };
    // A backend whose keys contradict each other has no frontend.
    let Ok((_frontend, mut queues)) =
        Frontend::connect(&world.guest, keys.clone(), "device", &config)
    else {
        return;
    };
    // Bound, so that offers do not pile up.
    for key in ["event-channel", "event-channel-tx", "event-channel-rx"] {
        let port = EvtchnPort(keys.number(&format!("device/{key}")).unwrap_or(0));
        let _ = world.machine.bind_interdomain(&world.domain, port);
    }
    let tx = world.ring(&keys, "device/tx-ring-ref");
    let rx = world.ring(&keys, "device/rx-ring-ref");
    let queue = &mut queues[0];
    // The first fault is the end of a queue.
    while let Some(true) = step(world, queue, tx, rx, &mut input) {}
}

/// One thing that either side does; nothing at the input's end, false after a fault.
fn step(
    world: &World,
    queue: &mut FrontendQueue<MachineGuest>,
    tx: usize,
    rx: usize,
    input: &mut &[u8],
) -> Option<bool> {
    let [tag] = take(input)?;
    Some(match tag % 10 {
        0 => {
            let ([index], slot) = (take(input)?, take::<4>(input)?);
            world.memory.write(tx + 64 + usize::from(index) * 12, slot).unwrap();
            true
        }
        1 => {
            let ([index], slot) = (take(input)?, take::<8>(input)?);
            world.memory.write(rx + 64 + usize::from(index) * 8, slot).unwrap();
            true
        }
        2 | 3 => {
            let ring = if tag % 10 == 2 { tx } else { rx };
            let [by] = take(input)?;
            let at = world.memory.read::<u32>(ring + RSP_PROD).unwrap();
            world.memory.write(ring + RSP_PROD, at.wrapping_add(u32::from(by) % 70)).unwrap();
            true
        }
        4 => {
            let ring = if tag & 0x80 == 0 { tx } else { rx };
            world.memory.write(ring + RSP_PROD, take::<4>(input)?).unwrap();
            true
        }
        5 => {
            send(queue, u16::from_le_bytes(take(input)?), tag);
            true
        }
        6 => {
            queue.tx.publish();
            queue.rx.publish();
            true
        }
        7 => queue.tx.reclaim().is_ok(),
        8 => receive(queue),
        _ => queue.tx.arm().is_ok() && queue.rx.arm().is_ok(),
    })
}

fn send(queue: &mut FrontendQueue<MachineGuest>, len: u16, tag: u8) {
    let places: Vec<_> = queue.tx.buffers().collect();
    let address = |place: &TxBuffer<'_>| (place.len, place.offset);
    let distinct: BTreeSet<_> = places.iter().map(address).collect();
    assert_eq!(distinct.len(), places.len(), "a page is in use twice");
    for place in &places {
        place.region.copy_in(place.offset, &vec![tag; place.len]).unwrap();
    }
    let gso = (tag & 0x80 != 0).then_some(Gso { kind: GsoKind::TcpV4, size: 1448 });
    let room = usize::from(len) <= places.iter().map(|place| place.len).sum();
    let sent = queue.tx.send(len, Checksum::Partial, gso).is_ok();
    assert!(sent <= room, "more was sent than there was room for");
}

fn receive(queue: &mut FrontendQueue<MachineGuest>) -> bool {
    let mut frame = Received::default();
    loop {
        match queue.rx.receive(&mut frame) {
            Ok(true) => {}
            Ok(false) => return true,
            Err(_) => return false,
        }
        let mut sum = 0;
        for fragment in queue.rx.fragments(&frame) {
            let Iovec::Shared { region, offset, len } = fragment else { panic!("shared memory") };
            region.copy_out(offset, &mut vec![0; len]).unwrap();
            assert!(len > 0 && offset % PAGE + len <= PAGE);
            sum += len;
        }
        assert_eq!(sum, frame.len);
    }
}
