//! A backend is killed, and its guest forges what the next one finds: indices, slots, grants, headers, keys.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::time::Duration;

use machine::{DRIVER_DOMAIN, Machine, toolstack};
use netback::{Connection, Vif, VifChange};
use offload::Features;
use port::Task;
use wire::netif::{CtrlMessage, keys};
use xenstore::XenbusState;

use crate::common::guest::{
    CTRL_RING, DATA, HEADERS, LIST, PAGE, PAGES, REQ_PROD, RSP_PROD, RX_RING, Raw, TX_RING,
};
use crate::common::taker::{BEHIND, Taker, pass};
use crate::common::tampered::Tampered;
use crate::control::World;

/// A change of the guest's memory or keys, and its name.
type Forgery = (String, Box<dyn Fn(&Raw)>);

/// After how many reads of the guest's memory its backend is killed. From 63 to 76 it publishes the
/// answers to its frames.
const KILLED_AFTER: [u32; 11] = [63, 0, 66, 20, 69, 50, 72, u32::MAX, 75, 76, 64];
/// How many of these each forgery meets, in turn.
const KILLS_EACH: usize = 3;

fn forgeries() -> Vec<Forgery> {
    let mut all: Vec<Forgery> = Vec::new();
    let mut add = |name: String, forge: Box<dyn Fn(&Raw)>| all.push((name, forge));
    for ring in [TX_RING, RX_RING, CTRL_RING] {
        for at in [REQ_PROD, 4, RSP_PROD, 12] {
            for by in [1, 2, 16, 127, 128, 129, 255, 256, 257, 1 << 31, u32::MAX - 1, u32::MAX] {
                let moved = move |raw: &Raw| {
                    let index: u32 = raw.read(ring, at);
                    raw.write(ring, at, index.wrapping_add(by));
                };
                add(format!("ring {ring}: index {at} moved by {by}"), Box::new(moved));
            }
            let zero = move |raw: &Raw| raw.write(ring, at, 0u32);
            add(format!("ring {ring}: index {at} zero"), Box::new(zero));
        }
        for byte in [0u8, 1, 0xff] {
            let slots = move |raw: &Raw| raw.write(ring, 64, [byte; PAGE - 64]);
            add(format!("ring {ring}: slots of {byte}"), Box::new(slots));
        }
        for (name, flags, frame) in [
            ("revoked", 0, ring),
            ("read-only", 5, ring),
            ("of the grant table", 1, 0),
            ("of another ring", 1, if ring == TX_RING { RX_RING } else { TX_RING }),
            ("outside the guest", 1, PAGES),
        ] {
            let grant = move |raw: &Raw| raw.grant(ring, flags, DRIVER_DOMAIN.0, frame);
            add(format!("ring {ring}: grant {name}"), Box::new(grant));
        }
    }
    let header_grant = |raw: &Raw| raw.grant(HEADERS, 0, 0, 0);
    add("a header page's grant revoked".to_owned(), Box::new(header_grant));
    for byte in [0u8, 0xff] {
        let pages = move |raw: &Raw| {
            (HEADERS..PAGES).chain([LIST]).for_each(|page| raw.write(page, 0, [byte; PAGE]));
        };
        add(format!("headers, bodies and lists of {byte}"), Box::new(pages));
    }
    for key in [
        keys::TX_RING_REF,
        keys::RX_RING_REF,
        keys::CTRL_RING_REF,
        keys::EVENT_CHANNEL,
        keys::EVENT_CHANNEL_CTRL,
        keys::EVENT_CHANNEL_TX,
        keys::MULTI_QUEUE_NUM_QUEUES,
        keys::REQUEST_RX_COPY,
        keys::TX_HEADER_REFS,
    ] {
        for value in ["", "0", "1", "2", "8", "9", "63", "4294967295", "16 17 18", "abc"] {
            add(format!("{key} = {value:?}"), Box::new(move |raw: &Raw| raw.key(key, value)));
        }
    }
    all
}

/// A guest with frames, buffers and control requests on its rings, whose backend is killed.
fn killed(machine: &Machine, taker: &mut Taker, reads: u32) -> Arc<Raw> {
    let hypervisor = Tampered::new(machine);
    let mut world = World::with_headers(machine, hypervisor.clone());
    world.vif.connected().unwrap();
    let raw = world.raw.clone();
    let header = [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x88, 0xb5];
    (DATA..PAGES).for_each(|page| raw.write(page, 0, header));
    (HEADERS..DATA).for_each(|page| {
        (0..PAGE).step_by(128).for_each(|at| raw.write(page, at, header));
    });
    (0..6).for_each(|n| world.send(&[DATA + n, DATA + n + 6], 300));
    let entries = world.write_list(&crate::control::entries(DATA..DATA + 20));
    for n in 0..3 {
        let ask = CtrlMessage::AddGrefMapping { queue: 0, gref: LIST, entries };
        world.put(ask.request(n));
    }
    let mut left = reads;
    hypervisor.set(move || {
        left = left.checked_sub(1).unwrap_or_else(|| {
            // Unwinds without the panic hook, which would print.
            resume_unwind(Box::new("killed"));
        });
    });
    let World { mut queue, mut control, .. } = world;
    let died = catch_unwind(AssertUnwindSafe(|| {
        let _ = control.step();
        let _ = pass(&mut queue, taker, Duration::ZERO);
        let _ = control.step();
    }));
    assert!(died.is_err() || reads == u32::MAX, "{reads} reads are too many");
    drop((queue, control));
    assert_eq!(raw.domain.pinned(), 0);
    raw
}

/// The next backend works for its guest, until it notices.
fn serve(connection: Connection<Tampered>, taker: &mut Taker) {
    let Connection { mut queues, mut control, .. } = connection;
    for queue in &mut queues {
        for round in 0..4 {
            if let Some(control) = &mut control
                && (0..64).try_for_each(|_| control.step().map(drop)).is_err()
            {
                return;
            }
            if pass(queue, taker, Duration::from_millis(20 * round)).is_err() {
                return;
            }
        }
    }
}

/// For each ring: the last answer, and how many requests wait for one.
fn waiting(raw: &Raw) -> [(u32, u32); 3] {
    [TX_RING, RX_RING, CTRL_RING].map(|ring| {
        let answered: u32 = raw.read(ring, RSP_PROD);
        (answered, raw.read::<u32>(ring, REQ_PROD).wrapping_sub(answered))
    })
}

/// An honest driver starts over and connects.
fn connects_again(raw: &Raw, vif: &mut Vif<Tampered>, what: &str) {
    raw.reset();
    for key in [keys::MULTI_QUEUE_NUM_QUEUES, keys::EVENT_CHANNEL_TX, keys::TX_HEADER_REFS] {
        let _ = raw.store.remove(None, &format!("{}/{key}", crate::states::device()));
    }
    raw.key(keys::REQUEST_RX_COPY, 1);
    raw.key("state", 1);
    assert!(matches!(vif.frontend_changed(), Ok(VifChange::None)), "{what}");
    assert_eq!(vif.state(), XenbusState::InitWait, "{what}");
    drop(raw.connect_with_control(vif));
    assert_eq!(raw.domain.pinned(), 0, "{what}");
}

#[test]
fn what_a_guest_forges_while_its_backend_is_dead_harms_nobody_else() {
    let machine = Machine::new();
    let mut taker = Taker::new(&machine, Tampered::new(&machine), Features::ALL);
    let behind = taker.raw.snapshot().split_off(BEHIND);
    let (mut adopted, mut refused) = (0, 0);
    let mut kills = KILLED_AFTER.into_iter().cycle();
    for (name, forge) in forgeries() {
        for reads in kills.by_ref().take(KILLS_EACH) {
            let what = format!("{name}, after {reads} reads");
            let raw = killed(&machine, &mut taker, reads);
            forge(&raw);
            let before = waiting(&raw);
            let mut vif = raw.announce(Tampered::new(&machine));
            assert_eq!(vif.state(), XenbusState::Connected, "{what}: nothing to adopt");
            match vif.frontend_changed() {
                Ok(VifChange::Connect(connection)) => {
                    serve(connection, &mut taker);
                    adopted += 1;
                }
                Ok(_) => panic!("{what}: nobody has changed a state"),
                Err(_) => refused += 1,
            }
            for ((answered, waited), (now, _)) in before.into_iter().zip(waiting(&raw)) {
                let answers = now.wrapping_sub(answered);
                assert!(answers <= waited, "{what}: {answers} answers to {waited} requests");
            }
            assert_eq!(raw.domain.pinned(), 0, "{what}: a page stays mapped");
            vif.disconnected().unwrap();
            assert!(taker.raw.snapshot()[BEHIND..] == *behind, "{what}: others' memory");
            connects_again(&raw, &mut vif, &what);
            machine.destroy(raw.domain.id());
            // Hundreds of backends' nodes would make each change of the store slow.
            toolstack::remove_domain(&*raw.driver_store, raw.domain.id()).unwrap();
            machine.store().forget(raw.domain.id());
        }
    }
    // Neither by chance.
    assert!(adopted > 200 && refused > 50, "{adopted} adopted, {refused} refused");
}
