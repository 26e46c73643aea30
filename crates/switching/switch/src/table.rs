//! The learning table: fixed size, shared by all workers, no lock and no allocation.
//!
//! An address hashes to one bucket of eight slots. A slot is one 64-bit word (address, origin and port, published
//! together) and the second in which the address was last seen. Words change by compare-and-swap only, so the
//! per-port counts follow them exactly; the seconds are hints that may lag a word by a moment, which costs
//! at most one flooded frame.

mod learn;

use std::sync::Arc;

use wire::ethernet::MacAddr;

use crate::bucket::{Bucket, Found, Raced, SLOTS};
use crate::entry::{Word, is_station, key};
use crate::hash::HashKey;
use crate::learning::{LearningCounters, Shares};
use crate::moves::{Move, Record};
use crate::{LearningCounts, NO_VLAN, PortId};

pub use learn::TeachError;

/// The default number of entries.
pub const DEFAULT_CAPACITY: usize = 8192;

/// What a table allows.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Limits {
    /// Addresses learnt per port. This is the most that a guest which floods source addresses can occupy.
    pub per_port: u32,
    /// Seconds without a frame after which an address is forgotten.
    pub age_seconds: u32,
    /// Stations that may move to one port in a second. This is how fast a guest can take the learnt addresses of
    /// others, and how fast those behind an uplink that failed move to the next one.
    pub moves_per_second: u32,
}

impl Default for Limits {
    /// 1024 addresses per port, 300 seconds (IEEE 802.1Q's recommended ageing time), 64 moves.
    fn default() -> Self {
        Self { per_port: 1024, age_seconds: 300, moves_per_second: 64 }
    }
}

/// One address, as an operator sees it.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct MacEntry {
    /// The station's VLAN; [`NO_VLAN`] for ports without one.
    pub vlan: u16,
    /// Its address.
    pub mac: MacAddr,
    /// The port it was last seen on, or taught to be on.
    pub port: PortId,
    /// Seconds since it was last seen.
    pub age: u32,
    /// Whether it was taught: then it neither moves nor ages.
    pub taught: bool,
}

/// The learning table. All methods take `&self` and may be called from any number of threads.
///
/// `now` is a count of seconds on a clock that only goes forward, the same for all callers (they may differ
/// by a moment).
///
/// # A hostile port
/// A guest can send a million source addresses. It can occupy [`Limits::per_port`] entries and no more; and
/// where those fill a bucket, they never displace a fresh entry of another port: only aged entries are
/// evicted, and the hash is keyed per table so that a guest cannot choose which bucket it fills. For the bound
/// to leave room for others, the capacity should be a few times ports × `per_port`, or `per_port` smaller.
///
/// A guest can send with the address of another. An address that was [taught](Self::teach) stays where it is. One
/// that was learnt moves once per second at most, and [`Limits::moves_per_second`] of them to one port; what exceeds
/// this is refused, and the old port keeps the address.
pub struct MacTable {
    key: HashKey,
    buckets: Box<[Bucket]>,
    shares: Arc<Shares>,
    counters: Arc<LearningCounters>,
    limits: Limits,
    vlan: u16,
}

impl MacTable {
    /// An empty table of at least `capacity` entries (rounded up to a power of two, 8 or more).
    pub fn new(capacity: usize, limits: Limits) -> Self {
        Self::with(capacity, limits, Arc::new(Shares::new()), Arc::default(), NO_VLAN)
    }

    /// An empty table beside this one, for the stations of a VLAN. What a port may take of the tables is bounded together, and so
    /// are moves to it; [`counts`](Self::counts) are those of all of them.
    pub fn beside(&self, capacity: usize, vlan: u16) -> Self {
        Self::with(capacity, self.limits, self.shares.clone(), self.counters.clone(), vlan)
    }

    fn with(
        capacity: usize,
        limits: Limits,
        shares: Arc<Shares>,
        counters: Arc<LearningCounters>,
        vlan: u16,
    ) -> Self {
        let buckets = capacity.max(SLOTS).next_power_of_two() / SLOTS;
        let buckets = (0..buckets).map(|_| Bucket::default()).collect();
        Self { key: HashKey::random(), buckets, shares, counters, limits, vlan }
    }

    /// The port `mac` lives on at second `now`; `None` when unknown, aged, or a group address.
    pub fn lookup(&self, mac: MacAddr, now: u32) -> Option<PortId> {
        if !is_station(mac) {
            return None;
        }
        let key = key(mac);
        let bucket = self.bucket(key);
        let (slot, word) = bucket.find(key)?;
        (!self.is_aged(word, bucket.last_seen(slot), now)).then(|| word.port())
    }

    /// Forgets every address of a port that goes away, taught or learnt. The port's ingress must have stopped: a
    /// worker that still learns on it may leave an entry behind, which then ages.
    pub fn forget_port(&self, port: PortId) {
        self.remove_where(|word, _| word.port() == port);
        self.shares.forget(port);
    }

    /// Removes aged entries, and so returns their ports' share to them. Call it about once a second, from
    /// one thread at a time.
    pub fn sweep(&self, now: u32) {
        self.remove_where(|word, seen| self.is_aged(word, seen, now));
    }

    /// The stations that moved, each with its last move, once each and a second or two after the move. Call it about
    /// once a second, from one thread at a time. Allocates: for operators.
    pub fn take_moves(&self, now: u32) -> Vec<Move> {
        let mut moves = Vec::new();
        for bucket in &self.buckets {
            for (slot, word) in bucket.slots() {
                let record = bucket.last_move(slot);
                if record.is_over(now) && bucket.set_move(slot, record, Record::NONE).is_ok() {
                    moves.extend(record.of(word));
                }
            }
        }
        moves
    }

    /// All addresses that [`lookup`](Self::lookup) would find at second `now`, in no order. Allocates: for
    /// operators.
    pub fn entries(&self, now: u32) -> Vec<MacEntry> {
        self.occupied()
            .filter(|&(bucket, slot, word)| !self.is_aged(word, bucket.last_seen(slot), now))
            .map(|(bucket, slot, word)| MacEntry {
                vlan: self.vlan,
                mac: word.mac(),
                port: word.port(),
                age: now.saturating_sub(bucket.last_seen(slot)),
                taught: word.is_taught(),
            })
            .collect()
    }

    /// How many addresses were learnt from `port` and are in the table, aged ones not yet swept included.
    pub fn learnt(&self, port: PortId) -> u32 {
        self.shares.learnt(port)
    }

    /// What became of all source addresses.
    pub fn counts(&self) -> LearningCounts {
        self.counters.snapshot()
    }

    /// How many addresses the table can hold.
    pub fn capacity(&self) -> usize {
        self.buckets.len() * SLOTS
    }

    /// Puts `new` where `old` was, and gives the old entry back to its port.
    fn replace(&self, old: Found<'_>, new: Word, now: u32) -> Result<(), Raced> {
        let Found { bucket, slot, word } = old;
        bucket.swap(slot, word, new)?;
        bucket.set_seen(slot, now);
        self.shares.release(word);
        Ok(())
    }

    /// Keeps only one slot of an address that was put into several at once.
    fn drop_duplicates(&self, bucket: &Bucket, key: u64) {
        while let Some((slot, word)) = bucket.holders(key).nth(1) {
            // If another worker changes it first, which one stays may change too: check again.
            let _ = self.remove(bucket, slot, word);
        }
    }

    fn remove(&self, bucket: &Bucket, slot: usize, word: Word) -> Result<(), Raced> {
        bucket.swap(slot, word, Word::EMPTY)?;
        self.shares.release(word);
        Ok(())
    }

    fn remove_where(&self, gone: impl Fn(Word, u32) -> bool) {
        for (bucket, slot, word) in self.occupied() {
            if gone(word, bucket.last_seen(slot)) {
                // A slot that changed meanwhile was just seen or moved: it stays.
                let _ = self.remove(bucket, slot, word);
            }
        }
    }

    fn occupied(&self) -> impl Iterator<Item = (&Bucket, usize, Word)> {
        self.buckets
            .iter()
            .flat_map(|bucket| bucket.slots().map(move |(slot, word)| (bucket, slot, word)))
            .filter(|(_, _, word)| !word.is_empty())
    }

    /// Whether an address has not been seen for too long. One that was taught never is.
    ///
    /// Saturating: another worker's clock may be a second ahead of `now`, and that entry is fresh.
    fn is_aged(&self, word: Word, seen: u32, now: u32) -> bool {
        now.saturating_sub(seen) >= self.limits.age_seconds && !word.is_taught()
    }

    fn bucket(&self, key: u64) -> &Bucket {
        #[expect(
            clippy::cast_possible_truncation,
            reason = "any bits of the hash do; the mask keeps those that count"
        )]
        let hash = self.key.hash(key) as usize;
        &self.buckets[hash & (self.buckets.len() - 1)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATION: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);

    fn insert(table: &MacTable, slot: usize, word: Word) {
        let bucket = &table.buckets[0];
        assert!(word.is_taught() || table.shares.reserve(word.port(), 9));
        let empty = Found { bucket, slot, word: Word::EMPTY };
        assert!(table.replace(empty, word, 0).is_ok());
        table.drop_duplicates(bucket, word.key());
    }

    /// Two workers miss the same address in a bucket, and a slot that was freed meanwhile sends them to different
    /// slots. (Tests that need only the public interface are in `tests/table.rs`.)
    #[test]
    fn an_address_inserted_twice_keeps_one_slot_and_one_count() {
        for (first, second) in [(0, 1), (1, 0)] {
            let table = MacTable::new(SLOTS, Limits::default());
            let word = Word::learnt(STATION, PortId(3));
            insert(&table, first, word);
            insert(&table, second, word);
            assert_eq!(table.occupied().count(), 1);
            assert_eq!(table.learnt(PortId(3)), 1);
            assert_eq!(table.lookup(STATION, 0), Some(PortId(3)));
        }
    }

    /// A worker learns an address while the control thread teaches it, and neither saw the other's.
    #[test]
    fn an_address_that_is_taught_and_learnt_at_once_stays_taught() {
        let words = [Word::taught(STATION, PortId(3)), Word::learnt(STATION, PortId(4))];
        for (slots, order) in
            [([0, 1], [0, 1]), ([1, 0], [0, 1]), ([0, 1], [1, 0]), ([1, 0], [1, 0])]
        {
            let table = MacTable::new(SLOTS, Limits::default());
            order.iter().for_each(|n| insert(&table, slots[*n], words[*n]));
            assert_eq!(table.occupied().count(), 1);
            assert_eq!(table.lookup(STATION, 0), Some(PortId(3)));
            assert_eq!((table.learnt(PortId(3)), table.learnt(PortId(4))), (0, 0));
        }
    }
}
