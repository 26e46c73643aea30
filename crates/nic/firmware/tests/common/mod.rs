//! A card with guests on real shared memory, a wire that a test looks at, and a hypervisor that takes vectors.
#![allow(dead_code, reason = "each test uses its part")]

pub mod bus;
pub mod guest;

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bus::TestBus;
use cdna::message::{Assignment, Permissions, Protection};
use cdna::vectors::{self, Vector};
use cdna::{ContextId, Fault, Report};
use firmware::regions::RegionVectors;
use firmware::{Card, Config, Metadata, Next, Sent, Step, Wire};
use guest::{Guest, MEMORY_LEN};
use offload::Features;
use shm::Region;
use wire::ethernet::MacAddr;

/// A station beyond the card.
pub const PEER: MacAddr = MacAddr([2, 0, 0, 0, 1, 0]);

/// The other end of the wire.
#[derive(Default)]
pub struct Line {
    pub features: Features,
    pub sent: Vec<(Vec<u8>, Metadata)>,
    pub incoming: VecDeque<(Vec<u8>, Metadata)>,
    /// It takes this many frames more; none is any number.
    pub room: Option<usize>,
    /// Longer frames are refused.
    pub longest: Option<usize>,
}

#[derive(Clone, Default)]
pub struct TestWire(pub Rc<RefCell<Line>>);

impl Wire for TestWire {
    fn features(&self) -> Features {
        self.0.borrow().features
    }

    fn send(&mut self, head: &[u8], body: &[u8], metadata: Metadata) -> Sent {
        let mut line = self.0.borrow_mut();
        if line.longest.is_some_and(|longest| head.len() + body.len() > longest) {
            return Sent::Refused;
        }
        match &mut line.room {
            Some(0) => return Sent::Busy,
            Some(room) => *room -= 1,
            None => {}
        }
        line.sent.push(([head, body].concat(), metadata));
        Sent::Sent
    }

    fn receive(&mut self, buffer: &mut [u8]) -> Option<(usize, Metadata)> {
        let (frame, metadata) = self.0.borrow_mut().incoming.pop_front()?;
        buffer[..frame.len()].copy_from_slice(&frame);
        Some((frame.len(), metadata))
    }
}

/// A card and everything around it.
pub struct Host {
    pub card: Card<TestBus, TestWire>,
    pub wire: TestWire,
    vectors: Arc<Region>,
    pub now: Duration,
    next_base: u64,
    pub faults: Vec<(u32, Fault)>,
}

impl Host {
    pub fn new(config: Config) -> Self {
        let vectors = Arc::new(Region::anonymous(vectors::PAGE_LEN).unwrap());
        let page = RegionVectors::new(vectors.slice(0..vectors::PAGE_LEN).unwrap()).unwrap();
        let wire = TestWire::default();
        let card = Card::new(config, TestBus::default(), wire.clone(), page);
        let (now, next_base, faults) = (Duration::from_secs(1), 1 << 32, Vec::new());
        Self { card, wire, vectors, now, next_base, faults }
    }

    /// Assigns a context to a new guest. Its address ends in the context's number.
    pub fn guest(&mut self, number: u8) -> Guest {
        self.guest_with(number, 0, Permissions::default())
    }

    pub fn guest_with(&mut self, number: u8, start: u32, permissions: Permissions) -> Guest {
        let context = ContextId::new(number);
        let base = self.next_base;
        self.next_base += MEMORY_LEN as u64;
        let guest = Guest::new(number, start, base);
        self.card.bus().insert(context, base, &guest.memory);
        let assignment = Assignment {
            context,
            generation: 1,
            mac: guest.mac(),
            permissions,
            protection: Protection::None,
            start,
        };
        assert!(self.card.assign(assignment, guest.pages()).is_ok());
        guest
    }

    /// One step.
    pub fn step(&mut self) -> Step {
        let step = self.card.step(self.now);
        for report in self.card.faults() {
            let Report::Fault { generation, fault } = report else { panic!("{report:?}") };
            self.faults.push((generation, fault));
        }
        step
    }

    /// Steps until the card has nothing to do now.
    pub fn run(&mut self) -> Step {
        for _ in 0..10_000 {
            let step = self.step();
            if step.next != Next::Now {
                return step;
            }
        }
        panic!("the card never comes to rest");
    }

    /// Steps until the card has nothing to do, at any time.
    pub fn run_out(&mut self) {
        for _ in 0..100_000 {
            match self.step().next {
                Next::Now => {}
                Next::At(at) => self.now = self.now.max(at),
                Next::Event => return,
            }
        }
        panic!("the card never comes to rest");
    }

    /// Takes the next interrupt vector.
    pub fn vector(&self) -> Option<Vector> {
        let word = |offset| self.vectors.atomic_u32(offset).unwrap();
        let consumer = word(vectors::CONSUMER).load(Ordering::Relaxed);
        (consumer != word(vectors::PRODUCER).load(Ordering::Acquire)).then(|| {
            let vector = self.vectors.read(vectors::offset(consumer)).unwrap();
            word(vectors::CONSUMER).store(consumer.wrapping_add(1), Ordering::Release);
            vector
        })
    }

    /// Whether a context is in any of the vectors so far; takes them all.
    pub fn is_interrupted(&self, context: u8) -> bool {
        let vectors = std::iter::from_fn(|| self.vector());
        vectors.fold(false, |found, vector| found | vector.contains(ContextId::new(context)))
    }

    pub fn set_hypervisor_asleep(&self, is_asleep: bool) {
        let word = self.vectors.atomic_u32(vectors::ASLEEP).unwrap();
        word.store(is_asleep.into(), Ordering::SeqCst);
    }

    /// The frames that went out since the last call.
    pub fn sent(&self) -> Vec<Vec<u8>> {
        let sent = std::mem::take(&mut self.wire.0.borrow_mut().sent);
        sent.into_iter().map(|(frame, _)| frame).collect()
    }

    pub fn arrive(&self, frame: &[u8]) {
        self.arrive_with(frame, Metadata::default());
    }

    pub fn arrive_with(&self, frame: &[u8], metadata: Metadata) {
        self.wire.0.borrow_mut().incoming.push_back((frame.to_vec(), metadata));
    }
}

/// A frame of this many bytes, none of a known protocol, with `tag` in all of them.
pub fn frame(destination: MacAddr, source: MacAddr, tag: u8, len: usize) -> Vec<u8> {
    let mut frame = [&destination.0[..], &source.0, &[0x88, 0xb5]].concat();
    frame.resize(len, tag);
    frame
}
