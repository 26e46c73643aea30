//! Ethernet II frames.

use core::fmt;
use core::str::FromStr;

use thiserror::Error;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::bytes::{field_types, view};
use crate::error::{Layer, ParseError, checked_len};

/// Bytes of an untagged Ethernet header.
pub const HEADER_LEN: usize = 14;
/// Bytes that each IEEE 802.1Q or 802.1ad tag adds to the header.
pub const VLAN_TAG_LEN: usize = 4;

/// A 48-bit MAC address, in the order of the wire.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
    Unaligned,
)]
#[repr(transparent)]
pub struct MacAddr(pub [u8; 6]);

field_types! {
    MacAddr: MacAddr, |address: MacAddr| address.0;
}

impl MacAddr {
    /// `ff:ff:ff:ff:ff:ff`.
    pub const BROADCAST: Self = Self([0xff; 6]);

    /// Is this a group address? The broadcast address is one.
    #[inline]
    #[must_use]
    pub const fn is_multicast(&self) -> bool {
        self.0[0] & 1 != 0
    }

    /// Is this [`MacAddr::BROADCAST`]?
    #[inline]
    #[must_use]
    pub fn is_broadcast(&self) -> bool {
        *self == Self::BROADCAST
    }

    /// Is this a group that ends at the first bridge: 01:80:C2:00:00:00 to :0F (IEEE 802.1Q §8.6.3)? Pause frames, spanning tree,
    /// LACP, LLDP. Forwarded, a guest could pause or reconfigure the switch that a host is connected to.
    #[inline]
    #[must_use]
    pub const fn is_link_local_group(&self) -> bool {
        matches!(self.0, [0x01, 0x80, 0xc2, 0x00, 0x00, ..=0x0f])
    }

    /// Is this `00:00:00:00:00:00`, which no station may have?
    #[inline]
    #[must_use]
    pub fn is_zero(&self) -> bool {
        self.0 == [0; 6]
    }
}

impl fmt::Display for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

/// The text is not six two-digit hexadecimal bytes joined by colons.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("a MAC address has the form aa:bb:cc:dd:ee:ff")]
pub struct ParseMacError;

impl FromStr for MacAddr {
    type Err = ParseMacError;

    fn from_str(text: &str) -> Result<Self, ParseMacError> {
        let mut address = [0; 6];
        let mut groups = text.split(':');
        for byte in &mut address {
            *byte = groups.next().and_then(hex_byte).ok_or(ParseMacError)?;
        }
        match groups.next() {
            None => Ok(Self(address)),
            Some(_) => Err(ParseMacError),
        }
    }
}

/// `from_str_radix` alone would accept "+f" and "f".
fn hex_byte(group: &str) -> Option<u8> {
    let two_digits = group.len() == 2 && group.bytes().all(|digit| digit.is_ascii_hexdigit());
    two_digits.then(|| u8::from_str_radix(group, 16).ok()).flatten()
}

/// The protocol that an Ethernet header or VLAN tag announces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EtherType(pub u16);

field_types! {
    EtherType: |bytes| EtherType(u16::from_be_bytes(bytes)), |ethertype: EtherType| ethertype.0.to_be_bytes();
}

impl EtherType {
    /// IPv4.
    pub const IPV4: Self = Self(0x0800);
    /// ARP.
    pub const ARP: Self = Self(0x0806);
    /// An IEEE 802.1Q tag.
    pub const VLAN: Self = Self(0x8100);
    /// IPv6.
    pub const IPV6: Self = Self(0x86dd);
    /// An IEEE 802.1ad service tag.
    pub const QINQ: Self = Self(0x88a8);

    /// Does a VLAN tag follow?
    #[inline]
    #[must_use]
    pub const fn is_vlan(self) -> bool {
        matches!(self, Self::VLAN | Self::QINQ)
    }
}

impl fmt::Display for EtherType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#06x}", self.0)
    }
}

view! {
    /// A view of a frame without preamble and frame check sequence.
    Frame {
        /// Destination address.
        dst, set_dst: MacAddr = 0,
        /// Source address.
        src, set_src: MacAddr = 6,
        /// EtherType of the header: a VLAN tag's, if there is one.
        ethertype, set_ethertype: EtherType = 12,
    }
}

impl<T: AsRef<[u8]>> Frame<T> {
    /// A view of `buffer`, whose accessors do not panic.
    ///
    /// # Errors
    /// The buffer is shorter than [`HEADER_LEN`].
    #[inline]
    pub fn new_checked(buffer: T) -> Result<Self, ParseError> {
        checked_len(buffer.as_ref(), HEADER_LEN, Layer::Ethernet)?;
        Ok(Self { buffer })
    }

    /// Everything after the header: the tag first, if there is one.
    #[inline]
    pub fn payload(&self) -> &[u8] {
        &self.buffer.as_ref()[HEADER_LEN..]
    }
}

impl<T: AsRef<[u8]> + AsMut<[u8]>> Frame<T> {
    /// Everything after the header.
    #[inline]
    pub fn payload_mut(&mut self) -> &mut [u8] {
        &mut self.buffer.as_mut()[HEADER_LEN..]
    }
}

/// An untagged Ethernet header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr {
    /// Destination address.
    pub dst: MacAddr,
    /// Source address.
    pub src: MacAddr,
    /// Protocol of the payload.
    pub ethertype: EtherType,
}

impl Repr {
    /// Writes this header into `frame`.
    pub fn emit<T: AsRef<[u8]> + AsMut<[u8]>>(&self, frame: &mut Frame<T>) {
        frame.set_dst(self.dst);
        frame.set_src(self.src);
        frame.set_ethertype(self.ethertype);
    }
}

#[cfg(test)]
mod tests {
    use std::string::ToString;

    use proptest::prelude::*;

    use super::*;

    const BYTES: [u8; 18] = [
        0x01, 0x00, 0x5e, 0x00, 0x00, 0xfb, // dst
        0x00, 0x16, 0x3e, 0x12, 0x34, 0x56, // src
        0x08, 0x00, // IPv4
        0x45, 0x00, 0x00, 0x54,
    ];

    const REPR: Repr = Repr {
        dst: MacAddr([0x01, 0x00, 0x5e, 0x00, 0x00, 0xfb]),
        src: MacAddr([0x00, 0x16, 0x3e, 0x12, 0x34, 0x56]),
        ethertype: EtherType::IPV4,
    };

    #[test]
    fn a_frame_is_parsed_and_emitted() {
        let frame = Frame::new_checked(&BYTES).unwrap();
        assert_eq!(
            (frame.dst(), frame.src(), frame.ethertype()),
            (REPR.dst, REPR.src, REPR.ethertype)
        );
        assert_eq!(frame.payload(), [0x45, 0x00, 0x00, 0x54]);

        let mut emitted = Frame::new_checked([0; 18]).unwrap();
        REPR.emit(&mut emitted);
        emitted.payload_mut().copy_from_slice(frame.payload());
        assert_eq!(emitted.into_inner(), BYTES);
    }

    #[test]
    fn a_header_needs_14_bytes() {
        assert_eq!(Frame::new_checked(&BYTES[..13]), Err(ParseError::Truncated(Layer::Ethernet)));
        assert!(Frame::new_checked(&BYTES[..14]).unwrap().payload().is_empty());
    }

    #[test]
    fn addresses_know_their_kind() {
        assert!(REPR.dst.is_multicast() && !REPR.dst.is_broadcast() && !REPR.dst.is_zero());
        assert!(!REPR.src.is_multicast());
        assert!(MacAddr::BROADCAST.is_multicast() && MacAddr::BROADCAST.is_broadcast());
        assert!(MacAddr::default().is_zero() && !MacAddr::default().is_multicast());
        let group = |last| MacAddr([0x01, 0x80, 0xc2, 0, 0, last]);
        assert!((0..=0x0f).all(|last| group(last).is_link_local_group()));
        assert!(!group(0x10).is_link_local_group() && !REPR.dst.is_link_local_group());
    }

    #[test]
    fn an_address_is_printed_and_parsed() {
        assert_eq!(REPR.src.to_string(), "00:16:3e:12:34:56");
        assert_eq!("00:16:3E:12:34:56".parse(), Ok(REPR.src));
        for wrong in [
            "",
            "00:16:3e:12:34",
            "00:16:3e:12:34:56:78",
            "00:16:3e:12:34:5",
            "00:16:3e:12:34:+5",
            "00:16:3e:12:34:5g",
            "00-16-3e-12-34-56",
            " 00:16:3e:12:34:56",
            "00:16:3e:12:34:é",
        ] {
            assert_eq!(wrong.parse::<MacAddr>(), Err(ParseMacError), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn an_address_survives_its_text(bytes: [u8; 6]) {
            prop_assert_eq!(MacAddr(bytes).to_string().parse(), Ok(MacAddr(bytes)));
        }

        #[test]
        fn any_text_is_parsed_or_refused(text in "\\PC{0,20}") {
            if let Ok(address) = text.parse::<MacAddr>() {
                prop_assert_eq!(address.to_string(), text.to_lowercase());
            }
        }
    }
}
