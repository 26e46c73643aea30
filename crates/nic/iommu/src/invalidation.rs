//! The words through which the daemon and the card agree on invalidations, behind a trait that
//! loom's model also implements.
//!
//! The daemon's lie before the entries of the [table](crate::table), which only it writes:
//!
//! ```text
//!    0  requested: how many requests the daemon has written, modulo 2³²
//!   64  64 requests, a u64 each: the first page, and how many
//! ```
//!
//! The card's lie in memory that the card writes and the guest does not:
//!
//! ```text
//!    0  confirmed: how many requests are in effect
//!    4  asleep: 1 while the card uses no translation
//! ```
//!
//! The daemon never waits for room: it writes over old requests, and a card that finds more than
//! fit clears its whole cache.

use std::ops::{Deref, Range};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use shm::{OutOfBounds, Region};

/// Where the requests begin.
const REQUESTS: usize = 64;
/// How many there are room for.
const PLACES: u32 = 64;
/// Bytes of the card's words.
pub const ANSWERS_LEN: usize = 8;

/// The words beside the requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Index {
    /// Requests that the daemon has written.
    Requested,
    /// Requests that the card has confirmed.
    Confirmed,
    /// 1 while the card is asleep.
    Asleep,
}

/// A fence between accesses of this page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Barrier {
    /// Later accesses are not done before earlier reads.
    Acquire,
    /// Earlier accesses are done before later writes.
    Release,
    /// Earlier writes are done before later reads.
    Full,
}

/// One invalidation: consecutive pages of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The first page.
    pub first: u32,
    /// How many.
    pub pages: u32,
}

impl Request {
    /// All pages.
    pub const EVERYTHING: Self = Self { first: 0, pages: u32::MAX };

    /// These pages.
    #[must_use]
    pub fn of(pages: Range<u32>) -> Self {
        Self { first: pages.start, pages: pages.end.saturating_sub(pages.start) }
    }

    /// Its word: the first page in the lower half.
    #[must_use]
    pub fn word(self) -> u64 {
        u64::from(self.first) | u64::from(self.pages) << 32
    }

    /// The request of a word.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "the two halves")]
    pub fn from_word(word: u64) -> Self {
        Self { first: word as u32, pages: (word >> 32) as u32 }
    }

    /// Its pages.
    #[must_use]
    pub fn range(self) -> Range<u32> {
        self.first..self.first.saturating_add(self.pages)
    }
}

/// The words of one context, shared by the daemon and the card.
pub trait Invalidation {
    /// Places for requests, a power of two.
    const PLACES: u32;

    /// Reads a count (acquire).
    fn load(&self, index: Index) -> u32;
    /// Writes a count (release).
    fn store(&self, index: Index, value: u32);
    /// Reads the request at a place below [`PLACES`](Self::PLACES) (relaxed).
    fn read(&self, place: u32) -> Request;
    /// Writes it (relaxed).
    fn write(&self, place: u32, request: Request);
    /// A fence.
    fn barrier(&self, barrier: Barrier);
}

/// The words in two regions.
#[derive(Debug)]
pub struct RegionInvalidation<R> {
    table: R,
    answers: R,
    /// Where the card's words lie.
    at: usize,
}

impl<R: Deref<Target = Region>> RegionInvalidation<R> {
    /// The words of a context whose table has the region `table`. The card's are at `at`, a multiple of 8,
    /// in `answers`. All were zero when the context was assigned.
    pub fn new(table: R, answers: R, at: usize) -> Result<Self, OutOfBounds> {
        // Checked once here, so that no access below can fail.
        table.atomic_u64(REQUESTS + (PLACES as usize - 1) * size_of::<u64>())?;
        answers.atomic_u64(at)?;
        Ok(Self { table, answers, at })
    }

    #[inline]
    #[expect(clippy::expect_used, reason = "new() checked that the words are mapped")]
    fn count(&self, index: Index) -> &AtomicU32 {
        match index {
            Index::Requested => self.table.atomic_u32(0),
            Index::Confirmed => self.answers.atomic_u32(self.at),
            Index::Asleep => self.answers.atomic_u32(self.at + 4),
        }
        .expect("words checked at creation")
    }

    #[expect(clippy::expect_used, reason = "new() checked that the words are mapped")]
    fn request(&self, place: u32) -> &AtomicU64 {
        let at = REQUESTS + place as usize * size_of::<u64>();
        self.table.atomic_u64(at).expect("words checked at creation")
    }
}

impl<R: Deref<Target = Region>> Invalidation for RegionInvalidation<R> {
    const PLACES: u32 = PLACES;

    #[inline]
    fn load(&self, index: Index) -> u32 {
        self.count(index).load(Ordering::Acquire)
    }

    fn store(&self, index: Index, value: u32) {
        self.count(index).store(value, Ordering::Release);
    }

    fn read(&self, place: u32) -> Request {
        Request::from_word(self.request(place).load(Ordering::Relaxed))
    }

    fn write(&self, place: u32, request: Request) {
        self.request(place).store(request.word(), Ordering::Relaxed);
    }

    fn barrier(&self, barrier: Barrier) {
        fence(match barrier {
            Barrier::Acquire => Ordering::Acquire,
            Barrier::Release => Ordering::Release,
            Barrier::Full => Ordering::SeqCst,
        });
    }
}

/// The number of an invalidation, modulo 2³².
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket(u32);

/// Requests invalidations and learns that they are in effect.
#[derive(Debug)]
pub struct Invalidator<P> {
    words: P,
    requested: u32,
    /// Requests that are known to be in effect.
    confirmed: u32,
}

impl<P: Invalidation> Invalidator<P> {
    /// The daemon's half of fresh words: all zero.
    pub fn new(words: P) -> Self {
        let requested = words.load(Index::Requested);
        Self { words, requested, confirmed: requested }
    }

    /// Asks the card to forget pages. Their entries must have been cleared before. The ticket is
    /// of the last request; without any, of the one before.
    pub fn request(&mut self, batch: impl IntoIterator<Item = Request>) -> Ticket {
        for request in batch {
            // The card may still be reading this place as an older request. If it sees the new one, this
            // makes it see how far the count was, too, and it clears its cache.
            self.words.barrier(Barrier::Release);
            self.words.write(self.requested & (P::PLACES - 1), request);
            self.requested = self.requested.wrapping_add(1);
            self.words.store(Index::Requested, self.requested);
        }
        Ticket(self.requested)
    }

    /// Whether the card no longer uses the translations that this invalidation and earlier ones named:
    /// none is in its cache, and no transfer in progress uses one.
    pub fn is_confirmed(&mut self, ticket: Ticket) -> bool {
        if reached(self.confirmed, ticket) {
            return true;
        }
        // The request is visible before the card's state is read. So a card that is seen asleep
        // finds the request when it wakes, before it uses a translation.
        self.words.barrier(Barrier::Full);
        self.confirmed = match self.words.load(Index::Asleep) {
            0 => self.words.load(Index::Confirmed),
            _ => self.requested,
        };
        reached(self.confirmed, ticket)
    }

    /// The card's process has ended, or it has stopped the context for good: nothing uses a
    /// translation any more.
    pub fn card_stopped(&mut self) {
        self.confirmed = self.requested;
    }
}

/// Whether a count has come as far as a ticket. The two are less than 2³¹ apart.
fn reached(count: u32, Ticket(number): Ticket) -> bool {
    count.wrapping_sub(number).cast_signed() >= 0
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn a_request_survives_its_word() {
        for request in [Request::of(5..9), Request::EVERYTHING, Request::of(0..0)] {
            assert_eq!(Request::from_word(request.word()), request);
        }
        assert_eq!(Request::of(u32::MAX - 1..u32::MAX).range(), u32::MAX - 1..u32::MAX);
        assert_eq!(Request { first: 9, pages: u32::MAX }.range(), 9..u32::MAX);
    }

    #[test]
    fn the_words_of_both_sides_lie_apart() {
        let region = |len| Arc::new(Region::anonymous(len).unwrap());
        let (table, answers) = (region(4096), region(4096));
        let words = RegionInvalidation::new(table.clone(), answers.clone(), 192).unwrap();
        let last = RegionInvalidation::<Arc<Region>>::PLACES - 1;
        words.write(last, Request::of(1..4));
        assert_eq!(words.read(last), Request::of(1..4));
        words.store(Index::Requested, 5);
        words.store(Index::Confirmed, 6);
        words.store(Index::Asleep, 7);
        assert_eq!(table.read(0), Ok(5u32));
        assert_eq!(answers.read(192), Ok([6u32, 7]));
        assert!(RegionInvalidation::new(table.clone(), answers.clone(), 4096).is_err());
        assert!(RegionInvalidation::new(table, answers, 4).is_err(), "not aligned");
    }
}
