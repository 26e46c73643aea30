//! Wrong ring indices, and malformed chains of slots.

use wire::netif::tx_flags::MORE_DATA;
use wire::netif::{TxRequest, status};

use crate::common::{frame, send};
use crate::raw::{self, RX_RING, TX_RING, chain, slot_of};
use crate::{World, await_frame};

/// These slots disable the vif, and the reason contains `reason`.
fn disables(slots: &[TxRequest], reason: &str) {
    let mut world = World::new();
    world.h.send(slots);
    let found = world.disabled();
    assert!(found.contains(reason), "{found}");
}

#[test]
fn a_tx_index_that_runs_away_disables_the_vif_xsa_39() {
    // One slot has been answered: 257 is the last valid index.
    for req_prod in [258, 1000, 0x8000_0000, u32::MAX, 0] {
        let mut world = World::new();
        world.h.memory.set_req_prod(TX_RING, req_prod);
        world.h.ring();
        let found = world.disabled();
        assert!(found.contains("more than 256 slots ahead"), "{req_prod}: {found}");
    }
}

#[test]
fn an_rx_index_that_runs_away_disables_the_vif_xsa_39() {
    for req_prod in [2000, u32::MAX] {
        let mut world = World::new();
        // The index is read when the known buffers have been used.
        world.h.memory.set_req_prod(RX_RING, req_prod);
        for n in 0..300 {
            while !send(&mut world.a.queues[0], &frame(raw::MAC, crate::A, 60, n)) {}
        }
        let found = world.disabled();
        assert!(found.contains("req_prod"), "{found}");
    }
}

#[test]
fn one_page_for_both_rings_harms_its_owner_only() {
    let mut world = World::unconnected();
    world.h.prepare();
    world.h.key("rx-ring-ref", &TX_RING.to_string());
    world.h.connect_prepared(&world.host);
    world.h.memory.write(raw::DATA, 0, &frame(crate::ALL, raw::MAC, 60, 0));
    world.h.send(&[slot_of(0, 0, 60, 0); 20]);
    for n in 0..40 {
        while !send(&mut world.a.queues[0], &frame(raw::MAC, crate::A, 60, n)) {}
    }
    world.traffic_flows();
    world.h.detach(&world.host);
    world.traffic_flows();
}

#[test]
fn a_ring_in_the_grant_table_harms_its_owner_only() {
    let mut world = World::unconnected();
    world.h.prepare();
    // The page with the entries of references 512 to 1023.
    world.h.memory.grant(TX_RING, raw::PERMIT, 0, 1);
    world.h.enter(xenstore::XenbusState::Connected);
    // Its entries are read as indices, which may or may not be valid.
    let _ = world.h.drive(&world.host);
    world.traffic_flows();
    world.h.detach(&world.host);
    world.traffic_flows();
}

#[test]
fn nineteen_slots_are_answered_with_errors() {
    let mut world = World::new();
    world.answered(&chain(19, 100), status::ERROR);
    world.answered(&chain(18, 100), status::OKAY);
}

#[test]
fn twenty_slots_disable_the_vif_xsa_39() {
    disables(&chain(20, 100), "20 slots or more");
    disables(&chain(200, 100), "20 slots or more");
}

#[test]
fn fragments_of_nothing_are_ignored_xsa_448() {
    let mut world = World::new();
    let bytes = frame(crate::B, raw::MAC, 260, 0);
    for page in 0..2 {
        world.h.memory.write(raw::DATA + page, 0, &bytes);
    }
    world.h.memory.write(raw::DATA + 2, 0, &bytes[200..]);
    let last = [slot_of(0, 0, 260, MORE_DATA), slot_of(9, 4096, 0, 0)];
    // All bytes lie in the second fragment.
    let first = [slot_of(9, 0, 260, MORE_DATA), slot_of(1, 0, 260, 0)];
    let between =
        [slot_of(0, 0, 260, MORE_DATA), slot_of(9, 4096, 0, MORE_DATA), slot_of(2, 0, 60, 0)];
    for slots in [&last[..], &first, &between] {
        world.h.send(slots);
        let answers = world.h.await_answers(slots.len());
        assert!(answers.iter().all(|answer| answer.status == status::OKAY), "{answers:?}");
        await_frame(&mut world.b, &bytes);
    }
    world.all_live();
}
