//! Contexts, cards and guests that end under load.

use cdna::{ContextId, Direction, Mailbox, Status};
use contexts::{Protection, Reason};

use crate::guest::{LONG, LONG_PAGES, PAGE, PEER, frame, mac};
use crate::outcome::{Outcome, references};
use crate::world::{BAD, NEIGHBOUR, World};

/// Has both rings of the bad guest full of long buffers, and as many frames on their way to it.
fn load(world: &mut World) {
    let guest = world.guest(BAD);
    let page = |n: usize| 16 + n % 32 * LONG_PAGES;
    let bytes = frame(PEER, mac(BAD), &[3; 60_000]);
    (0..32).for_each(|n| guest.memory().copy_in(page(n) * PAGE, &bytes).unwrap());
    let len = bytes.len().try_into().unwrap();
    let sent: Vec<_> = (0..256).map(|n| guest.buffer(page(n), len)).collect();
    let received: Vec<_> = (0..256).map(|n| guest.buffer(page(n), LONG)).collect();
    world.post(BAD, Direction::Rx, &received).unwrap();
    world.post(BAD, Direction::Tx, &sent).unwrap();
    for _ in 0..500 {
        world.net().arriving.push_back(frame(mac(BAD), PEER, &[4; 1000]));
    }
}

/// The guest keeps its mappings of the files when the context is assigned again.
pub fn writes_to_its_files_after_revocation(world: &mut World) -> Outcome {
    world.revoke(BAD, Reason::Requested);
    world.guest(BAD).write(Mailbox::TxProducer, 200);
    assert_eq!(world.kill_card(), 1);
    // Its old mailboxes are written all the time; the new assignment has others.
    let stale = world.guest(BAD).keep_old_context_page();
    world.reassign_all();
    stale.write(Mailbox::TxProducer.offset(), u32::MAX).unwrap();
    stale.write(cdna::context::EVENTS, u32::MAX).unwrap();
    world.settle();
    world.judge(world.ended(BAD).is_some(), "each assignment has new files")
}

pub fn has_its_card_killed_under_load(world: &mut World) -> Outcome {
    load(world);
    world.step();
    assert_eq!(world.kill_card(), 2);
    for number in [BAD, NEIGHBOUR] {
        let guest = world.guest(number);
        assert_eq!((guest.status(), references(guest)), (Some(Status::Down), 0));
        assert_eq!(world.ended(number).unwrap().reason, Reason::CardEnded);
    }
    world.reassign_all();
    world.send(BAD, 20, &frame(PEER, mac(BAD), b"again"));
    world.settle();
    let is_up = world.guest(BAD).status() == Some(Status::Up) && world.net().sent.len() == 1;
    world.judge(!is_up, "links go down, and up with the next card")
}

pub fn is_killed_under_load(world: &mut World) -> Outcome {
    load(world);
    let status = world.contexts.status(ContextId::new(BAD)).unwrap();
    if world.protection == Protection::Hypervisor {
        assert_eq!(status.references, 2 * 256 * LONG_PAGES);
    }
    let base = world.guest(BAD).address(0);
    let domain = world.kill(BAD);
    let context = ContextId::new(BAD);
    let revoked = world.contexts.owner_ended(hypervisor::DomId(BAD.into()));
    assert_eq!(revoked, [(context, status.generation)]);
    world.step();
    let is_kept = domain.upgrade().is_some();
    assert!(is_kept, "the card still sends and receives");
    let _ = world.process.card.revoke(context, status.generation);
    let ended = world.contexts.revoked(context, status.generation).unwrap();
    assert_eq!(ended.reason, Reason::OwnerEnded);
    world.process.card.bus().memory().remove(base);
    world.settle();
    let is_kept = domain.upgrade().is_some();
    world.judge(is_kept, "its memory stays until the card is quiet, and no longer")
}
