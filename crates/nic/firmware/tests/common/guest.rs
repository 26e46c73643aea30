//! A guest's end of its context, which follows the protocol unless a test makes it do otherwise.

use std::num::NonZeroU16;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use cdna::context::{self, EVENTS};
use cdna::ring::{self, RINGS_LEN};
use cdna::{
    Descriptor, Direction, Enable, Flags, Mailbox, Offload, RxCompletion, Status, completion,
};
use firmware::regions::RegionPages;
use shm::Region;
use wire::ethernet::MacAddr;
use wire::netif::GsoKind;

/// Bytes of a guest's memory. The first half is for sending, the second for receiving.
pub const MEMORY_LEN: usize = 2 << 20;
const RX_START: usize = MEMORY_LEN / 2;
/// Bytes between two RX buffers.
const RX_STRIDE: usize = 4096;

/// A frame that came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Received {
    pub bytes: Vec<u8>,
    pub first: RxCompletion,
    pub buffers: usize,
}

pub struct Guest {
    number: u8,
    pub base: u64,
    pub memory: Arc<Region>,
    context: Arc<Region>,
    rings: Arc<Region>,
    completion: Arc<Region>,
    pub tx_producer: u32,
    pub rx_producer: u32,
    pub rx_consumer: u32,
    next_tx_byte: usize,
    rx_lens: [u16; ring::SLOTS as usize],
}

impl Guest {
    pub fn new(number: u8, start: u32, base: u64) -> Self {
        let region = |len| Arc::new(Region::anonymous(len).unwrap());
        let rings = region(RINGS_LEN);
        for direction in [Direction::Tx, Direction::Rx] {
            rings.write(direction.start(), ring::initial(start)).unwrap();
        }
        Self {
            number,
            base,
            memory: region(MEMORY_LEN),
            context: region(context::PAGE_LEN),
            rings,
            completion: region(completion::PAGE_LEN),
            tx_producer: start,
            rx_producer: start,
            rx_consumer: start,
            next_tx_byte: 0,
            rx_lens: [0; ring::SLOTS as usize],
        }
    }

    pub fn pages(&self) -> RegionPages {
        let whole = |region: &Arc<Region>| region.slice(0..region.len()).unwrap();
        RegionPages::new(whole(&self.context), whole(&self.rings), whole(&self.completion)).unwrap()
    }

    /// Whether nobody else maps its pages.
    pub fn is_sole_user(&self) -> bool {
        [&self.context, &self.rings, &self.completion]
            .into_iter()
            .all(|region| Arc::strong_count(region) == 1)
    }

    pub fn mac(&self) -> MacAddr {
        mac(self.number)
    }

    /// Writes a mailbox and raises its event.
    pub fn write(&self, mailbox: Mailbox, value: u32) {
        self.write_silently(mailbox, value);
        self.raise(mailbox.event().word());
    }

    /// Writes a word of the context page.
    pub fn write_word(&self, offset: usize, value: u32) {
        self.context.atomic_u32(offset).unwrap().store(value, Ordering::Release);
    }

    pub fn write_silently(&self, mailbox: Mailbox, value: u32) {
        self.write_word(mailbox.offset(), value);
    }

    pub fn raise(&self, events: u32) {
        self.context.atomic_u32(EVENTS).unwrap().fetch_or(events, Ordering::SeqCst);
    }

    pub fn enable(&self, flags: Enable) {
        self.write(Mailbox::Enable, flags.0);
    }

    fn completion_word(&self, offset: usize) -> u32 {
        self.completion.atomic_u32(offset).unwrap().load(Ordering::Acquire)
    }

    pub fn consumer(&self, direction: Direction) -> u32 {
        self.completion_word(completion::consumer(direction))
    }

    pub fn is_card_asleep(&self) -> bool {
        self.completion_word(completion::ASLEEP) != 0
    }

    pub fn status(&self) -> Option<Status> {
        Status::from_word(self.completion_word(completion::STATUS))
    }

    /// Free TX descriptors.
    pub fn room(&self) -> u32 {
        ring::SLOTS - self.tx_producer.wrapping_sub(self.consumer(Direction::Tx))
    }

    pub fn put(&self, direction: Direction, index: u32, descriptor: Descriptor) {
        self.rings.write(ring::offset(direction, index), descriptor).unwrap();
    }

    /// Puts a TX descriptor into the ring without announcing it.
    pub fn put_tx(&mut self, addr: u64, len: u16, flags: Flags) {
        let descriptor = Descriptor::buffer(self.tx_producer, addr, len, flags);
        self.put(Direction::Tx, self.tx_producer, descriptor);
        self.tx_producer = self.tx_producer.wrapping_add(1);
    }

    /// Copies bytes into the sending half of the memory, and returns their machine address.
    pub fn place(&mut self, bytes: &[u8]) -> u64 {
        if self.next_tx_byte + bytes.len() > RX_START {
            self.next_tx_byte = 0;
        }
        let at = self.next_tx_byte;
        self.memory.copy_in(at, bytes).unwrap();
        self.next_tx_byte += bytes.len();
        self.base + at as u64
    }

    /// Puts a frame into the ring, in chunks of this many bytes.
    pub fn queue(&mut self, frame: &[u8], chunk: usize, flags: Flags) {
        let count = frame.len().div_ceil(chunk);
        for (n, part) in frame.chunks(chunk).enumerate() {
            let addr = self.place(part);
            let end = if n + 1 == count { Flags::EOP } else { Flags::NONE };
            let flags = if n == 0 { flags } else { Flags::NONE };
            self.put_tx(addr, part.len().try_into().unwrap(), flags | end);
        }
    }

    /// Puts an offload's descriptor into the ring.
    pub fn queue_offload(&mut self, kind: GsoKind, size: u16) {
        let offload = Offload { kind, size: NonZeroU16::new(size).unwrap() };
        let descriptor = Descriptor::offload(self.tx_producer, offload, Flags::CSUM_BLANK);
        self.put(Direction::Tx, self.tx_producer, descriptor);
        self.tx_producer = self.tx_producer.wrapping_add(1);
    }

    pub fn publish_tx(&self) {
        self.write(Mailbox::TxProducer, self.tx_producer);
    }

    pub fn send(&mut self, frame: &[u8]) {
        self.queue(frame, usize::from(u16::MAX), Flags::NONE);
        self.publish_tx();
    }

    /// Posts RX buffers.
    pub fn post(&mut self, count: u32, len: u16) {
        for _ in 0..count {
            let slot = ring::slot(self.rx_producer);
            self.rx_lens[slot] = len;
            let addr = self.base + (RX_START + slot * RX_STRIDE) as u64;
            let descriptor = Descriptor::buffer(self.rx_producer, addr, len, Flags::NONE);
            self.put(Direction::Rx, self.rx_producer, descriptor);
            self.rx_producer = self.rx_producer.wrapping_add(1);
        }
        self.write(Mailbox::RxProducer, self.rx_producer);
    }

    /// Takes the frames that came.
    pub fn receive(&mut self) -> Vec<Received> {
        let mut frames = Vec::new();
        let consumer = self.consumer(Direction::Rx);
        assert!(ring::filled(self.rx_producer, consumer).is_some(), "never posted");
        let (mut bytes, mut first, mut buffers) = (Vec::new(), None, 0);
        while self.rx_consumer != consumer {
            let offset = completion::offset(self.rx_consumer);
            let completion: RxCompletion = self.completion.read(offset).unwrap();
            let slot = ring::slot(self.rx_consumer);
            assert!(completion.len > 0 && completion.len <= self.rx_lens[slot]);
            let mut part = vec![0; completion.len.into()];
            self.memory.copy_out(RX_START + slot * RX_STRIDE, &mut part).unwrap();
            bytes.append(&mut part);
            buffers += 1;
            let first_completion = *first.get_or_insert(completion);
            if completion.flags().contains(Flags::EOP) {
                let bytes = std::mem::take(&mut bytes);
                frames.push(Received { bytes, first: first_completion, buffers });
                (first, buffers) = (None, 0);
            }
            self.rx_consumer = self.rx_consumer.wrapping_add(1);
        }
        assert!(first.is_none(), "half a frame was published");
        frames
    }

    /// The bytes of the frames that came.
    pub fn received(&mut self) -> Vec<Vec<u8>> {
        self.receive().into_iter().map(|frame| frame.bytes).collect()
    }
}

/// The address of the guest that has this context.
pub const fn mac(number: u8) -> MacAddr {
    MacAddr([2, 0, 0, 0, 0, number])
}

/// What a guest enables to get all frames for it, without interrupts.
pub fn usual() -> Enable {
    Enable::TX | Enable::RX | Enable::BROADCAST
}
