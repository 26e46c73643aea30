//! The learning table: fixed size, shared by all workers, no lock and no allocation.
//!
//! An address hashes to one bucket of eight slots. A slot is one 64-bit word (address and port, published
//! together) and the second in which the address was last seen. Words change by compare-and-swap only, so the
//! per-port counts follow them exactly; the seconds are hints that may lag a word by a moment, which costs
//! at most one flooded frame.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use wire::ethernet::MacAddr;

use crate::PortId;
use crate::entry::{Word, is_station, key};
use crate::hash::HashKey;

/// The default number of entries.
pub const DEFAULT_CAPACITY: usize = 8192;

/// Slots per bucket: eight words fill one 64-byte cache line.
const SLOTS: usize = 8;

/// How often one learn starts over when other workers change its bucket under it. Learning is a hint: after
/// that the next frame of the same station tries again, so a frame's work stays bounded.
const ATTEMPTS: usize = 4;

/// What a table allows.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Limits {
    /// Addresses learnt per port. This is the most that a guest which floods source addresses can occupy.
    pub per_port: u32,
    /// Seconds without a frame after which an address is forgotten.
    pub age_seconds: u32,
}

impl Default for Limits {
    /// 1024 addresses per port, 300 seconds (IEEE 802.1Q's recommended ageing time).
    fn default() -> Self {
        Self { per_port: 1024, age_seconds: 300 }
    }
}

/// One learnt address, as an operator sees it.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Entry {
    /// The station's address.
    pub mac: MacAddr,
    /// The port it was last seen on.
    pub port: PortId,
    /// Seconds since it was last seen.
    pub age: u32,
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
pub struct MacTable {
    key: HashKey,
    words: Box<[Words]>,
    seen: Box<[Seen]>,
    /// Occupied slots per port, indexed by port number.
    learnt: Box<[AtomicU32]>,
    refused: Refused,
    limits: Limits,
}

#[derive(Default)]
#[repr(align(64))]
struct Words([AtomicU64; SLOTS]);

/// When each slot's address was last seen, in seconds.
#[derive(Default)]
#[repr(align(32))]
struct Seen([AtomicU32; SLOTS]);

/// On a separate cache line: a flood of addresses must not slow the readers of the fields beside it.
#[derive(Default)]
#[repr(align(64))]
struct Refused(AtomicU64);

/// Another worker changed the slot first.
struct Raced;

/// One bucket: its words and its seconds.
#[derive(Copy, Clone)]
struct Bucket<'a> {
    words: &'a [AtomicU64; SLOTS],
    seen: &'a [AtomicU32; SLOTS],
}

impl Bucket<'_> {
    fn load(&self, slot: usize) -> Word {
        Word::from_raw(self.words[slot].load(Ordering::Relaxed))
    }

    fn last_seen(&self, slot: usize) -> u32 {
        self.seen[slot].load(Ordering::Relaxed)
    }

    /// Publishes `new` in place of `old`.
    ///
    /// Sequentially consistent, as is the look-round in [`MacTable::drop_duplicates`]: of two workers that put
    /// the same address into two slots, at least one must see the other's.
    fn swap(&self, slot: usize, old: Word, new: Word) -> Result<(), Raced> {
        self.words[slot]
            .compare_exchange(old.raw(), new.raw(), Ordering::SeqCst, Ordering::Relaxed)
            .map(drop)
            .map_err(|_| Raced)
    }

    /// The first slot that holds this address.
    fn find(&self, key: u64) -> Option<(usize, Word)> {
        (0..SLOTS).map(|slot| (slot, self.load(slot))).find(|(_, word)| word.key() == key)
    }

    /// Notes that the slot's address was seen. Writes only when the second changed, so that a busy station's
    /// line stays shared between the workers' caches; and only forward, since a worker's clock may lag.
    fn refresh(&self, slot: usize, now: u32) {
        if self.last_seen(slot) < now {
            self.seen[slot].store(now, Ordering::Relaxed);
        }
    }
}

impl MacTable {
    /// An empty table of at least `capacity` entries (rounded up to a power of two, 8 or more).
    pub fn new(capacity: usize, limits: Limits) -> Self {
        let buckets = capacity.max(SLOTS).next_power_of_two() / SLOTS;
        let ports = usize::from(u16::MAX) + 1;
        Self {
            key: HashKey::random(),
            words: (0..buckets).map(|_| Words::default()).collect(),
            seen: (0..buckets).map(|_| Seen::default()).collect(),
            learnt: (0..ports).map(|_| AtomicU32::new(0)).collect(),
            refused: Refused::default(),
            limits,
        }
    }

    /// Notes that a frame from `mac` came in on `port` at second `now`.
    ///
    /// Group addresses and the zero address are ignored. A station that moved takes its entry and its count to
    /// the new port. An address that would take `port` beyond its bound, or whose bucket is full of fresh
    /// entries, is not learnt and counted in [`refused`](Self::refused); its frames are flooded.
    pub fn learn(&self, mac: MacAddr, port: PortId, now: u32) {
        if !is_station(mac) {
            return;
        }
        let wanted = Word::new(mac, port);
        let bucket = self.bucket(wanted.key());
        for _ in 0..ATTEMPTS {
            if self.try_learn(bucket, wanted, now).is_ok() {
                return;
            }
        }
    }

    /// The port `mac` lives on at second `now`; `None` when unknown, aged, or a group address.
    pub fn lookup(&self, mac: MacAddr, now: u32) -> Option<PortId> {
        if !is_station(mac) {
            return None;
        }
        let key = key(mac);
        let bucket = self.bucket(key);
        let (slot, word) = bucket.find(key)?;
        (!self.is_aged(bucket.last_seen(slot), now)).then(|| word.port())
    }

    /// Forgets every address of a port that goes away. The port's ingress must have stopped: a worker that
    /// still learns on it may leave an entry behind, which then ages.
    pub fn forget_port(&self, port: PortId) {
        self.remove_where(|word, _| word.port() == port);
    }

    /// Removes aged entries, and so returns their ports' share to them. Call it about once a second, from
    /// one thread at a time.
    pub fn sweep(&self, now: u32) {
        self.remove_where(|_, seen| self.is_aged(seen, now));
    }

    /// All addresses that [`lookup`](Self::lookup) would find at second `now`, in no order. Allocates: for
    /// operators.
    pub fn entries(&self, now: u32) -> Vec<Entry> {
        self.occupied()
            .filter(|&(bucket, slot, _)| !self.is_aged(bucket.last_seen(slot), now))
            .map(|(bucket, slot, word)| Entry {
                mac: word.mac(),
                port: word.port(),
                age: now.saturating_sub(bucket.last_seen(slot)),
            })
            .collect()
    }

    /// How many addresses `port` occupies, aged ones not yet swept included.
    pub fn learnt(&self, port: PortId) -> u32 {
        self.learnt[usize::from(port.0)].load(Ordering::Relaxed)
    }

    /// How often an address was not learnt, because of its port's bound or because its bucket was full.
    pub fn refused(&self) -> u64 {
        self.refused.0.load(Ordering::Relaxed)
    }

    /// How many addresses the table can hold.
    pub fn capacity(&self) -> usize {
        self.words.len() * SLOTS
    }

    fn try_learn(&self, bucket: Bucket<'_>, wanted: Word, now: u32) -> Result<(), Raced> {
        match bucket.find(wanted.key()) {
            Some((slot, found)) if found == wanted => bucket.refresh(slot, now),
            Some((slot, found)) => self.replace(bucket, slot, found, wanted, now)?,
            None => match self.vacancy(bucket, now) {
                Some((slot, old)) => self.insert(bucket, slot, old, wanted, now)?,
                None => self.refuse(),
            },
        }
        Ok(())
    }

    /// Where a new address may go: an empty slot, else the oldest of the aged ones.
    fn vacancy(&self, bucket: Bucket<'_>, now: u32) -> Option<(usize, Word)> {
        let slots = (0..SLOTS).map(|slot| (slot, bucket.load(slot)));
        slots.clone().find(|(_, word)| word.is_empty()).or_else(|| {
            slots
                .filter(|&(slot, _)| self.is_aged(bucket.last_seen(slot), now))
                .min_by_key(|&(slot, _)| bucket.last_seen(slot))
        })
    }

    /// Puts an address that its bucket lacked, a moment ago, where `old` was.
    fn insert(
        &self,
        bucket: Bucket<'_>,
        slot: usize,
        old: Word,
        new: Word,
        now: u32,
    ) -> Result<(), Raced> {
        self.replace(bucket, slot, old, new, now)?;
        self.drop_duplicates(bucket, new.key());
        Ok(())
    }

    /// Puts `new` where `old` was and moves the counts with it, or refuses at the port's bound.
    fn replace(
        &self,
        bucket: Bucket<'_>,
        slot: usize,
        old: Word,
        new: Word,
        now: u32,
    ) -> Result<(), Raced> {
        if !self.reserve(new.port()) {
            self.refuse();
            return Ok(());
        }
        if let Err(raced) = bucket.swap(slot, old, new) {
            self.release(new);
            return Err(raced);
        }
        bucket.seen[slot].store(now, Ordering::Relaxed);
        self.release(old);
        Ok(())
    }

    /// Keeps only the first slot of an address that two workers put into two slots at once.
    fn drop_duplicates(&self, bucket: Bucket<'_>, key: u64) {
        let mut kept = false;
        for slot in 0..SLOTS {
            loop {
                let word = Word::from_raw(bucket.words[slot].load(Ordering::SeqCst));
                if word.key() != key {
                    break;
                }
                if !kept {
                    kept = true;
                    break;
                }
                if self.remove(bucket, slot, word).is_ok() {
                    break;
                }
            }
        }
    }

    fn remove(&self, bucket: Bucket<'_>, slot: usize, word: Word) -> Result<(), Raced> {
        bucket.swap(slot, word, Word::EMPTY)?;
        self.release(word);
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

    fn occupied(&self) -> impl Iterator<Item = (Bucket<'_>, usize, Word)> {
        (0..self.words.len())
            .map(|index| self.bucket_at(index))
            .flat_map(|bucket| (0..SLOTS).map(move |slot| (bucket, slot, bucket.load(slot))))
            .filter(|(_, _, word)| !word.is_empty())
    }

    /// Takes one of the port's entries, if its bound leaves one.
    fn reserve(&self, port: PortId) -> bool {
        self.learnt[usize::from(port.0)]
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |count| {
                (count < self.limits.per_port).then_some(count + 1)
            })
            .is_ok()
    }

    /// Gives an entry back to its port. An empty word has no entry.
    fn release(&self, word: Word) {
        if !word.is_empty() {
            self.learnt[usize::from(word.port().0)].fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn refuse(&self) {
        self.refused.0.fetch_add(1, Ordering::Relaxed);
    }

    /// Saturating: another worker's clock may be a second ahead of `now`, and that entry is fresh.
    fn is_aged(&self, seen: u32, now: u32) -> bool {
        now.saturating_sub(seen) >= self.limits.age_seconds
    }

    fn bucket(&self, key: u64) -> Bucket<'_> {
        #[expect(
            clippy::cast_possible_truncation,
            reason = "any bits of the hash do; the mask keeps those that count"
        )]
        let hash = self.key.hash(key) as usize;
        self.bucket_at(hash & (self.words.len() - 1))
    }

    fn bucket_at(&self, index: usize) -> Bucket<'_> {
        Bucket { words: &self.words[index].0, seen: &self.seen[index].0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two workers miss the same address in a bucket, and a slot that was freed meanwhile sends them to different
    /// slots. (Tests that need only the public interface are in `tests/table.rs`.)
    #[test]
    fn an_address_inserted_twice_keeps_one_slot_and_one_count() {
        for (first, second) in [(0, 1), (1, 0)] {
            let table = MacTable::new(SLOTS, Limits::default());
            let bucket = table.bucket_at(0);
            let word = Word::new(MacAddr([2, 0, 0, 0, 0, 1]), PortId(3));
            assert!(table.insert(bucket, first, Word::EMPTY, word, 0).is_ok());
            assert!(table.insert(bucket, second, Word::EMPTY, word, 0).is_ok());
            assert_eq!(table.occupied().count(), 1);
            assert_eq!(table.learnt(PortId(3)), 1);
            assert_eq!(table.lookup(word.mac(), 0), Some(PortId(3)));
        }
    }
}
