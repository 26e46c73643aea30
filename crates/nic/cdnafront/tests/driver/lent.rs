//! A context whose buffers are lent, against a card that checks every descriptor.

#![allow(clippy::cast_possible_truncation, reason = "lengths and counts of a test")]

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use cdna::layout::features;
use cdna::{Direction, Enable, Flags};
use cdnafront::{Config, Interface, Leftover, LentCounts, LentIngress, Loan, open_lent};
use hypervisor::PAGE_SIZE;
use port::{
    Armed, Budget, Doorbell, Ingress, Lender, LentBuffer, Outcome, Outcomes, Received, WINDOW,
    Wanted, linearise,
};

use crate::model::{Card, PROTECTIONS, Protection, bytes, card};

const DELIVERED: Outcomes = [Outcome::Delivered; WINDOW];
const LENDER: u64 = 9;
/// Buffers of the guest.
const BUFFERS: u32 = 256;

/// A guest's buffers: page n has the token n.
struct Guest {
    free: Mutex<BTreeSet<u32>>,
    lent: Mutex<BTreeSet<u32>>,
}

impl Guest {
    /// The frames of these tokens were handed over, and the guest posts the buffers again.
    fn take(&self, tokens: &[u32]) {
        for token in tokens {
            assert!(self.lent.lock().unwrap().remove(token), "{token} is not lent");
            self.free.lock().unwrap().insert(*token);
        }
    }
}

impl Lender for Guest {
    fn lend(&self, wanted: Wanted, lent: &mut Vec<LentBuffer>) {
        for _ in 0..wanted.buffers {
            let Some(token) = self.free.lock().unwrap().pop_first() else { return };
            assert!(self.lent.lock().unwrap().insert(token));
            lent.push(LentBuffer { token, offset: u64::from(token) * PAGE_SIZE as u64 });
        }
    }

    fn take_back(&self, tokens: &[u32]) {
        let own: Vec<_> = tokens.to_vec();
        let own: Vec<_> =
            own.into_iter().filter(|token| self.lent.lock().unwrap().contains(token)).collect();
        self.take(&own);
    }
}

struct World {
    card: Card,
    guest: Arc<Guest>,
    ingress: LentIngress,
    leftover: Arc<Leftover>,
    counts: Arc<LentCounts>,
    refused: Arc<Doorbell>,
    /// It gives the context back when it is dropped.
    _interface: Interface,
}

impl World {
    fn new(protection: Protection, buffers: u32) -> Self {
        let (card, mut context) = card(protection, u32::MAX - 100);
        context.features = features::CHECKSUM | features::SCATTER_GATHER | features::TSO;
        let guest =
            Arc::new(Guest { free: Mutex::new((0..buffers).collect()), lent: Mutex::default() });
        let counts = Arc::<LentCounts>::default();
        let refused = Arc::new(Doorbell::new().unwrap());
        let loan = Loan {
            lender: guest.clone(),
            id: LENDER,
            counts: counts.clone(),
            refused: refused.clone(),
        };
        let leftover = Arc::<Leftover>::default();
        let (interface, ingress) = open_lent(context, &Config::default(), loan, leftover.clone());
        let mut world =
            Self { card, guest, ingress, leftover, counts, refused, _interface: interface };
        world.turn(&DELIVERED);
        let _ = world.ingress.arm();
        world.card.take_events();
        world
    }

    /// Takes frames. Returns each with its tokens.
    fn take(&mut self) -> Vec<(Vec<u8>, Vec<u32>)> {
        let mut received = Received::default();
        self.ingress.receive(&mut Budget::default(), &mut received).unwrap();
        let window = self.ingress.window();
        let frames = window.order().iter().map(|slot| window.frame(*slot));
        let bytes = frames.map(|frame| {
            let mut bytes = vec![0; frame.len as usize];
            self.ingress.with_body(&mut |body| {
                linearise(frame, body, &mut bytes).unwrap();
            });
            assert!(frame.lent.lender == LENDER && frame.lent.has_header);
            (bytes, frame.lent.tokens.to_vec())
        });
        bytes.collect()
    }

    fn turn(&mut self, outcomes: &Outcomes) {
        self.ingress.finish(outcomes);
    }
}

/// A frame that no parser refuses.
fn frame(len: usize) -> Vec<u8> {
    let mut bytes = bytes(len, len);
    bytes[..14].copy_from_slice(&[2, 0, 0, 0, 0, 7, 2, 0, 0, 0, 0, 1, 0x88, 0xb5]);
    bytes
}

#[test]
fn frames_lie_in_lent_buffers_and_no_buffer_is_lost() {
    for protection in PROTECTIONS {
        let mut world = World::new(protection, BUFFERS);
        let groups = [Enable::TX, Enable::BROADCAST, Enable::MULTICAST, Enable::PROMISCUOUS];
        assert!(groups.iter().all(|group| !world.card.is_enabled(*group)));
        assert!(world.card.is_enabled(Enable::RX));
        for round in 0..300 {
            let lens = [60, 100, 1514, 4096, 4097, 9000].map(|len| len + round % 50);
            for len in lens {
                assert!(world.card.receive(&frame(len), Flags::NONE, 0), "{protection:?} {round}");
            }
            let taken = world.take();
            assert_eq!(taken.len(), lens.len());
            for ((bytes, tokens), len) in taken.iter().zip(lens) {
                assert!(*bytes == frame(len));
                assert_eq!(tokens.len(), len.div_ceil(PAGE_SIZE));
            }
            // Some are handed over, the buffers of others come back with the turn.
            for (_, tokens) in taken.iter().skip(round % 3) {
                world.guest.take(tokens);
            }
            world.turn(&DELIVERED);
            let _ = world.ingress.arm();
            world.card.take_events();
        }
        let counted =
            |guest: &Guest| [guest.free.lock().unwrap().len(), guest.lent.lock().unwrap().len()];
        let [free, lent] = counted(&world.guest);
        assert_eq!((free + lent) as u32, BUFFERS);
        assert!(free as u32 >= BUFFERS / 2 - 16, "half of them are left for others");
        let World { guest, ingress, leftover, .. } = world;
        drop(ingress);
        guest.take_back(&leftover.take());
        assert_eq!(counted(&guest), [BUFFERS as usize, 0]);
    }
}

/// A guest that posts nothing is asked again, more and more seldom, and served when it posts.
#[test]
fn a_guest_without_buffers_costs_little() {
    let mut world = World::new(Protection::Hypervisor, 0);
    let mut pause = Duration::ZERO;
    for _ in 0..20 {
        let now = Instant::now();
        let Armed::Until(again) = world.ingress.arm().unwrap() else { panic!() };
        let next = again.duration_since(now);
        assert!(next + Duration::from_millis(20) > pause);
        pause = next;
    }
    assert!(pause > Duration::from_millis(60), "{pause:?}");
    assert!(!world.card.receive(&frame(100), Flags::NONE, 0), "the card has no buffer");
    world.guest.free.lock().unwrap().extend(0..BUFFERS);
    assert_eq!(world.ingress.arm().unwrap(), Armed::Asleep);
    world.card.take_events();
    assert!(world.card.receive(&frame(100), Flags::NONE, 0));
    assert_eq!(world.take().len(), 1);
}

/// The hypervisor refuses a page that the guest gave up after it had posted it. The card has fewer and fewer buffers then, so
/// the owner of the queue must hear of it, and no buffer is lost.
#[test]
fn a_page_that_is_not_the_guests_any_more_ends_its_queue_with_a_reason() {
    for protection in [Protection::Hypervisor, Protection::MapEach] {
        let mut world = World::new(protection, BUFFERS);
        assert_eq!(world.counts.refusal(), None);
        world.card.calls.lock().unwrap().refuses = true;
        for n in 0..100 {
            if !world.card.receive(&frame(100 + n), Flags::NONE, 0) {
                break;
            }
        }
        // In one turn: the card may have no buffer left, and then no interrupt leads to another turn.
        for (_, tokens) in world.take() {
            world.guest.take(&tokens);
        }
        world.turn(&DELIVERED);
        let why = world.counts.refusal().expect("the owner hears why");
        assert!(why.contains("a test"), "{protection:?}: {why}");
        assert!(rustix::io::read(&*world.refused, &mut [0; 8]).is_ok(), "and is woken up");
        assert_eq!(world.ingress.arm().unwrap(), Armed::Asleep);
        assert!(world.take().is_empty(), "it is used no more");
        drop(world.ingress);
        world.guest.take_back(&world.leftover.take());
        assert!(world.guest.lent.lock().unwrap().is_empty(), "{protection:?}");
    }
}

/// A card that lies ends the queue, and not the uplink that it belongs to.
#[test]
fn a_card_that_lies_ends_one_queue() {
    let mut world = World::new(Protection::None, BUFFERS);
    world.card.set_consumer(Direction::Rx, 5);
    assert!(world.take().is_empty());
    assert_eq!(world.ingress.arm().unwrap(), Armed::Asleep);
    drop(world.ingress);
    world.guest.take_back(&world.leftover.take());
    assert!(world.guest.lent.lock().unwrap().is_empty());
}
