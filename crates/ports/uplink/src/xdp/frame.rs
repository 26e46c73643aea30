//! Frames as the kernel puts them into buffers.

use hypervisor::PAGE_SIZE;
use offload::Checksum;
use port::{Frame, HEADER_MAX, Piece};
use shm::Region;

use super::ring::Descriptor;

/// Bytes of the longest frame: a page, less the room that the kernel keeps before the frame (`XDP_PACKET_HEADROOM`).
pub(super) const LONGEST: u16 = 3840;

const _: () = assert!(LONGEST as usize + 256 == PAGE_SIZE);

/// Reads the header of a frame, once, into private memory. Returns whether the frame is well-formed.
pub(super) fn read(memory: &Region, descriptor: Descriptor, frame: &mut Frame) -> bool {
    let Descriptor { address, len, .. } = descriptor;
    let (Ok(start), len) = (usize::try_from(address), len as usize) else { return false };
    if len > usize::from(LONGEST) || start % PAGE_SIZE + len > PAGE_SIZE {
        return false;
    }
    let header_len = len.min(HEADER_MAX);
    if memory.copy_out(start, &mut frame.bytes[..header_len]).is_err() {
        return false;
    }
    // At most a page.
    frame.header_len = u8::try_from(header_len).unwrap_or(u8::MAX);
    frame.len = u32::try_from(len).unwrap_or(u32::MAX);
    frame.pieces.clear();
    if let Ok(body @ 1..) = u16::try_from(len - header_len) {
        frame.pieces.push(Piece::in_region(0, (start + header_len) as u64, body));
    }
    // The kernel does not say what the card has found.
    (frame.checksum, frame.gso) = (Checksum::Unknown, None);
    frame.parse_headers().is_ok()
}
