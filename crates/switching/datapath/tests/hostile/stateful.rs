//! A hostile guest that goes through random steps, from one state to the next, beside two honest
//! guests on the same worker.
//!
//! A failure prints its seed. `PVNET_FUZZ_SEED=N` repeats the steps, but not their timing.

use std::hash::{BuildHasher, RandomState};

use wire::netif::TxRequest;
use xenstore::XenbusState;

use crate::common::{frame, receive, send};
use crate::races::Random;
use crate::raw::{self, BUFFERS, DATA, PERMIT, READ_ONLY, RING, RX_RING, TX_RING, buffer, slot_of};
use crate::{A, ALL, B, World};

/// Sequences of steps, each from a fresh guest.
const GUESTS: u32 = 10;
/// Steps of a guest.
const STEPS: u32 = 60;

const STATES: [XenbusState; 6] = [
    XenbusState::Initialising,
    XenbusState::InitWait,
    XenbusState::Initialised,
    XenbusState::Connected,
    XenbusState::Closing,
    XenbusState::Closed,
];
const KEYS: [&str; 5] =
    ["tx-ring-ref", "rx-ring-ref", "event-channel", "request-rx-copy", "multi-queue-num-queues"];

/// One thing that the hostile guest does, or that is done to it.
fn step(world: &mut World, random: &mut Random) {
    let World { host, a, h, .. } = world;
    let (at, any) = (random.below(RING), random.next().to_le_bytes());
    match random.below(12) {
        // Frames by the rules.
        0..3 => {
            let to = [A, B, ALL][random.below(3) as usize];
            h.memory.write(DATA + at, 0, &frame(to, raw::MAC, 1500, at));
            let size = u16::try_from(random.below(1500)).unwrap();
            send_slots(h, &vec![slot_of(at, 0, size, 0); random.below(32) as usize]);
        }
        // Chains, extras, and sizes that may break them.
        3 => {
            let slots = (0..random.below(20)).map(|_| {
                let [a, b, c] = [(); 3].map(|()| random.next().to_le_bytes()[0]);
                let (offset, flags) = (u16::from(a) * 16, u16::from(b) % 16);
                TxRequest { size: u16::from(c) * 8, ..slot_of(at, offset, 0, flags) }
            });
            send_slots(h, &slots.collect::<Vec<_>>());
        }
        4 => h.memory.write([TX_RING, RX_RING, DATA, 1, 2][at as usize % 5], at as usize * 8, &any),
        5 => {
            let (flags, owner) = ([0, PERMIT, READ_ONLY][at as usize % 3], u16::from(any[0] < 9));
            h.memory.grant(DATA + random.below(2 * RING), flags, owner, DATA + at);
        }
        6 => {
            let ring = [TX_RING, RX_RING][at as usize % 2];
            let ahead = random.below(if any[0] < 16 { 600 } else { 257 });
            h.memory.set_req_prod(ring, h.memory.rsp_prod(ring).wrapping_add(ahead));
            notify(h);
        }
        // Buffers, and frames for it.
        7 => {
            let first = h.memory.rsp_prod(RX_RING);
            for n in 0..at {
                let n = first.wrapping_add(n);
                h.memory.write_slot(RX_RING, n, buffer(n % RING, BUFFERS + n % RING));
            }
            h.memory.set_req_prod(RX_RING, first.wrapping_add(at));
        }
        8 => {
            for n in 0..random.below(16) {
                // Its ring may be full of frames that wait.
                let _ = send(&mut a.queues[0], &frame(raw::MAC, A, 1400, n));
            }
        }
        9 => h.key(KEYS[at as usize % KEYS.len()], &random.below(2000).to_string()),
        10 => {
            h.enter(STATES[at as usize % STATES.len()]);
            // An error disables it, as in the daemon.
            let _ = h.drive(host);
        }
        // The daemon is killed, and another one takes over the live rings.
        _ => {
            h.port.take().iter().for_each(|port| host.datapath.detach(port.id()));
            h.vif = host.adopt(h.domain.id());
            let _ = h.drive(host);
        }
    }
}

/// Starts over like an honest driver.
fn reconnect(world: &mut World) {
    let World { host, h, .. } = world;
    h.enter(XenbusState::Initialising);
    // It may have been in any state.
    let _ = h.drive(host);
    h.connect(host);
}

fn send_slots(h: &mut raw::Hostile, slots: &[TxRequest]) {
    if h.event.is_some() {
        h.send(slots);
    }
}

fn notify(h: &raw::Hostile) {
    if let Some(event) = &h.event {
        // Its backend may be gone.
        let _ = hypervisor::EventChannel::notify(event);
    }
}

/// The daemon's reaction to a queue that broke: only the hostile guest's may.
fn disable_broken(world: &mut World) {
    let failure = world.host.failures.lock().unwrap().try_recv();
    if let Ok(failure) = failure {
        assert_eq!(failure.port.name(), "hostile", "{}", failure.reason);
        world.h.detach(&world.host);
    }
}

#[test]
fn any_steps_leave_the_other_guests_alone() {
    let seed = std::env::var("PVNET_FUZZ_SEED")
        .map_or_else(|_| RandomState::new().hash_one(0), |text| text.parse().unwrap());
    println!("to repeat: PVNET_FUZZ_SEED={seed}");
    let mut random = Random(seed | 1);
    let mut world = World::unconnected();
    for _ in 0..GUESTS {
        world.h.connect(&world.host);
        for _ in 0..STEPS {
            if world.h.port.is_none() && random.below(4) == 0 {
                reconnect(&mut world);
            }
            step(&mut world, &mut random);
            disable_broken(&mut world);
            for guest in [&mut world.a, &mut world.b] {
                while receive(&mut guest.queues[0]).is_some() {}
            }
            if random.below(4) == 0 {
                world.traffic_flows();
            }
        }
        world.traffic_flows();
        world.h.detach(&world.host);
        world.h = raw::Hostile::new(&world.host);
    }
}
