//! The device against a plain driver: every chain arrives once, whole and in order, comes back once and in order, and
//! no notification that the other side needs is left out.

use std::collections::VecDeque;

use crate::common::{DATA, LEN, TABLES, USER, World, addresses, options, setup, start, world};
use proptest::prelude::*;
use virtqueue::driver::{Offered, Table, Used};
use virtqueue::{Buffer, Chain, Layout, Queue, RingSetup, SetupError, Single};

/// What a test does next.
#[derive(Clone, Debug)]
enum Step {
    /// The driver offers a chain of this many readable and writable buffers.
    Offer { readable: usize, writable: usize, indirect: bool },
    /// The driver shows what it offered.
    Publish,
    /// The device takes up to `count` chains, and puts back the last few of them.
    Pop { count: usize, back: usize },
    /// The device returns one of the chains that it has.
    Complete { which: usize, written: u32 },
    /// The device shows what it returned.
    Return,
    /// The driver takes all that came back, and may wait for more.
    Take { sleeps: bool },
    /// The device goes to sleep if there is nothing to do.
    Sleep,
    /// The device ends, and another one continues with its position.
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0usize..5, 0usize..5, any::<bool>()).prop_map(|(readable, writable, indirect)| {
            let writable = if readable == 0 { writable.max(1) } else { writable };
            Step::Offer { readable, writable, indirect }
        }),
        3 => Just(Step::Publish),
        3 => (1usize..8, 0usize..3).prop_map(|(count, back)| Step::Pop { count, back }),
        4 => (any::<usize>(), 0u32..5000).prop_map(|(which, written)| Step::Complete { which, written }),
        3 => Just(Step::Return),
        2 => any::<bool>().prop_map(|sleeps| Step::Take { sleeps }),
        2 => Just(Step::Sleep),
        1 => Just(Step::Restart),
    ]
}

/// Both sides as a test sees them.
struct Run {
    world: World,
    size: u16,
    options: virtqueue::Options,
    /// Chains that were offered and not yet taken by the device: id and buffers.
    offered: VecDeque<(u16, Vec<Offered>)>,
    /// How many of them the driver has published.
    published: usize,
    /// Chains in the device's hands: number, id, buffers, and what was written once complete.
    taken: VecDeque<(u16, u16, Vec<Offered>, Option<u32>)>,
    /// Chains that the driver will find returned, in order.
    returned: VecDeque<Used>,
    /// Whether a side sleeps until it is notified.
    device_sleeps: bool,
    driver_sleeps: bool,
    offers: u64,
}

impl Run {
    fn new(size: u16, options: virtqueue::Options) -> Self {
        Self {
            world: world(size, options),
            size,
            options,
            offered: VecDeque::new(),
            published: 0,
            taken: VecDeque::new(),
            returned: VecDeque::new(),
            device_sleeps: false,
            driver_sleeps: false,
            offers: 0,
        }
    }

    fn offer(&mut self, readable: usize, writable: usize, indirect: bool) {
        let buffer = |n: usize| Offered {
            address: DATA + (self.offers * 16 + n as u64) * 64 % (LEN as u64 - DATA - 4096),
            len: u32::try_from(n).unwrap() * 7 + 1,
            writable: n >= readable,
        };
        let buffers: Vec<_> = (0..readable + writable).map(buffer).collect();
        let offset = TABLES + self.offers % 512 * 256;
        let table = indirect.then_some(Table { offset, address: offset });
        if let Some(id) = self.world.driver.offer(&buffers, table) {
            self.offers += 1;
            self.offered.push_back((id, buffers));
        }
    }

    fn publish(&mut self) {
        let fresh = self.offered.len() - self.published;
        let notified = self.world.driver.publish();
        self.published += fresh;
        if fresh > 0 && self.device_sleeps {
            assert!(notified, "the device sleeps for ever");
        }
        if notified {
            self.device_sleeps = false;
        }
    }

    /// Takes the next chains of one buffer, and puts them back.
    fn glance(&mut self) {
        for is_writable in [false, true] {
            let mut singles = [Single::default(); 4];
            let taken = self.world.queue.pop_singles(is_writable, &mut singles).unwrap();
            assert!(taken <= self.published, "a chain that was not published");
            for (single, (_, buffers)) in singles[..taken].iter().zip(&self.offered) {
                let Buffer { region, offset, len } = single.buffer;
                let seen = Offered { address: offset, len, writable: is_writable };
                assert_eq!((region, &[seen][..]), (0, &buffers[..]));
            }
            self.world.queue.put_back_singles(u16::try_from(taken).unwrap());
        }
    }

    fn pop(&mut self, count: usize, back: usize) {
        self.device_sleeps = false;
        self.world.queue.disarm();
        self.glance();
        let mut marks = Vec::new();
        let mut popped = Vec::new();
        let mut chain = Chain::new();
        while popped.len() < count {
            marks.push(self.world.queue.mark());
            if !self.world.queue.pop(&mut chain).unwrap() {
                break;
            }
            let (id, buffers) = self.offered[popped.len()].clone();
            assert!(popped.len() < self.published, "a chain that was not published");
            assert_eq!(chain.fault, None);
            for (writable, places) in [(false, &chain.readable), (true, &chain.writable)] {
                let expected: Vec<_> = buffers
                    .iter()
                    .filter(|buffer| buffer.writable == writable)
                    .map(|buffer| (0, buffer.address, buffer.len))
                    .collect();
                let seen: Vec<_> =
                    places.iter().map(|place| (place.region, place.offset, place.len)).collect();
                assert_eq!(seen, expected);
            }
            popped.push((chain.index, id, buffers, None));
        }
        let available = self.published.min(count);
        assert_eq!(popped.len(), available, "chains that wait");
        let kept = popped.len() - back.min(popped.len());
        if kept < popped.len() {
            self.world.queue.put_back(marks[kept]);
            popped.truncate(kept);
        }
        self.offered.drain(..kept);
        self.published -= kept;
        self.taken.extend(popped);
    }

    fn complete(&mut self, which: usize, written: u32) {
        let open = self.taken.iter_mut().filter(|taken| taken.3.is_none());
        let mut open: Vec<_> = open.collect();
        if open.is_empty() {
            return;
        }
        let which = which % open.len();
        open[which].3 = Some(written);
        let index = open[which].0;
        self.world.queue.complete(index, written);
    }

    fn give_back(&mut self) {
        let notified = self.world.queue.publish();
        let before = self.returned.len();
        while let Some((_, id, _, Some(written))) = self.taken.front() {
            self.returned.push_back(Used { id: *id, written: *written });
            self.taken.pop_front();
        }
        if self.returned.len() > before && self.driver_sleeps {
            assert!(notified, "the driver sleeps for ever");
        }
        if notified {
            self.driver_sleeps = false;
        }
    }

    fn take(&mut self, sleeps: bool) {
        self.world.driver.disarm();
        while let Some(used) = self.world.driver.take() {
            assert_eq!(Some(used), self.returned.pop_front(), "in order, and once");
        }
        assert!(self.returned.is_empty(), "chains that were returned and not seen");
        self.driver_sleeps = sleeps && !self.world.driver.arm();
    }

    fn sleep(&mut self) {
        if !self.world.queue.has_waiting().unwrap() {
            self.device_sleeps = !self.world.queue.arm().unwrap();
        }
    }

    fn restart(&mut self) {
        let position = self.world.queue.position();
        let setup = RingSetup { position, ..setup(self.size, self.options) };
        self.world.queue = Queue::new(self.world.memory.clone(), setup).unwrap();
        // What was taken and is not published is taken again.
        let again: Vec<_> = self.taken.drain(..).map(|(_, id, buffers, _)| (id, buffers)).collect();
        self.published += again.len();
        again.into_iter().rev().for_each(|chain| self.offered.push_front(chain));
        self.device_sleeps = false;
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Offer { readable, writable, indirect } => {
                self.offer(readable, writable, indirect);
            }
            Step::Publish => self.publish(),
            Step::Pop { count, back } => self.pop(count, back),
            Step::Complete { which, written } => self.complete(which, written),
            Step::Return => self.give_back(),
            Step::Take { sleeps } => self.take(sleeps),
            Step::Sleep => self.sleep(),
            Step::Restart => self.restart(),
        }
    }

    /// Everything that was offered comes back.
    fn finish(&mut self) {
        self.publish();
        while !self.offered.is_empty() || !self.taken.is_empty() {
            self.pop(64, 0);
            for n in 0..self.taken.len() {
                if self.taken[n].3.is_none() {
                    self.taken[n].3 = Some(1);
                    self.world.queue.complete(self.taken[n].0, 1);
                }
            }
            self.give_back();
        }
        self.take(false);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn every_chain_arrives_and_comes_back_once_and_in_order(
        packed in any::<bool>(),
        event_idx in any::<bool>(),
        log_size in 2u32..6,
        odd in 0u16..3,
        steps in prop::collection::vec(step(), 0..300),
    ) {
        let layout = if packed { Layout::Packed } else { Layout::Split };
        // A packed ring has any size.
        let size = (1 << log_size) + if packed { odd } else { 0 };
        let mut run = Run::new(size, options(layout, event_idx));
        steps.iter().for_each(|step| run.step(step));
        run.finish();
    }
}

#[test]
fn a_ring_wraps_many_times() {
    for (layout, event_idx) in
        [Layout::Split, Layout::Packed].into_iter().flat_map(|l| [(l, false), (l, true)])
    {
        let mut run = Run::new(8, options(layout, event_idx));
        for round in 0..30_000u32 {
            run.offer(1, 1, round.is_multiple_of(3));
            run.publish();
            run.pop(4, 0);
            run.complete(0, round);
            run.give_back();
            run.take(true);
        }
        run.finish();
    }
}

#[test]
fn a_device_asks_to_be_notified_of_more_than_it_has_seen() {
    for layout in [Layout::Split, Layout::Packed] {
        for event_idx in [false, true] {
            let mut world = world(8, options(layout, event_idx));
            let buffer = [Offered { address: DATA, len: 64, writable: true }];
            let offer = |world: &mut World| {
                world.driver.offer(&buffer, None).unwrap();
                world.driver.publish()
            };
            offer(&mut world);
            offer(&mut world);
            // A frame needs three buffers, and there are two.
            let mark = world.queue.mark();
            let mut chain = Chain::new();
            assert!(world.queue.pop(&mut chain).unwrap() && world.queue.pop(&mut chain).unwrap());
            assert!(!world.queue.pop(&mut chain).unwrap());
            world.queue.put_back(mark);
            assert!(!world.queue.arm().unwrap(), "what was seen does not keep it awake");
            assert!(offer(&mut world), "{layout:?} {event_idx}");
            let taken = (0..3).filter(|_| world.queue.pop(&mut chain).unwrap()).count();
            assert_eq!(taken, 3);
        }
    }
}

#[test]
fn a_ring_that_cannot_be_is_refused() {
    let memory = crate::common::memory();
    let queue = |layout, size, at: virtqueue::RingAddresses, position| {
        let setup = RingSetup { at, size, position, options: options(layout, true) };
        Queue::new(memory.clone(), setup).map(drop)
    };
    let good = addresses(USER);
    for layout in [Layout::Split, Layout::Packed] {
        assert_eq!(queue(layout, 256, good, start(layout)), Ok(()));
        for size in [0, 32_769, 65_536, u32::MAX] {
            assert!(matches!(queue(layout, size, good, 0), Err(SetupError::Size { .. })));
        }
        let odd = virtqueue::RingAddresses { descriptors: good.descriptors + 8, ..good };
        assert!(matches!(queue(layout, 256, odd, 0), Err(SetupError::Alignment { .. })));
        for address in [0, USER + LEN as u64 - 4, u64::MAX - 1] {
            let at = virtqueue::RingAddresses { descriptors: address, ..good };
            assert!(matches!(queue(layout, 256, at, 0), Err(SetupError::Area { .. })));
        }
        let guest = addresses(0);
        assert!(queue(layout, 256, guest, 0).is_err(), "guest addresses are not the front-end's");
    }
    assert!(matches!(queue(Layout::Split, 24, good, 0), Err(SetupError::Size { .. })));
    assert_eq!(queue(Layout::Packed, 24, good, 23), Ok(()));
    assert_eq!(queue(Layout::Packed, 24, good, 24), Err(SetupError::Position(24)));
}

/// A device that polls its ring in any case pays for each notification, and so does the driver.
#[test]
fn a_device_that_was_never_armed_is_not_notified() {
    for layout in [Layout::Split, Layout::Packed] {
        let World { mut driver, .. } = world(8, options(layout, false));
        for n in 0..4 {
            let buffer = Offered { address: DATA + n * 64, len: 64, writable: true };
            driver.offer(&[buffer], None).unwrap();
            assert!(!driver.publish(), "{layout:?}");
        }
    }
}
