//! Where frames from a device are read to.

use frame::{Body, Frame, Outcome, WINDOW, linearise};
use offload::{Checksum, Gso, GsoKind};
use shm::Region;
use wire::headers::Headers;

use super::*;
use crate::{BufferOptions, Buffers, Ingress, vnet};

const LARGE: BufferOptions = BufferOptions { large: true, zeroed_pages: false, huge_pages: false };

struct Receiver {
    platform: Platform,
    behind: UnixDatagram,
    ingress: Ingress<Platform>,
}

impl Receiver {
    fn new(options: BufferOptions) -> Self {
        let (platform, (tap, behind)) = (platform(), tap());
        let ingress = Ingress::new(platform.clone(), tap, Buffers::new(options).unwrap());
        Self { platform, behind, ingress }
    }

    /// Sends a frame as a stack does, and answers how many were received.
    fn send(&mut self, bytes: &[u8], gso: Option<Gso>) -> usize {
        let headers = Headers::parse(&bytes[..HEADER_MAX.min(bytes.len())]).unwrap();
        send(&self.behind, vnet::encode(&headers, Checksum::Partial, gso), bytes);
        self.ingress.receive().unwrap()
    }

    /// The one frame in hand.
    fn frame(&self) -> &Frame {
        let [slot] = self.ingress.window().order() else { panic!("not one frame") };
        self.ingress.window().frame(*slot)
    }

    fn bytes(&self) -> Vec<u8> {
        let mut whole = vec![0; self.frame().len as usize];
        linearise(&self.platform, self.frame(), self.ingress.body(), &mut whole).unwrap();
        whole
    }

    fn region(&self) -> &Region {
        match self.ingress.body() {
            Body::Mapped(region) => region,
            Body::Granted(_) | Body::MappedGrants(_) => unreachable!("read into our own memory"),
        }
    }

    fn release(&mut self) {
        self.ingress.finish(&[Outcome::Delivered; WINDOW]);
    }

    fn zeroed(&self) -> u64 {
        self.platform.meter().count(Counted::PagesZeroed)
    }
}

#[test]
fn a_large_frame_comes_whole_into_whatever_buffers() {
    let bytes = tcp_frame(60_000);
    let gso = Some(Gso { kind: GsoKind::TcpV4, size: 1448 });
    let body = bytes.len() - HEADER_MAX;
    for (zeroed_pages, huge_pages, pieces) in
        [(false, false, 1), (true, false, body.div_ceil(4096)), (true, true, body.div_ceil(4096))]
    {
        let mut receiver = Receiver::new(BufferOptions { large: true, zeroed_pages, huge_pages });
        assert_eq!(receiver.send(&bytes, gso), 1);
        assert_eq!(receiver.frame().pieces.len(), pieces);
        assert!(pieces <= PIECES_MAX);
        assert_eq!((receiver.frame().gso, receiver.frame().checksum), (gso, Checksum::Partial));
        assert_eq!(receiver.bytes(), bytes);
    }
}

#[test]
fn a_page_tells_nothing_of_the_frame_before() {
    for large in [true, false] {
        let mut receiver = Receiver::new(BufferOptions { large, zeroed_pages: true, ..LARGE });
        let (long, short) = (tcp_frame(1400), tcp_frame(100));
        assert_eq!(receiver.send(&long, None), 1);
        assert_eq!(receiver.zeroed(), 0, "the kernel's pages are zero at first");
        let page = receiver.frame().pieces[0].offset;
        receiver.release();
        assert_eq!(receiver.send(&short, None), 1);
        assert_eq!((receiver.zeroed(), receiver.frame().pieces[0].offset), (1, page));
        assert_eq!(receiver.bytes(), short);
        let mut rest = vec![0xff; 4096 - (short.len() - HEADER_MAX)];
        let start = page as usize + short.len() - HEADER_MAX;
        receiver.region().copy_out(start, &mut rest).unwrap();
        assert!(rest.iter().all(|byte| *byte == 0));
    }
}

#[test]
fn recycled_buffers_are_used_as_they_are() {
    let mut receiver = Receiver::new(LARGE);
    for frame in [tcp_frame(1400), tcp_frame(100), tcp_frame(700)] {
        assert_eq!(receiver.send(&frame, None), 1);
        assert_eq!(receiver.bytes(), frame);
        receiver.release();
    }
    assert_eq!(receiver.zeroed(), 0);
}

#[test]
fn what_does_not_fit_is_dropped_not_cut_off() {
    for (zeroed_pages, room) in [(false, 2048), (true, 4096)] {
        let options = BufferOptions { large: false, zeroed_pages, huge_pages: false };
        let mut receiver = Receiver::new(options);
        let longest = HEADER_MAX + room - 1 - HEADERS;
        for (payload, received) in [(longest, 1), (longest + 1, 0), (longest + 5000, 0)] {
            assert_eq!(receiver.send(&tcp_frame(payload), None), received, "{payload}");
            assert_eq!(receiver.ingress.take_malformed(), 1 - received as u64);
            receiver.release();
        }
    }
}

#[test]
fn every_frame_in_hand_has_buffers_of_its_own() {
    for (large, zeroed_pages) in [(true, false), (true, true), (false, false), (false, true)] {
        let mut receiver = Receiver::new(BufferOptions { large, zeroed_pages, ..LARGE });
        let frames: Vec<_> = (0..5).map(|n| tcp_frame(1000 + n)).collect();
        let received: usize = frames.iter().map(|frame| receiver.send(frame, None)).sum();
        assert_eq!(received, frames.len());
        let window = receiver.ingress.window();
        for (slot, bytes) in window.order().iter().zip(&frames) {
            let mut whole = vec![0; bytes.len()];
            let frame = window.frame(*slot);
            linearise(&receiver.platform, frame, receiver.ingress.body(), &mut whole).unwrap();
            assert_eq!(&whole, bytes);
        }
    }
}
