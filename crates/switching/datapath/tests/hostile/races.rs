//! A guest that rewrites its memory while the backend reads it, and guests that flood the backend.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use hypervisor::EventChannel;
use rustix::fs::OFlags;
use wire::netif::status;
use xenstore::XenbusState;

use crate::common::{frame, receive, send, wait_until};
use crate::raw::{self, DATA, Memory, PERMIT, RING, TX_RING, slot_of};
use crate::{A, ALL, B, World};

/// A small random generator: races need variety, not quality.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub fn below(&mut self, n: u32) -> u32 {
        u32::try_from(self.next() % u64::from(n)).unwrap()
    }
}

/// Repeats `hostile` on another thread while `honest` runs.
pub fn while_doing(mut hostile: impl FnMut() + Send, honest: impl FnOnce()) {
    /// Ends the loop even if `honest` panics: otherwise its scope would wait for ever.
    struct End<'a>(&'a AtomicBool);
    impl Drop for End<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                hostile();
            }
        });
        let _end = End(&done);
        honest();
    });
}

/// Rewrites a page's destination address and grant while the backend uses them.
fn rewrite(memory: &Memory, page: u32, random: &mut Random) {
    // A and B differ only in the last byte, so that a torn address is one of the two.
    memory.write(page, 5, &[[A, B][random.below(2) as usize][5]]);
    if random.below(64) == 0 {
        memory.grant(page, 0, 0, page);
    } else {
        memory.grant(page, PERMIT, 0, page);
    }
}

#[test]
fn frames_follow_the_checked_header_while_it_is_rewritten_xsa_155() {
    let mut world = World::new();
    let bytes = frame(B, raw::MAC, 400, 1);
    (0..RING).for_each(|page| world.h.memory.write(DATA + page, 0, &bytes));
    let slots: Vec<_> = (0..RING).map(|page| slot_of(page, 0, 400, 0)).collect();
    let memory = world.h.memory.clone();
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let mut arrived = [0; 2];
    let sweeps = AtomicU32::new(0);
    while_doing(
        || {
            for page in DATA..DATA + RING {
                rewrite(&memory, page, &mut random);
            }
            sweeps.fetch_add(1, Ordering::Relaxed);
        },
        || {
            // Long enough for many interleavings.
            while sweeps.load(Ordering::Relaxed) < 10_000 {
                world.h.send(&slots);
                let mut answered = 0;
                wait_until("every answer", || {
                    answered += world.h.answers().len();
                    for (n, (guest, mac)) in
                        [(&mut world.a, A), (&mut world.b, B)].into_iter().enumerate()
                    {
                        while let Some(got) = receive(&mut guest.queues[0]) {
                            assert_eq!(got[..6], mac, "a frame for somebody else");
                            assert_eq!(got[6..], bytes[6..]);
                            arrived[n] += 1;
                        }
                    }
                    answered == slots.len()
                });
            }
        },
    );
    assert!(arrived.iter().all(|n| *n > 0), "{arrived:?}");
    world.all_live();
}

#[test]
fn slots_rewritten_while_they_are_read_harm_no_other_guest_xsa_155() {
    let mut world = World::unconnected();
    let bytes = frame(B, raw::MAC, 2000, 1);
    for round in 1..=10u64 {
        world.h.connect(&world.host);
        (0..RING).for_each(|page| world.h.memory.write(DATA + page, 0, &bytes));
        let memory = world.h.memory.clone();
        let mut random = Random(round);
        while_doing(
            || {
                let page = random.below(RING);
                let mut slot = slot_of(page, 0, 60, 0);
                if random.below(4) == 0 {
                    let [f, s, o, g] = [(); 4].map(|()| random.below(0x10000));
                    // Mostly small, so that some are valid.
                    slot.flags = u16::try_from(f % 16).unwrap();
                    slot.size = u16::try_from(s % 600).unwrap();
                    slot.offset = u16::try_from(o % 4000).unwrap();
                    slot.gref = DATA + g % 300;
                }
                memory.write_slot(TX_RING, random.below(RING), slot);
                memory.set_req_prod(
                    TX_RING,
                    memory.rsp_prod(TX_RING).wrapping_add(random.below(257)),
                );
            },
            || {
                for _ in 0..5 {
                    world.h.ring();
                    world.traffic_flows();
                }
            },
        );
        // Disabled or not, it can disconnect and connect again.
        world.h.detach(&world.host);
        world.h.enter(XenbusState::Initialising);
        world.h.drive(&world.host).unwrap();
    }
}

#[test]
fn everything_rewritten_at_random_harms_no_other_guest_xsa_155() {
    let mut world = World::unconnected();
    for round in 1..=10u64 {
        world.h.connect(&world.host);
        let memory = world.h.memory.clone();
        let mut random = Random(round);
        while_doing(
            || {
                let page = [TX_RING, raw::RX_RING, DATA, 1, 2][random.below(5) as usize];
                let at = random.below(512) as usize * 8;
                memory.write(page, at, &random.next().to_le_bytes());
            },
            || {
                for n in 0..5 {
                    world.h.ring();
                    let _ = send(&mut world.a.queues[0], &frame(raw::MAC, A, 300, n));
                    world.traffic_flows();
                }
            },
        );
        // The pin bits of its grant table may be wrong now; the real pins are kept elsewhere.
        world.h.detach(&world.host);
        world.h = raw::Hostile::new(&world.host);
    }
}

#[test]
fn live_rings_that_are_rewritten_while_another_daemon_adopts_them_harm_no_other_guest() {
    let mut world = World::unconnected();
    let mut adopted = 0;
    for round in 1..=6u64 {
        world.h.connect(&world.host);
        let memory = world.h.memory.clone();
        let mut random = Random(round);
        while_doing(
            || {
                let ring = [TX_RING, raw::RX_RING][random.below(2) as usize];
                let at = 64 + random.below(496) as usize * 8;
                memory.write(ring, at, &random.next().to_le_bytes());
                // Most indices can be.
                let most = if random.below(4) == 0 { 600 } else { 257 };
                let ahead = random.below(most);
                memory.set_req_prod(ring, memory.rsp_prod(ring).wrapping_add(ahead));
            },
            || {
                for _ in 0..5 {
                    let World { host, h, .. } = &mut world;
                    h.ring();
                    // The daemon is killed, and another one takes over what it left.
                    h.port.take().iter().for_each(|port| host.datapath.detach(port.id()));
                    h.vif = host.adopt(h.domain.id());
                    // An index that cannot be ends it, as in the daemon.
                    let _ = h.drive(host);
                    let is_live = h.port.is_some();
                    adopted += u32::from(is_live);
                    world.traffic_flows();
                    if !is_live {
                        break;
                    }
                }
            },
        );
        world.h.detach(&world.host);
        world.h = raw::Hostile::new(&world.host);
    }
    assert!(adopted > 0, "no rings were adopted");
}

#[test]
fn a_storm_of_events_leaves_others_served_xsa_332() {
    let mut world = World::new();
    let event = world.h.event.take().unwrap();
    while_doing(|| event.notify().unwrap(), || (0..10).for_each(|_| world.traffic_flows()));
    world.all_live();
}

#[test]
fn a_storm_of_events_does_not_keep_a_stall_from_being_noticed() {
    let mut world = World::new();
    let silent = world.host.guest("02:00:00:00:00:0c", netfront::Config::default());
    let mac = [2, 0, 0, 0, 0, 0xc];
    let mut silent = silent;
    assert!(send(&mut silent.queues[0], &frame(ALL, mac, 60, 0)));
    for guest in [&mut world.a, &mut world.b] {
        wait_until("the broadcast", || receive(&mut guest.queues[0]).is_some());
    }
    let event = world.h.event.take().unwrap();
    while_doing(
        || event.notify().unwrap(),
        || {
            let mut sent = 0;
            wait_until("the end of waiting for a guest that takes nothing", || {
                while sent < 1000 && send(&mut world.a.queues[0], &frame(mac, A, 100, sent)) {
                    sent += 1;
                }
                sent == 1000
            });
        },
    );
    world.all_live();
}

#[test]
fn a_guest_with_a_full_event_counter_silences_itself_only() {
    let mut world = World::new();
    let event = world.h.event.take().unwrap();
    let [_, bell] = event.fds();
    // The largest value of an eventfd: nothing can be added, and a blocking write would wait.
    let count = u64::MAX - 1;
    while rustix::io::write(bell, &1u64.to_ne_bytes()).is_ok() {
        // Pending events are taken, as only the guest can do.
        rustix::io::read(bell, &mut [0; 8]).unwrap();
        if rustix::io::write(bell, &count.to_ne_bytes()).is_ok() {
            break;
        }
    }
    assert!(rustix::io::write(bell, &1u64.to_ne_bytes()).is_err(), "the counter is not full");
    rustix::fs::fcntl_setfl(bell, OFlags::empty()).unwrap();
    for n in 0..300 {
        wait_until("room", || send(&mut world.a.queues[0], &frame(raw::MAC, A, 100, n)));
    }
    world.traffic_flows();
    world.h.detach(&world.host);
    world.traffic_flows();
}

#[test]
fn a_guest_that_never_takes_its_events_blocks_no_other() {
    let mut world = World::new();
    world.h.memory.write(DATA, 0, &frame(raw::MAC, ALL, 60, 0));
    // The guest asks for an event at every answer, more often than its eventfd can count.
    for _ in 0..2000 {
        let answered = world.h.memory.rsp_prod(TX_RING);
        world.h.memory.write(TX_RING, 12, &(answered + 1).to_le_bytes());
        world.h.send(&[slot_of(0, 0, 60, 0)]);
        world.h.await_answers(1);
    }
    world.all_live();
}

#[test]
fn a_guest_killed_in_the_middle_of_traffic_harms_no_other() {
    for _ in 0..5 {
        let mut world = World::new();
        let bytes = frame(B, raw::MAC, 4096, 1);
        (0..RING).for_each(|page| world.h.memory.write(DATA + page, 0, &bytes));
        let slots: Vec<_> = (0..128).map(|page| slot_of(page, 0, 4096, 0)).collect();
        world.h.send(&slots);
        for n in 0..50 {
            wait_until("room", || send(&mut world.a.queues[0], &frame(raw::MAC, A, 4000, n)));
        }
        let id = world.h.domain.id();
        world.host.machine.destroy(id);
        // The dead guest's memory is still mapped, and may be written to until it is detached.
        for answer in world.h.await_answers(128) {
            assert!([status::OKAY, status::ERROR].contains(&answer.status), "{answer:?}");
        }
        world.traffic_flows();
        let port = world.h.port.take().unwrap();
        world.host.datapath.detach(port.id());
        assert_eq!(world.h.domain.pinned(), 0);
        world.host.machine.store().forget(id);
        world.traffic_flows();
    }
}
