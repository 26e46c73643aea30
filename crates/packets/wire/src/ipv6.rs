//! IPv6 (RFC 8200).

use core::net::Ipv6Addr;
use core::ops::Range;

use crate::bytes::{array, be16, set_be32, view};
use crate::error::{Layer, ParseError, checked_len};
use crate::ethernet::MacAddr;
use crate::ip::Protocol;

/// Bytes of the fixed header.
pub const HEADER_LEN: usize = 40;

/// Where the source and then the destination address lie.
pub const ADDRESSES: Range<usize> = 8..40;

/// The most extension headers that a walk passes. Few real packets have more than two. The bound
/// limits the work that a guest can cause.
pub const MAX_EXTENSIONS: usize = 8;

mod field {
    pub const VERSION_CLASS_FLOW: usize = 0;
}

/// The link-local address that a host with this MAC address gives itself (RFC 4291, appendix A).
#[must_use]
pub fn link_local(mac: MacAddr) -> Ipv6Addr {
    let [a, b, c, d, e, f] = mac.0;
    Ipv6Addr::from([0xfe, 0x80, 0, 0, 0, 0, 0, 0, a ^ 2, b, c, 0xff, 0xfe, d, e, f])
}

/// A fragment header's offset and "more fragments" flag.
const FRAGMENT_MASK: u16 = 0xfff9;

/// Where a walk along the extension headers ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UpperLayer {
    /// The first protocol that is not a hop-by-hop, routing, fragment or destination options
    /// header. For a fragment, the protocol that the fragment header names.
    pub protocol: Protocol,
    /// Where that protocol's header starts, in the bytes walked.
    pub offset: usize,
    /// Whether the packet is a fragment. The header of an atomic fragment (RFC 6946) is passed like
    /// any extension.
    pub fragment: bool,
}

/// Walks the extension headers that start at byte `offset` of `bytes`, the first of them being
/// `next`.
///
/// The walk ends after the fragment header of a fragment, since the bytes that follow may be the
/// middle of a datagram.
///
/// # Errors
/// The bytes end inside an extension header, or there are more than [`MAX_EXTENSIONS`].
#[inline]
pub fn walk_extensions(
    next: Protocol,
    bytes: &[u8],
    offset: usize,
) -> Result<UpperLayer, ParseError> {
    let first = UpperLayer { protocol: next, offset, fragment: false };
    if is_extension(next) { pass_extensions(first, bytes) } else { Ok(first) }
}

/// Not inlined, so that the caller stays small: few packets have extensions.
#[inline(never)]
fn pass_extensions(mut at: UpperLayer, bytes: &[u8]) -> Result<UpperLayer, ParseError> {
    for _ in 0..MAX_EXTENSIONS {
        at = pass_extension(at, bytes)?;
        if at.fragment || !is_extension(at.protocol) {
            return Ok(at);
        }
    }
    Err(ParseError::Extensions)
}

#[inline]
const fn is_extension(protocol: Protocol) -> bool {
    matches!(
        protocol,
        Protocol::HOP_BY_HOP
            | Protocol::ROUTING
            | Protocol::FRAGMENT
            | Protocol::DESTINATION_OPTIONS
    )
}

/// From the extension header at `at` to the header after it.
fn pass_extension(at: UpperLayer, bytes: &[u8]) -> Result<UpperLayer, ParseError> {
    let truncated = ParseError::Truncated(Layer::Ipv6Extension);
    let first: &[u8; 8] = array(bytes, at.offset).ok_or(truncated)?;
    let is_fragment_header = at.protocol == Protocol::FRAGMENT;
    // The second byte is a length in units of 8 bytes beyond the first 8, but reserved in a
    // fragment header.
    let len = if is_fragment_header { 8 } else { 8 + 8 * usize::from(first[1]) };
    if bytes.len() < at.offset + len {
        return Err(truncated);
    }
    Ok(UpperLayer {
        protocol: Protocol(first[0]),
        offset: at.offset + len,
        fragment: is_fragment_header && be16(first, 2) & FRAGMENT_MASK != 0,
    })
}

view! {
    /// A view of a packet: fixed header, extension headers and payload.
    Packet {
        /// Bytes after the fixed header, extension headers included.
        payload_len, set_payload_len: u16 = 4,
        /// The first extension header, or the protocol of the payload.
        next_header, set_next_header: Protocol = 6,
        /// Hop limit.
        hop_limit, set_hop_limit: u8 = 7,
        /// Source address.
        src, set_src: Ipv6Addr = 8,
        /// Destination address.
        dst, set_dst: Ipv6Addr = 24,
    }
}

impl<T: AsRef<[u8]>> Packet<T> {
    /// A view of `buffer`, whose accessors do not panic. Bytes beyond the payload length are
    /// padding.
    ///
    /// # Errors
    /// The version is not 6, or the payload does not fit the buffer.
    #[inline]
    pub fn new_checked(buffer: T) -> Result<Self, ParseError> {
        let len = checked_len(buffer.as_ref(), HEADER_LEN, Layer::Ipv6)?;
        let packet = Self { buffer };
        packet.check_header()?;
        if HEADER_LEN + usize::from(packet.payload_len()) > len {
            return Err(ParseError::Length(Layer::Ipv6));
        }
        Ok(packet)
    }

    #[inline]
    pub(crate) fn check_header(&self) -> Result<(), ParseError> {
        if self.version() == 6 { Ok(()) } else { Err(ParseError::Version(Layer::Ipv6)) }
    }

    /// IP version.
    #[inline]
    pub fn version(&self) -> u8 {
        self.buffer.as_ref()[field::VERSION_CLASS_FLOW] >> 4
    }

    /// The payload, as long as the payload length says, extension headers included.
    #[inline]
    pub fn payload(&self) -> &[u8] {
        &self.buffer.as_ref()[HEADER_LEN..][..usize::from(self.payload_len())]
    }
}

impl<T: AsRef<[u8]> + AsMut<[u8]>> Packet<T> {
    /// Sets version 6, the traffic class and the 20-bit flow label.
    #[inline]
    pub fn set_class_and_label(&mut self, class: u8, label: u32) {
        let word = 6 << 28 | u32::from(class) << 20 | label & 0xf_ffff;
        set_be32(self.buffer.as_mut(), field::VERSION_CLASS_FLOW, word);
    }

    /// The payload; its length must be set.
    #[inline]
    pub fn payload_mut(&mut self) -> &mut [u8] {
        let len = usize::from(self.payload_len());
        &mut self.buffer.as_mut()[HEADER_LEN..][..len]
    }
}

/// A fixed header with traffic class and flow label 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr {
    /// Source address.
    pub src: Ipv6Addr,
    /// Destination address.
    pub dst: Ipv6Addr,
    /// The first extension header, or the protocol of the payload.
    pub next_header: Protocol,
    /// Hop limit.
    pub hop_limit: u8,
    /// Bytes after the fixed header.
    pub payload_len: u16,
}

impl Repr {
    /// Writes this header into `packet`.
    pub fn emit<T: AsRef<[u8]> + AsMut<[u8]>>(&self, packet: &mut Packet<T>) {
        packet.set_class_and_label(0, 0);
        packet.set_payload_len(self.payload_len);
        packet.set_next_header(self.next_header);
        packet.set_hop_limit(self.hop_limit);
        packet.set_src(self.src);
        packet.set_dst(self.dst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SRC: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);
    const DST: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 2);

    const BYTES: [u8; 44] = [
        0x6b, 0x81, 0x23, 0x45, 0x00, 0x03, 0x11,
        0x40, // class b8, label 12345, 3 bytes of UDP, limit 64
        0x20, 0x01, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, // src
        0xff, 0x02, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, // dst
        1, 2, 3, 0xee, // payload and a byte of padding
    ];

    const TRUNCATED: ParseError = ParseError::Truncated(Layer::Ipv6Extension);

    #[test]
    fn a_packet_is_parsed_into_its_fields() {
        let packet = Packet::new_checked(&BYTES).unwrap();
        assert_eq!((packet.version(), packet.next_header()), (6, Protocol::UDP));
        assert_eq!((packet.payload_len(), packet.hop_limit()), (3, 64));
        assert_eq!((packet.src(), packet.dst()), (SRC, DST));
        assert_eq!(packet.payload(), [1, 2, 3]);
    }

    #[test]
    fn a_packet_is_emitted() {
        let repr =
            Repr { src: SRC, dst: DST, next_header: Protocol::UDP, hop_limit: 64, payload_len: 3 };
        let mut packet = Packet::new_unchecked([0xee; 44]);
        repr.emit(&mut packet);
        packet.set_class_and_label(0xb8, 0xfff1_2345);
        packet.payload_mut().copy_from_slice(&[1, 2, 3]);
        assert_eq!(packet.into_inner(), BYTES);
    }

    #[test]
    fn malformed_packets_are_refused() {
        assert_eq!(Packet::new_checked(&BYTES[..39]), Err(ParseError::Truncated(Layer::Ipv6)));
        assert_eq!(Packet::new_checked(&BYTES[..42]), Err(ParseError::Length(Layer::Ipv6)));
        let mut bytes = BYTES;
        bytes[0] = 0x45;
        assert_eq!(Packet::new_checked(bytes), Err(ParseError::Version(Layer::Ipv6)));
    }

    #[test]
    fn a_mac_address_gives_a_link_local_address() {
        let expected: Ipv6Addr = "fe80::216:3eff:fe12:3456".parse().unwrap();
        assert_eq!(link_local(MacAddr([0x00, 0x16, 0x3e, 0x12, 0x34, 0x56])), expected);
    }

    #[test]
    fn the_walk_passes_every_kind_of_extension() {
        let mut chain = [0; 48];
        chain[0] = 43; // hop-by-hop of 8 bytes, then routing
        chain[8..10].copy_from_slice(&[60, 1]); // routing of 16 bytes, then destination options
        chain[24] = 44; // destination options of 8 bytes, then fragment
        // An atomic fragment, then TCP; the second byte is no length here.
        chain[32..34].copy_from_slice(&[6, 0xff]);
        let upper = UpperLayer { protocol: Protocol::TCP, offset: 40, fragment: false };
        assert_eq!(walk_extensions(Protocol::HOP_BY_HOP, &chain, 0), Ok(upper));
        assert_eq!(walk_extensions(Protocol::HOP_BY_HOP, &chain[..40], 0), Ok(upper));
        assert_eq!(walk_extensions(Protocol::HOP_BY_HOP, &chain[..39], 0), Err(TRUNCATED));
    }

    #[test]
    fn the_walk_ends_at_a_fragment() {
        for offset_and_more in [1u16, 8, 0xfff8] {
            let mut chain = [0; 16];
            chain[0] = Protocol::DESTINATION_OPTIONS.0;
            chain[2..4].copy_from_slice(&offset_and_more.to_be_bytes());
            let upper =
                UpperLayer { protocol: Protocol::DESTINATION_OPTIONS, offset: 8, fragment: true };
            assert_eq!(walk_extensions(Protocol::FRAGMENT, &chain, 0), Ok(upper));
        }
    }

    #[test]
    fn the_walk_is_bounded() {
        let options = [Protocol::DESTINATION_OPTIONS.0, 0, 0, 0, 0, 0, 0, 0];
        let mut chain = [options; MAX_EXTENSIONS + 1];
        chain[MAX_EXTENSIONS - 1][0] = Protocol::TCP.0;
        let upper =
            UpperLayer { protocol: Protocol::TCP, offset: 8 * MAX_EXTENSIONS, fragment: false };
        assert_eq!(
            walk_extensions(Protocol::DESTINATION_OPTIONS, chain.as_flattened(), 0),
            Ok(upper)
        );
        chain[MAX_EXTENSIONS - 1] = options;
        let walk = walk_extensions(Protocol::DESTINATION_OPTIONS, chain.as_flattened(), 0);
        assert_eq!(walk, Err(ParseError::Extensions));
    }

    #[test]
    fn a_walk_that_starts_beyond_the_end_is_refused() {
        assert_eq!(walk_extensions(Protocol::ROUTING, &[], usize::MAX), Err(TRUNCATED));
    }
}
