//! A card and a hypervisor in the test's process, as simple as they can be. They check all that the driver writes.

#![allow(clippy::cast_possible_truncation, reason = "lengths of test frames")]

use std::collections::BTreeSet;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cdna::ring::{RINGS_LEN, SLOTS, initial, offset};
use cdna::{
    Descriptor, Direction, Enable, Events, Flags, Mailbox, RxCompletion, Status, completion,
    context,
};
use cdnafront::{
    Access, CallError, Context, Hypercalls, Interface, Memory, Pages, RX_PAGES, TX_PAGES,
};
use port::Doorbell;
use rustix::event::{EventfdFlags, eventfd};
use shm::{PageSize, Region, create_memfd};
use wire::ethernet::MacAddr;
use zerocopy::IntoBytes;

pub const MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 7]);
/// The machine address of the guest's first TX page. The RX pages follow.
pub const BASE: u64 = 0x7000_0000;
const PAGE: usize = 4096;

/// How a test's context is protected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protection {
    None,
    Hypervisor,
    MapEach,
}

pub const PROTECTIONS: [Protection; 3] =
    [Protection::None, Protection::Hypervisor, Protection::MapEach];

/// What the hypervisor was asked for.
#[derive(Debug, Default)]
pub struct Calls {
    /// Sizes of the batches enqueued, by direction.
    pub enqueued: [Vec<usize>; 2],
    /// Ranges of each call.
    pub map_calls: Vec<usize>,
    pub unmap_calls: Vec<usize>,
    /// Pages that are mapped, by what the card may do.
    pub mapped: [BTreeSet<u64>; 2],
    /// Refuse all calls from now on.
    pub refuses: bool,
}

/// The model of the hypervisor.
struct Hypervisor {
    rings: Arc<Region>,
    next: [u32; 2],
    calls: Arc<Mutex<Calls>>,
}

fn refused() -> CallError {
    CallError::Refused("a test".to_owned())
}

impl Hypercalls for Hypervisor {
    fn enqueue(&mut self, direction: Direction, batch: &[Descriptor]) -> Result<(), CallError> {
        let mut calls = self.calls.lock().unwrap();
        assert!((1..=64).contains(&batch.len()));
        if calls.refuses {
            return Err(refused());
        }
        calls.enqueued[direction as usize].push(batch.len());
        let next = &mut self.next[direction as usize];
        for descriptor in batch {
            let descriptor = Descriptor { seq: *next, ..*descriptor };
            self.rings.write(offset(direction, *next), descriptor).unwrap();
            *next = next.wrapping_add(1);
        }
        Ok(())
    }

    fn map(&mut self, direction: Direction, pages: &[Range<u64>]) -> Result<(), CallError> {
        let mut calls = self.calls.lock().unwrap();
        assert!((1..=64).contains(&pages.len()));
        if calls.refuses {
            return Err(refused());
        }
        calls.map_calls.push(pages.len());
        for page in pages.iter().cloned().flatten() {
            let in_use = calls.mapped.iter().any(|mapped| mapped.contains(&page));
            assert!(!in_use, "a page is mapped twice");
            calls.mapped[direction as usize].insert(page);
        }
        Ok(())
    }

    fn unmap(&mut self, pages: &[Range<u64>]) -> Result<(), CallError> {
        let mut calls = self.calls.lock().unwrap();
        assert!((1..=64).contains(&pages.len()));
        if calls.refuses {
            return Err(refused());
        }
        calls.unmap_calls.push(pages.len());
        for page in pages.iter().cloned().flatten() {
            assert!(calls.mapped.iter_mut().any(|mapped| mapped.remove(&page)), "not mapped");
        }
        Ok(())
    }
}

/// The model of the card, for one context.
pub struct Card {
    protection: Protection,
    context: Region,
    rings: Region,
    completion: Region,
    memory: Region,
    doorbell: OwnedFd,
    pub calls: Arc<Mutex<Calls>>,
    /// Rung for each interrupt.
    pub interrupt: Arc<Doorbell>,
    mailboxes: [u32; context::MAILBOXES],
    consumer: [u32; 2],
    /// By direction: the index after which an interrupt is wanted, if one is.
    pub armed: [Option<u32>; 2],
    /// Interrupts so far.
    pub interrupts: u32,
    /// Times that events were found.
    pub event_words: u32,
    /// Keeps the driver's context.
    pub interface: Option<Interface>,
}

/// A card, and the context that a driver gets.
pub fn card(protection: Protection, start: u32) -> (Card, Context) {
    let file = |pages| create_memfd("test", pages, PageSize::Small).unwrap();
    let map = |fd: &OwnedFd, pages: usize| Region::map(fd, 0, pages * PAGE).unwrap();
    let [context, rings, completion] = [file(1), file(2), file(1)];
    let memory = file(TX_PAGES + RX_PAGES);
    let doorbell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
    let ring = map(&rings, 2);
    for direction in [Direction::Tx, Direction::Rx] {
        ring.copy_in(offset(direction, 0), initial(start).as_bytes()).unwrap();
    }
    let own = Arc::new(map(&memory, TX_PAGES + RX_PAGES));
    let part = |first: usize, pages: usize| {
        let region = own.slice(first * PAGE..(first + pages) * PAGE).unwrap();
        Memory::new(region, pages, BASE + (first * PAGE) as u64, ()).unwrap()
    };
    let calls = Arc::new(Mutex::new(Calls::default()));
    let interrupt = Arc::new(Doorbell::new().unwrap());
    let shared = Arc::new(map(&rings, 2));
    assert_eq!(shared.len(), RINGS_LEN);
    let handles = || {
        [(); 2].map(|()| -> Box<dyn Hypercalls> {
            let (rings, calls) = (shared.clone(), calls.clone());
            Box::new(Hypervisor { rings, next: [start; 2], calls })
        })
    };
    let access = match protection {
        Protection::None => Access::Direct,
        Protection::Hypervisor => Access::Enqueue(handles()),
        Protection::MapEach => Access::MapEach(handles()),
    };
    let pages = Pages::new(
        map(&context, 1),
        map(&rings, 2),
        map(&completion, 1),
        doorbell.try_clone().unwrap(),
    );
    let driver = Context {
        mac: MAC,
        features: 0b111,
        access,
        start,
        pages: pages.unwrap(),
        tx_memory: part(0, TX_PAGES),
        rx_memory: part(TX_PAGES, RX_PAGES),
        interrupt: interrupt.clone(),
        changed: Arc::new(Doorbell::new().unwrap()),
        release: Box::new(|_: Duration| {}),
    };
    let card = Card {
        protection,
        context: map(&context, 1),
        rings: map(&rings, 2),
        completion: map(&completion, 1),
        memory: map(&memory, TX_PAGES + RX_PAGES),
        doorbell,
        calls,
        interrupt,
        mailboxes: [start; context::MAILBOXES],
        consumer: [start; 2],
        armed: [Some(start); 2],
        interrupts: 0,
        event_words: 0,
        interface: None,
    };
    for direction in [Direction::Tx, Direction::Rx] {
        card.set_consumer(direction, start);
    }
    card.set_status(Status::Up);
    (card, driver)
}

impl Card {
    fn word(&self, offset: usize) -> &AtomicU32 {
        self.completion.atomic_u32(offset).unwrap()
    }

    pub fn set_status(&self, status: Status) {
        self.word(completion::STATUS).store(status as u32, Ordering::Release);
    }

    pub fn set_asleep(&self, is_asleep: bool) {
        self.word(completion::ASLEEP).store(is_asleep.into(), Ordering::SeqCst);
    }

    /// Writes a consumer index, right or wrong.
    pub fn set_consumer(&self, direction: Direction, index: u32) {
        self.word(completion::consumer(direction)).store(index, Ordering::Release);
    }

    pub fn consumer(&self, direction: Direction) -> u32 {
        self.consumer[direction as usize]
    }

    /// Whether the doorbell was rung since the last call.
    pub fn was_rung(&self) -> bool {
        rustix::io::read(&self.doorbell, &mut [0; 8]).is_ok()
    }

    pub fn mailbox(&self, mailbox: Mailbox) -> u32 {
        self.mailboxes[mailbox as usize]
    }

    pub fn is_enabled(&self, flags: Enable) -> bool {
        Enable(self.mailbox(Mailbox::Enable)).contains(flags)
    }

    /// Reads the mailboxes that were written.
    pub fn take_events(&mut self) {
        let word = self.context.atomic_u32(context::EVENTS).unwrap().swap(0, Ordering::SeqCst);
        let events = Events::from_word(word);
        self.event_words += u32::from(!events.is_empty());
        for mailbox in Mailbox::ALL.into_iter().filter(|mailbox| events.contains(*mailbox)) {
            let value = self.context.atomic_u32(mailbox.offset()).unwrap().load(Ordering::Acquire);
            self.mailboxes[mailbox as usize] = value;
            let direction = match mailbox {
                Mailbox::TxSeen => Direction::Tx,
                Mailbox::RxSeen => Direction::Rx,
                _ => continue,
            };
            self.armed[direction as usize] = Some(value);
            self.announce(direction);
        }
    }

    /// Interrupts if that is wanted.
    fn announce(&mut self, direction: Direction) {
        let consumer = self.consumer(direction);
        let is_past = |after: &mut u32| consumer.wrapping_sub(*after).cast_signed() > 0;
        if self.armed[direction as usize].take_if(is_past).is_some() {
            self.interrupts += 1;
            self.interrupt.ring();
        }
    }

    /// Descriptors that the driver has announced.
    pub fn available(&self, direction: Direction) -> u32 {
        let mailbox = match direction {
            Direction::Tx => Mailbox::TxProducer,
            Direction::Rx => Mailbox::RxProducer,
        };
        let available = self.mailbox(mailbox).wrapping_sub(self.consumer(direction));
        assert!(available <= SLOTS, "the driver overfills a ring");
        available
    }

    fn descriptor(&self, direction: Direction, index: u32) -> Descriptor {
        let descriptor: Descriptor = self.rings.read(offset(direction, index)).unwrap();
        assert_eq!(descriptor.seq, index, "a stale descriptor");
        descriptor
    }

    fn place(&self, direction: Direction, descriptor: &Descriptor) -> usize {
        let start = usize::try_from(descriptor.addr - BASE).unwrap();
        if self.protection == Protection::MapEach {
            let mapped = &self.calls.lock().unwrap().mapped[direction as usize];
            let pages = cdna::address::pages(descriptor.addr, descriptor.len).unwrap();
            assert!(pages.clone().all(|page| mapped.contains(&page)), "not mapped: {pages:?}");
        }
        start
    }

    /// Sends at most `most` frames. Returns the first descriptor's flags and address field, and the bytes.
    pub fn send(&mut self, most: usize) -> Vec<(Flags, u64, Vec<u8>)> {
        self.take_events();
        let mut frames = Vec::new();
        let mut index = self.consumer(Direction::Tx);
        let end = index.wrapping_add(self.available(Direction::Tx));
        while frames.len() < most && index != end {
            let first = self.descriptor(Direction::Tx, index);
            let mut bytes = Vec::new();
            loop {
                assert_ne!(index, end, "a frame without an end");
                let descriptor = self.descriptor(Direction::Tx, index);
                index = index.wrapping_add(1);
                if descriptor.len > 0 {
                    let start = self.place(Direction::Tx, &descriptor);
                    let old = bytes.len();
                    bytes.resize(old + usize::from(descriptor.len), 0);
                    self.memory.copy_out(start, &mut bytes[old..]).unwrap();
                }
                if descriptor.flags().contains(Flags::EOP) {
                    break;
                }
            }
            frames.push((first.flags(), first.addr, bytes));
        }
        self.complete(Direction::Tx, index);
        frames
    }

    /// Moves a consumer index.
    pub fn complete(&mut self, direction: Direction, index: u32) {
        if index != self.consumer(direction) {
            self.consumer[direction as usize] = index;
            self.set_consumer(direction, index);
            self.announce(direction);
        }
    }

    /// Writes the completion of a descriptor.
    pub fn write_completion(&self, index: u32, len: u16, flags: Flags, gso_size: u16) {
        let completion = RxCompletion { len, flags: flags.0, gso_size, reserved: 0 };
        self.completion.write(completion::offset(index), completion).unwrap();
    }

    /// Receives a frame. Returns whether there were descriptors for it.
    pub fn receive(&mut self, bytes: &[u8], flags: Flags, gso_size: u16) -> bool {
        self.take_events();
        let parts = bytes.len().div_ceil(PAGE);
        if (self.available(Direction::Rx) as usize) < parts {
            return false;
        }
        let mut index = self.consumer(Direction::Rx);
        for (n, part) in bytes.chunks(PAGE).enumerate() {
            let descriptor = self.descriptor(Direction::Rx, index);
            assert_eq!(usize::from(descriptor.len), PAGE);
            let start = self.place(Direction::Rx, &descriptor);
            self.memory.copy_in(start, part).unwrap();
            let end = if n + 1 == parts { Flags::EOP } else { Flags::NONE };
            let own = if n == 0 { flags } else { Flags::NONE };
            self.write_completion(index, part.len() as u16, own | end, gso_size);
            index = index.wrapping_add(1);
        }
        self.complete(Direction::Rx, index);
        true
    }
}

/// A frame of this length, whose bytes depend on `seed`.
pub fn bytes(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|n| (n * 7 + n / 251 + seed * 31) as u8).collect()
}
