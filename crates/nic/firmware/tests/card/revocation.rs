//! Contexts that are taken from their owners.

use crate::common::guest::{Guest, MEMORY_LEN, mac, usual};
use cdna::message::{Assignment, Permissions, Protection};
use cdna::{ContextId, Direction, Enable, Flags, Report, Statistics, Status};
use firmware::Config;

use crate::common::{Host, PEER, frame};

const GUEST: u8 = 1;
const OTHER: u8 = 2;

#[test]
fn revocation_under_load_drops_everything_at_once() {
    let mut host = Host::new(Config::default());
    let mut other = host.guest(OTHER);
    other.enable(usual());
    other.post(200, 2048);
    for round in 0..50 {
        let mut guest = host.guest(GUEST);
        guest.enable(usual() | Enable::INTERRUPTS);
        guest.post(200, 2048);
        for n in 0..40 {
            let to = if n % 2 == 0 { PEER } else { mac(OTHER) };
            guest.queue(&frame(to, mac(GUEST), 1, 1500), 400, Flags::NONE);
            host.arrive(&frame(mac(GUEST), PEER, 2, 1500));
        }
        guest.publish_tx();
        // Stopped between steps, and with a frame that waits for the wire.
        host.wire.0.borrow_mut().room = Some(round);
        host.step();
        let before = guest.memory.read::<[u8; 4096]>(MEMORY_LEN / 2).unwrap();
        let consumers = [Direction::Tx, Direction::Rx].map(|ring| guest.consumer(ring));
        host.is_interrupted(GUEST);
        let report = host.card.revoke(ContextId::new(GUEST), 1);
        assert_eq!(report, Report::Revoked { context: ContextId::new(GUEST), generation: 1 });
        assert_eq!(guest.status(), Some(Status::Revoked));
        host.sent();
        host.wire.0.borrow_mut().room = None;
        host.arrive(&frame(mac(GUEST), PEER, 3, 60));
        guest.raise(u32::MAX);
        host.run();
        assert!(host.sent().is_empty(), "a frame of a revoked context was sent");
        assert_eq!([Direction::Tx, Direction::Rx].map(|ring| guest.consumer(ring)), consumers);
        assert_eq!(guest.memory.read::<[u8; 4096]>(MEMORY_LEN / 2).unwrap(), before);
        assert!(!host.is_interrupted(GUEST));
        let received = u32::try_from(other.received().len()).unwrap();
        other.post(received, 2048);
    }
    assert!(host.faults.is_empty());
}

#[test]
fn a_revoked_contexts_memory_has_no_user() {
    let mut host = Host::new(Config::default());
    let guest = host.guest(GUEST);
    host.run();
    assert!(!guest.is_sole_user());
    host.card.revoke(ContextId::new(GUEST), 1);
    // The card's slices are gone, so the guest's are the only ones.
    assert!(guest.is_sole_user());
    let again = host.card.revoke(ContextId::new(GUEST), 1);
    assert!(matches!(again, Report::Revoked { .. }), "revoking twice is harmless");
    host.run();
}

#[test]
fn a_context_that_does_not_exist_is_not_assigned() {
    let mut host = Host::new(Config { contexts: 2, ..Config::default() });
    host.guest(1);
    let guest = Guest::new(2, 0, 0);
    let assignment = Assignment {
        context: ContextId::new(2),
        generation: 1,
        mac: mac(2),
        permissions: Permissions::default(),
        protection: Protection::None,
        start: 0,
    };
    assert!(host.card.assign(assignment, guest.pages()).is_err());
    host.card.revoke(ContextId::new(2), 1);
    assert_eq!(host.card.statistics(ContextId::new(255)), Statistics::default());
}

#[test]
fn a_stopped_context_sends_nothing_more() {
    let mut host = Host::new(Config::default());
    let mut guest = host.guest(GUEST);
    guest.enable(usual());
    host.wire.0.borrow_mut().room = Some(0);
    guest.send(&frame(PEER, mac(GUEST), 1, 60));
    assert!(host.run().is_wire_busy);
    guest.write(cdna::Mailbox::TxProducer, 1000);
    host.run();
    assert_eq!((host.faults.len(), guest.status()), (1, Some(Status::Faulted)));
    host.wire.0.borrow_mut().room = None;
    host.run();
    assert!(host.sent().is_empty());
    assert_eq!(host.card.statistics(ContextId::new(GUEST)).tx_frames, 1, "counters stay");
}

#[test]
fn the_next_owner_does_not_send_what_the_last_one_left() {
    let mut host = Host::new(Config::default());
    let mut guest = host.guest(GUEST);
    guest.enable(usual());
    host.wire.0.borrow_mut().room = Some(0);
    guest.send(&frame(PEER, mac(GUEST), 1, 60));
    assert!(host.run().is_wire_busy);
    host.card.revoke(ContextId::new(GUEST), 1);
    let next = host.guest(GUEST);
    next.enable(usual());
    host.wire.0.borrow_mut().room = None;
    host.run();
    assert!(host.sent().is_empty());
}
