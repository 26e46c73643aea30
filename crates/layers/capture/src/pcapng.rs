//! Capture files in pcapng (draft-ietf-opsawg-pcapng), little-endian, with an interface for each port and
//! timestamps in nanoseconds.

const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const INTERFACE_DESCRIPTION: u32 = 1;
pub(crate) const INTERFACE_STATISTICS: u32 = 5;
pub(crate) const ENHANCED_PACKET: u32 = 6;

const BYTE_ORDER_MAGIC: u32 = 0x1a2b_3c4d;
/// The section's length, in a stream that has no end yet.
const UNKNOWN_LENGTH: u64 = u64::MAX;
const LINKTYPE_ETHERNET: u16 = 1;
/// `if_tsresol`: timestamps count 10⁻⁹ s.
const NANOSECONDS: u8 = 9;
/// What `if_filter` starts with: the filter is text.
const FILTER_TEXT: u8 = 0;

/// Codes of options.
pub(crate) mod option {
    pub(crate) const END: u16 = 0;
    pub(crate) const COMMENT: u16 = 1;
    pub(crate) const SHB_OS: u16 = 3;
    pub(crate) const SHB_USERAPPL: u16 = 4;
    pub(crate) const IF_NAME: u16 = 2;
    pub(crate) const IF_TSRESOL: u16 = 9;
    pub(crate) const IF_FILTER: u16 = 11;
    pub(crate) const EPB_FLAGS: u16 = 2;
    pub(crate) const ISB_STARTTIME: u16 = 2;
    pub(crate) const ISB_ENDTIME: u16 = 3;
    pub(crate) const ISB_IFRECV: u16 = 4;
    pub(crate) const ISB_IFDROP: u16 = 5;
}

/// Bits of `epb_flags`.
pub(crate) mod flag {
    pub(crate) const INBOUND: u32 = 1;
    pub(crate) const OUTBOUND: u32 = 2;
    pub(crate) const CHECKSUM_NOT_READY: u32 = 1 << 9;
    pub(crate) const CHECKSUM_VALID: u32 = 1 << 10;
    pub(crate) const TCP_SEGMENTATION_OFFLOADED: u32 = 1 << 11;
}

/// What the comment of a dropped packet starts with; the reason follows.
pub(crate) const DROPPED: &str = "dropped: ";
/// Bytes of the shortest block: its type, and its length at both ends.
pub(crate) const BLOCK_OVERHEAD: usize = 12;
/// Bytes of a packet's block beside the packet, at most: header, padding, options, length.
pub(crate) const PACKET_OVERHEAD: usize = 28 + 3 + (8 + 36 + 4) + 4;

/// What the blocks at the start of a stream say.
pub(crate) struct Preamble<'a> {
    /// The program that captures.
    pub(crate) application: &'a str,
    /// The operating system that it runs on.
    pub(crate) os: &'a str,
    /// The interfaces' names.
    pub(crate) interfaces: &'a [String],
    /// Most bytes captured per packet.
    pub(crate) snaplen: u32,
    /// Which packets are captured; empty for all.
    pub(crate) filter: &'a str,
}

pub(crate) struct CapturedPacket<'a> {
    pub(crate) interface: u32,
    /// Nanoseconds since the Unix epoch.
    pub(crate) timestamp: u64,
    /// The packet's length in bytes, captured or not.
    pub(crate) original_len: u32,
    pub(crate) flags: u32,
    /// Why it was dropped, if it was; part of the comment.
    pub(crate) drop_reason: Option<&'a str>,
    pub(crate) bytes: &'a [u8],
}

/// What a block at the end of a stream says. Times are nanoseconds since the Unix epoch.
pub(crate) struct Statistics {
    pub(crate) interface: u32,
    /// When the capture began.
    pub(crate) start: u64,
    /// When it ended.
    pub(crate) end: u64,
    /// How many packets there were.
    pub(crate) received: u64,
    /// How many of them were not recorded.
    pub(crate) lost: u64,
}

/// Appends a section header and the descriptions of the interfaces.
pub(crate) fn append_preamble(out: &mut Vec<u8>, preamble: &Preamble<'_>) {
    let mut block = Block::begin(out, SECTION_HEADER);
    block.u32(BYTE_ORDER_MAGIC);
    block.u16(1); // the format's version, 1.0
    block.u16(0);
    block.u64(UNKNOWN_LENGTH);
    block.option(option::SHB_OS, &[preamble.os.as_bytes()]);
    block.option(option::SHB_USERAPPL, &[preamble.application.as_bytes()]);
    block.end();

    for name in preamble.interfaces {
        let mut block = Block::begin(out, INTERFACE_DESCRIPTION);
        block.u16(LINKTYPE_ETHERNET);
        block.u16(0);
        block.u32(preamble.snaplen);
        block.option(option::IF_NAME, &[name.as_bytes()]);
        block.option(option::IF_TSRESOL, &[&[NANOSECONDS]]);
        if !preamble.filter.is_empty() {
            block.option(option::IF_FILTER, &[&[FILTER_TEXT], preamble.filter.as_bytes()]);
        }
        block.end();
    }
}

pub(crate) fn append_packet(out: &mut Vec<u8>, packet: &CapturedPacket<'_>) {
    let mut block = Block::begin(out, ENHANCED_PACKET);
    block.u32(packet.interface);
    block.time(packet.timestamp);
    block.u32(len_u32(packet.bytes.len()));
    block.u32(packet.original_len);
    block.bytes(packet.bytes);
    block.pad();
    block.option(option::EPB_FLAGS, &[&packet.flags.to_le_bytes()]);
    if let Some(reason) = packet.drop_reason {
        block.option(option::COMMENT, &[DROPPED.as_bytes(), reason.as_bytes()]);
    }
    block.end();
}

/// Appends an interface's statistics.
pub(crate) fn append_statistics(out: &mut Vec<u8>, statistics: &Statistics) {
    let mut block = Block::begin(out, INTERFACE_STATISTICS);
    block.u32(statistics.interface);
    block.time(statistics.end);
    block.option(option::ISB_STARTTIME, &[&time(statistics.start)]);
    block.option(option::ISB_ENDTIME, &[&time(statistics.end)]);
    block.option(option::ISB_IFRECV, &[&statistics.received.to_le_bytes()]);
    block.option(option::ISB_IFDROP, &[&statistics.lost.to_le_bytes()]);
    block.end();
}

/// The interface number in a packet's block.
pub(crate) fn interface_of(block: &[u8]) -> u32 {
    u32_at(block, 8).unwrap_or_default()
}

/// The timestamp and the bytes of each block in `blocks`, which are all packets.
pub(crate) fn packets(mut blocks: &[u8]) -> impl Iterator<Item = (u64, &[u8])> {
    std::iter::from_fn(move || {
        let len = usize::try_from(u32_at(blocks, 4)?).ok()?;
        let (block, rest) = blocks.split_at_checked(len)?;
        let timestamp = u64::from(u32_at(block, 12)?) << 32 | u64::from(u32_at(block, 16)?);
        blocks = rest;
        Some((timestamp, block))
    })
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|word| u32::from_le_bytes(*word))
}

/// A timestamp as files have it: the high word first.
fn time(nanoseconds: u64) -> [u8; 8] {
    nanoseconds.rotate_left(32).to_le_bytes()
}

fn len_u32(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}

/// A block under construction, at the end of what has been written.
struct Block<'a> {
    out: &'a mut Vec<u8>,
    start: usize,
}

impl<'a> Block<'a> {
    fn begin(out: &'a mut Vec<u8>, kind: u32) -> Self {
        let start = out.len();
        let mut block = Self { out, start };
        block.u32(kind);
        block.u32(0); // the length, once it is known
        block
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.out.extend_from_slice(bytes);
    }

    fn u16(&mut self, value: u16) {
        self.bytes(&value.to_le_bytes());
    }

    fn u32(&mut self, value: u32) {
        self.bytes(&value.to_le_bytes());
    }

    fn u64(&mut self, value: u64) {
        self.bytes(&value.to_le_bytes());
    }

    fn time(&mut self, nanoseconds: u64) {
        self.bytes(&time(nanoseconds));
    }

    /// Fills up to a multiple of four bytes.
    fn pad(&mut self) {
        let len = self.out.len() - self.start;
        self.out.resize(self.start + len.next_multiple_of(4), 0);
    }

    /// Appends an option. Its value is cut at 65,535 bytes.
    fn option(&mut self, code: u16, value: &[&[u8]]) {
        self.u16(code);
        let at = self.out.len();
        self.u16(0); // the length, once it is known
        for part in value {
            self.bytes(part);
        }
        let len = u16::try_from(self.out.len() - at - 2).unwrap_or(u16::MAX);
        self.out.truncate(at + 2 + usize::from(len));
        self.out[at..at + 2].copy_from_slice(&len.to_le_bytes());
        self.pad();
    }

    /// Ends the options and the block, whose length is its second and its last word.
    fn end(mut self) {
        self.u16(option::END);
        self.u16(0);
        let len = len_u32(self.out.len() - self.start + 4);
        self.out[self.start + 4..self.start + 8].copy_from_slice(&len.to_le_bytes());
        self.u32(len);
    }
}

#[cfg(test)]
mod tests {
    use port::DropReason;

    use super::*;

    #[test]
    fn the_preamble_is_a_section_of_one_ethernet_interface() {
        let mut out = Vec::new();
        append_preamble(
            &mut out,
            &Preamble {
                application: "pvnet 1",
                os: "Linux",
                interfaces: &["red".to_owned()],
                snaplen: 96,
                filter: "arp",
            },
        );
        #[rustfmt::skip]
        let expected = [
            0x0a, 0x0d, 0x0d, 0x0a, 56, 0, 0, 0, // section header
            0x4d, 0x3c, 0x2b, 0x1a, 1, 0, 0, 0, // little-endian, version 1.0
            0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, // of unknown length
            3, 0, 5, 0, b'L', b'i', b'n', b'u', b'x', 0, 0, 0, // shb_os
            4, 0, 7, 0, b'p', b'v', b'n', b'e', b't', b' ', b'1', 0, // shb_userappl
            0, 0, 0, 0, 56, 0, 0, 0,
            1, 0, 0, 0, 48, 0, 0, 0, // interface description
            1, 0, 0, 0, 96, 0, 0, 0, // LINKTYPE_ETHERNET, snaplen
            2, 0, 3, 0, b'r', b'e', b'd', 0, // if_name
            9, 0, 1, 0, 9, 0, 0, 0, // if_tsresol
            11, 0, 4, 0, 0, b'a', b'r', b'p', // if_filter
            0, 0, 0, 0, 48, 0, 0, 0,
        ];
        assert_eq!(out, expected);
    }

    #[test]
    fn options_follow_the_padding_of_a_packet() {
        let packet = CapturedPacket {
            interface: 0,
            timestamp: 0x0102_0304_0506_0708,
            original_len: 1514,
            flags: flag::INBOUND | flag::CHECKSUM_NOT_READY,
            drop_reason: Some("no_room"),
            bytes: &[0xaa, 0xbb, 0xcc, 0xdd, 0xee],
        };
        let mut out = Vec::new();
        append_packet(&mut out, &packet);
        #[rustfmt::skip]
        let expected = [
            6, 0, 0, 0, 72, 0, 0, 0, // enhanced packet
            0, 0, 0, 0, // interface 0
            4, 3, 2, 1, 8, 7, 6, 5, // time: the high word, the low word
            5, 0, 0, 0, 0xea, 5, 0, 0, // captured and original length
            0xaa, 0xbb, 0xcc, 0xdd, 0xee, 0, 0, 0,
            2, 0, 4, 0, 1, 2, 0, 0, // epb_flags
            1, 0, 16, 0, // opt_comment
            b'd', b'r', b'o', b'p', b'p', b'e', b'd', b':',
            b' ', b'n', b'o', b'_', b'r', b'o', b'o', b'm',
            0, 0, 0, 0, 72, 0, 0, 0,
        ];
        assert_eq!(out, expected);
        assert_eq!(packets(&out).collect::<Vec<_>>(), [(packet.timestamp, &expected[..])]);
    }

    #[test]
    fn the_overhead_of_a_packet_is_bounded() {
        for reason in DropReason::ALL {
            let packet = CapturedPacket {
                interface: 0,
                timestamp: 0,
                original_len: 1,
                flags: 0,
                drop_reason: Some(reason.name()),
                bytes: &[0],
            };
            let mut out = Vec::new();
            append_packet(&mut out, &packet);
            assert!(out.len() <= PACKET_OVERHEAD + 1, "{}", reason.name());
        }
    }

    #[test]
    fn statistics_have_the_counts() {
        let mut out = Vec::new();
        let statistics =
            Statistics { interface: 0, start: 1 << 32, end: 2, received: 300, lost: 4 };
        append_statistics(&mut out, &statistics);
        #[rustfmt::skip]
        let expected = [
            5, 0, 0, 0, 76, 0, 0, 0, // interface statistics
            0, 0, 0, 0, // interface 0
            0, 0, 0, 0, 2, 0, 0, 0,
            2, 0, 8, 0, 1, 0, 0, 0, 0, 0, 0, 0, // isb_starttime
            3, 0, 8, 0, 0, 0, 0, 0, 2, 0, 0, 0, // isb_endtime
            4, 0, 8, 0, 44, 1, 0, 0, 0, 0, 0, 0, // isb_ifrecv
            5, 0, 8, 0, 4, 0, 0, 0, 0, 0, 0, 0, // isb_ifdrop
            0, 0, 0, 0, 76, 0, 0, 0,
        ];
        assert_eq!(out, expected);
    }

    #[test]
    fn packets_are_read_back_one_by_one() {
        let mut out = Vec::new();
        for (timestamp, len) in [(5, 0), (u64::MAX, 1), (7, 64)] {
            let packet = CapturedPacket {
                interface: 0,
                timestamp,
                original_len: 64,
                flags: flag::OUTBOUND,
                drop_reason: None,
                bytes: &[0x55; 64][..len],
            };
            append_packet(&mut out, &packet);
        }
        let (times, blocks): (Vec<_>, Vec<_>) = packets(&out).unzip();
        assert_eq!(times, [5, u64::MAX, 7]);
        assert_eq!(blocks.concat(), out);
        assert_eq!(packets(&out[..out.len() - 1]).count(), 2, "half a block does not count");
    }
}
