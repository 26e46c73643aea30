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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PAGES: usize = 4;

    /// An offset near one of the bounds, or any.
    fn near(bounds: &'static [usize]) -> impl Strategy<Value = usize> {
        let near = (prop::sample::select(bounds), 0usize..40);
        let near = near.prop_map(|(bound, n)| bound.wrapping_add(n).wrapping_sub(20));
        prop_oneof![near, any::<usize>()]
    }

    proptest! {
        /// Wherever a descriptor points, and whatever is there: a frame lies in one page of the memory, and its private bytes are
        /// what was there.
        #[test]
        fn a_frame_lies_in_one_page_of_its_memory(
            start in near(&[0, 256, 4096, 4096 - 128, 8192 + 256, 4 * 4096, 1 << 63, usize::MAX]),
            len in near(&[0, 14, 60, 128, 3840, 4096]).prop_map(|len| u32::try_from(len).unwrap_or(u32::MAX)),
            fill in prop::collection::vec(any::<u8>(), 64),
        ) {
            let memory = Region::anonymous(PAGES * PAGE_SIZE).unwrap();
            for (n, at) in (0u16..).zip((0..PAGES * PAGE_SIZE).step_by(fill.len())) {
                memory.copy_in(at, &fill).unwrap();
                memory.write(at, n).unwrap();
            }
            let mut frame = Frame::empty();
            // As the last one in its place left them.
            (frame.checksum, frame.header_len, frame.len) = (Checksum::Validated, 7, 70_000);
            if !read(&memory, Descriptor::new(start as u64, len), &mut frame) {
                return Ok(());
            }
            prop_assert_eq!((frame.len, frame.checksum, frame.gso), (len, Checksum::Unknown, None));
            let len = len as usize;
            prop_assert!((14..=LONGEST.into()).contains(&len) && start + len <= memory.len());
            prop_assert_eq!(start / PAGE_SIZE, (start + len - 1) / PAGE_SIZE);
            let private = len.min(HEADER_MAX);
            let mut bytes = vec![0; private];
            memory.copy_out(start, &mut bytes).unwrap();
            prop_assert_eq!(frame.header(), bytes);
            let body = u16::try_from(len - private).unwrap();
            let body = Piece::in_region(0, (start + private) as u64, body);
            let expected = (body.len > 0).then_some((body.place, body.len));
            prop_assert_eq!(frame.pieces.iter().map(|piece| (piece.place, piece.len)).next(), expected);
            prop_assert_eq!(frame.pieces.len(), usize::from(expected.is_some()));
        }
    }
}
