//! The buckets of one direction of a port, shared by its queues.

use std::ops::AddAssign;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use port::{FRAME_MAX, Frame, WINDOW};
use token_bucket::TokenBucket;

/// What one direction of a port may carry. A rate that is none is not limited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limit {
    /// Bytes of Ethernet frames per second.
    pub bytes_per_second: Option<u64>,
    /// Packets per second.
    pub packets_per_second: Option<u64>,
    /// Bytes that may pass at once after a pause.
    pub burst_bytes: u64,
    /// Packets that may pass at once after a pause.
    pub burst_packets: u64,
}

/// The default burst is what the rate gives in this part of a second.
const BURSTS_PER_SECOND: u64 = 50;
/// The least default burst, in bytes and in packets.
const BURST_BYTES_MIN: u64 = 128 * 1024;
const BURST_PACKETS_MIN: u64 = 128;

impl Limit {
    /// A limit with bursts of 20 ms.
    #[must_use]
    pub fn new(bytes_per_second: Option<u64>, packets_per_second: Option<u64>) -> Self {
        let burst = |rate: Option<u64>, min: u64| min.max(rate.unwrap_or(0) / BURSTS_PER_SECOND);
        Self {
            bytes_per_second,
            packets_per_second,
            burst_bytes: burst(bytes_per_second, BURST_BYTES_MIN),
            burst_packets: burst(packets_per_second, BURST_PACKETS_MIN),
        }
    }

    /// Whether it limits nothing.
    #[must_use]
    pub fn is_unlimited(self) -> bool {
        self.bytes_per_second.is_none() && self.packets_per_second.is_none()
    }
}

/// Bytes and packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tokens {
    pub bytes: u64,
    pub packets: u64,
}

impl Tokens {
    /// What a frame costs.
    #[inline]
    pub fn of(frame: &Frame) -> Self {
        Self { bytes: frame.len.into(), packets: frame.packets().into() }
    }
}

impl AddAssign for Tokens {
    #[inline]
    fn add_assign(&mut self, other: Self) {
        self.bytes += other.bytes;
        self.packets += other.packets;
    }
}

/// The largest number of tokens with which shaping begins a batch.
const LARGEST_BATCH: Tokens = Tokens { bytes: 256 * 1024, packets: WINDOW as u64 };
/// The most that one turn reserves: a window of the largest frames, in segments of 1 KiB.
const LARGEST_TURN: Tokens =
    Tokens { bytes: (WINDOW * FRAME_MAX) as u64, packets: (WINDOW * 64) as u64 };

/// Measures one direction of a port against its limit. Its queues share it.
#[derive(Debug)]
pub struct Meter {
    /// Where its clock begins.
    start: Instant,
    is_unlimited: bool,
    /// Held for some arithmetic, once or twice per batch.
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// None where there is no limit.
    bytes: Option<Bucket>,
    packets: Option<Bucket>,
    /// The queues that found too few tokens, in the order of their turns.
    waiting: Vec<QueueId>,
    queues: u32,
    /// Packets that have passed.
    passed: u64,
}

/// A bucket of bytes or of packets.
#[derive(Debug)]
struct Bucket {
    tokens: TokenBucket,
    /// Tokens needed to start a batch.
    batch: u64,
}

impl Bucket {
    /// A full bucket. `largest_batch` bounds the tokens with which a batch begins.
    fn new(rate: u64, burst: u64, largest_batch: u64) -> Self {
        // What a millisecond gives; half a burst leaves the other half for a late worker.
        let batch = (rate / 1000).min(largest_batch).min(burst / 2).max(1);
        Self { tokens: TokenBucket::new(rate, burst), batch }
    }

    /// The tokens for `batches` batches.
    fn tokens_for(&self, batches: u64) -> u64 {
        self.batch.saturating_mul(batches)
    }
}

/// A queue that shares a meter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueueId(u32);

impl Meter {
    /// A meter whose buckets are full.
    #[must_use]
    pub fn new(limit: Limit) -> Arc<Self> {
        let bucket =
            |rate: Option<u64>, burst, largest| rate.map(|rate| Bucket::new(rate, burst, largest));
        let state = State {
            bytes: bucket(limit.bytes_per_second, limit.burst_bytes, LARGEST_BATCH.bytes),
            packets: bucket(limit.packets_per_second, limit.burst_packets, LARGEST_BATCH.packets),
            waiting: Vec::new(),
            queues: 0,
            passed: 0,
        };
        let start = Instant::now();
        Arc::new(Self { start, is_unlimited: limit.is_unlimited(), state: Mutex::new(state) })
    }

    pub(crate) fn is_unlimited(&self) -> bool {
        self.is_unlimited
    }

    /// The time that an instant is on this meter's clock.
    pub(crate) fn time(&self, instant: Instant) -> Duration {
        instant.saturating_duration_since(self.start)
    }

    /// Packets that have passed, counted as on a wire. Without a limit, none are counted.
    #[must_use]
    pub fn packets(&self) -> u64 {
        self.lock().passed
    }

    /// Adds a queue to be shaped.
    pub(crate) fn join(&self) -> QueueId {
        let mut state = self.lock();
        state.queues += 1;
        // So that no batch allocates.
        let queues = state.queues as usize;
        state.waiting.reserve(queues);
        QueueId(state.queues)
    }

    /// Takes tokens out for one turn of a queue, which then reports to [`correct`](Self::correct) what
    /// it used. None if there are too few tokens for a batch, or if other queues come first: the queue
    /// then waits for its turn.
    ///
    /// Tokens are taken before frames are, so that two queues do not use the same ones.
    pub(crate) fn reserve(&self, queue: QueueId, now: Duration) -> Option<Tokens> {
        let mut state = self.lock();
        state.fill(now);
        if !state.has_batches(1) {
            state.enqueue(queue);
            return None;
        }
        if state.waiting.first().is_some_and(|first| *first != queue) && state.has_batches(2) {
            // The first in order has let tokens for a whole batch go by.
            state.waiting.remove(0);
        }
        match state.waiting.first() {
            Some(first) if *first != queue => {
                state.enqueue(queue);
                return None;
            }
            Some(_) => {
                state.waiting.remove(0);
            }
            None => {}
        }
        // While other queues wait, each takes one batch.
        let alone = state.waiting.is_empty();
        let take = |bucket: &mut Option<Bucket>, most: u64| {
            let Some(bucket) = bucket else { return u64::MAX };
            let most = if alone { most } else { bucket.batch };
            let tokens = bucket.tokens.tokens().min(most);
            bucket.tokens.take(tokens);
            tokens
        };
        Some(Tokens {
            bytes: take(&mut state.bytes, LARGEST_TURN.bytes),
            packets: take(&mut state.packets, LARGEST_TURN.packets),
        })
    }

    /// How long it takes until a queue has its turn; zero if it may try now.
    pub(crate) fn time_until_turn(&self, queue: QueueId, now: Duration) -> Duration {
        let mut state = self.lock();
        state.fill(now);
        let ahead = state.waiting.iter().position(|waiting| *waiting == queue).unwrap_or(0);
        let buckets = [&state.bytes, &state.packets].into_iter().flatten();
        let wait = |bucket: &Bucket| bucket.tokens.time_until(bucket.tokens_for(ahead as u64 + 1));
        Duration::from_nanos(buckets.map(wait).max().unwrap_or_default())
    }

    /// A queue has nothing to take: it gives up its place in the order.
    pub(crate) fn leave(&self, queue: QueueId) {
        self.lock().waiting.retain(|waiting| *waiting != queue);
    }

    /// Takes out the tokens of as many frames as pass; `costs` has the cost of each. A frame that costs
    /// nothing passes also when no tokens are left. Returns how many pass, and the sum of their tokens.
    pub(crate) fn admit(
        &self,
        now: Duration,
        costs: impl Iterator<Item = Tokens>,
    ) -> (usize, Tokens) {
        let mut state = self.lock();
        state.fill(now);
        let tokens =
            |bucket: &Option<Bucket>| bucket.as_ref().map_or(u64::MAX, |b| b.tokens.tokens());
        let available = Tokens { bytes: tokens(&state.bytes), packets: tokens(&state.packets) };
        let (mut admitted, mut taken) = (0, Tokens::default());
        for cost in costs {
            // The last frame may leave a debt.
            let is_spent = taken.bytes >= available.bytes || taken.packets >= available.packets;
            if is_spent && cost != Tokens::default() {
                break;
            }
            taken += cost;
            admitted += 1;
        }
        state.correct(Tokens::default(), taken);
        (admitted, taken)
    }

    /// Takes out what was `used` in place of what was `taken`.
    pub(crate) fn correct(&self, taken: Tokens, used: Tokens) {
        let mut state = self.lock();
        state.passed = state.passed.wrapping_add(used.packets);
        state.correct(taken, used);
    }

    /// Nothing within the lock leaves the buckets half done, so that a panic elsewhere is no reason
    /// to stop.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn buckets(&mut self) -> impl Iterator<Item = &mut Bucket> {
        self.bytes.iter_mut().chain(&mut self.packets)
    }

    fn fill(&mut self, now: Duration) {
        let nanos = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
        self.buckets().for_each(|bucket| bucket.tokens.fill(nanos));
    }

    fn has_batches(&mut self, batches: u64) -> bool {
        self.buckets().all(|bucket| bucket.tokens.has(bucket.tokens_for(batches)))
    }

    fn enqueue(&mut self, queue: QueueId) {
        if !self.waiting.contains(&queue) {
            self.waiting.push(queue);
        }
    }

    fn correct(&mut self, taken: Tokens, used: Tokens) {
        let correct = |bucket: &mut Option<Bucket>, taken: u64, used: u64| {
            let Some(bucket) = bucket else { return };
            bucket.tokens.take(used.saturating_sub(taken));
            bucket.tokens.put_back(taken.saturating_sub(used));
        };
        correct(&mut self.bytes, taken.bytes, used.bytes);
        correct(&mut self.packets, taken.packets, used.packets);
    }
}
