//! A guest that posts no buffers, too few, or single ones far apart.

use std::time::{Duration, Instant};

use frame::DropReason;
use hypervisor::EventChannel;
use offload::{Checksum, Gso, GsoKind};

use crate::common::{frame, receive, send, send_as, wait_until};
use crate::frames::Tcp;
use crate::races::while_doing;
use crate::raw::{self, BUFFERS, RX_RING, buffer};
use crate::{A, World};

impl World {
    /// Connects the hostile guest with `buffers` on its RX ring.
    fn connect_with(&mut self, buffers: u32) {
        self.h.prepare();
        self.connect_prepared_with(buffers);
    }

    /// The same after [`prepare`](raw::Hostile::prepare).
    fn connect_prepared_with(&mut self, buffers: u32) {
        self.h.memory.set_req_prod(RX_RING, buffers);
        self.h.connect_prepared(&self.host);
        self.h.memory.write(raw::DATA, 0, &frame(crate::ALL, raw::MAC, 60, 0));
        self.h.send(&[raw::slot_of(0, 0, 60, 0)]);
        for guest in [&mut self.a, &mut self.b] {
            wait_until("the broadcast", || receive(&mut guest.queues[0]).is_some());
        }
    }

    /// A sends this many frames of `len` bytes to the hostile guest.
    fn send_to_hostile(&mut self, count: u32, len: usize) {
        let mut sent = 0;
        wait_until("room for every frame", || {
            while sent < count && send(&mut self.a.queues[0], &frame(raw::MAC, A, len, sent)) {
                sent += 1;
            }
            sent == count
        });
    }

    fn stalled(&self) -> bool {
        let port = self.h.port.as_ref().unwrap();
        port.is_stalled() && port.counters().snapshot().dropped(DropReason::Stalled) > 0
    }
}

#[test]
fn a_guest_without_buffers_is_given_up_on_xsa_392() {
    let mut world = World::unconnected();
    world.connect_with(0);
    world.send_to_hostile(1000, 100);
    assert!(world.stalled());
    world.all_live();
}

#[test]
fn a_guest_with_one_buffer_where_two_are_needed_is_given_up_on_xsa_392() {
    let mut world = World::unconnected();
    world.connect_with(1);
    world.send_to_hostile(1000, 5000);
    assert!(world.stalled());
    world.all_live();
}

/// Does `work` while the guest, which has none, posts a buffer after each `pause`, whatever it was given.
fn while_doling(world: &mut World, pause: Duration, work: impl FnOnce(&mut World)) {
    let memory = world.h.memory.clone();
    let event = world.h.event.take().unwrap();
    let mut n = 0;
    while_doing(
        || {
            memory.write_slot(RX_RING, n, buffer(n, BUFFERS + n % raw::RING));
            n += 1;
            memory.set_req_prod(RX_RING, n);
            event.notify().unwrap();
            std::thread::sleep(pause);
        },
        || work(world),
    );
}

#[test]
fn a_guest_that_doles_out_buffers_is_given_up_on() {
    let mut world = World::unconnected();
    world.connect_with(0);
    // With one buffer every ten milliseconds, 3000 frames would wait for half a minute, and so
    // would all that A sends to others after them.
    while_doling(&mut world, Duration::from_millis(10), |world| {
        world.send_to_hostile(3000, 100);
        assert!(world.stalled());
        world.traffic_flows();
    });
    world.all_live();
}

/// A guest with `buffers`, which it posts again `pause` after they were filled, gets `bursts` of so many `frames` whole, unless this machine
/// does not run it in time: one of several tries has to do, and only one may lose something without that reason.
fn takes_all(buffers: u32, pause: Duration, frames: u32, bursts: u32) {
    let mut unexplained = 0;
    let mut takes_all = || {
        let mut world = World::unconnected();
        world.connect_with(buffers);
        let mut lost = 0;
        let longest = while_taking(&mut world, buffers, pause, |world| {
            for burst in 1..=bursts {
                world.send_to_hostile(frames, 1500);
                let port = world.h.port.clone().unwrap();
                let memory = &world.h.memory;
                wait_until("the end of all frames", || {
                    let counts = port.counters().snapshot();
                    lost = DropReason::ALL.iter().map(|reason| counts.dropped(*reason)).sum();
                    u64::from(memory.rsp_prod(RX_RING)) + lost == u64::from(burst * frames)
                });
                std::thread::sleep(Duration::from_millis(40));
            }
        });
        unexplained += u32::from(lost > 0 && longest < pause + Duration::from_millis(50));
        assert!(unexplained <= 1, "{lost} lost, {longest:?}");
        lost == 0
    };
    assert!((0..5).any(|_| takes_all()), "the guest does not run often enough");
}

/// Does `work` while the guest posts each of its `buffers` again, `pause` after it was filled. Returns the longest time between two polls.
fn while_taking(
    world: &mut World,
    buffers: u32,
    pause: Duration,
    work: impl FnOnce(&mut World),
) -> Duration {
    let memory = world.h.memory.clone();
    let event = world.h.event.take().unwrap();
    let mut posted = buffers;
    let (mut last, mut longest) = (Instant::now(), Duration::ZERO);
    while_doing(
        || {
            std::thread::sleep(pause);
            longest = longest.max(last.elapsed());
            last = Instant::now();
            let end = memory.rsp_prod(RX_RING) + buffers;
            for n in posted..end {
                memory.write_slot(RX_RING, n, buffer(n, BUFFERS + n % raw::RING));
            }
            memory.set_req_prod(RX_RING, end);
            if posted < end {
                event.notify().unwrap();
            }
            posted = end;
        },
        || work(world),
    );
    longest
}

/// Pings of 40 and 60 kB come in fragments, more than iPXE (18) and OpenBSD (32) have buffers.
#[test]
fn a_guest_with_few_buffers_loses_nothing_of_bursts() {
    let at_once = Duration::from_micros(200);
    takes_all(18, at_once, 28, 16);
    takes_all(32, at_once, 42, 16);
}

/// An unsegmented frame makes more segments than such a guest has buffers.
#[test]
fn a_guest_with_few_buffers_gets_all_segments_of_a_frame() {
    for buffers in [18, 32, 64] {
        let mut world = World::unconnected();
        world.h.prepare();
        for feature in ["feature-sg", "feature-gso-tcpv4"] {
            world.h.key(feature, "0");
        }
        world.connect_prepared_with(buffers);
        let mut bytes = Tcp { dst: raw::MAC, len: 60_054, ..Tcp::default() }.bytes();
        bytes[6..12].copy_from_slice(&A);
        let gso = Gso { kind: GsoKind::TcpV4, size: 1000 };
        while_taking(&mut world, buffers, Duration::from_millis(1), |world| {
            for frame in 1..=3 {
                assert!(send_as(&mut world.a.queues[0], &bytes, Checksum::Partial, Some(gso)));
                wait_until("all segments", || world.h.memory.rsp_prod(RX_RING) == frame * 60);
            }
        });
    }
}

#[test]
fn a_guest_that_posts_its_few_buffers_late_loses_nothing() {
    takes_all(64, Duration::from_millis(20), 1000, 2);
}

#[test]
fn frames_longer_than_a_page_are_dropped_where_pages_are_the_limit() {
    let mut world = World::unconnected();
    world.h.prepare();
    world.h.key("feature-sg", "0");
    world.h.connect_prepared(&world.host);
    world.send_to_hostile(10, 5000);
    let port = world.h.port.clone().unwrap();
    wait_until("every frame's end", || {
        port.counters().snapshot().dropped(DropReason::TooLarge) == 10
    });
    world.all_live();
}

/// A frame for another guest waits on its sender's ring behind those for a guest that gives too few buffers, until that one is given up on.
/// The buffers are close enough together for none of its frames to wait for too long in the window.
#[test]
fn a_guest_that_doles_out_buffers_delays_no_frame_behind_its_own() {
    let mut world = World::unconnected();
    world.connect_with(0);
    while_doling(&mut world, Duration::from_millis(4), |world| {
        // The sender's ring is full of frames for it.
        let mut sent = 0;
        while send(&mut world.a.queues[0], &frame(raw::MAC, A, 100, sent)) {
            sent += 1;
        }
        let before = world.h.memory.rsp_prod(RX_RING);
        wait_until("room", || send(&mut world.a.queues[0], &frame(crate::B, A, 100, sent)));
        wait_until("the frame", || receive(&mut world.b.queues[0]).is_some());
        let got = world.h.memory.rsp_prod(RX_RING) - before;
        // It pays for 2 ms of each 4, and owes no more than 200 ms: some 100, and more until a busy machine polls.
        assert!(got < 200 && sent >= 200, "after {got} frames for it, of {sent}");
    });
}
