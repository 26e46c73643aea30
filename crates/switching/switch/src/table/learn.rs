//! Learning from the sources of frames.

use wire::ethernet::MacAddr;

use super::MacTable;
use crate::bucket::{Bucket, Found, Raced};
use crate::entry::{Word, is_station};
use crate::moves::Record;
use crate::{Learning, PortId};

/// How often one learn starts over when other workers change its bucket under it. Learning is a hint: after
/// that the next frame of the same station tries again, so a frame's work stays bounded.
const ATTEMPTS: usize = 4;

impl MacTable {
    /// Notes that a frame from `mac` came in on `port` at second `now`.
    ///
    /// Group addresses and the zero address are ignored. An address that was taught stays on its port. A station
    /// that moved takes its entry and its count to the new port, if the [limits](super::Limits) leave a move;
    /// otherwise the old port keeps it. An address that would take `port` beyond its bound, or whose bucket is full
    /// of fresh entries, is not learnt; its frames are flooded.
    pub fn learn(&self, mac: MacAddr, port: PortId, now: u32) -> Learning {
        if !is_station(mac) {
            return Learning::Unchanged;
        }
        let wanted = Word::learnt(mac, port);
        let bucket = self.bucket(wanted.key());
        match bucket.find(wanted.key()) {
            Some((slot, found)) if found.port() == port => {
                bucket.refresh(slot, now);
                Learning::Unchanged
            }
            _ => self.learn_new(bucket, wanted, now),
        }
    }

    /// Learns an address that was not on this port a moment ago.
    #[cold]
    fn learn_new(&self, bucket: &Bucket, wanted: Word, now: u32) -> Learning {
        for _ in 0..ATTEMPTS {
            if let Ok(learning) = self.try_learn(bucket, wanted, now) {
                self.counters.add(learning);
                return learning;
            }
        }
        Learning::Unchanged
    }

    fn try_learn(&self, bucket: &Bucket, wanted: Word, now: u32) -> Result<Learning, Raced> {
        match bucket.find(wanted.key()) {
            Some((slot, found)) if found.port() == wanted.port() => {
                bucket.refresh(slot, now);
                Ok(Learning::Unchanged)
            }
            Some((slot, found)) if self.is_aged(found, bucket.last_seen(slot), now) => {
                self.take(Found { bucket, slot, word: found }, wanted, now)
            }
            Some((slot, word)) => self.relocate(Found { bucket, slot, word }, wanted, now),
            None => match self.vacancy(bucket, now) {
                Some((slot, word)) => {
                    let learning = self.take(Found { bucket, slot, word }, wanted, now)?;
                    self.drop_duplicates(bucket, wanted.key());
                    Ok(learning)
                }
                None => Ok(Learning::Refused),
            },
        }
    }

    /// Where a new address may go: an empty slot, else the oldest of the aged ones.
    fn vacancy(&self, bucket: &Bucket, now: u32) -> Option<(usize, Word)> {
        bucket.slots().find(|(_, word)| word.is_empty()).or_else(|| {
            bucket
                .slots()
                .filter(|&(slot, word)| self.is_aged(word, bucket.last_seen(slot), now))
                .min_by_key(|&(slot, _)| bucket.last_seen(slot))
        })
    }

    /// Puts an address where `old` was, at its port's expense.
    fn take(&self, old: Found<'_>, new: Word, now: u32) -> Result<Learning, Raced> {
        if !self.shares.reserve(new.port(), self.limits.per_port) {
            return Ok(Learning::Refused);
        }
        self.replace(old, new, now).inspect_err(|_| self.shares.release(new))?;
        Ok(Learning::Added)
    }

    /// Moves a station to the port it was seen on, if it may.
    fn relocate(&self, old: Found<'_>, new: Word, now: u32) -> Result<Learning, Raced> {
        let Found { bucket, slot, word } = old;
        let last = bucket.last_move(slot);
        if word.is_taught() || last.forbids(word, now) {
            return Ok(Learning::RefusedMove);
        }
        if !self.shares.reserve(new.port(), self.limits.per_port) {
            return Ok(Learning::Refused);
        }
        let may_move = self.shares.take_move(new.port(), self.limits.moves_per_second, now)
            // Of several workers that move the station in one second, one gets through.
            && bucket.set_move(slot, last, Record::new(word, now)).is_ok();
        if !may_move {
            self.shares.release(new);
            return Ok(Learning::RefusedMove);
        }
        self.replace(old, new, now).inspect_err(|_| self.shares.release(new))?;
        Ok(Learning::Moved)
    }
}

/// Why an address was not taught.
#[derive(Copy, Clone, Eq, PartialEq, Debug, thiserror::Error)]
pub enum TeachError {
    /// It is a group address, or zero.
    #[error("it is not the address of one station")]
    NotAStation,
    /// Another port was taught to have it. That port keeps it.
    #[error("port {} has it", .0.0)]
    Taken(PortId),
    /// All slots of its bucket hold addresses that were taught.
    #[error("the switch's table has no place for it")]
    Full,
}

impl MacTable {
    /// Says that `mac` lives on `port`, at second `now`: until the port [goes away](Self::forget_port), no frame
    /// moves it and it does not age. It takes no share of the port's bound. Call it from one thread at a time.
    ///
    /// If the address was learnt, it is taken from the port it was seen on. In a full bucket it displaces the learnt
    /// address that was not seen for the longest time.
    ///
    /// # Errors
    /// No station can have the address, another port was taught to have it, or there is no place.
    pub fn teach(&self, mac: MacAddr, port: PortId, now: u32) -> Result<(), TeachError> {
        if !is_station(mac) {
            return Err(TeachError::NotAStation);
        }
        let wanted = Word::taught(mac, port);
        let bucket = self.bucket(wanted.key());
        // Ends: workers change a bucket only as often as its addresses may move, and as slots become free.
        loop {
            if let Ok(taught) = self.try_teach(bucket, wanted, now) {
                return taught;
            }
        }
    }

    fn try_teach(
        &self,
        bucket: &Bucket,
        wanted: Word,
        now: u32,
    ) -> Result<Result<(), TeachError>, Raced> {
        let (slot, word) = match bucket.holders(wanted.key()).next() {
            Some((slot, found)) if found == wanted => {
                bucket.refresh(slot, now);
                return Ok(Ok(()));
            }
            Some((_, found)) if found.is_taught() => {
                return Ok(Err(TeachError::Taken(found.port())));
            }
            Some(found) => found,
            None => match vacancy(bucket) {
                Some(vacancy) => vacancy,
                None => return Ok(Err(TeachError::Full)),
            },
        };
        self.replace(Found { bucket, slot, word }, wanted, now)?;
        self.drop_duplicates(bucket, wanted.key());
        Ok(Ok(()))
    }
}

/// Where an address that is taught may go: an empty slot, else the learnt one that was seen first.
fn vacancy(bucket: &Bucket) -> Option<(usize, Word)> {
    bucket.slots().find(|(_, word)| word.is_empty()).or_else(|| {
        bucket
            .slots()
            .filter(|(_, word)| !word.is_taught())
            .min_by_key(|&(slot, _)| bucket.last_seen(slot))
    })
}
