//! Addresses that the table does not learn from frames.

use super::MacTable;
use crate::PortId;
use crate::bucket::{Bucket, Raced};
use crate::entry::{Word, is_station};
use wire::ethernet::MacAddr;

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
        let (slot, old) = match bucket.holders(wanted.key()).next() {
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
        self.replace(bucket, slot, old, wanted, now)?;
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
