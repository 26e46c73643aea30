//! The persistent grants: pages that stay mapped, and the packets that use them.

use std::collections::HashMap;
use std::sync::mpsc;
use std::time::Duration;

use hypervisor::{Counted, GrantRef, Granted, MappedAt, Metered};
use machine::Machine;
use netback::ControlRing;
use offload::Features;
use port::{DropReason, Fragment, Ingress, Outcome, Task, WINDOW};
use port_testing::{receive, with_body};
use proptest::prelude::*;
use wire::netif::ctrl::status;
use wire::netif::{CtrlMessage, GrefMapping};

use crate::common::guest::{CTRL_RING, DATA, LIST, PAGE, PAGES, PERSISTENT, RSP_PROD, TX_RING};
use crate::common::taker::{Taker, pass};
use crate::common::tampered::Tampered;
use crate::control::{PERMIT_READ, READ_ONLY, World, entries, entry, world};

#[test]
fn what_a_packet_in_hand_refers_to_is_not_unmapped() {
    let mut world = world();
    assert_eq!(world.add(&entries(DATA..DATA + 4)), status::SUCCESS);
    world.send(&[DATA, DATA + 2], 600);
    // The frame is all header, which was copied: its page is not needed any more.
    world.send(&[DATA + 3], 60);
    let list = entries(DATA..DATA + 4);
    // On the ring the frontend may unmap it; once taken, the backend must keep it.
    assert_eq!(receive(&mut world.queue.tx).unwrap().fresh, 2);
    assert_eq!(world.remove(&list), [false, true, false, true]);
    world.queue.tx.finish(&[Outcome::Waiting; WINDOW]);
    assert_eq!(world.remove(&list), [false; 4]);
    world.queue.tx.finish(&[Outcome::Delivered; WINDOW]);
    assert_eq!(world.remove(&list), [true, false, true, false]);
    assert_eq!(world.mapped(), 0);
}

/// Serves a control ring for a step, in a thread: if it waits for this one, the test fails.
fn step(mut control: ControlRing<Machine>) -> ControlRing<Machine> {
    let (sender, stepped) = mpsc::channel();
    std::thread::spawn(move || {
        assert!(control.step().unwrap());
        sender.send(control).unwrap();
    });
    stepped.recv_timeout(Duration::from_secs(2)).expect("a step waits for a batch")
}

#[test]
fn the_control_ring_waits_for_no_batch_and_is_served_after_it() {
    let mut world = world();
    assert_eq!(world.add(&entries(DATA..DATA + 4)), status::SUCCESS);
    // Its body lies in a page that stays mapped while a batch uses it.
    world.send(&[DATA, DATA + 2], 600);
    assert_eq!(receive(&mut world.queue.tx).unwrap().fresh, 1);
    let entries = world.write_list(&entries(DATA + 4..DATA + 8));
    world.put(CtrlMessage::AddGrefMapping { queue: 0, gref: LIST, entries }.request(7));
    let mut control = Some(world.control);
    // There is always another batch: it leaves the lock alone.
    for is_answered in [false, true] {
        with_body(&world.queue.tx, |_| {
            control = control.take().map(step);
            let answered: u32 = world.raw.read(CTRL_RING, RSP_PROD);
            assert_eq!(answered == world.asked, is_answered);
        });
    }
    assert_eq!(control.unwrap().grants()[0].mapped(), 8);
}

#[test]
fn a_packet_that_is_refused_uses_nothing() {
    let mut world = world();
    assert_eq!(world.add(&entries(DATA..DATA + 4)), status::SUCCESS);
    // An empty second fragment, and a body that is not granted.
    world.send(&[DATA, DATA + 1], 0);
    world.send(&[DATA, 600], 100);
    assert_eq!(receive(&mut world.queue.tx).unwrap().fresh, 0);
    assert_eq!(world.remove(&entries(DATA..DATA + 4)), [true; 4]);
}

/// A guest of a machine that counts operations.
fn counted() -> (World<Metered<Machine>>, Metered<Machine>) {
    let machine = Machine::new();
    let platform = Metered::new(machine.clone());
    platform.meter().switch(true);
    (World::new(&machine, platform.clone()), platform)
}

#[test]
fn no_copy_of_what_is_mapped_needs_the_hypervisor() {
    let (mut world, platform) = counted();
    let list = [entry(DATA), GrefMapping { flags: READ_ONLY, ..entry(DATA + 1) }];
    assert_eq!(world.add(&list), status::SUCCESS);
    let count = |what| platform.meter().count(what);
    let before = (count(Counted::Hypercalls), count(Counted::Notifications));
    assert_eq!(world.deliver(DATA, 100), Outcome::Delivered);
    let at = usize::from(world.response().offset);
    assert_eq!(world.raw.read::<[u8; 12]>(DATA, at), [0xc3; 12]);
    world.send(&[DATA + 1], 100);
    assert_eq!(receive(&mut world.queue.tx).unwrap().fresh, 1);
    world.queue.tx.finish(&[Outcome::Delivered; WINDOW]);
    let after = (count(Counted::Hypercalls), count(Counted::Notifications));
    assert_eq!(after.0 - before.0, after.1 - before.1, "events only");
    assert_eq!((count(Counted::GrantHits), count(Counted::GrantMisses)), (2, 0));
    // Other pages are copied as before.
    assert_eq!(world.deliver(DATA + 2, 100), Outcome::Delivered);
    world.send(&[DATA + 2], 100);
    assert_eq!(receive(&mut world.queue.tx).unwrap().fresh, 1);
    assert_eq!((count(Counted::GrantHits), count(Counted::GrantMisses)), (2, 2));
}

#[test]
fn what_was_unmapped_is_reached_by_its_grant() {
    let (mut world, platform) = counted();
    assert_eq!(world.add(&[entry(DATA)]), status::SUCCESS);
    assert_eq!(world.remove(&[entry(DATA)]), [true]);
    assert_eq!(world.deliver(DATA, 100), Outcome::Delivered);
    world.send(&[DATA], 100);
    assert_eq!(receive(&mut world.queue.tx).unwrap().fresh, 1);
    // Another page in its place.
    assert_eq!(world.add(&[entry(DATA + 1)]), status::SUCCESS);
    with_body(&world.queue.tx, |body| {
        let granted = Granted { gref: GrantRef(DATA), offset: 0, mapped: MappedAt::new(0) };
        let memory = body.local::<Metered<Machine>>().expect("of this platform");
        let source = memory.source(&Fragment::granted(granted, 1), 0, 1);
        assert!(matches!(source, hypervisor::Source::Grant { .. }));
    });
    world.raw.grant(DATA, 0, 0, 0);
    assert_eq!(world.deliver(DATA, 100), Outcome::Dropped(DropReason::MemoryFault));
    assert_eq!(platform.meter().count(Counted::GrantHits), 0);
}

#[test]
fn a_page_mapped_to_be_read_is_not_written_to() {
    let mut world = world();
    world.raw.grant(DATA, PERMIT_READ, 0, DATA);
    world.raw.write(DATA, 0, [0x11u8; PAGE]);
    let read_only = |gref| GrefMapping { flags: READ_ONLY, ..entry(gref) };
    assert_eq!(world.add(&[read_only(DATA), read_only(DATA + 1)]), status::SUCCESS);
    assert_eq!(world.deliver(DATA, 100), Outcome::Dropped(DropReason::MemoryFault));
    assert!(world.response().status < 0);
    assert_eq!(world.raw.read::<[u8; PAGE]>(DATA, 0), [0x11; PAGE]);
    // This page's grant permits it.
    assert_eq!(world.deliver(DATA + 1, 100), Outcome::Delivered);
}

/// On Xen a frontend's revocation fails; here it can rewrite its table. It only reaches its own
/// memory with that, and keeps its own page pinned.
#[test]
fn a_grant_revoked_while_it_is_mapped_harms_its_owner_only() {
    let mut world = world();
    assert_eq!(world.add(&entries(DATA..DATA + 2)), status::SUCCESS);
    (DATA..DATA + 2).for_each(|gref| world.raw.grant(gref, 0, 0, 0));
    assert_eq!(world.deliver(DATA, 100), Outcome::Delivered);
    world.send(&[DATA + 1], 100);
    assert_eq!(receive(&mut world.queue.tx).unwrap().fresh, 1);
    world.queue.tx.finish(&[Outcome::Delivered; WINDOW]);
    assert_eq!(world.last_answer(), 0);
    assert_eq!(world.remove(&entries(DATA..DATA + 2)), [true; 2]);
    assert_eq!(world.add(&entries(DATA..DATA + 2)), status::INVALID_PARAMETER);
    assert_eq!(world.mapped(), 0);
}

/// A mapped page changes after its header was copied: the copy is sent (XSA-155).
#[test]
fn a_header_in_a_mapped_page_is_read_once() {
    let machine = Machine::new();
    let hypervisor = Tampered::new(&machine);
    let mut taker = Taker::new(&machine, hypervisor.clone(), Features::ALL);
    let mut world = World::new(&machine, hypervisor.clone());
    assert_eq!(world.add(&[entry(DATA)]), status::SUCCESS);
    world.send(&[DATA], 600);
    let guest = world.raw.clone();
    let mut reads = 0u8;
    hypervisor.set(move || {
        reads = reads.wrapping_add(1);
        guest.write(DATA, 0, [reads; 128]);
    });
    // Checks that the frame arrives with the header that was parsed.
    pass(&mut world.queue, &mut taker, Duration::ZERO).unwrap();
    assert_eq!(world.raw.read::<u32>(TX_RING, RSP_PROD), 1);
}

#[test]
fn nothing_stays_mapped_of_a_guest_that_leaves() {
    let mut world = world();
    assert_eq!(world.add(&entries(DATA..DATA + 24)), status::SUCCESS);
    world.send(&[DATA, DATA + 1], 600);
    assert_eq!(receive(&mut world.queue.tx).unwrap().fresh, 1);
    // Also in the middle of another list.
    assert_eq!(world.remove(&entries(DATA + 2..DATA + 24)), [true; 22]);
    let count = world.write_list(&entries(DATA + 2..DATA + 24));
    world.put(CtrlMessage::AddGrefMapping { queue: 0, gref: LIST, entries: count }.request(1));
    assert!(world.control.step().unwrap());
    assert!(world.mapped() > 2 && world.mapped() < 24);
    let World { raw, mut vif, queue, control, .. } = world;
    drop((queue, control));
    assert_eq!(raw.domain.pinned(), 0);
    // The next connection begins with nothing mapped, and can use the whole quota.
    raw.reset();
    let (queue, control) = raw.connect_with_control(&mut vif);
    let rings = raw.domain.pinned();
    let mut again = World { raw, vif, queue, control, asked: 0, sent: 0, rings };
    assert_eq!(again.mapped(), 0);
    assert_eq!(again.add(&entries(DATA..DATA + 24)), status::SUCCESS);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Compared with a model, with packets in flight.
    #[test]
    fn the_table_is_a_map(
        steps in prop::collection::vec(
            (0u8..5, prop::collection::vec((DATA..PAGES + 4, any::<bool>()), 1..30)),
            1..40,
        ),
    ) {
        let mut world = world();
        let mut model = HashMap::<u32, bool>::new();
        let mut in_hand = Vec::<u32>::new();
        for (what, list) in steps {
            let flags = |read_only| if read_only { READ_ONLY } else { 0 };
            let list: Vec<_> = list
                .into_iter()
                .map(|(gref, read)| GrefMapping { gref, flags: flags(read), status: 9 })
                .collect();
            match what {
                0 | 1 => {
                    let mut after = model.clone();
                    let fits = model.len() + list.len() <= PERSISTENT.into();
                    let new = |entry: &GrefMapping| {
                        entry.gref < PAGES && after.insert(entry.gref, entry.flags != 0).is_none()
                    };
                    let sound = fits && list.iter().all(new);
                    prop_assert_eq!(world.add(&list) == status::SUCCESS, sound);
                    if sound {
                        model = after;
                    }
                }
                2 => {
                    let removed = world.remove(&list);
                    for (entry, removed) in list.iter().zip(removed) {
                        let idle = !in_hand.contains(&entry.gref);
                        prop_assert_eq!(removed, idle && model.remove(&entry.gref).is_some());
                    }
                }
                3 if world.queue.tx.window().len() < 8 => {
                    // More than the header.
                    let page = list[0].gref.min(PAGES - 1);
                    world.send(&[page], 200);
                    prop_assert_eq!(receive(&mut world.queue.tx).unwrap().fresh, 1);
                    if model.contains_key(&page) {
                        in_hand.push(page);
                    }
                }
                _ => {
                    world.queue.tx.finish(&[Outcome::Delivered; WINDOW]);
                    in_hand.clear();
                }
            }
            prop_assert_eq!(world.mapped(), model.len());
            for gref in DATA..PAGES {
                prop_assert_eq!(world.is_pinned(gref), model.contains_key(&gref));
            }
        }
    }
}
