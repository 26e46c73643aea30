//! Merged frames against a naive model: segmented again, they are the frames that came, bit by bit; and all is merged that may be.

use crate::common::{ALL, Batch, Bed, Segment};
use offload::{Checksum, Gso, GsoKind, MAX_HEADER, Segmenter};
use port::{Frame, Outcome};
use proptest::prelude::*;
use wire::headers::{Headers, Transport};
use wire::tcp::Flags;
use wire::{ipv4, ipv6, tcp};

/// What differs from the segment that would follow in its flow.
#[derive(Clone, Debug)]
enum Change {
    Nothing,
    Push,
    Flags(u8),
    Gap(u32),
    Ident(u16),
    Ttl,
    Class,
    Fragment,
    Ack,
    Window,
    Stamp,
    Vlan,
    Padding(usize),
    Damage(usize),
    Length(usize),
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        30 => Just(Change::Nothing),
        2 => Just(Change::Push),
        1 => any::<u8>().prop_map(Change::Flags),
        1 => (1u32..3).prop_map(Change::Gap),
        1 => (1u16..3).prop_map(Change::Ident),
        1 => prop_oneof![Just(Change::Ttl), Just(Change::Class), Just(Change::Fragment)],
        1 => prop_oneof![Just(Change::Ack), Just(Change::Window), Just(Change::Stamp)],
        1 => Just(Change::Vlan),
        1 => (1usize..7).prop_map(Change::Padding),
        2 => any::<usize>().prop_map(Change::Damage),
        2 => (0usize..1500).prop_map(Change::Length),
    ]
}

/// Whether frames are of IPv6, and whether they have a tag.
type Kind = (bool, bool);

/// A batch: for each frame the flow, and how it differs.
fn steps() -> impl Strategy<Value = (usize, Kind, u8, Vec<(u16, Change)>)> {
    let steps = prop::collection::vec((0u16..3, change()), 1..64);
    (60usize..1449, any::<Kind>(), 0u8..3, steps)
}

/// The segments that the steps describe.
fn segments(
    len: usize,
    (v6, is_tagged): Kind,
    checksum: u8,
    steps: &[(u16, Change)],
) -> Vec<Segment> {
    let vlan = if is_tagged { 5 } else { 0 };
    let checksum =
        [Checksum::Unknown, Checksum::Partial, Checksum::Validated][usize::from(checksum)];
    let mut flows =
        [0, 1, 2].map(|flow| Segment { v6, vlan, checksum, ..Segment::first(flow, len) });
    let mut made = Vec::new();
    for (flow, change) in steps {
        let flow = &mut flows[usize::from(*flow)];
        let mut segment = flow.clone();
        match change {
            Change::Nothing => {}
            Change::Push => segment.flags = Flags::ACK | Flags::PSH,
            Change::Flags(bits) => segment.flags = Flags(*bits),
            Change::Gap(bytes) => segment.seq = segment.seq.wrapping_add(*bytes),
            Change::Ident(more) => segment.ident = segment.ident.wrapping_add(*more),
            Change::Ttl => segment.ttl -= 1,
            Change::Class => segment.class ^= 4,
            Change::Fragment => segment.dont_frag = !segment.dont_frag,
            Change::Ack => segment.ack += 1,
            Change::Window => segment.window -= 1,
            Change::Stamp => segment.stamp += 1,
            Change::Vlan => segment.vlan = 9,
            Change::Padding(bytes) => segment.padding = *bytes,
            // Damage is found only where the whole checksum is verified.
            Change::Damage(place) if checksum == Checksum::Unknown => {
                segment.damage = Some(place % 60 + 14);
            }
            Change::Damage(_) => {}
            Change::Length(bytes) => segment.payload.truncate(*bytes),
        }
        *flow = Segment { flags: Flags::ACK, vlan, padding: 0, damage: None, ..segment.next(len) };
        made.push(segment);
    }
    made
}

/// One frame with the payloads of all, as simply as it can be written; none if there cannot be one.
fn merged(run: &[Vec<u8>]) -> Option<(Vec<u8>, Gso)> {
    let headers = Headers::parse(&run[0]).ok()?;
    // Damage may have made it a frame of another protocol.
    if headers.transport != Transport::Tcp {
        return None;
    }
    let (l3, l4, start) = (
        usize::from(headers.l3_offset),
        usize::from(headers.l4_offset),
        usize::from(headers.payload_offset),
    );
    let mut frame = run[0].clone();
    for bytes in &run[1..] {
        frame.extend(bytes.get(start..)?);
    }
    let counted = u16::try_from(frame.len() - l3).ok()?;
    let kind = if frame[l3] >> 4 == 4 {
        ipv4::Packet::new_unchecked(&mut frame[l3..l4]).set_total_len(counted);
        GsoKind::TcpV4
    } else {
        ipv6::Packet::new_unchecked(&mut frame[l3..l4]).set_payload_len(counted - 40);
        GsoKind::TcpV6
    };
    let last = tcp::Packet::new_checked(run[run.len() - 1].get(l4..)?).ok()?.flags();
    tcp::Packet::new_unchecked(&mut frame[l4..]).set_flags(last);
    let size = u16::try_from(run[0].len() - start).ok()?;
    (frame.len() <= 65_535).then_some((frame, Gso { kind, size }))
}

/// Whether a segmenter makes exactly these segments of one frame.
fn is_one_frame(run: &[Vec<u8>], partial: bool) -> bool {
    let plain = |bytes: &Vec<u8>| {
        let headers = Headers::parse(bytes).ok()?;
        let flags = tcp::Packet::new_checked(bytes.get(headers.l4_offset.into()..)?).ok()?.flags();
        let is_plain = [Flags::ACK, Flags::ACK | Flags::PSH].contains(&flags);
        let has_payload = bytes.len() > headers.payload_offset.into();
        let is_tcp = headers.transport == Transport::Tcp;
        (is_plain && has_payload && is_tcp).then_some(())
    };
    let Some((frame, gso)) = merged(run) else { return false };
    if gso.size < 64 || run.iter().any(|bytes| plain(bytes).is_none()) {
        return false;
    }
    let Ok(headers) = Headers::parse(&frame) else { return false };
    let segmenter = match partial {
        false => Segmenter::new(&frame, &headers, gso),
        true => Segmenter::of_header(&frame, frame.len(), &headers, gso),
    };
    let Ok(mut segmenter) = segmenter else { return false };
    let mut header = [0; MAX_HEADER];
    let mut cut = Vec::new();
    while let Some(segment) = segmenter.next(&mut header) {
        cut.push([&header[..segment.header_len], &frame[segment.payload]].concat());
    }
    cut == run
}

/// How many frames the model makes of the frames of one flow: each run as long as it can be.
fn frames_of(flow: &[Vec<u8>], partial: bool) -> Vec<usize> {
    let mut runs = Vec::new();
    let mut rest = flow;
    while !rest.is_empty() {
        let mut len = 1;
        while len < rest.len() && is_one_frame(&rest[..=len], partial) {
            len += 1;
        }
        runs.push(len);
        rest = &rest[len..];
    }
    runs
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn merged_frames_are_cut_into_what_came((len, kind, checksum, steps) in steps()) {
        let segments = segments(len, kind, checksum, &steps);
        let frames: Vec<_> = segments.iter().map(|s| (s.bytes(), s.checksum)).collect();
        let partial = checksum == 1;
        // Some damage makes a frame that no port takes in.
        let Some(batch) = Batch::new(&frames) else { return Ok(()) };
        let mut bed = Bed::new(ALL);
        let outcomes = bed.deliver(&batch);
        prop_assert!(outcomes.iter().all(|outcome| *outcome == Outcome::Delivered));
        let arrived = bed.take();
        let flow_of = |bytes: &[u8]| {
            let headers = Headers::parse(bytes).unwrap();
            headers.ports(bytes).map(<[u8]>::to_vec)
        };
        // Behind a frame whose flow is unknown, rows begin anew.
        let is_known = |frame: &Frame| {
            !matches!(frame.headers.transport, Transport::Fragment | Transport::Opaque)
        };
        let are_known = batch.frames.iter().all(is_known);
        // By the ports that the bytes name, which may be damaged.
        let mut flows: Vec<_> = frames.iter().map(|(bytes, _)| flow_of(bytes)).collect();
        flows.sort();
        flows.dedup();
        for flow in flows {
            let sent: Vec<_> = frames.iter().map(|(bytes, _)| bytes.clone())
                .filter(|bytes| flow_of(bytes) == flow).collect();
            let got: Vec<_> = arrived.iter().filter(|one| flow_of(&one.bytes) == flow).collect();
            let cut: Vec<_> = got.iter().flat_map(|one| one.segments(partial)).collect();
            prop_assert_eq!(&cut, &sent);
            let counts: Vec<_> = got.iter().map(|one| one.segments(partial).len()).collect();
            if are_known {
                prop_assert_eq!(counts, frames_of(&sent, partial));
            }
        }
        let merged = arrived.iter().filter(|one| one.gso.is_some());
        let counts = bed.counters.counts();
        prop_assert_eq!(counts.frames, merged.clone().count() as u64);
        let segments = merged.map(|one| one.segments(partial).len() as u64).sum::<u64>();
        prop_assert_eq!(counts.segments, segments);
    }
}
