//! A device that is killed at any moment: the next one completes what was in flight, once and in order.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::common::{DATA, LEN, addresses, memory, options, setup};
use proptest::prelude::*;
use shm::Region;
use virtqueue::driver::{Driver, Offered};
use virtqueue::{Chain, GuestMemory, InflightLog, Layout, Options, Queue, RingSetup, SetupError};

const SIZE: u16 = 8;
/// Bytes of the memory that the ring lies in.
const RING: usize = 0x1_4000;

/// When a device is killed while it publishes.
#[derive(Clone, Copy, Debug)]
enum Killed {
    Not,
    /// Before the log says that a batch is published.
    Before,
    /// While the ring is written, before the first used descriptor, which is written last and at once: a byte is written where the
    /// bit of its number is set.
    Amid(u64),
    /// After the ring is written and before the log says so. The driver takes what came back and offers the descriptors again, before
    /// the next device starts.
    Late,
    /// After the last word of the log.
    After,
}

#[derive(Clone, Debug)]
enum Step {
    /// The driver offers chains, each of this many buffers.
    Offer(Vec<usize>),
    Pop(usize),
    /// The device completes the chains in hand, from one of them on, and publishes.
    Publish {
        from: usize,
        count: usize,
        killed: Killed,
    },
    /// The driver takes what came back.
    Take,
}

fn step() -> impl Strategy<Value = Step> {
    let killed = prop_oneof![
        3 => Just(Killed::Not),
        1 => Just(Killed::Before),
        4 => any::<u64>().prop_map(Killed::Amid),
        2 => Just(Killed::Late),
        1 => Just(Killed::After),
    ];
    prop_oneof![
        3 => prop::collection::vec(1usize..4, 1..4).prop_map(Step::Offer),
        3 => (1usize..6).prop_map(Step::Pop),
        4 => (0usize..4, 1usize..6, killed)
            .prop_map(|(from, count, killed)| Step::Publish { from, count, killed }),
        2 => Just(Step::Take),
    ]
}

struct Run {
    memory: Arc<GuestMemory>,
    log: Arc<Region>,
    options: Options,
    driver: Driver,
    queue: Queue,
    /// Ids that were offered and have not come back.
    offered: VecDeque<u16>,
    /// Numbers of the chains in the device's hands.
    hands: Vec<u16>,
    offers: u64,
}

fn queue(memory: &Arc<GuestMemory>, log: &Arc<Region>, options: Options) -> Queue {
    let log = InflightLog::new(log.slice(0..InflightLog::bytes(SIZE)).unwrap(), SIZE);
    // A front-end that did not learn where its ring is repeats the beginning.
    Queue::with_log(memory.clone(), setup(SIZE, options), log).unwrap()
}

impl Run {
    fn new(options: Options) -> Self {
        let memory = memory();
        let log = Arc::new(Region::anonymous(4096).unwrap());
        let driver = Driver::new(&memory.regions()[0], addresses(0), SIZE, options);
        let queue = queue(&memory, &log, options);
        let (offered, hands) = (VecDeque::new(), Vec::new());
        Self { memory, log, options, driver, queue, offered, hands, offers: 0 }
    }

    fn bytes(&self) -> (Vec<u8>, Vec<u8>) {
        let (mut ring, mut log) = (vec![0; RING], vec![0; 4096]);
        self.memory.regions()[0].copy_out(0, &mut ring).unwrap();
        self.log.copy_out(0, &mut log).unwrap();
        (ring, log)
    }

    fn publish(&mut self, from: usize, count: usize, killed: Killed) {
        let from = from.min(self.hands.len());
        let count = count.min(self.hands.len() - from);
        for index in self.hands.drain(from..from + count) {
            self.queue.complete(index, u32::from(index) + 1);
        }
        let before = self.bytes();
        let _ = self.queue.publish();
        let after = self.bytes();
        match killed {
            Killed::Not => return,
            Killed::After => {}
            Killed::Late => {
                if self.options.layout == Layout::Packed {
                    self.log.copy_in(16, &before.1[16..18]).unwrap();
                }
                self.take();
                self.step(Step::Offer(vec![1; SIZE.into()]));
            }
            Killed::Before => {
                self.memory.regions()[0].copy_in(0, &before.0).unwrap();
                // Chains may be noted already, but not that they are published.
                self.log.copy_in(16, &before.1[16..20]).unwrap();
            }
            Killed::Amid(written) if self.options.layout == Layout::Packed => {
                let [index, _] = before.1[16..18] else { unreachable!("two bytes") };
                let first =
                    usize::try_from(addresses(0).descriptors).unwrap() + 16 * usize::from(index);
                let last = first + 8..first + 16;
                let differs = (0..before.0.len())
                    .filter(|at| before.0[*at] != after.0[*at] && !last.contains(at));
                let mut amid = before.0.clone();
                for (n, at) in differs.enumerate() {
                    if written >> (n % 64) & 1 == 1 {
                        amid[at] = after.0[at];
                    }
                }
                self.memory.regions()[0].copy_in(0, &amid).unwrap();
                // The log has the earlier position and the later one.
                self.log.copy_in(16, &before.1[16..18]).unwrap();
            }
            Killed::Amid(_) => {
                // Used entries are written before the index.
                let index = usize::try_from(addresses(0).device).unwrap() + 2;
                let bytes = &before.0[index..index + 2];
                self.memory.regions()[0].copy_in(index, bytes).unwrap();
            }
        }
        self.hands.clear();
        self.queue = queue(&self.memory, &self.log, self.options);
    }

    fn take(&mut self) {
        while let Some(used) = self.driver.take() {
            assert_eq!(
                Some(used.id),
                self.offered.pop_front(),
                "out of order, twice, or not offered"
            );
            assert!(used.written > 0, "the length of a chain that was not written");
        }
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Offer(chains) => {
                for buffers in chains {
                    let buffer = |n: usize| Offered {
                        address: DATA + (self.offers * 8 + n as u64) * 64 % (LEN as u64 / 4),
                        len: 64,
                        writable: true,
                    };
                    let buffers: Vec<_> = (0..buffers).map(buffer).collect();
                    if let Some(id) = self.driver.offer(&buffers, None) {
                        self.offered.push_back(id);
                        self.offers += 1;
                    }
                }
                self.driver.publish();
            }
            Step::Pop(count) => {
                let mut chain = Chain::new();
                for _ in 0..count {
                    if self.queue.pop(&mut chain).unwrap() {
                        assert_eq!(chain.fault, None);
                        assert!(chain.writable.iter().all(|buffer| buffer.len == 64), "{chain:?}");
                        self.hands.push(chain.index);
                    }
                }
            }
            Step::Publish { from, count, killed } => self.publish(from, count, killed),
            Step::Take => self.take(),
        }
    }

    /// The last device completes everything.
    fn end(mut self) {
        self.hands.clear();
        self.queue = queue(&self.memory, &self.log, self.options);
        for _ in 0..2 {
            self.step(Step::Pop(SIZE.into()));
            self.publish(0, SIZE.into(), Killed::Not);
            self.take();
        }
        assert!(self.offered.is_empty(), "chains that never came back");
    }
}

proptest! {
    #[test]
    fn chains_are_completed_once_and_in_order_whenever_the_device_is_killed(
        packed in any::<bool>(),
        event_idx in any::<bool>(),
        steps in prop::collection::vec(step(), 1..80),
    ) {
        let layout = if packed { Layout::Packed } else { Layout::Split };
        let mut run = Run::new(options(layout, event_idx));
        steps.into_iter().for_each(|step| run.step(step));
        run.end();
    }

    #[test]
    fn a_log_that_says_what_cannot_be_is_refused_or_harms_the_ring_alone(
        bytes in prop::collection::vec(any::<u8>(), 64),
        at in 0usize..64,
    ) {
        let mut run = Run::new(options(Layout::Packed, false));
        run.step(Step::Offer(vec![1, 2, 1]));
        let outside = run.memory.regions()[1].share().unwrap();
        run.log.copy_in(16 + at, &bytes).unwrap();
        let log = InflightLog::new(run.log.slice(0..InflightLog::bytes(SIZE)).unwrap(), SIZE);
        if let Ok(mut queue) = Queue::with_log(run.memory.clone(), setup(SIZE, run.options), log) {
            let mut chain = Chain::new();
            while let Ok(true) = queue.pop(&mut chain) {}
        }
        let mut rest = [0; 4096];
        outside.copy_out(0, &mut rest).unwrap();
        assert_eq!(rest, [0; 4096]);
        let mut ring = vec![0; usize::try_from(addresses(0).driver).unwrap()];
        run.memory.regions()[0].copy_out(0, &mut ring).unwrap();
        let behind = usize::try_from(addresses(0).descriptors).unwrap() + 16 * usize::from(SIZE);
        assert!(ring[behind..].iter().all(|byte| *byte == 0), "written behind the ring");
    }
}

#[test]
fn the_log_of_a_smaller_ring_is_refused() {
    let memory = memory();
    let log = Arc::new(Region::anonymous(4096).unwrap());
    let log = InflightLog::new(log.slice(0..InflightLog::bytes(4)).unwrap(), 4);
    let made = Queue::with_log(memory, setup(SIZE, options(Layout::Packed, false)), log);
    assert_eq!(made.map(drop), Err(SetupError::Inflight));
}

#[test]
fn a_ring_that_was_stopped_starts_at_the_given_place() {
    let run = Run::new(options(Layout::Packed, false));
    let log = || InflightLog::new(run.log.slice(0..InflightLog::bytes(SIZE)).unwrap(), SIZE);
    log().unwrap().stop();
    let setup = RingSetup { position: 3, ..setup(SIZE, run.options) };
    let queue = Queue::with_log(run.memory.clone(), setup, log());
    assert_eq!(queue.unwrap().position(), 3 | 3 << 16);
}
