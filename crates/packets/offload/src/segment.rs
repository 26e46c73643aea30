//! TCP and UDP segmentation in software.

use std::ops::Range;

use wire::checksum::Sum;
use wire::headers::Headers;
use wire::ip::Protocol;
use wire::tcp::Flags;
use wire::{ipv4, ipv6, tcp, udp};

use crate::layout::{Ip, Layout};
use crate::{Error, Gso};

/// Room for the headers of any segment: [`wire::headers::MAX_LEN`] and one byte more.
pub const MAX_HEADER: usize = 256;

/// IPv6's length field leaves the fixed header out, IPv4's does not.
const IPV6_UNCOUNTED: u16 = 40;

/// One segment of a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Bytes of its headers, which [`Segmenter::next`] wrote.
    pub header_len: usize,
    /// Where its payload lies in the original frame.
    pub payload: Range<usize>,
}

/// Cuts a TCP or UDP frame into frames of at most [`Gso::size`] payload bytes, as Linux does.
///
/// All headers are those of the original, VLAN tags and options included, except
/// IP lengths; IPv4 identifications, which count up; TCP sequence numbers; FIN and PSH, which only the last segment
/// keeps; CWR, which only the first keeps (RFC 3168 §6.1.2: it responds to one ECE); UDP lengths; and the checksums. IPv4's is complete,
/// the transport's as the constructor says.
#[derive(Clone, Debug)]
pub struct Segmenter<'a> {
    /// The frame's headers, and as much of its payload as is at hand.
    header: &'a [u8],
    /// The whole frame, if the segmenter sums its payload.
    summed: Option<&'a [u8]>,
    layout: Layout,
    /// The pseudo-header's sum without the length.
    pseudo: Sum,
    /// Payload not yet given out.
    rest: Range<usize>,
    size: u16,
    /// Bytes of the transport's header.
    transport_len: u16,
    /// What IP's length field counts beside the payload.
    overhead: u16,
    /// What the next segment's headers say.
    ident: u16,
    seq: u32,
    first: bool,
    /// Segments up to the frame's end.
    segments: usize,
    /// Those of them that [`next`](Self::next) leaves out.
    behind: usize,
}

impl<'a> Segmenter<'a> {
    /// Prepares to segment `frame`, whose headers are `headers`, with complete checksums.
    ///
    /// A frame with no more payload than one segment takes, or with none at all, makes one segment.
    ///
    /// # Errors
    /// All of [`Error`].
    pub fn new(frame: &'a [u8], headers: &Headers, gso: Gso) -> Result<Self, Error> {
        let segmenter = Self::of_header(frame, frame.len(), headers, gso)?;
        Ok(Self { summed: Some(frame), ..segmenter })
    }

    /// Prepares to segment a frame of `frame_len` bytes of which only the first, `header`, are at hand. They hold at
    /// least all headers. No payload is touched, so the transport's checksums are
    /// [partial](crate::Checksum::Partial).
    ///
    /// # Errors
    /// All of [`Error`].
    pub fn of_header(
        header: &'a [u8],
        frame_len: usize,
        headers: &Headers,
        gso: Gso,
    ) -> Result<Self, Error> {
        if gso.size == 0 {
            return Err(Error::GsoSize);
        }
        if !gso.fits(headers) {
            return Err(Error::GsoKind);
        }
        let layout = Layout::of(header, frame_len, headers)?;
        let network = &header[layout.l3..layout.l4];
        let counted = u16::from(headers.payload_offset - headers.l3_offset);
        let (ident, overhead) = match layout.ip {
            Ip::V4 => (ipv4::Packet::new_unchecked(network).ident(), counted),
            Ip::V6 => (0, counted - IPV6_UNCOUNTED),
        };
        let rest = layout.payload..layout.end;
        overhead.checked_add(payload_len(&rest, gso.size)).ok_or(Error::TooLong)?;
        let transport = &header[layout.l4..layout.payload];
        let seq = if layout.protocol == Protocol::TCP {
            tcp::Packet::new_unchecked(transport).seq()
        } else {
            check_udp(transport, &layout)?;
            0
        };
        Ok(Self {
            header,
            summed: None,
            layout,
            pseudo: layout.pseudo(header, 0)?,
            size: gso.size,
            transport_len: u16::from(headers.payload_offset - headers.l4_offset),
            overhead,
            ident,
            seq,
            first: true,
            segments: rest.len().div_ceil(gso.size.into()).max(1),
            behind: 0,
            rest,
        })
    }

    /// Segments still to come: before the first [`next`](Self::next), all of them.
    ///
    /// A guest may ask for segments of one byte. The sender must bound this number first, or a frame of 64 KiB
    /// costs as much time as 65,000 frames.
    pub fn segments(&self) -> usize {
        self.segments - self.behind
    }

    /// Segments of the frame behind the last one that [`next`](Self::next) gives.
    pub fn behind(&self) -> usize {
        self.behind
    }

    /// Leaves only the segments whose numbers are in `part`, counted from the next one on.
    #[must_use]
    pub fn part(mut self, part: Range<usize>) -> Self {
        let skipped = part.start.min(self.segments());
        if skipped > 0 {
            let bytes = self.rest.len().min(skipped * usize::from(self.size));
            self.rest.start += bytes;
            #[expect(clippy::cast_possible_truncation, reason = "both numbers wrap")]
            {
                self.ident = self.ident.wrapping_add(skipped as u16);
                self.seq = self.seq.wrapping_add(bytes as u32);
            }
            self.first = false;
            self.segments -= skipped;
        }
        self.behind += self.segments().saturating_sub(part.len());
        self
    }

    /// Writes the next segment's headers to the start of `header` and returns what follows them.
    pub fn next(&mut self, header: &mut [u8; MAX_HEADER]) -> Option<Segment> {
        if self.segments == self.behind {
            return None;
        }
        self.segments -= 1;
        let len = payload_len(&self.rest, self.size);
        let payload = self.rest.start..self.rest.start + usize::from(len);
        let header_len = self.layout.payload;
        header[..header_len].copy_from_slice(&self.header[..header_len]);
        self.write_network(&mut header[self.layout.l3..self.layout.l4], len);
        self.write_transport(&mut header[self.layout.l4..header_len], &payload, len);
        self.rest.start = payload.end;
        self.ident = self.ident.wrapping_add(1);
        self.seq = self.seq.wrapping_add(len.into());
        self.first = false;
        Some(Segment { header_len, payload })
    }

    fn write_network(&self, network: &mut [u8], len: u16) {
        match self.layout.ip {
            Ip::V4 => {
                let mut packet = ipv4::Packet::new_unchecked(network);
                packet.set_total_len(self.overhead + len);
                packet.set_ident(self.ident);
                packet.fill_checksum();
            }
            Ip::V6 => ipv6::Packet::new_unchecked(network).set_payload_len(self.overhead + len),
        }
    }

    fn write_transport(&self, transport: &mut [u8], payload: &Range<usize>, len: u16) {
        let mut sum = self.pseudo;
        sum.add_u16(self.transport_len + len);
        if self.layout.protocol != Protocol::TCP {
            return self.write_udp(transport, payload, self.transport_len + len, sum);
        }
        let mut segment = tcp::Packet::new_unchecked(&mut *transport);
        segment.set_seq(self.seq);
        segment.set_flags(self.flags(segment.flags()));
        let Some(frame) = self.summed else {
            return segment.set_checksum(sum.fold());
        };
        segment.set_checksum(0);
        sum.add_bytes(transport);
        sum.add_bytes(&frame[payload.clone()]);
        tcp::Packet::new_unchecked(transport).set_checksum(sum.finish());
    }

    /// Writes a datagram's header of 8 bytes. `sum` is the pseudo-header's, with the length.
    fn write_udp(&self, header: &mut [u8], payload: &Range<usize>, len: u16, mut sum: Sum) {
        let mut datagram = udp::Packet::new_unchecked(&mut *header);
        datagram.set_len(len);
        let Some(frame) = self.summed else {
            return datagram.set_checksum(sum.fold());
        };
        datagram.set_checksum(0);
        sum.add_bytes(header);
        sum.add_bytes(&frame[payload.clone()]);
        // Zero says that there is no checksum (RFC 768).
        let checksum = match sum.finish() {
            0 => 0xffff,
            checksum => checksum,
        };
        udp::Packet::new_unchecked(header).set_checksum(checksum);
    }

    /// The flags of the segment being written; `self.segments` no longer counts it.
    fn flags(&self, original: Flags) -> Flags {
        let mut flags = original;
        if !self.first {
            flags = flags.without(Flags::CWR);
        }
        if self.segments > 0 {
            flags = flags.without(Flags::FIN | Flags::PSH);
        }
        flags
    }
}

/// Checks that a datagram ends where its IP packet does: a receiver that trusts the one length must not go beyond
/// the other.
fn check_udp(header: &[u8], layout: &Layout) -> Result<(), Error> {
    let len = usize::from(udp::Packet::new_unchecked(header).len());
    (layout.l4 + len == layout.end).then_some(()).ok_or(Error::Length)
}

/// Bytes of the first segment's payload if `rest` is what is left.
fn payload_len(rest: &Range<usize>, size: u16) -> u16 {
    u16::try_from(rest.len()).map_or(size, |len| len.min(size))
}
