//! One slot's word: an address, its origin and its port in 64 bits, so that a single atomic store publishes them
//! together.

use wire::ethernet::MacAddr;

use crate::PortId;

/// The group bit of the address. A station's address never has it, so a word uses it for the origin.
const TAUGHT: u64 = 1 << 56;
/// The bits of a word that are the address.
const ADDRESS: u64 = !(TAUGHT | 0xffff);

/// The address in the high 48 bits, with the origin in the place of its group bit; the port in the low 16.
///
/// Zero is the empty slot; it cannot be mistaken for an entry because the all-zero address is never learnt.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(crate) struct Word(u64);

impl Word {
    pub(crate) const EMPTY: Self = Self(0);

    /// A station that was learnt from its frames.
    pub(crate) fn learnt(mac: MacAddr, port: PortId) -> Self {
        Self(key(mac) | u64::from(port.0))
    }

    /// A station that the table was taught.
    pub(crate) fn taught(mac: MacAddr, port: PortId) -> Self {
        Self(Self::learnt(mac, port).0 | TAUGHT)
    }

    pub(crate) fn from_raw(raw: u64) -> Self {
        Self(raw)
    }

    pub(crate) fn raw(self) -> u64 {
        self.0
    }

    pub(crate) fn is_empty(self) -> bool {
        self == Self::EMPTY
    }

    pub(crate) fn is_taught(self) -> bool {
        self.0 & TAUGHT != 0
    }

    /// The address as [`key`] makes it; zero for the empty slot.
    pub(crate) fn key(self) -> u64 {
        self.0 & ADDRESS
    }

    pub(crate) fn mac(self) -> MacAddr {
        let [a, b, c, d, e, f, _, _] = self.key().to_be_bytes();
        MacAddr([a, b, c, d, e, f])
    }

    pub(crate) fn port(self) -> PortId {
        let [.., high, low] = self.0.to_be_bytes();
        PortId(u16::from_be_bytes([high, low]))
    }
}

/// The address in the high 48 bits, first octet highest.
pub(crate) fn key(mac: MacAddr) -> u64 {
    let [a, b, c, d, e, f] = mac.0;
    u64::from_be_bytes([a, b, c, d, e, f, 0, 0])
}

/// Whether a station can own this address.
pub(crate) fn is_station(mac: MacAddr) -> bool {
    !mac.is_multicast() && !mac.is_zero()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_gives_back_what_it_was_made_of() {
        let mac = MacAddr([0x52, 0x54, 0x00, 0x12, 0x34, 0x56]);
        for word in [Word::learnt(mac, PortId(0xabcd)), Word::taught(mac, PortId(0xabcd))] {
            assert_eq!(word.mac(), mac);
            assert_eq!(word.port(), PortId(0xabcd));
            assert_eq!(word.key(), key(mac));
            assert!(!word.is_empty());
        }
        assert!(Word::taught(mac, PortId(0)).is_taught());
        assert!(!Word::learnt(MacAddr([0xfe; 6]), PortId(0xffff)).is_taught());
    }

    #[test]
    fn group_and_zero_addresses_are_no_stations() {
        assert!(is_station(MacAddr([2, 0, 0, 0, 0, 1])));
        assert!(!is_station(MacAddr([3, 0, 0, 0, 0, 1])));
        assert!(!is_station(MacAddr([0xff; 6])));
        assert!(!is_station(MacAddr([0; 6])));
    }
}
