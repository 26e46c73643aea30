//! Reads the stream of a capture, block by block.

use std::io::{self, Read};

use crate::filter::Direction;
use crate::pcapng::{
    BLOCK_OVERHEAD, DROPPED, ENHANCED_PACKET, INTERFACE_STATISTICS, flag, option, u32_at,
};
use crate::reader::Totals;

/// Longest block that is read: more than any that a capture writes.
const BLOCK_MAX: usize = 1 << 20;

/// The blocks of a stream that [`Capture::run`](crate::Capture::run) writes.
pub struct Blocks<R> {
    input: R,
    block: Vec<u8>,
}

/// A block of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block<'a> {
    /// The whole block.
    pub bytes: &'a [u8],
    /// What it says.
    pub content: Content<'a>,
}

/// What a block says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content<'a> {
    /// A packet.
    Packet(CapturedFrame<'a>),
    /// The end of the capture: what became of its packets.
    End(Totals),
    /// The start of the stream, or something unknown.
    Other,
}

/// A packet of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CapturedFrame<'a> {
    /// Nanoseconds since the Unix epoch.
    pub timestamp: u64,
    /// Which way it went.
    pub direction: Direction,
    /// How many bytes the frame had, recorded or not.
    pub original_len: u32,
    /// Why the frame was dropped, if it was: a name of the metrics.
    pub drop_reason: Option<&'a str>,
    /// The recorded bytes.
    pub bytes: &'a [u8],
}

impl<R: Read> Blocks<R> {
    /// Reads a stream from its first block on.
    pub fn new(input: R) -> Self {
        Self { input, block: Vec::new() }
    }

    /// The input that the blocks come from.
    pub fn input(&self) -> &R {
        &self.input
    }

    /// The next block; none at the end.
    ///
    /// # Errors
    /// The input failed, ended within a block, or is no stream of a capture.
    #[expect(clippy::should_implement_trait, reason = "a block borrows the buffer")]
    pub fn next(&mut self) -> io::Result<Option<Block<'_>>> {
        self.block.clear();
        if self.input.by_ref().take(8).read_to_end(&mut self.block)? == 0 {
            return Ok(None);
        }
        let malformed = |what| io::Error::new(io::ErrorKind::InvalidData, what);
        let len = u32_at(&self.block, 4).ok_or(io::ErrorKind::UnexpectedEof)?;
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        if !(BLOCK_OVERHEAD..=BLOCK_MAX).contains(&len) {
            return Err(malformed("a block of an impossible length"));
        }
        self.input.by_ref().take(len as u64 - 8).read_to_end(&mut self.block)?;
        if self.block.len() < len {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let content = content(&self.block).ok_or_else(|| malformed("a malformed block"))?;
        Ok(Some(Block { bytes: &self.block, content }))
    }
}

/// What a block says; none if it is malformed.
fn content(block: &[u8]) -> Option<Content<'_>> {
    // The last word repeats the length.
    let body = &block[..block.len() - 4];
    match u32_at(block, 0)? {
        ENHANCED_PACKET => packet(body).map(Content::Packet),
        INTERFACE_STATISTICS => statistics(body).map(Content::End),
        _ => Some(Content::Other),
    }
}

fn packet(block: &[u8]) -> Option<CapturedFrame<'_>> {
    let word = |at| u32_at(block, at);
    let timestamp = u64::from(word(12)?) << 32 | u64::from(word(16)?);
    let len = usize::try_from(word(20)?).ok()?;
    let (bytes, rest) = block.get(28..)?.split_at_checked(len)?;
    let (mut direction, mut drop_reason) = (Direction::Inbound, None);
    for (code, value) in options(rest.get(len.next_multiple_of(4) - len..)?) {
        match code {
            option::EPB_FLAGS if u32_at(value, 0)? & flag::OUTBOUND != 0 => {
                direction = Direction::Outbound;
            }
            option::COMMENT => {
                let text = std::str::from_utf8(value).ok()?;
                drop_reason = text.strip_prefix(DROPPED);
            }
            _ => {}
        }
    }
    Some(CapturedFrame { timestamp, direction, original_len: word(24)?, drop_reason, bytes })
}

fn statistics(block: &[u8]) -> Option<Totals> {
    let (mut received, mut lost) = (0, 0);
    for (code, value) in options(block.get(20..)?) {
        let count = || value.first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
        match code {
            option::ISB_IFRECV => received = count()?,
            option::ISB_IFDROP => lost = count()?,
            _ => {}
        }
    }
    Some(Totals { written: received.saturating_sub(lost), lost })
}

/// The codes and values of the options, up to the end option.
fn options(mut rest: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let (head, tail) = rest.split_first_chunk::<4>()?;
        let [code, len] = [[head[0], head[1]], [head[2], head[3]]].map(u16::from_le_bytes);
        let len = usize::from(len);
        let value = tail.get(..len)?;
        rest = tail.get(len.next_multiple_of(4)..)?;
        (code != option::END).then_some((code, value))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pcapng::{
        CapturedPacket, Preamble, Statistics, append_packet, append_preamble, append_statistics,
    };

    fn stream() -> Vec<u8> {
        let mut out = Vec::new();
        let preamble = Preamble {
            application: "pvnet",
            os: "Linux",
            interfaces: &["red".to_owned()],
            snaplen: 9,
            filter: "",
        };
        append_preamble(&mut out, &preamble);
        for (timestamp, flags, drop_reason) in
            [(1 << 40, flag::INBOUND, None), (1 << 41, flag::OUTBOUND, Some("stalled"))]
        {
            let bytes = &[7; 9];
            let packet = CapturedPacket {
                interface: 0,
                timestamp,
                original_len: 60,
                flags,
                drop_reason,
                bytes,
            };
            append_packet(&mut out, &packet);
        }
        append_statistics(
            &mut out,
            &Statistics { interface: 0, start: 1, end: 2, received: 5, lost: 3 },
        );
        out
    }

    #[test]
    fn blocks_that_were_written_are_read() {
        let stream = stream();
        let mut blocks = Blocks::new(&stream[..]);
        let mut copy = Vec::new();
        let mut said = Vec::new();
        while let Some(Block { bytes, content }) = blocks.next().unwrap() {
            copy.extend_from_slice(bytes);
            said.push(match content {
                Content::Packet(packet) => {
                    assert_eq!((packet.original_len, packet.bytes), (60, &[7; 9][..]));
                    let (time, direction) = (packet.timestamp, packet.direction);
                    format!("{time} {direction:?} {:?}", packet.drop_reason)
                }
                other => format!("{other:?}"),
            });
        }
        assert_eq!(copy, stream);
        let first = format!("{} Inbound None", 1u64 << 40);
        let second = format!("{} Outbound Some(\"stalled\")", 1u64 << 41);
        let end = "End(Totals { written: 2, lost: 3 })";
        assert_eq!(said, ["Other", "Other", &first, &second, end]);
    }

    #[test]
    fn a_damaged_stream_is_read_without_panic() {
        let stream = stream();
        let read = |stream: &[u8]| {
            let mut blocks = Blocks::new(stream);
            let mut count = 0;
            while blocks.next()?.is_some() {
                count += 1;
            }
            io::Result::Ok(count)
        };
        for len in 0..stream.len() {
            let result = read(&stream[..len]);
            let kind = result.as_ref().map_err(io::Error::kind);
            assert!(matches!(kind, Ok(0..5) | Err(io::ErrorKind::UnexpectedEof)), "{result:?}");
        }
        for at in 0..stream.len() {
            for byte in [0, 1, 0x80, 0xff] {
                let mut changed = stream.clone();
                changed[at] = byte;
                let _ = read(&changed);
            }
        }
    }
}
