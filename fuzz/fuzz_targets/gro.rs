//! Frames of a batch are merged only into such as a segmenter cuts into them again, bit by bit, each flow in order.
//!
//! Input: one frame's bytes, and how each further one differs from the one that would follow. Run with `cargo fuzz run --features libfuzzer --sanitizer none gro`.
#![no_main]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use frame::{Frame, HEADER_MAX, WINDOW, linearise};
use libfuzzer_sys::fuzz_target;
use offload::{Checksum, Features, Gso, MAX_HEADER, Segmenter, complete_checksum};
use port::{Body, FRAME_MAX, Fragment, Merging, Offer, Outcome};
use port_testing::FakeEgress;
use shm::Region;
use wire::headers::{Headers, Network, Transport};
use wire::{ipv4, tcp};

/// Bytes of memory for each frame, and of the longest one.
const PLACE: usize = 2048;

/// What differs from the frame that would follow.
type Step = (u8, u16, u8);

fuzz_target!(|input: (bool, Vec<Step>, Vec<u8>)| {
    let (partial, steps, mut first) = input;
    first.truncate(PLACE);
    let mut sent = Vec::new();
    let mut next = first;
    for (place, value, repair) in steps.into_iter().take(WINDOW) {
        let mut bytes = next.clone();
        let at = usize::from(place) * 3 % bytes.len().max(1);
        if let (Some(byte), true) = (bytes.get_mut(at), value > 0x7fff) {
            *byte ^= value.to_le_bytes()[0];
        }
        if repair % 4 > 0 {
            finish(&mut bytes, partial);
        }
        next = following(&bytes);
        sent.push(bytes);
    }
    let checksum = if partial { Checksum::Partial } else { Checksum::Unknown };
    check(&sent, checksum);
});

/// Writes the checksums that a sender would write.
fn finish(bytes: &mut [u8], partial: bool) {
    let Ok(headers) = Headers::parse(bytes) else { return };
    if headers.network == Network::Ipv4 {
        let network = usize::from(headers.l3_offset)..usize::from(headers.l4_offset);
        ipv4::Packet::new_unchecked(&mut bytes[network]).fill_checksum();
    }
    if !partial {
        let _ = complete_checksum(bytes, &headers);
        return;
    }
    let Some(gso) = gso_of(&headers) else { return };
    let mut header = [0; MAX_HEADER];
    if let Ok(mut segmenter) = Segmenter::of_header(bytes, bytes.len(), &headers, gso)
        && let Some(segment) = segmenter.next(&mut header)
    {
        bytes[..segment.header_len].copy_from_slice(&header[..segment.header_len]);
    }
}

fn gso_of(headers: &Headers) -> Option<Gso> {
    let kind = match (headers.network, headers.transport) {
        (Network::Ipv4, Transport::Tcp) => offload::GsoKind::TcpV4,
        (Network::Ipv6, Transport::Tcp) => offload::GsoKind::TcpV6,
        _ => return None,
    };
    Some(Gso { kind, size: u16::MAX })
}

/// The segment that follows in a row.
fn following(bytes: &[u8]) -> Vec<u8> {
    let mut next = bytes.to_vec();
    let Ok(headers) = Headers::parse(bytes) else { return next };
    if headers.transport != Transport::Tcp {
        return next;
    }
    let payload = bytes.len().saturating_sub(headers.payload_offset.into());
    let mut segment = tcp::Packet::new_unchecked(&mut next[usize::from(headers.l4_offset)..]);
    segment.set_seq(segment.seq().wrapping_add(u32::try_from(payload).unwrap_or(0)));
    if headers.network == Network::Ipv4 {
        let network = usize::from(headers.l3_offset)..usize::from(headers.l4_offset);
        let mut packet = ipv4::Packet::new_unchecked(&mut next[network]);
        packet.set_ident(packet.ident().wrapping_add(1));
    }
    next
}

fn check(sent: &[Vec<u8>], checksum: Checksum) {
    let region = Region::anonymous(WINDOW * PLACE).unwrap();
    let mut frames = Vec::new();
    for (n, bytes) in sent.iter().enumerate() {
        let (header, body) = bytes.split_at(bytes.len().min(HEADER_MAX));
        let mut frame = Frame::empty();
        frame.bytes[..header.len()].copy_from_slice(header);
        frame.header_len = u8::try_from(header.len()).unwrap();
        frame.len = u32::try_from(bytes.len()).unwrap();
        if frame.parse_headers().is_err() {
            return;
        }
        frame.checksum = checksum;
        region.copy_in(n * PLACE, body).unwrap();
        if !body.is_empty() {
            let len = u16::try_from(body.len()).unwrap();
            frame.fragments.push(Fragment::in_region(0, (n * PLACE) as u64, len));
        }
        frames.push(frame);
    }
    let arrived = Arc::<Mutex<Vec<_>>>::default();
    let arrivals = arrived.clone();
    let mut taker = FakeEgress::new(move |frame, body| {
        let mut bytes = vec![0; frame.len as usize];
        linearise(frame, body, &mut bytes).expect("all of it is there");
        arrivals.lock().unwrap().push((bytes, frame.gso));
        Ok(Outcome::Delivered)
    });
    taker.merging = Some(Merging { features: Features::ALL, longest: FRAME_MAX });
    let mut egress = gro::merge(Box::new(taker), &Arc::default());
    let mut offers: Vec<_> = frames.iter().map(Offer::new).collect();
    let regions: Arc<[Region]> = [region].into();
    egress.deliver(Body::Regions(&regions), &mut offers, Duration::ZERO).unwrap();
    assert!(offers.iter().all(|offer| offer.outcome == Outcome::Delivered));
    let mut cut: Vec<_> =
        arrived.lock().unwrap().iter().flat_map(|(b, gso)| segments(b, *gso, checksum)).collect();
    let mut sent = sent.to_vec();
    for flow in sent.iter().map(|bytes| flow_of(bytes)) {
        let of_flow = |all: &[Vec<u8>]| -> Vec<_> {
            all.iter().filter(|bytes| flow_of(bytes) == flow).cloned().collect()
        };
        assert!(of_flow(&cut) == of_flow(&sent), "a flow is not what it was");
    }
    cut.sort();
    sent.sort();
    assert!(cut == sent, "a frame is not what it was");
}

/// Addresses and ports, if the frame has such.
fn flow_of(bytes: &[u8]) -> Option<(Vec<u8>, Vec<u8>)> {
    let headers = Headers::parse(bytes).ok()?;
    Some((headers.addresses(bytes)?.to_vec(), headers.ports(bytes)?.to_vec()))
}

/// The frames that a device sends for one.
fn segments(bytes: &[u8], gso: Option<Gso>, checksum: Checksum) -> Vec<Vec<u8>> {
    let Some(gso) = gso else { return vec![bytes.to_vec()] };
    let headers = Headers::parse(bytes).unwrap();
    let segmenter = match checksum {
        Checksum::Partial => Segmenter::of_header(bytes, bytes.len(), &headers, gso),
        _ => Segmenter::new(bytes, &headers, gso),
    };
    let mut segmenter = segmenter.unwrap();
    let mut header = [0; MAX_HEADER];
    let next = || {
        let segment = segmenter.next(&mut header)?;
        Some([&header[..segment.header_len], &bytes[segment.payload]].concat())
    };
    std::iter::from_fn(next).collect()
}
