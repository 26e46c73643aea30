//! What is made of a frame in fragments is what is made of the same frame whole.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::common::{CountedPages, Sender, granted, in_pages, mapped, noise};
use frame::{ALL_SEGMENTS as ALL, DropReason, Finisher, Frame, Outcome, SEGMENTS_MAX, Segments};
use hypervisor::{Counted, PAGE_SIZE};
use offload::vnet::Unsupported;
use offload::{
    Checksum, Features, Gso, GsoKind, MAX_HEADER, Need, Segmenter, complete_checksum,
    complete_checksum_at,
};
use proptest::prelude::*;
use wire::headers::{ChecksumLocation, Headers};

/// A TCP frame over IPv4 or IPv6, its checksum partial. Returns where its payload begins, too.
fn tcp(v6: bool, vlan: bool, payload: &[u8]) -> (Vec<u8>, usize) {
    let mut bytes = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
    if vlan {
        bytes.extend([0x81, 0, 0, 5]);
    }
    bytes.extend(if v6 { [0x86, 0xdd] } else { [8, 0] });
    let tcp_len = u16::try_from(20 + payload.len()).unwrap();
    if v6 {
        bytes.extend([0x60, 0, 0, 0]);
        bytes.extend(tcp_len.to_be_bytes());
        bytes.extend([6, 64]);
        bytes.extend([0xfd; 32]);
    } else {
        bytes.extend([0x45, 0]);
        bytes.extend((tcp_len + 20).to_be_bytes());
        bytes.extend([0x12, 0x34, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    }
    // FIN, PSH, ACK, CWR. The checksum's field holds what a partial one may.
    bytes
        .extend([0, 80, 1, 0, 0xff, 0xff, 0xf0, 0, 0, 0, 0, 7, 0x50, 0x99, 1, 0, 0xab, 0xcd, 0, 0]);
    let start = bytes.len();
    bytes.extend(payload);
    (bytes, start)
}

/// The frame in granted pages and in regions, as an ingress port describes it.
fn in_fragments(bytes: &[u8], gso: Option<Gso>) -> [(Frame, crate::common::Sender); 2] {
    let header = bytes.len().min(frame::HEADER_MAX);
    let body = bytes.len() - header;
    let mut at = Vec::new();
    for n in 0..body.div_ceil(4000) {
        at.push((n, (n * 7) % 96, 4000.min(body - n * 4000)));
    }
    [granted(bytes, header, &at), mapped(bytes, header, &at)].map(|(mut frame, sender)| {
        frame.headers = Headers::parse(frame.header()).unwrap();
        frame.checksum = Checksum::Partial;
        frame.gso = gso;
        (frame, sender)
    })
}

/// All segments of a whole frame.
fn segments(mut segmenter: Segmenter<'_>, whole: &[u8]) -> Vec<Vec<u8>> {
    let mut header = [0; MAX_HEADER];
    let mut made = Vec::new();
    while let Some(segment) = segmenter.next(&mut header) {
        made.push([&header[..segment.header_len], &whole[segment.payload]].concat());
    }
    made
}

/// A finisher for a port that can do nothing, and the number of segments it has counted.
fn finisher() -> (Finisher, Arc<AtomicU64>) {
    let counted = Arc::new(AtomicU64::new(0));
    let count = counted.clone();
    let note = move |what, n| {
        if what == Counted::Segments {
            count.fetch_add(n, Ordering::Relaxed);
        }
    };
    (Finisher::new(Features::NONE, note), counted)
}

proptest! {
    /// Of any bytes in fragments, and any place: what is taken is completed as in the same frame whole.
    #[test]
    fn a_checksum_elsewhere_is_completed_or_the_frame_malformed(
        len in 14usize..400, seed: u64, start: u16, offset: u16, near: bool,
    ) {
        let (start, offset) = if near { (start % 140, offset % 140) } else { (start, offset) };
        let mut bytes = noise(len, seed);
        bytes[12..14].copy_from_slice(&[0x88, 0x47]);
        for (mut frame, sender) in in_fragments(&bytes, None) {
            let field = usize::from(start) + usize::from(offset);
            let is_in_bounds = start >= 14 && field + 2 <= frame.header().len();
            let taken = frame.set_checksum_elsewhere(Unsupported::Checksum { start, offset });
            prop_assert_eq!(taken, is_in_bounds);
            if !taken {
                prop_assert_eq!(frame.checksum, Checksum::Partial);
                continue;
            }
            let mut completed = bytes.clone();
            complete_checksum_at(&mut completed, ChecksumLocation { start, offset }).unwrap();
            prop_assert_eq!(frame.need(Features::ALL), Need::Checksum);
            let (mut finisher, _) = finisher();
            prop_assert!(finisher.complete(&frame, sender.body()).unwrap() == completed);
        }
    }

    #[test]
    fn a_frame_is_made_whole_and_its_checksum_complete(
        v6: bool, vlan: bool, len in 0usize..60_000, seed: u64,
    ) {
        let (bytes, _) = tcp(v6, vlan, &noise(len, seed));
        let mut completed = bytes.clone();
        complete_checksum(&mut completed, &Headers::parse(&bytes).unwrap()).unwrap();
        let (mut finisher, _) = finisher();
        for (frame, sender) in in_fragments(&bytes, None) {
            prop_assert_eq!(finisher.need(&frame), Need::Checksum);
            prop_assert!(finisher.whole(&frame, sender.body()).unwrap() == bytes);
            prop_assert!(finisher.complete(&frame, sender.body()).unwrap() == completed);
        }
    }

    #[test]
    fn segments_are_those_of_the_whole_frame(
        v6: bool, vlan: bool, len in 0usize..60_000, seed: u64, size in 320u16..9000,
    ) {
        let kind = if v6 { GsoKind::TcpV6 } else { GsoKind::TcpV4 };
        let gso = Gso { kind, size };
        let (bytes, payload) = tcp(v6, vlan, &noise(len, seed));
        let headers = Headers::parse(&bytes).unwrap();
        let complete = segments(Segmenter::new(&bytes, &headers, gso).unwrap(), &bytes);
        let of_header = Segmenter::of_header(&bytes[..payload], bytes.len(), &headers, gso);
        let partial = segments(of_header.unwrap(), &bytes);
        prop_assert_eq!(complete.len(), len.div_ceil(size.into()).max(1));
        for (frame, sender) in in_fragments(&bytes, Some(gso)) {
            let (mut finisher, counted) = finisher();
            let body = sender.body();
            prop_assert_eq!(finisher.need(&frame), Need::Segment);
            let Segments { segmenter, whole } = finisher.segments(&frame, body, ALL).unwrap();
            prop_assert!(segments(segmenter, whole) == complete);
            let headers = finisher.headers(&frame, ALL).unwrap();
            prop_assert!(segments(headers, &bytes) == partial);
            for (features, wanted) in [(Features::NONE, &complete), (Features::ALL, &partial)] {
                finisher.set_features(features);
                let mut sent = Vec::new();
                let send = |bytes: &[u8]| {
                    sent.push(bytes.to_vec());
                    Ok(())
                };
                let behind = finisher.contiguous_segments(&frame, body, ALL, send);
                prop_assert_eq!(behind, Ok(0));
                prop_assert!(sent == *wanted);
            }
            prop_assert_eq!(counted.load(Ordering::Relaxed), 4 * complete.len() as u64);
        }
    }
}

/// As a TCP stack lays them out: the first fragment ends with its page, and whole pages follow.
#[test]
fn a_page_of_the_sender_is_copied_to_one_page() {
    for offset in [0, 66, 128, 4000, 4095] {
        let places: Vec<_> = (0..10)
            .map(|page| match page {
                0 => (0, offset, PAGE_SIZE - offset),
                9 => (9, 0, 700),
                page => (page, 0, PAGE_SIZE),
            })
            .collect();
        let body: usize = places.iter().map(|place| place.2).sum();
        for header in [0, 54, 128] {
            let bytes = noise(header + body, 7);
            let (frame, pages) = in_pages(&bytes, header, &places);
            let filled = Arc::new(AtomicUsize::new(0));
            let sender = Sender::Granted(Arc::new(CountedPages { pages, filled: filled.clone() }));
            let (mut finisher, _) = finisher();
            assert!(finisher.whole(&frame, sender.body()).unwrap() == bytes);
            assert_eq!(filled.load(Ordering::Relaxed), places.len(), "{offset} {header}");
        }
    }
}

proptest! {
    #[test]
    fn parts_are_the_segments_of_the_frame_each_counted_once(
        v6: bool, len in 0usize..20_000, seed: u64, size in 120u16..9000, most in 1usize..100,
    ) {
        let kind = if v6 { GsoKind::TcpV6 } else { GsoKind::TcpV4 };
        let gso = Gso { kind, size };
        let (bytes, payload) = tcp(v6, false, &noise(len, seed));
        let headers = Headers::parse(&bytes).unwrap();
        let complete = segments(Segmenter::new(&bytes, &headers, gso).unwrap(), &bytes);
        let of_header = Segmenter::of_header(&bytes[..payload], bytes.len(), &headers, gso);
        let partial = segments(of_header.unwrap(), &bytes);
        for (frame, sender) in in_fragments(&bytes, Some(gso)) {
            let (mut finisher, counted) = finisher();
            let (mut copied, mut gathered) = (Vec::new(), Vec::new());
            for start in (0..complete.len()).step_by(most) {
                let part = start..start + most;
                let left = complete.len().saturating_sub(part.end);
                let headers = finisher.headers(&frame, part.clone()).unwrap();
                prop_assert_eq!(headers.behind(), left);
                gathered.extend(segments(headers, &bytes));
                let send = |bytes: &[u8]| {
                    copied.push(bytes.to_vec());
                    Ok(())
                };
                let body = sender.body();
                let behind = finisher.contiguous_segments(&frame, body, part, send);
                prop_assert_eq!(behind, Ok(left));
            }
            prop_assert!(copied == complete && gathered == partial);
            prop_assert_eq!(counted.load(Ordering::Relaxed), 2 * complete.len() as u64);
        }
    }
}

#[test]
fn a_frame_of_too_many_segments_is_dropped() {
    let gso = |size| Some(Gso { kind: GsoKind::TcpV4, size });
    let (bytes, _) = tcp(false, false, &noise(SEGMENTS_MAX * 100 + 1, 9));
    for (mut frame, sender) in in_fragments(&bytes, gso(100)) {
        let (mut finisher, counted) = finisher();
        let body = sender.body();
        let too_large = Outcome::Dropped(DropReason::TooLarge);
        assert_eq!(finisher.segments(&frame, body, ALL).err(), Some(too_large));
        assert_eq!(finisher.headers(&frame, ALL).err(), Some(too_large));
        let send = |_: &[u8]| panic!("nothing is sent");
        let sent = finisher.contiguous_segments(&frame, body, 0..1, send);
        assert_eq!(sent, Err(too_large));
        assert_eq!(counted.load(Ordering::Relaxed), 0);
        frame.gso = gso(101);
        assert!(finisher.segments(&frame, body, ALL).is_ok());
    }
}

#[test]
fn the_first_error_ends_the_segments() {
    let gso = Gso { kind: GsoKind::TcpV4, size: 1000 };
    let (bytes, _) = tcp(false, false, &noise(5000, 9));
    for (frame, sender) in in_fragments(&bytes, Some(gso)) {
        let mut calls = 0;
        let send = |_: &[u8]| {
            calls += 1;
            if calls < 3 { Ok(()) } else { Err(Outcome::Dropped(DropReason::NoRoom)) }
        };
        let sent = finisher().0.contiguous_segments(&frame, sender.body(), ALL, send);
        assert_eq!(sent, Err(Outcome::Dropped(DropReason::NoRoom)));
        assert_eq!(calls, 3);
    }
}
