//! Attacks on the service of others, and contexts, cards and guests that end under load.

use std::time::{Duration, Instant};

use cdna::{ContextId, Direction, Mailbox, Status};
use contexts::{Protection, Reason};

use crate::guest::{LONG, LONG_PAGES, PAGE, PEER, frame, mac};
use crate::outcome::{Outcome, references};
use crate::world::{BAD, NEIGHBOUR, World};

/// Frames of the neighbour per step.
const FRAMES: usize = 32;

/// How long a step takes with the neighbour's frames, with and without the other's flood.
fn time_step(world: &mut World, is_flooded: bool) -> Duration {
    let bytes = frame(PEER, mac(NEIGHBOUR), &[1; 1000]);
    (0..FRAMES).for_each(|_| world.send(NEIGHBOUR, 20, &bytes));
    if is_flooded {
        // All mailboxes, those without a meaning too.
        world.guest(BAD).enable();
        world.guest(BAD).raise(u32::MAX);
    }
    let began = Instant::now();
    world.step();
    let time = began.elapsed();
    assert_eq!(world.net().sent.len(), FRAMES, "as many frames per step, flood or not");
    world.net().sent.clear();
    world.vectors.take().unwrap();
    time
}

pub fn floods_its_mailboxes(world: &mut World) -> Outcome {
    let (mut quiet, mut flooded) = (Vec::new(), Vec::new());
    for _ in 0..501 {
        quiet.push(time_step(world, false));
        flooded.push(time_step(world, true));
    }
    // Medians: this thread may lose its processor in the middle of any step.
    let [quiet, flooded] = [quiet, flooded].map(|mut times| {
        times.sort_unstable();
        times[times.len() / 2]
    });
    world.judge(flooded > 4 * quiet, "a step handles a mailbox once")
}

/// The hypervisor takes no vectors while the guest has itself interrupted more often than the ring holds.
pub fn fills_the_ring_of_vectors(world: &mut World) -> Outcome {
    let slots = u64::from(cdna::vectors::SLOTS);
    let taken = world.vectors.taken();
    for _ in 0..2 * slots {
        world.send(BAD, 20, &frame(PEER, mac(BAD), b"again"));
        world.step();
    }
    world.send(NEIGHBOUR, 20, &frame(PEER, mac(NEIGHBOUR), b"once"));
    world.step();
    let first = world.vectors.take().unwrap();
    assert_eq!(world.vectors.taken() - taken, slots, "the ring was full");
    world.step();
    let second = world.vectors.take().unwrap();
    let (bad, other) = (ContextId::new(BAD), ContextId::new(NEIGHBOUR));
    assert!(first.contains(bad) && !first.contains(other));
    world.judge(!second.contains(other), "the card keeps who is to be interrupted")
}

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

pub fn is_revoked_under_load(world: &mut World) -> Outcome {
    load(world);
    world.step();
    let in_the_middle = 1..256;
    assert!(in_the_middle.contains(&world.guest(BAD).consumer(Direction::Tx)));
    world.revoke(BAD, Reason::Requested);
    assert_eq!(world.guest(BAD).status(), Some(Status::Revoked));
    assert_eq!(references(world.guest(BAD)), 0);
    let sent = world.net().sent.len();
    let memory = |world: &mut World| {
        let mut all = vec![0; world.guest(BAD).memory().len()];
        world.guest(BAD).memory().copy_out(0, &mut all).unwrap();
        all
    };
    let before = memory(world);
    world.guest(BAD).enable();
    world.settle();
    let is_used = world.net().sent.len() != sent || memory(world) != before;
    world.judge(is_used, "the card has stopped when it says so")
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
    let told = world.contexts.owner_ended(hypervisor::DomId(BAD.into()));
    assert_eq!(told, [(context, status.generation)]);
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
