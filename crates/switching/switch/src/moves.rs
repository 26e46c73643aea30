//! Stations that move between ports.

use wire::ethernet::MacAddr;

use crate::PortId;
use crate::entry::Word;

/// A station that moved.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Move {
    /// The station's address.
    pub mac: MacAddr,
    /// The port it was on.
    pub from: PortId,
    /// The port it is on.
    pub to: PortId,
}

/// The last move of an address, in 64 bits: the address's low 32, the port it came from, and the second. Zero: it has not moved.
///
/// It names the address because slots change hands. That two addresses of a slot have the same low bits costs at most a
/// refused move. The second has 15 bits: [`MacTable::take_moves`](crate::MacTable::take_moves) removes records long
/// before it comes again.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(crate) struct Record(u64);

/// Set in every record.
const SOME: u64 = 1 << 15;
/// The bits of the second.
const SECOND: u64 = SOME - 1;

impl Record {
    pub(crate) const NONE: Self = Self(0);

    /// The address of `found` moves at second `now`.
    pub(crate) fn new(found: Word, now: u32) -> Self {
        let second = SOME | u64::from(now) & SECOND;
        Self(address(found) << 32 | u64::from(found.port().0) << 16 | second)
    }

    pub(crate) fn from_raw(raw: u64) -> Self {
        Self(raw)
    }

    pub(crate) fn raw(self) -> u64 {
        self.0
    }

    /// Whether the slot's address, `word`, has moved in this second. It also has if it moved in the next: workers'
    /// clocks are apart by a moment.
    pub(crate) fn forbids(self, word: Word, now: u32) -> bool {
        self != Self::NONE && self.0 >> 32 == address(word) && self.seconds_ahead(now) <= 1
    }

    /// Whether no worker's clock is at this move's second any more.
    pub(crate) fn is_over(self, now: u32) -> bool {
        self != Self::NONE && self.seconds_ahead(now) > 1 && self.seconds_ahead(now) < SECOND
    }

    /// The move, if it was one of the slot's address `word`.
    pub(crate) fn of(self, word: Word) -> Option<Move> {
        let [_, _, _, _, high, low, _, _] = self.0.to_be_bytes();
        let from = PortId(u16::from_be_bytes([high, low]));
        let is_its = self.0 >> 32 == address(word) && from != word.port();
        is_its.then(|| Move { mac: word.mac(), from, to: word.port() })
    }

    /// Seconds from `now` to the move, modulo 2^15.
    fn seconds_ahead(self, now: u32) -> u64 {
        self.0.wrapping_sub(now.into()) & SECOND
    }
}

/// The low 32 bits of the address.
fn address(word: Word) -> u64 {
    word.key() >> 16 & 0xffff_ffff
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATION: MacAddr = MacAddr([2, 0, 1, 2, 3, 4]);

    #[test]
    fn a_station_moves_once_per_second() {
        for now in [0, 1, 0x7fff, 0x8000, 0xffff, u32::MAX] {
            let record = Record::new(Word::learnt(STATION, PortId(7)), now);
            let there = Word::learnt(STATION, PortId(8));
            assert!(record.forbids(there, now));
            assert!(record.forbids(there, now.wrapping_sub(1)), "a clock that lags");
            assert!(!record.forbids(there, now.wrapping_add(1)));
            let other = Word::learnt(MacAddr([2, 0, 1, 2, 3, 5]), PortId(8));
            assert!(!record.forbids(other, now));
            assert_eq!(record.of(other), None);
            let station = Move { mac: STATION, from: PortId(7), to: PortId(8) };
            assert_eq!(record.of(there), Some(station));
            assert_eq!(record.of(Word::learnt(STATION, PortId(7))), None, "it went nowhere");
        }
        assert!(!Record::NONE.forbids(Word::EMPTY, 0));
        let zeros = Word::learnt(MacAddr([2, 0, 0, 0, 0, 0]), PortId(0));
        assert!(Record::new(zeros, 0).forbids(zeros, 0));
    }

    #[test]
    fn a_record_stays_as_long_as_it_forbids_something() {
        let record = Record::new(Word::learnt(STATION, PortId(7)), 70_000);
        let over = [69_999, 70_000, 70_001, 70_002, 70_100].map(|now| record.is_over(now));
        assert_eq!(over, [false, false, false, true, true]);
        assert!(!Record::NONE.is_over(5));
    }
}
