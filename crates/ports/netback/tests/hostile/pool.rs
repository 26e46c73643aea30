//! Pools that the driver domain grants and the guest copies from, with hostile guests and restarts.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use hypervisor::CopyForm;
use machine::Machine;
use netback::VifChange;
use offload::Features;
use port::{Body, DropReason, Egress, Fragment, LentBuffer, Outcome, Wanted};
use port_testing::offer;
use proptest::prelude::*;
use shm::Region;
use wire::netif::guest_copy::GUEST_COPY;
use wire::netif::{RxResponse, rx_flags};

use crate::common::guest::{DATA, PAGE, REQ_PROD, RX_RING, Raw};
use crate::common::tampered::Random;
use crate::copier::{Copier, GUEST_COPY_OFFER, HEADER, Known, POOL, frame, is_frame};
use crate::granting::Granting;

#[test]
fn a_frame_in_the_pool_is_copied_by_the_guest_alone() {
    let machine = Machine::new();
    let mut guest = Copier::new(&machine, POOL);
    let known = Known::read(&guest);
    guest.post(256);
    let before = guest.raw.snapshot();
    // The last one is all header, and still costs the driver domain no grant copy.
    for (fill, len) in [(1, 1514), (2, 4096), (3, 100)] {
        assert_eq!(guest.send(len, fill), Outcome::Delivered);
        let (_, response) = guest.take().unwrap();
        assert_ne!(response.flags & GUEST_COPY, 0);
        let bytes = known.copy(response).unwrap();
        assert!(bytes.len() == len as usize && is_frame(&bytes, fill));
    }
    let buffers = guest.lend(4);
    let outcome = guest.deliver(&buffers, (9000, 4), true, Duration::ZERO);
    assert_eq!(outcome, Ok(Outcome::Delivered));
    let flags = |response: RxResponse| {
        response.flags & (rx_flags::MORE_DATA | rx_flags::EXTRA_INFO | rx_flags::CSUM_BLANK)
    };
    let (more, extra) = (rx_flags::MORE_DATA, rx_flags::EXTRA_INFO);
    let (_, first) = guest.take().unwrap();
    assert_eq!(flags(first), more | extra | rx_flags::CSUM_BLANK);
    guest.take().unwrap();
    let rest = [(); 2].map(|()| guest.take().unwrap().1);
    assert_eq!(rest.map(flags), [more, 0]);
    let bytes: Vec<u8> =
        [first].iter().chain(&rest).flat_map(|response| known.copy(*response).unwrap()).collect();
    assert!(bytes.len() == 9000 && is_frame(&bytes, 4));
    let data = DATA as usize * PAGE;
    assert_eq!(before[data..], guest.raw.snapshot()[data..], "the backend has copied nothing");
}

/// Frames that lie elsewhere, and all frames of a frontend that does not ask, are copied as ever.
#[test]
fn other_frames_and_stock_frontends_get_copies() {
    let machine = Machine::new();
    let mut guest = Copier::new(&machine, POOL);
    guest.post(256);
    let region: Arc<[Region]> = [Region::anonymous(PAGE).unwrap()].into();
    let (mut frame, bytes) = frame(1000, 5);
    frame.fragments.push(Fragment::in_region(0, 0, 1000 - 128));
    region[0].copy_in(0, &bytes[HEADER..]).unwrap();
    let outcome = offer(guest.rx(), Body::Regions(&region), &frame, Duration::ZERO);
    assert_eq!(outcome, Ok(Outcome::Delivered));
    let (_, response) = guest.take().unwrap();
    assert_eq!((response.flags & GUEST_COPY, response.status), (0, 1000));
    let raw = Raw::new(&machine);
    let granting = Granting::new(&machine, POOL);
    let mut vif = raw.announce_as(granting.clone(), GUEST_COPY_OFFER);
    let queue = raw.connect(&mut vif, Features::ALL);
    assert!(queue.rx.guest_copies().is_none() && queue.rx.lent_memory().is_none());
    assert_eq!(granting.table.granted(), 0, "a guest that does not copy is granted nothing");
}

#[test]
fn a_guest_without_a_pool_gets_copies() {
    let machine = Machine::new();
    let granting = Granting::without_memory(&machine);
    let raw = Raw::new(&machine);
    raw.key("request-rx-guest-copy", 1);
    let mut vif = raw.announce_as(granting, GUEST_COPY_OFFER);
    let connection = raw.connect_all(&mut vif, Features::ALL);
    assert_eq!(connection.out_of(), Some("pages"));
    assert!(connection.guest_copies().next().is_none());
    // Its frontend knows of no pool, also when another backend has memory.
    vif.connected().unwrap();
    drop(connection);
    let mut vif = raw.adopt(Granting::new(&machine, POOL), GUEST_COPY_OFFER);
    let Ok(VifChange::Connect(connection)) = vif.frontend_changed() else { panic!("it goes on") };
    assert!(connection.guest_copies().next().is_none());
}

#[test]
fn a_guest_that_never_copies_loses_only_its_own_frames() {
    let machine = Machine::new();
    let granting = Granting::new(&machine, POOL);
    let raw = || Raw::new(&machine);
    let [mut silent, mut other] = [(); 2].map(|()| Copier::of(granting.clone(), raw()));
    let (known, of_silent) = (Known::read(&other), Known::read(&silent));
    silent.post(256);
    other.post(256);
    for _ in 0..POOL {
        assert_eq!(silent.send(1514, 1), Outcome::Delivered);
    }
    // Its pool is used up: the uplink reads its frames into buffers of the driver domain.
    assert!(silent.lend(10).is_empty());
    for n in 0..1000u32 {
        let fill = u8::try_from(n % 200).unwrap() + 2;
        assert_eq!(other.send(1514, fill), Outcome::Delivered, "{n}");
        let (_, response) = other.take().unwrap();
        assert!(is_frame(&known.copy(response).unwrap(), fill));
        assert_eq!(
            of_silent.table.copy(of_silent.guest, known.grefs[0], 0, 10),
            None,
            "not its pages"
        );
        other.post(1);
    }
    // What it has not copied is still there, unchanged: nobody waits for it.
    for _ in 0..POOL {
        let (_, response) = silent.take().unwrap();
        assert!(is_frame(&of_silent.copy(response).unwrap(), 1));
    }
    silent.kill();
    assert_eq!(silent.granting.table.granted(), POOL + 1, "the other's pool");
}

/// A guest that posts slots again without having copied gives its pages back: it may see later frames of its
/// own in place of earlier ones. One that posts more than a ring loses its interface.
#[test]
fn a_guest_that_acknowledges_too_early_or_twice_hurts_itself() {
    let machine = Machine::new();
    let mut guest = Copier::new(&machine, POOL);
    let known = Known::read(&guest);
    guest.post(256);
    let mut early = Vec::new();
    for n in 0..POOL * 3 {
        assert_eq!(guest.send(1514, u8::try_from(n).unwrap()), Outcome::Delivered);
        early.push(guest.take().unwrap().1);
        guest.post(1);
    }
    for response in early {
        assert_eq!(known.copy(response).map(|bytes| bytes.len()), Some(1514));
    }
    guest.raw.write(RX_RING, REQ_PROD, guest.posted + 1000);
    let mut lent = Vec::new();
    assert!(guest.rx().lend(Wanted { buffers: 1, held: true }, &mut lent).is_err());
    assert!(lent.is_empty());
}

#[test]
fn a_frame_without_room_waits_in_its_pages() {
    let machine = Machine::new();
    let mut guest = Copier::new(&machine, POOL);
    let known = Known::read(&guest);
    guest.post(2);
    let buffers = guest.lend(3);
    let mut send = |now| guest.deliver(&buffers, (9000, 7), false, now).unwrap();
    assert_eq!(send(Duration::ZERO), Outcome::Waiting);
    let late = Duration::from_millis(201);
    assert_eq!(send(late), Outcome::Dropped(DropReason::Stalled), "it takes nothing");
    guest.post(254);
    assert_eq!(guest.deliver(&buffers, (9000, 7), false, late), Ok(Outcome::Delivered));
    for _ in 0..3 {
        let (_, response) = guest.take().unwrap();
        assert!(is_frame(&known.copy(response).unwrap(), 7));
    }
    // Its tokens are used up.
    guest.lend(1);
    let again = guest.deliver(&buffers, (9000, 7), false, late);
    assert_eq!(again, Ok(Outcome::SourceFault));
}

/// The grants of a backend that was killed are used again at once, by its successor. A guest that had not copied
/// yet loses these frames, and never takes another frame for one of them.
#[test]
fn after_a_restart_no_frame_is_mistaken_for_another() {
    let machine = Machine::new();
    let mut guest = Copier::new(&machine, POOL);
    let old = Known::read(&guest);
    guest.post(256);
    for fill in 1..=10 {
        assert_eq!(guest.send(1514, fill), Outcome::Delivered);
    }
    guest.kill();
    let (_, response) = guest.take().unwrap();
    assert_eq!(old.copy(response), None, "its grant has ended");
    guest.restart();
    let new = Known::read(&guest);
    assert_eq!((old.id, &old.grefs), (new.id, &new.grefs), "the references are the same");
    assert_ne!(old.mark, new.mark);
    // While the guest may have responses of the first backend, the second one's pool stays empty.
    assert!(guest.lend(10).is_empty());
    let (_, response) = guest.take().unwrap();
    assert_eq!(old.copy(response), None, "the mark says so");
    let stale: Vec<_> = (0..8).map(|_| guest.take().unwrap().1).collect();
    for response in stale {
        let bytes = new.copy(response).unwrap();
        assert!(bytes.iter().all(|byte| *byte == 0), "not even a frame");
    }
    assert_eq!(guest.take().map(|(_, response)| response.id), None);
    guest.post(9);
    assert!(guest.lend(10).is_empty(), "one slot is not posted again");
    guest.post(1);
    assert_eq!(guest.send(1514, 77), Outcome::Delivered);
    let (_, response) = guest.take().unwrap();
    assert!(is_frame(&new.copy(response).unwrap(), 77));
    assert_eq!(old.copy(response), None, "who has not noticed loses it");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Against a naive model: no page is in two uses, none is written before the guest has posted its slot again,
    /// and none is lost.
    #[test]
    fn no_page_is_written_before_the_guest_has_copied_it(seed: u64) {
        let machine = Machine::new();
        let mut guest = Copier::new(&machine, POOL);
        let known = Known::read(&guest);
        let mut random = Random(seed);
        let mut lent: Vec<LentBuffer> = Vec::new();
        let mut ended: Vec<u32> = Vec::new();
        // What the guest will copy: by index of the response, the page and its bytes.
        let mut named: HashMap<u32, (u64, u8)> = HashMap::new();
        let mut waiting: Vec<(u32, RxResponse, u8)> = Vec::new();
        let mut fill = 0u8;
        for _ in 0..400 {
            match random.below(7) {
                0 | 1 => {
                    // Only slots whose responses it has copied: this guest is honest.
                    let copied = waiting.first().map_or(guest.taken, |(index, ..)| *index);
                    let count = random.below(copied.wrapping_add(257).wrapping_sub(guest.posted));
                    guest.post(count);
                }
                2 => lent.extend(guest.lend(random.below(20) as usize)),
                3 | 4 => {
                    let (len, gso) = (60 + random.below(20_000), random.one_in(3));
                    let count = len.div_ceil(4096) as usize + usize::from(gso);
                    if lent.len() < count {
                        continue;
                    }
                    let buffers: Vec<_> = lent[..count].to_vec();
                    fill = fill.wrapping_add(1);
                    let outcome = guest.deliver(&buffers, (len, fill), gso, Duration::ZERO).unwrap();
                    if outcome == Outcome::Delivered {
                        lent.drain(..count);
                        ended.extend(buffers.iter().map(|buffer| buffer.token));
                        let mut is_extra = false;
                        while let Some((index, response)) = guest.take() {
                            if std::mem::take(&mut is_extra) {
                                continue;
                            }
                            is_extra = response.flags & rx_flags::EXTRA_INFO != 0;
                            named.insert(index, (u64::from(response.id) * 4096, fill));
                            waiting.push((index, response, fill));
                        }
                    } else {
                        prop_assert_eq!(outcome, Outcome::Waiting);
                    }
                }
                5 => {
                    let count = (random.below(5) as usize).min(lent.len());
                    let mut tokens: Vec<_> = lent.drain(..count).map(|buffer| buffer.token).collect();
                    ended.extend(&tokens);
                    // Loans that have ended, and some that never were.
                    tokens.extend(ended.iter().rev().take(5));
                    tokens.extend([random.below(1 << 20) | 1 << 30, u32::MAX]);
                    guest.rx().take_back(&tokens);
                }
                _ => {
                    for (_, response, fill) in waiting.drain(..) {
                        let bytes = known.copy(response).unwrap();
                        prop_assert!(is_frame(&bytes, fill), "another frame is in its page");
                    }
                }
            }
            let posted = guest.posted;
            named.retain(|index, _| posted.wrapping_sub(*index) <= 256);
            let in_use: HashSet<_> = named.values().map(|(offset, _)| *offset).collect();
            prop_assert_eq!(in_use.len(), named.len(), "a page is named twice");
            for buffer in &lent {
                prop_assert!(!in_use.contains(&buffer.offset), "a page is lent that the guest has");
            }
            let distinct: HashSet<_> = lent.iter().map(|buffer| buffer.offset).collect();
            prop_assert_eq!(distinct.len(), lent.len());
            prop_assert!(lent.len() + named.len() <= POOL);
        }
        // All pages come back.
        waiting.clear();
        let tokens: Vec<_> = lent.drain(..).map(|buffer| buffer.token).collect();
        guest.rx().take_back(&tokens);
        let room = guest.taken.wrapping_add(256).wrapping_sub(guest.posted);
        guest.post(room);
        prop_assert_eq!(guest.lend(2 * POOL).len(), POOL);
    }
}

#[test]
fn the_pool_is_the_guests_alone_and_read_only_by_construction() {
    let machine = Machine::new();
    let guest = Copier::new(&machine, POOL);
    let copies = guest.queue.as_ref().unwrap().rx.guest_copies().unwrap();
    assert_eq!(copies.form(), CopyForm::Granted);
    let pool = copies.pool().unwrap();
    let mut bytes = vec![1; pool.len()];
    pool.copy_out(0, &mut bytes).unwrap();
    assert!(bytes.iter().all(|byte| *byte == 0), "no byte of another use");
}
