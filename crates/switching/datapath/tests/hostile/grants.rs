//! References that grant nothing, or too little, or to another domain (XSA-361, XSA-362, XSA-367).

use frame::DropReason;
use wire::netif::status;
use wire::netif::tx_flags::MORE_DATA;

use crate::common::{frame, send, wait_until};
use crate::raw::{self, BUFFERS, DATA, Hostile, PERMIT, READ_ONLY, RING, buffer, slot_of};
use crate::{A, B, World, await_frame, receive};

/// A reference of the hostile guest's table that must be refused, written to `entry`.
fn bad_references(h: &Hostile, entry: u32) -> Vec<(&'static str, u32)> {
    let pages = u32::try_from(h.domain.size().pages).unwrap();
    let references = [
        ("unused", 0, 0, entry),
        ("for another domain", PERMIT, 7, entry),
        ("for the guest itself", PERMIT, h.domain.id().0, entry),
        ("a transfer", 2, 0, entry),
        ("transitive", 3, 0, entry),
        ("one page beyond its memory", PERMIT, 0, pages),
        ("far beyond its memory", PERMIT, 0, u32::MAX),
    ];
    let made = references.into_iter().enumerate().map(|(n, (name, flags, domid, page))| {
        let gref = entry + u32::try_from(n).unwrap();
        h.memory.grant(gref, flags, domid, page);
        (name, gref)
    });
    // Number 8 is good in the other guests' tables. The table has 8192 entries.
    let others = [("another guest's", 8), ("reserved", 0), ("beyond", 8192), ("last", u32::MAX)];
    made.chain(others).collect()
}

#[test]
fn tx_references_that_grant_nothing_are_answered_with_errors() {
    let mut world = World::new();
    for (name, gref) in bad_references(&world.h, DATA + 100) {
        let mut slot = slot_of(0, 0, 60, 0);
        slot.gref = gref;
        world.h.send(&[slot]);
        assert_eq!(world.h.await_answers(1)[0].status, status::ERROR, "{name}");
    }
    world.all_live();
}

#[test]
fn a_body_that_is_not_granted_is_answered_with_an_error_and_arrives_nowhere() {
    let mut world = World::new();
    let bytes = frame(B, raw::MAC, 300, 1);
    world.h.memory.write(DATA, 0, &bytes);
    for (name, gref) in bad_references(&world.h, DATA + 100) {
        let mut slots = [slot_of(0, 0, 300, MORE_DATA), slot_of(1, 0, 100, 0)];
        slots[1].gref = gref;
        world.h.send(&slots);
        for answer in world.h.await_answers(2) {
            assert_eq!(answer.status, status::ERROR, "{name}");
        }
        wait_until("the error", || {
            assert!(receive(&mut world.b.queues[0]).is_none(), "{name}");
            world.b.queues[0].rx.take_errors() == 1
        });
    }
    world.all_live();
}

#[test]
fn a_page_granted_read_only_is_enough_to_send_from() {
    let mut world = World::new();
    let bytes = frame(B, raw::MAC, 300, 1);
    world.h.memory.write(DATA, 0, &bytes);
    world.h.memory.grant(DATA, READ_ONLY, 0, DATA);
    world.h.send(&[slot_of(0, 0, 300, 0)]);
    assert_eq!(world.h.await_answers(1)[0].status, status::OKAY);
    await_frame(&mut world.b, &bytes);
    world.all_live();
}

#[test]
fn rx_references_that_grant_nothing_are_answered_with_errors() {
    let mut world = World::unconnected();
    world.h.prepare();
    let mut references = bad_references(&world.h, DATA + 100);
    world.h.memory.grant(BUFFERS, READ_ONLY, 0, BUFFERS);
    references.push(("read-only", BUFFERS));
    for n in 0..RING {
        let (_, gref) = references[n as usize % references.len()];
        world.h.memory.write_slot(raw::RX_RING, n, buffer(n, gref));
    }
    world.h.connect_prepared(&world.host);
    let port = world.h.port.clone().unwrap();
    // The switch does not know the hostile guest yet, so frames for it are flooded.
    let count = u32::try_from(references.len()).unwrap();
    for n in 0..count {
        wait_until("room", || send(&mut world.a.queues[0], &frame(raw::MAC, A, 300, n)));
    }
    wait_until("every response", || world.h.memory.rsp_prod(raw::RX_RING) == count);
    for (n, (name, _)) in (0..).zip(&references) {
        assert_eq!(world.h.received(n).status, status::ERROR, "{name}");
    }
    let dropped = port.counters().snapshot().dropped(DropReason::MemoryFault);
    assert_eq!(dropped, u64::from(count));
    world.all_live();
}

#[test]
fn rings_that_are_not_granted_do_not_connect() {
    let mut world = World::unconnected();
    let mut references = bad_references(&world.h, DATA + 100);
    // The backend writes to a ring, so a read-only grant is refused.
    world.h.memory.grant(BUFFERS, READ_ONLY, 0, BUFFERS);
    references.push(("read-only", BUFFERS));
    for key in ["tx-ring-ref", "rx-ring-ref"] {
        for (name, gref) in &references {
            world.h.prepare();
            world.h.key(key, &gref.to_string());
            world.h.enter(xenstore::XenbusState::Connected);
            let refused = world.h.drive(&world.host).unwrap_err().to_string();
            assert!(refused.contains("does not grant"), "{name}: {refused}");
            world.h.enter(xenstore::XenbusState::Initialising);
            world.h.drive(&world.host).unwrap();
        }
    }
    world.h.connect(&world.host);
    world.all_live();
}
