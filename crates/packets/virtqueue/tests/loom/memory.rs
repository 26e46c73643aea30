//! The memory of a ring of two entries and its buffers, as loom's atomics.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use loom::sync::atomic::{AtomicU64, Ordering, fence};
use virtqueue::{Layout, RingAddresses, RingMemory};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Entries of the ring.
pub const SIZE: u16 = 2;
/// Where the part that the driver writes lies, and that of the device. The descriptors are the first.
pub const DRIVER: usize = 0x40;
pub const DEVICE: usize = 0x80;
pub const AT: RingAddresses =
    RingAddresses { descriptors: 0, driver: DRIVER as u64, device: DEVICE as u64 };
/// Where the buffers lie, one more than the ring has entries. The model has the first word of each.
pub const BUFFERS: usize = 0x100;
const BUFFER_COUNT: u16 = SIZE + 1;
/// Bytes from one buffer to the next.
pub const STRIDE: u32 = 64;

/// The words of each part: where they begin in it, and how many bytes they have.
type Words = [&'static [(usize, usize)]; 3];

const PACKED: Words = [&[(0, 8), (8, 8), (16, 8), (24, 8)], &[(0, 4)], &[(0, 4)]];
const SPLIT: Words = [
    &[(0, 8), (8, 8), (16, 8), (24, 8)],
    // Flags, index, two entries, event index.
    &[(0, 2), (2, 2), (4, 2), (6, 2), (8, 2)],
    // Flags, index, two entries of two words, event index.
    &[(0, 2), (2, 2), (4, 4), (8, 4), (12, 4), (16, 4), (20, 2)],
];

#[derive(Debug)]
struct Word {
    at: usize,
    len: usize,
    value: AtomicU64,
}

/// The memory as one end has it. Each word is an atomic of its own, so that nothing is ordered but by what the ends do.
#[derive(Clone, Debug)]
pub struct Memory {
    words: Arc<[Word]>,
    /// Whether this end's next barriers are there.
    pub has_barrier: Rc<Cell<bool>>,
}

impl Memory {
    /// Memory that is zero.
    pub fn new(layout: Layout) -> Self {
        let parts = if layout == Layout::Packed { PACKED } else { SPLIT };
        let ring = [0, DRIVER, DEVICE].into_iter().zip(parts);
        let ring =
            ring.flat_map(|(start, words)| words.iter().map(move |(at, len)| (start + at, *len)));
        let buffers = (0..BUFFER_COUNT).map(|n| (buffer(n), 8));
        let word = |(at, len)| Word { at, len, value: AtomicU64::new(0) };
        Self { words: ring.chain(buffers).map(word).collect(), has_barrier: barrier() }
    }

    /// The same memory as the other end has it.
    pub fn other_end(&self) -> Self {
        Self { words: self.words.clone(), has_barrier: barrier() }
    }

    /// Reads a word, or a part of one.
    pub fn load(&self, at: usize, len: usize, order: Ordering) -> u64 {
        let holds = |word: &&Word| word.at <= at && at + len <= word.at + word.len;
        let word = self.words.iter().find(holds).expect("a word");
        let value = word.value.load(order) >> (8 * (at - word.at));
        value & (u64::MAX >> (64 - 8 * len))
    }

    /// Writes a word.
    pub fn store(&self, at: usize, len: usize, value: u64, order: Ordering) {
        let is_it = |word: &&Word| (word.at, word.len) == (at, len);
        self.words.iter().find(is_it).expect("a word").value.store(value, order);
    }
}

fn barrier() -> Rc<Cell<bool>> {
    Rc::new(Cell::new(true))
}

/// Where a buffer begins that is another one than those of the two chains before chain number `n`, so that each place of the ring
/// has another buffer in each lap.
pub fn buffer(n: u16) -> usize {
    BUFFERS + usize::from(n % BUFFER_COUNT) * STRIDE as usize
}

impl RingMemory for Memory {
    fn load_u16(&self, at: usize, order: Ordering) -> u16 {
        self.load(at, 2, order).try_into().unwrap()
    }
    fn load_u32(&self, at: usize, order: Ordering) -> u32 {
        self.load(at, 4, order).try_into().unwrap()
    }
    fn load_u64(&self, at: usize, order: Ordering) -> u64 {
        self.load(at, 8, order)
    }
    fn store_u16(&self, at: usize, value: u16, order: Ordering) {
        self.store(at, 2, value.into(), order);
    }
    fn store_u32(&self, at: usize, value: u32, order: Ordering) {
        self.store(at, 4, value.into(), order);
    }
    fn store_u64(&self, at: usize, value: u64, order: Ordering) {
        self.store(at, 8, value, order);
    }
    fn read_words<T: FromBytes, const WIDTH: usize>(&self, at: usize) -> Option<T> {
        let mut bytes = vec![0; size_of::<T>()];
        for (n, part) in bytes.chunks_mut(WIDTH).enumerate() {
            let word = self.load(at + n * WIDTH, WIDTH, Ordering::Relaxed);
            part.copy_from_slice(&word.to_le_bytes()[..WIDTH]);
        }
        T::read_from_bytes(&bytes).ok()
    }
    fn write_words<T: IntoBytes + Immutable, const WIDTH: usize>(&self, at: usize, value: T) {
        for (n, part) in value.as_bytes().chunks(WIDTH).enumerate() {
            let mut word = [0; 8];
            word[..WIDTH].copy_from_slice(part);
            self.store(at + n * WIDTH, WIDTH, u64::from_le_bytes(word), Ordering::Relaxed);
        }
    }
    fn full_barrier(&self) {
        if self.has_barrier.get() {
            fence(Ordering::SeqCst);
        }
    }
    fn prefetch(&self, _: usize) {}
    fn prefetch_for_write(&self, _: usize) {}
}
