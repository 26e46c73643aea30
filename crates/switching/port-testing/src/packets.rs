//! Packets: TCP segments and UDP datagrams, whole, with a partial transport checksum (the pseudo-header's sum), and frames of any
//! bytes.

use std::sync::Arc;

use offload::{Gso, GsoKind, MAX_HEADER, Segmenter};
use port::{DropReason, Fragment, Frame, HEADER_MAX};
use shm::Region;
use wire::checksum::{Sum, pseudo_v4, pseudo_v6};
use wire::headers::Headers;

const TCP: u8 = 6;
const UDP: u8 = 17;

/// A TCP segment over IPv4 with `payload` bytes.
#[must_use]
pub fn tcp(payload: usize) -> Vec<u8> {
    let header = [4, 0, 0, 80, 0, 0, 0, 1, 0, 0, 0, 2, 0x50, 0x18, 1, 0, 0, 0, 0, 0];
    over_ipv4(TCP, &header, 16, payload)
}

/// The same over IPv6.
#[must_use]
pub fn tcp_v6(payload: usize) -> Vec<u8> {
    over_ipv6(&tcp(payload), 16)
}

/// A UDP datagram over IPv4 with `payload` bytes.
#[must_use]
pub fn udp(payload: usize) -> Vec<u8> {
    let [high, low] = length(8 + payload).to_be_bytes();
    over_ipv4(UDP, &[4, 0, 0, 80, high, low, 0, 0], 6, payload)
}

/// The same over IPv6.
#[must_use]
pub fn udp_v6(payload: usize) -> Vec<u8> {
    over_ipv6(&udp(payload), 6)
}

/// The value of a length field: 0 for a packet that is too long for it, as hosts write it.
fn length(bytes: usize) -> u16 {
    u16::try_from(bytes).unwrap_or(0)
}

fn over_ipv4(protocol: u8, transport: &[u8], checksum: usize, payload: usize) -> Vec<u8> {
    let [source, dest] = [[10, 0, 0, 1], [10, 0, 0, 2]];
    let len = transport.len() + payload;
    let mut bytes = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0, 0x45, 0];
    bytes.extend(length(20 + len).to_be_bytes());
    bytes.extend([0, 1, 0x40, 0, 64, protocol, 0, 0]);
    bytes.extend([source, dest].concat());
    let header_sum = Sum::of(&bytes[14..]).finish();
    bytes[24..26].copy_from_slice(&header_sum.to_be_bytes());
    bytes.extend(transport);
    let pseudo = pseudo_v4(source.into(), dest.into(), protocol, length(len));
    bytes[34 + checksum..][..2].copy_from_slice(&pseudo.fold().to_be_bytes());
    bytes.extend((0..payload).map(|at| (at * 7 + at / 251).to_le_bytes()[0]));
    bytes
}

/// The packet with IPv6 in the place of IPv4.
fn over_ipv6(v4: &[u8], checksum: usize) -> Vec<u8> {
    let [source, dest] = [[0xfd; 16], [0xfe; 16]];
    let (protocol, len) = (v4[23], length(v4.len() - 34));
    let mut bytes = v4[..12].to_vec();
    bytes.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
    bytes.extend(len.to_be_bytes());
    bytes.extend([protocol, 64]);
    bytes.extend([source, dest].concat());
    bytes.extend(&v4[34..]);
    let pseudo = pseudo_v6(source.into(), dest.into(), protocol, len.into());
    bytes[54 + checksum..][..2].copy_from_slice(&pseudo.fold().to_be_bytes());
    bytes
}

/// The sum of the transport header and payload of a TCP segment or UDP datagram, with the pseudo-header: 0xffff if its checksum is
/// right.
#[must_use]
pub fn transport_sum(bytes: &[u8]) -> u16 {
    let octets = |at: usize| <[u8; 4]>::try_from(&bytes[at..at + 4]).unwrap();
    let long = |at: usize| <[u8; 16]>::try_from(&bytes[at..at + 16]).unwrap();
    let start = if bytes[12] == 8 { 34 } else { 54 };
    let len = length(bytes.len() - start);
    let mut sum = match start {
        34 => pseudo_v4(octets(26).into(), octets(30).into(), bytes[23], len),
        _ => pseudo_v6(long(22).into(), long(38).into(), bytes[20], len.into()),
    };
    sum.add_bytes(&bytes[start..]);
    sum.fold()
}

/// A frame with the first of these bytes as its private header, and a body of which only the length is known.
pub fn frame(bytes: &[u8]) -> Frame {
    let mut frame = Frame::empty();
    let header = &bytes[..bytes.len().min(HEADER_MAX)];
    frame.bytes[..header.len()].copy_from_slice(header);
    frame.header_len = u8::try_from(header.len()).expect("at most HEADER_MAX");
    frame.headers = Headers::parse_start(header, bytes.len()).expect("well-formed headers");
    frame.len = u32::try_from(bytes.len()).expect("a frame's length");
    frame
}

/// A frame on its way into a port.
#[derive(Clone, Debug)]
pub struct Sent {
    /// The frame, without fragments. A length of 0 makes it a malformed packet.
    pub frame: Frame,
    /// The bytes behind its private header. May be empty where a test needs no body.
    pub body: Vec<u8>,
    /// Why the port itself refuses the frame, if it does.
    pub refused: Option<DropReason>,
}

impl Sent {
    /// The frame's bytes.
    pub fn bytes(&self) -> Vec<u8> {
        [self.frame.header(), &self.body].concat()
    }
}

impl<T: AsRef<[u8]>> From<T> for Sent {
    fn from(bytes: T) -> Self {
        let frame = frame(bytes.as_ref());
        let body = bytes.as_ref()[frame.header().len()..].to_vec();
        Self { frame, body, refused: None }
    }
}

/// The segments of a frame, whole and with complete checksums.
///
/// # Panics
/// The frame is malformed, or cannot be cut so.
#[must_use]
pub fn segments(bytes: &[u8], gso: Gso) -> Vec<Vec<u8>> {
    let headers = Headers::parse(bytes).unwrap();
    let mut segmenter = Segmenter::new(bytes, &headers, gso).unwrap();
    let mut header = [0; MAX_HEADER];
    let next = || {
        let segment = segmenter.next(&mut header)?;
        Some([&header[..segment.header_len], &bytes[segment.payload]].concat())
    };
    std::iter::from_fn(next).collect()
}

/// A frame that was merged from `count` TCP segments of `size` bytes, each with a private header and a body in the regions, and its
/// bytes.
#[must_use]
pub fn merged(count: usize, size: u16) -> (Frame, Arc<[Region]>, Vec<u8>) {
    const HEADERS: usize = 54;
    const ROOM: usize = 2048;
    let whole = tcp(count * usize::from(size));
    let region = Region::anonymous(count * ROOM).unwrap();
    let mut merged = Frame::empty();
    for (n, payload) in whole[HEADERS..].chunks(size.into()).enumerate() {
        let bytes = [&whole[..HEADERS], payload].concat();
        let mut segment = frame(&bytes);
        let body = &bytes[segment.header().len()..];
        region.copy_in(n * ROOM, body).unwrap();
        segment.fragments.push(Fragment::in_region(0, (n * ROOM) as u64, length(body.len())));
        match n {
            0 => merged.begin_merge(&segment),
            _ => assert!(merged.append(&segment)),
        }
    }
    merged.end_merge(Gso { kind: GsoKind::TcpV4, size });
    (merged, [region].into(), whole)
}
