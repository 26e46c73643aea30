//! The reverse of segmentation: TCP segments that came one by one become one unsegmented frame.

use wire::checksum::Sum;
use wire::headers::{Headers, Network, Transport};
use wire::tcp::Flags;
use wire::{ipv4, ipv6, tcp};

use crate::layout::{Ip, Layout};
use crate::{Checksum, Gso, GsoKind};

/// Smallest segment size of a merged frame. Devices and guests refuse frames that ask for tiny segments, and a row of them is
/// nothing that a bulk transfer sends.
const SIZE_MIN: u16 = 64;

/// The bits of IPv4's third word of 16 bits that are not "don't fragment".
const FRAGMENT_BITS: u16 = !0x4000;

/// A frame that may be part of a merged one: a TCP segment with payload whose headers say nothing that the headers of the merged frame
/// could not say.
#[derive(Clone, Copy, Debug)]
pub struct Mergeable {
    layout: Layout,
    headers: Headers,
    checksum: Checksum,
    seq: u32,
    /// 0 over IPv6.
    ident: u16,
    payload: u16,
    is_pushed: bool,
}

impl Mergeable {
    /// Looks at a frame of `len` bytes that starts with `header`, which holds all of its headers. None for a frame that cannot be merged.
    ///
    /// The IP header's checksum is verified here, the transport's by [`is_right`](Self::is_right).
    #[must_use]
    pub fn of(header: &[u8], len: usize, headers: &Headers, checksum: Checksum) -> Option<Self> {
        if headers.transport != Transport::Tcp {
            return None;
        }
        let layout = Layout::of(header, len, headers).ok()?;
        let network = &header[layout.l3..layout.l4];
        let segment = tcp::Packet::new_unchecked(&header[layout.l4..layout.payload]);
        let payload = u16::try_from(len.checked_sub(layout.payload)?).ok()?;
        let is_pushed = segment.flags() == Flags::ACK | Flags::PSH;
        if payload == 0 || !(is_pushed || segment.flags() == Flags::ACK) {
            return None;
        }
        let ident = match layout.ip {
            Ip::V4 => ident_of_plain(network, len - layout.l3)?,
            Ip::V6 => plain_v6(network, len - layout.l4)?,
        };
        let seq = segment.seq();
        Some(Self { layout, headers: *headers, checksum, seq, ident, payload, is_pushed })
    }

    /// Whether the checksum field has the only value that a segmenter would write there. `payload` sums the bytes after the
    /// headers; it is called if the checksum must be verified, and may have nothing to say.
    #[must_use]
    pub fn is_right(&self, header: &[u8], payload: impl FnOnce() -> Option<Sum>) -> bool {
        let Layout { l4, payload: end, .. } = self.layout;
        let transport = &header[l4..end];
        let stored = tcp::Packet::new_unchecked(transport).checksum();
        let len = end - l4 + usize::from(self.payload);
        let Ok(mut sum) = self.layout.pseudo(header, len) else { return false };
        match self.checksum {
            Checksum::Validated => true,
            Checksum::Partial => stored == sum.fold(),
            Checksum::Elsewhere => false,
            Checksum::Unknown => {
                let Some(payload) = payload() else { return false };
                sum.add_bytes(transport);
                // The headers have an even length.
                sum.add_u16(payload.fold());
                // 0xffff stands for the same sum as 0, which is what a segmenter writes.
                sum.fold() == 0xffff && stored != 0xffff
            }
        }
    }

    /// Where the payload begins.
    #[must_use]
    pub fn payload_offset(&self) -> usize {
        self.layout.payload
    }
}

/// The identification of an IPv4 packet of `len` bytes that has no options, is no fragment, and has the right checksum.
fn ident_of_plain(network: &[u8], len: usize) -> Option<u16> {
    let packet = ipv4::Packet::new_unchecked(network);
    let fragment = u16::from_be_bytes([network[6], network[7]]);
    let is_plain = network.len() == ipv4::HEADER_LEN
        && usize::from(packet.total_len()) == len
        && fragment & FRAGMENT_BITS == 0
        && packet.verify_checksum()
        && packet.checksum() != 0xffff;
    is_plain.then(|| packet.ident())
}

/// 0 for an IPv6 packet with `len` bytes after its header and without extension headers.
fn plain_v6(network: &[u8], len: usize) -> Option<u16> {
    let packet = ipv6::Packet::new_unchecked(network);
    let is_plain = network.len() == ipv6::HEADER_LEN && usize::from(packet.payload_len()) == len;
    is_plain.then_some(0)
}

/// Segments in a row that one frame is made of, so far.
///
/// Cut again by a [`Segmenter`](crate::Segmenter) they are what they were, bit by bit: headers differ in what a segmenter writes, and only as
/// it writes it.
#[derive(Clone, Copy, Debug)]
pub struct Merge {
    first: Mergeable,
    last: Mergeable,
    /// Bytes of all payloads.
    payload: usize,
    segments: u16,
}

impl Merge {
    /// A row that begins with this segment. None if no other can follow it.
    #[must_use]
    pub fn of(first: Mergeable) -> Option<Self> {
        let can_go_on = first.payload >= SIZE_MIN && !first.is_pushed;
        can_go_on.then_some(Self { first, last: first, payload: first.payload.into(), segments: 1 })
    }

    /// How many segments it has.
    #[must_use]
    pub fn segments(&self) -> u16 {
        self.segments
    }

    /// The frame's first segment.
    #[must_use]
    pub fn first(&self) -> &Mergeable {
        &self.first
    }

    /// Whether no further segment can follow.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.last.is_pushed || self.last.payload < self.first.payload
    }

    /// How it is segmented.
    #[must_use]
    pub fn gso(&self) -> Gso {
        let kind = match self.first.layout.ip {
            Ip::V4 => GsoKind::TcpV4,
            Ip::V6 => GsoKind::TcpV6,
        };
        Gso { kind, size: self.first.payload }
    }

    /// Adds the next segment if it may follow in a frame of at most `longest` bytes. `headers` are the first bytes of the first
    /// frame and of this one.
    #[must_use]
    pub fn add(&mut self, headers: [&[u8]; 2], next: Mergeable, longest: usize) -> bool {
        let Self { first, last, payload, .. } = &*self;
        let fits = first.layout.payload + payload + usize::from(next.payload) <= longest;
        let ident = match first.layout.ip {
            Ip::V4 => last.ident.wrapping_add(1),
            Ip::V6 => 0,
        };
        let follows = !self.is_closed()
            && fits
            && next.payload <= first.payload
            && next.seq == last.seq.wrapping_add(last.payload.into())
            && next.ident == ident
            && (next.headers, next.checksum) == (first.headers, first.checksum)
            && first.layout.is_alike(headers);
        if follows {
            self.payload += usize::from(next.payload);
            self.last = next;
            self.segments += 1;
        }
        follows
    }

    /// Writes into the first frame's headers what those of the merged one say. Its checksum is [partial](Checksum::Partial).
    pub fn write(&self, header: &mut [u8]) {
        let Self { first, last, payload, .. } = *self;
        let Layout { l3, l4, payload: end, .. } = first.layout;
        let len = end - l4 + payload;
        // What is too long for the field was refused.
        let total = |counted: usize| u16::try_from(counted).unwrap_or(u16::MAX);
        let network = &mut header[l3..l4];
        match first.layout.ip {
            Ip::V4 => {
                let mut packet = ipv4::Packet::new_unchecked(network);
                packet.set_total_len(total(l4 - l3 + len));
                packet.fill_checksum();
            }
            Ip::V6 => ipv6::Packet::new_unchecked(network).set_payload_len(total(len)),
        }
        let sum = first.layout.pseudo(header, len).map_or(0, Sum::fold);
        let mut segment = tcp::Packet::new_unchecked(&mut header[l4..end]);
        if last.is_pushed {
            segment.set_flags(segment.flags() | Flags::PSH);
        }
        segment.set_checksum(sum);
    }
}

/// Whether two frames belong to the same TCP connection and direction, by addresses and ports alone. They have these headers.
#[must_use]
pub fn is_one_flow(one: (&Headers, &[u8]), other: (&Headers, &[u8])) -> bool {
    let flow_of_one = flow(one.0, one.1);
    flow_of_one.is_some() && flow_of_one == flow(other.0, other.1)
}

/// Both addresses and both ports of a TCP segment.
fn flow<'a>(headers: &Headers, header: &'a [u8]) -> Option<(&'a [u8], &'a [u8])> {
    let addresses = match headers.network {
        Network::Ipv4 => ipv4::ADDRESSES,
        Network::Ipv6 => ipv6::ADDRESSES,
        Network::Arp | Network::Other => return None,
    };
    let (l3, l4) = (usize::from(headers.l3_offset), usize::from(headers.l4_offset));
    let addresses = header.get(l3 + addresses.start..l3 + addresses.end)?;
    (headers.transport == Transport::Tcp).then_some((addresses, header.get(l4..l4 + 4)?))
}

impl Layout {
    /// Whether two headers with this layout differ only in IP lengths, identifications, sequence numbers, PSH and checksums. They have no
    /// options of IPv4 and no extensions of IPv6.
    fn is_alike(&self, [one, other]: [&[u8]; 2]) -> bool {
        let Self { l3, l4, payload, .. } = *self;
        let same = |start: usize, end: usize| one[start..end] == other[start..end];
        let network = match self.ip {
            // Version and class; fragment bits, TTL and protocol; addresses.
            Ip::V4 => same(l3, l3 + 2) && same(l3 + 6, l3 + 10) && same(l3 + 12, l4),
            // Version, class and label; next header, hop limit and addresses.
            Ip::V6 => same(l3, l3 + 4) && same(l3 + 6, l4),
        };
        // Ports; acknowledgement and data offset; window; urgent pointer and options. The flags were checked one by one.
        let transport = same(l4, l4 + 4)
            && same(l4 + 8, l4 + 13)
            && same(l4 + 14, l4 + 16)
            && same(l4 + 18, payload);
        same(0, l3) && network && transport
    }
}
