//! The buffers between the workers and the reader of one capture or recording. The reader gets packets in the order of their timestamps.

use std::io;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::filter::{Filter, Packet};
use crate::pcapng::{self, CapturedPacket, PACKET_OVERHEAD};
use crate::request::Options;

/// How many bytes of packets may wait for the reader of one capture.
pub const BUFFER_BYTES: usize = 8 << 20;

/// Buffers of a sink. With up to eight queues at one port, each side of each queue has its own. A worker finds it free unless the reader
/// holds it, to swap two pointers. Sides that share buffers (of more queues, or of several ports) take the next free one.
const BUFFERS: usize = 16;

/// The buffers of one capture, filled by workers and emptied by one reader.
pub(crate) struct Sink {
    filter: Filter,
    /// Most bytes recorded per packet.
    pub(crate) snaplen: usize,
    /// Whether frames to be segmented are recorded as their segments.
    pub(crate) segmented: bool,
    clock: Clock,
    /// Blocks of packets, in each buffer in the order of their timestamps.
    buffers: [Mutex<Vec<u8>>; BUFFERS],
    /// How many bytes the reader has not written yet.
    waiting: AtomicUsize,
    /// By interface: how many packets were not recorded.
    lost: Box<[AtomicU64]>,
    /// Whether it is a recording's. Recordings are in the configuration, and do not count among the captures of a port.
    pub(crate) is_recording: bool,
}

impl Sink {
    /// Buffers for the packets of a number of interfaces.
    pub(crate) fn new(
        filter: Filter,
        options: &Options,
        interfaces: usize,
        is_recording: bool,
    ) -> Self {
        Self {
            filter,
            snaplen: options.snaplen(),
            segmented: options.segmented,
            clock: Clock::start(),
            buffers: Default::default(),
            waiting: AtomicUsize::new(0),
            lost: std::iter::repeat_with(AtomicU64::default).take(interfaces).collect(),
            is_recording,
        }
    }

    /// Whether the filter takes a packet.
    pub(crate) fn takes(&self, packet: &Packet<'_>) -> bool {
        self.filter.matches(packet)
    }

    /// Begins to record a batch in the first buffer from `buffer` on that no other thread holds; none if other threads hold all of them.
    pub(crate) fn batch(&self, buffer: usize, interface: u32) -> Option<Batch<'_>> {
        let free = |buffer: usize| match self.buffers[buffer % BUFFERS].try_lock() {
            Ok(blocks) => Some(blocks),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        };
        let blocks = (buffer..buffer + BUFFERS).find_map(free)?;
        // Under the lock: the reader relies on it, see `exchange`.
        Some(Batch { sink: self, interface, timestamp: self.now(), blocks })
    }

    /// Counts packets of an interface that are not recorded.
    pub(crate) fn lose(&self, interface: u32, packets: u64) {
        if let Some(lost) = usize::try_from(interface).ok().and_then(|one| self.lost.get(one)) {
            lost.fetch_add(packets, Ordering::Relaxed);
        }
    }

    /// By interface: how many packets were not recorded.
    pub(crate) fn lost(&self) -> impl Iterator<Item = u64> {
        self.lost.iter().map(|lost| lost.load(Ordering::Relaxed))
    }

    /// Nanoseconds since the Unix epoch. Never goes back.
    pub(crate) fn now(&self) -> u64 {
        self.clock.now()
    }

    /// Swaps a buffer with one that the reader has emptied.
    ///
    /// A batch whose timestamp is before this call is in the buffer: its worker had the lock when
    /// it took the time, and this call gets the lock when the worker is done.
    fn exchange(&self, buffer: usize, emptied: &mut Vec<u8>) {
        emptied.clear();
        // One burst must not make every buffer large for good.
        emptied.shrink_to(BUFFER_BYTES / BUFFERS);
        let mut blocks = self.buffers[buffer].lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::swap(&mut *blocks, emptied);
    }

    /// Frees the space of bytes that the reader has written.
    pub(crate) fn written(&self, bytes: usize) {
        self.waiting.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// A batch of packets being recorded. All have the time of its start.
pub(crate) struct Batch<'a> {
    sink: &'a Sink,
    interface: u32,
    timestamp: u64,
    blocks: MutexGuard<'a, Vec<u8>>,
}

impl Batch<'_> {
    /// Whether a packet of this length fits. Workers that ask at the same time may exceed the
    /// limit by one packet each.
    pub(crate) fn has_space(&self, bytes: usize) -> bool {
        let waiting = self.sink.waiting.load(Ordering::Relaxed);
        waiting + bytes + PACKET_OVERHEAD <= BUFFER_BYTES
    }

    /// Records the first bytes of a packet if they fit, else counts it as lost.
    pub(crate) fn push(
        &mut self,
        bytes: &[u8],
        original_len: u32,
        flags: u32,
        drop_reason: Option<&str>,
    ) {
        let bytes = &bytes[..bytes.len().min(self.sink.snaplen)];
        if !self.has_space(bytes.len()) {
            self.sink.lose(self.interface, 1);
            return;
        }
        let Self { interface, timestamp, .. } = *self;
        let packet =
            CapturedPacket { interface, timestamp, original_len, flags, drop_reason, bytes };
        let before = self.blocks.len();
        pcapng::append_packet(&mut self.blocks, &packet);
        let appended = self.blocks.len() - before;
        self.sink.waiting.fetch_add(appended, Ordering::Relaxed);
    }
}

/// The wall clock as it was at the start, and the time since: steps of the wall clock must not
/// change the order of packets.
struct Clock {
    start: Instant,
    epoch: Duration,
}

impl Clock {
    fn start() -> Self {
        let epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { start: Instant::now(), epoch }
    }

    fn now(&self) -> u64 {
        // Until the year 2554.
        u64::try_from((self.epoch + self.start.elapsed()).as_nanos()).unwrap_or(u64::MAX)
    }
}

/// What the reader has taken out of a sink.
#[derive(Default)]
pub(crate) struct Merge {
    /// The buffers last emptied.
    taken: [Vec<u8>; BUFFERS],
    /// Packets from after the last call's `before`: earlier ones may still come.
    held: Vec<u8>,
}

impl Merge {
    /// Passes to `write` the blocks of at most `most` packets with timestamps before `before`, and returns how many. While workers record,
    /// `before` must not be later than the sink's clock.
    pub(crate) fn write_before(
        &mut self,
        before: u64,
        most: u64,
        sink: &Sink,
        write: &mut dyn FnMut(&[u8]) -> io::Result<()>,
    ) -> io::Result<u64> {
        for (buffer, taken) in self.taken.iter_mut().enumerate() {
            sink.exchange(buffer, taken);
        }
        let sources = std::iter::once(&self.held).chain(&self.taken);
        let mut blocks: Vec<_> = sources.flat_map(|blocks| pcapng::packets(blocks)).collect();
        // Stable: packets of the same time stay in the order of their side.
        blocks.sort_by_key(|(timestamp, _)| *timestamp);
        let ready = blocks.partition_point(|(timestamp, _)| *timestamp < before);
        let (ready, held) = blocks.split_at(ready);
        let mut written = 0;
        for (_, block) in ready.iter().take(usize::try_from(most).unwrap_or(usize::MAX)) {
            write(block)?;
            sink.written(block.len());
            written += 1;
        }
        self.held = held.iter().flat_map(|(_, block)| *block).copied().collect();
        Ok(written)
    }
}
