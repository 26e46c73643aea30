//! A backend is killed at any relevant instruction, and another one follows: every
//! request is answered once and in order, and no response is taken for a request.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use proptest::prelude::*;
use ring::{BackRing, Broken, FrontRing, Index, LEDGER_LEN, Ledger, RegionPage, SharedPage, Slots};
use shm::Region;
use zerocopy::{FromBytes, Immutable, IntoBytes};

struct Words;

impl Slots for Words {
    type Request = [u32; 3];
    type Response = u32;
    /// Few, so that slots are reused often.
    const COUNT: u32 = 8;
}

/// The second word of every request, which no response has.
const REQUEST: u32 = 0xaaaa_0000;
/// A response is its request's number with these bits set.
const RESPONSE: u32 = 0x5555_0000;

/// A page whose writer is killed instead of its `left`th write.
struct Mortal {
    page: RegionPage<Arc<Region>>,
    left: Arc<AtomicU32>,
}

impl Mortal {
    fn live(&self) {
        let left = self.left.load(Ordering::Relaxed);
        if left == 0 {
            // Unwinds without the panic hook, which would print.
            resume_unwind(Box::new("killed"));
        }
        self.left.store(left - 1, Ordering::Relaxed);
    }
}

impl SharedPage for Mortal {
    fn load(&self, index: Index) -> u32 {
        self.page.load(index)
    }
    fn store(&self, index: Index, value: u32) {
        self.live();
        self.page.store(index, value);
    }
    fn read_slot<T: FromBytes>(&self, offset: usize) -> T {
        self.page.read_slot(offset)
    }
    fn write_slot<T: IntoBytes + Immutable>(&self, offset: usize, value: T) {
        self.live();
        self.page.write_slot(offset, value);
    }
    fn full_barrier(&self) {
        self.page.full_barrier();
    }
}

/// Both ends, and what each may assume about the other.
struct World {
    shared: Arc<Region>,
    kept: Arc<Region>,
    left: Arc<AtomicU32>,
    front: FrontRing<Words, RegionPage<Arc<Region>>>,
    sent: u32,
    received: u32,
    back: BackRing<Words, Mortal>,
    /// Packets taken by this backend and not answered: the first request, and how many.
    held: VecDeque<(u32, u32)>,
}

impl World {
    fn new() -> Self {
        let shared = Arc::new(Region::anonymous(4096).unwrap());
        let kept = Arc::new(Region::anonymous(LEDGER_LEN).unwrap());
        let front = FrontRing::init(RegionPage::new(shared.clone()).unwrap());
        let left = Arc::new(AtomicU32::new(u32::MAX));
        let back = BackRing::attach(mortal(&shared, &left), ledger(&kept)).unwrap();
        let held = VecDeque::new();
        Self { shared, kept, left, front, sent: 0, received: 0, back, held }
    }

    /// The frontend sends packets of `len` requests. The first word of a request is its number
    /// and how many requests of its packet follow.
    fn send(&mut self, len: u32) {
        if self.front.free() < len {
            return;
        }
        for left in (0..len).rev() {
            self.front.request([self.sent, REQUEST, left]);
            self.sent += 1;
        }
        let _ = self.front.publish();
    }

    /// The frontend takes the responses that have come, in order.
    fn receive(&mut self) {
        while let Some((index, response)) = self.front.take().unwrap() {
            assert_eq!(response, self.received | RESPONSE, "another request was answered");
            assert_eq!(index, self.received);
            self.received += 1;
        }
    }

    /// The backend takes a packet.
    fn take(&mut self) {
        if self.back.unconsumed().unwrap() == 0 {
            return;
        }
        let first = self.back.consumed();
        let mut index = first;
        loop {
            let request = self.back.take().unwrap().expect("all of a packet is there");
            assert_eq!(request[..2], [index, REQUEST], "a slot was misread");
            index += 1;
            if request[2] == 0 {
                break;
            }
        }
        self.held.push_back((first, index - first));
    }

    /// The backend answers one of the packets that it holds.
    fn answer(&mut self, which: usize) {
        if self.held.is_empty() {
            return;
        }
        let (first, len) = self.held.remove(which % self.held.len()).unwrap();
        self.back.answer_each(first, (first..first + len).map(|n| n | RESPONSE));
        let held: u32 = self.held.iter().map(|(_, len)| len).sum();
        assert_eq!(self.back.unanswered(), held);
    }

    /// The backend publishes. If it is killed meanwhile, another one takes its place.
    fn publish(&mut self, writes: u32) {
        self.left.store(writes, Ordering::Relaxed);
        let published = catch_unwind(AssertUnwindSafe(|| self.back.publish()));
        if published.is_err() {
            self.restart(&[]);
        }
        self.left.store(u32::MAX, Ordering::Relaxed);
    }

    /// The backend is killed, and so are its first successors, each after the given number of
    /// writes.
    fn restart(&mut self, followers: &[u32]) {
        self.held.clear();
        for writes in followers.iter().chain([&u32::MAX]) {
            self.left.store(*writes, Ordering::Relaxed);
            let page = mortal(&self.shared, &self.left);
            let ledger = ledger(&self.kept);
            let resumed = catch_unwind(AssertUnwindSafe(|| BackRing::resume(page, ledger)));
            if let Ok(back) = resumed {
                self.back = back.unwrap();
            }
        }
    }
}

fn mortal(shared: &Arc<Region>, left: &Arc<AtomicU32>) -> Mortal {
    Mortal { page: RegionPage::new(shared.clone()).unwrap(), left: left.clone() }
}

/// The ledger in `kept`, for another backend.
fn ledger(kept: &Arc<Region>) -> Ledger<Words> {
    Ledger::new(kept.slice(0..LEDGER_LEN).unwrap()).unwrap()
}

#[derive(Clone, Debug)]
enum Step {
    Send(u32),
    Receive,
    Take,
    Answer(usize),
    /// Allows this many writes.
    Publish(u32),
    Restart(Vec<u32>),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (1u32..4).prop_map(Step::Send),
        3 => Just(Step::Receive),
        5 => Just(Step::Take),
        5 => any::<usize>().prop_map(Step::Answer),
        2 => (0u32..9).prop_map(Step::Publish),
        2 => Just(Step::Publish(u32::MAX)),
        1 => prop::collection::vec(0u32..9, 0..3).prop_map(Step::Restart),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]
    #[test]
    fn every_request_is_answered_once_whenever_the_backend_is_killed(
        steps in prop::collection::vec(step(), 1..120),
    ) {
        let mut world = World::new();
        for step in steps {
            match step {
                Step::Send(len) => world.send(len),
                Step::Receive => world.receive(),
                Step::Take => world.take(),
                Step::Answer(which) => world.answer(which),
                Step::Publish(writes) => world.publish(writes),
                Step::Restart(followers) => world.restart(&followers),
            }
        }
        // The last backend serves everything that was left.
        while world.back.unconsumed().unwrap() > 0 {
            world.take();
        }
        while !world.held.is_empty() {
            world.answer(0);
        }
        world.publish(u32::MAX);
        world.receive();
        prop_assert_eq!(world.received, world.sent);
    }

    #[test]
    fn no_index_breaks_a_backend_that_goes_on(
        words in prop::array::uniform4(any::<u32>()),
        near in any::<bool>(),
        responses in 0u32..9,
    ) {
        let mut world = World::new();
        world.send(8);
        (0..8).for_each(|_| world.take());
        (0..responses as usize).for_each(|_| world.answer(0));
        world.publish(responses / 2);
        let page = mortal(&world.shared, &world.left);
        for (index, word) in [Index::ReqProd, Index::ReqEvent, Index::RspProd, Index::RspEvent]
            .into_iter()
            .zip(words)
        {
            page.store(index, if near { word % 24 } else { word });
        }
        let waiting = page.load(Index::ReqProd).wrapping_sub(page.load(Index::RspProd));
        match BackRing::resume(page, ledger(&world.kept)) {
            Ok(mut back) => {
                prop_assert!(waiting <= Words::COUNT);
                prop_assert!(back.unconsumed().unwrap() <= waiting);
                prop_assert_eq!(back.unanswered(), 0);
            }
            Err(Broken::RequestOverflow { .. }) => prop_assert!(waiting > Words::COUNT),
            Err(other) => prop_assert!(false, "{other}"),
        }
    }
}

/// Kills a backend after the given number of writes of a publication of four responses. Returns
/// the next request that another one takes.
fn killed_after(writes: u32, spoil: impl FnOnce(&World)) -> [u32; 3] {
    let mut world = World::new();
    (0..6).for_each(|_| world.send(1));
    (0..6).for_each(|_| world.take());
    (0..4).for_each(|_| world.answer(0));
    world.left.store(writes, Ordering::Relaxed);
    let _ = catch_unwind(AssertUnwindSafe(|| world.back.publish()));
    spoil(&world);
    world.restart(&[]);
    world.back.take().unwrap().unwrap()
}

#[test]
fn a_publication_that_was_begun_is_completed() {
    // Four slots and the index.
    for writes in 0..=5 {
        assert_eq!(killed_after(writes, |_| ()), [4, REQUEST, 0]);
    }
}

#[test]
fn without_the_ledger_a_response_is_taken_for_a_request() {
    let forget = |world: &World| world.kept.zero(0, LEDGER_LEN).unwrap();
    assert_eq!(killed_after(0, forget), [0, REQUEST, 0]);
    assert_eq!(killed_after(1, forget), [RESPONSE, REQUEST, 0], "the hazard this is all about");
    assert_eq!(killed_after(5, forget), [4, REQUEST, 0]);
}

#[test]
fn a_ledger_of_another_ring_is_not_used() {
    let other = |world: &World| {
        let page = mortal(&world.shared, &Arc::new(AtomicU32::new(1)));
        page.store(Index::RspProd, 1);
    };
    assert_eq!(killed_after(0, other), [1, REQUEST, 0]);
    // The ring has fewer requests than were answered.
    let short = |world: &World| {
        let page = mortal(&world.shared, &Arc::new(AtomicU32::new(1)));
        page.store(Index::ReqProd, 3);
    };
    assert_eq!(killed_after(0, short), [0, REQUEST, 0]);
}

#[test]
fn a_new_frontend_has_nothing_of_the_one_before() {
    let mut world = World::new();
    (0..4).for_each(|_| world.send(1));
    (0..4).for_each(|_| world.take());
    (0..4).for_each(|_| world.answer(0));
    world.left.store(0, Ordering::Relaxed);
    assert!(catch_unwind(AssertUnwindSafe(|| world.back.publish())).is_err());
    world.left.store(u32::MAX, Ordering::Relaxed);
    // The new connection has other pages, with requests on them.
    world.shared.zero(0, 4096).unwrap();
    world.front = FrontRing::init(RegionPage::new(world.shared.clone()).unwrap());
    world.sent = 0;
    (0..4).for_each(|_| world.send(1));
    let page = mortal(&world.shared, &world.left);
    drop(BackRing::attach(page, ledger(&world.kept)).unwrap());
    world.restart(&[]);
    assert_eq!(world.back.take(), Ok(Some([0, REQUEST, 0])));
}

#[test]
fn a_ledger_needs_a_page() {
    assert!(Ledger::<Words>::new(Region::anonymous(LEDGER_LEN).unwrap()).is_ok());
    assert!(Ledger::<Words>::new(Region::anonymous(LEDGER_LEN - 8).unwrap()).is_err());
}
