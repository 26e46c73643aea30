//! What a sender cannot do by its segments, and what becomes of frames whose receiver does not take them.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use crate::common::{ALL, Batch, Bed, Segment};
use offload::{Checksum, Features};
use port::{
    Body, Broken, DropReason, Egress, FRAME_MAX, Fragment, Layer, Lent, Merging, Offer, Outcome,
};
use proptest::prelude::*;
use shm::Region;
use wire::tcp::Flags;

const LEN: usize = 1448;

/// Lengths of what arrives when a batch is delivered, and how many frames of it are merged.
fn arrived(bed: &mut Bed, batch: &Batch) -> (Vec<usize>, usize) {
    bed.deliver(batch);
    let arrived = bed.take();
    let merged = arrived.iter().filter(|one| one.gso.is_some()).count();
    (arrived.iter().map(|one| one.bytes.len()).collect(), merged)
}

/// How many merged frames come of two segments of one row, the second of them changed. `checksum` is what is known of both.
fn merged_with(change: impl Fn(&mut Vec<u8>), checksum: Checksum) -> usize {
    let rows = Segment::row(Segment { checksum, ..Segment::first(1, LEN) }, 2, LEN);
    let mut frames: Vec<_> = rows.iter().map(|s| (s.bytes(), checksum)).collect();
    change(&mut frames[1].0);
    let Some(batch) = Batch::new(&frames) else { return 0 };
    arrived(&mut Bed::new(ALL), &batch).1
}

#[test]
fn no_field_of_a_header_may_differ_but_those_that_count_up() {
    let untouched = merged_with(|_| {}, Checksum::Validated);
    assert_eq!(untouched, 1);
    for place in 0..14 + 20 + 32 {
        // The checksum counts as right, so only the comparison can find the difference.
        let is_transport_checksum = (50..52).contains(&place);
        for bit in 0..8 {
            let flip = |bytes: &mut Vec<u8>| {
                bytes[place] ^= 1 << bit;
                fix_ip_checksum(bytes);
            };
            let is_push = (place, bit) == (47, 3);
            let is_ip_checksum = (24..26).contains(&place);
            let expected = usize::from(is_transport_checksum || is_push || is_ip_checksum);
            let merged = merged_with(flip, Checksum::Validated);
            assert_eq!(merged, expected, "bit {bit} of byte {place}");
        }
    }
}

fn fix_ip_checksum(bytes: &mut [u8]) {
    if bytes[14] == 0x45 {
        wire::ipv4::Packet::new_unchecked(&mut bytes[14..34]).fill_checksum();
    }
}

#[test]
fn a_checksum_that_is_wrong_is_left_to_its_receiver() {
    for checksum in [Checksum::Unknown, Checksum::Partial] {
        for place in [50, 51, 24, 25] {
            assert_eq!(merged_with(|bytes| bytes[place] ^= 1, checksum), 0, "{checksum:?} {place}");
        }
    }
    for place in [70, 127, 128, 129, 1000, 66 + LEN - 1] {
        assert_eq!(merged_with(|bytes| bytes[place] ^= 1, Checksum::Unknown), 0, "{place}");
    }
    // Of the first in a row too.
    let mut row = Segment::row(Segment::first(1, LEN), 4, LEN);
    row[0].damage = Some(900);
    let (lens, merged) = arrived(&mut Bed::new(ALL), &Batch::of(&row));
    assert_eq!((lens, merged), (vec![66 + LEN, 66 + 3 * LEN], 1));
}

#[test]
fn two_names_of_one_checksum_are_not_merged() {
    // 0xffff and 0 sum to the same, and a segmenter writes only one of them.
    let mut row = Segment::row(Segment::first(1, LEN), 2, LEN);
    let sum = |bytes: &[u8]| u16::from_be_bytes([bytes[50], bytes[51]]);
    // One whose checksum is 0: the last two bytes of its payload make it so.
    let own = sum(&row[1].bytes());
    let end = row[1].payload.len() - 2;
    let last = u16::from_be_bytes([row[1].payload[end], row[1].payload[end + 1]]);
    let (wanted, carry) = last.overflowing_add(own);
    row[1].payload[end..].copy_from_slice(&(wanted + u16::from(carry)).to_be_bytes());
    let mut frames: Vec<_> = row.iter().map(|s| (s.bytes(), s.checksum)).collect();
    assert_eq!(sum(&frames[1].0), 0);
    assert_eq!(arrived(&mut Bed::new(ALL), &Batch::new(&frames).unwrap()).1, 1);
    frames[1].0[50..52].copy_from_slice(&[0xff; 2]);
    assert_eq!(arrived(&mut Bed::new(ALL), &Batch::new(&frames).unwrap()).1, 0);
}

#[test]
fn lengths_that_lie_are_not_merged() {
    for (field, values) in [
        (16, [0u16, 51, 52, 53, 1499, 1501, 0xffff]),
        (46, [0x10, 0x5010, 0x6010, 0x9010, 0xb010, 0xf010, 0x7010]),
    ] {
        for value in values {
            let lie = |bytes: &mut Vec<u8>| {
                bytes[field..field + 2].copy_from_slice(&value.to_be_bytes());
                fix_ip_checksum(bytes);
            };
            assert_eq!(merged_with(lie, Checksum::Validated), 0, "{value:#x} at {field}");
        }
    }
    let options = |bytes: &mut Vec<u8>| bytes[14] = 0x46;
    assert_eq!(merged_with(options, Checksum::Validated), 0);
    let cut = |bytes: &mut Vec<u8>| bytes.truncate(1000);
    assert_eq!(merged_with(cut, Checksum::Validated), 0);
}

#[test]
fn a_body_that_is_not_there_is_not_merged_and_reads_nothing_else() {
    let row = Segment::row(Segment::first(1, LEN), 2, LEN);
    for fragment in [
        Fragment::in_region(0, 1 << 40, 1386),
        Fragment::in_region(7, 0, 1386),
        Fragment::in_region(0, u64::MAX, 1386),
    ] {
        let mut batch = Batch::of(&row);
        batch.frames[1].fragments[0] = fragment;
        let mut bed = Bed::new(ALL);
        assert_eq!(bed.deliver(&batch), [Outcome::Delivered, Outcome::SourceFault]);
        // A checksum that counts as right is not read: the frame and all that it is merged with are lost, to their own sender only.
        batch.frames.iter_mut().for_each(|frame| frame.checksum = Checksum::Validated);
        assert_eq!(bed.deliver(&batch), [Outcome::SourceFault; 2]);
    }
}

#[test]
fn frames_of_different_vlans_stations_and_versions_are_not_one_flow() {
    let first = Segment::first(1, LEN);
    let second = first.next(LEN);
    let tag = |vlan| (Segment { vlan, ..first.clone() }, Segment { vlan, ..second.clone() });
    // Also the priority, which is in the tag.
    for (one, other) in [(9, 10), (9, 0), (9, 9 | 1 << 13)] {
        let row = [tag(one).0, tag(other).1];
        assert_eq!(arrived(&mut Bed::new(ALL), &Batch::of(&row)).1, 0, "{one} {other}");
    }
    let row = [first.clone(), second.clone()];
    assert_eq!(arrived(&mut Bed::new(ALL), &Batch::of(&row)).1, 1);
    let row = [first.clone(), Segment { v6: true, ..second }];
    assert_eq!(arrived(&mut Bed::new(ALL), &Batch::of(&row)).1, 0);
}

#[test]
fn nothing_overtakes_a_frame_of_its_own_flow() {
    let row = Segment::row(Segment::first(1, LEN), 6, LEN);
    let other = Segment::row(Segment::first(2, LEN), 2, LEN);
    let ack = |of: &Segment| Segment { payload: Vec::new(), ack: 7, ..of.clone() };
    let fin = Segment { flags: Flags::ACK | Flags::FIN, ..row[3].clone() };
    let batch =
        [&row[0], &other[0], &row[1], &ack(&row[2]), &row[2], &other[1], &fin, &row[4], &row[5]];
    let batch: Vec<_> = batch.into_iter().cloned().collect();
    let (lens, merged) = arrived(&mut Bed::new(ALL), &Batch::of(&batch));
    let two = 66 + 2 * LEN;
    assert_eq!(lens, [two, two, 66, 66 + LEN, 66 + LEN, two]);
    assert_eq!(merged, 3);
}

#[test]
fn of_more_flows_than_are_followed_the_oldest_is_given_up() {
    let flows: Vec<_> = (1..=9).map(|flow| Segment::first(flow, LEN)).collect();
    let next: Vec<_> = flows.iter().rev().map(|first| first.next(LEN)).collect();
    let (lens, merged) = arrived(&mut Bed::new(ALL), &Batch::of(&[flows, next].concat()));
    assert_eq!((lens.len(), merged), (10, 8));
}

#[test]
fn what_the_port_does_not_take_whole_is_not_merged() {
    let only_v4 = Features { tso_v6: false, ..Features::ALL };
    let v6 = Segment::row(Segment { v6: true, ..Segment::first(1, LEN) }, 2, LEN);
    let v4 = Segment::row(Segment::first(1, LEN), 2, LEN);
    let tagged = Segment::row(Segment { vlan: 9, ..Segment::first(1, LEN) }, 2, LEN);
    let take = |features| Merging { features, ..ALL };
    for (row, features, merged) in [
        (&v4, only_v4, 1),
        (&v6, only_v4, 0),
        (&v6, Features::ALL, 1),
        (&v4, Features { sg: false, ..Features::ALL }, 0),
        (&v4, Features { csum_v4: false, ..Features::ALL }, 0),
        (&v4, Features::NONE, 0),
        (&v4, Features::NETIF, 1),
        (&tagged, Features::ALL, 1),
        (&tagged, Features::NETIF, 0),
    ] {
        assert_eq!(
            arrived(&mut Bed::new(take(features)), &Batch::of(row)).1,
            merged,
            "{features:?}"
        );
    }
    // No longer than there is room for.
    let row = Segment::row(Segment::first(1, LEN), 10, LEN);
    let mut bed = Bed::new(Merging { longest: 66 + 4 * LEN + LEN - 1, ..ALL });
    assert_eq!(
        arrived(&mut bed, &Batch::of(&row)),
        ([66 + 4 * LEN, 66 + 4 * LEN, 66 + 2 * LEN].into(), 3)
    );
    let row = Segment::row(Segment::first(1, LEN), 64, LEN);
    let (lens, _) = arrived(&mut Bed::new(ALL), &Batch::of(&row));
    assert_eq!(lens, [66 + 45 * LEN, 66 + 19 * LEN]);
    assert!(lens[0] <= FRAME_MAX);
}

#[test]
fn segments_in_many_fragments_make_no_frame_of_more_runs_than_ports_take() {
    let mut batch = Batch::of(&Segment::row(Segment::first(1, 100 + 17 * 8), 30, 100 + 17 * 8));
    for frame in &mut batch.frames {
        let Some(fragment) = frame.fragments.pop() else { panic!("a body") };
        let port::Place::Region { offset, .. } = fragment.place else { panic!("mapped") };
        let ends = (0..=fragment.len)
            .step_by(usize::from(fragment.len) / 17)
            .take(17)
            .chain([fragment.len]);
        let ends: Vec<_> = ends.collect();
        for range in ends.windows(2).filter(|range| range[0] < range[1]) {
            let at = offset.get() + u64::from(range[0]);
            frame.fragments.push(Fragment::in_region(0, at, range[1] - range[0]));
        }
    }
    let mut bed = Bed::new(ALL);
    let outcomes = bed.deliver(&batch);
    assert!(outcomes.iter().all(|outcome| *outcome == Outcome::Delivered));
    let bytes: usize =
        bed.take().iter().flat_map(|one| one.segments(false)).map(|one| one.len()).sum();
    assert_eq!(bytes, batch.frames.iter().map(|frame| frame.len as usize).sum::<usize>());
}

#[test]
fn small_segments_stay_as_they_are() {
    for (len, merged) in [(63, 0), (64, 1)] {
        let row = Segment::row(Segment::first(1, len), 3, len);
        assert_eq!(arrived(&mut Bed::new(ALL), &Batch::of(&row)).1, merged, "{len}");
    }
}

#[test]
fn frames_in_their_receivers_buffers_stay_as_they_are() {
    let mut batch = Batch::of(&Segment::row(Segment::first(1, LEN), 2, LEN));
    batch.frames[1].lent =
        Lent { lender: 1, tokens: [3].into_iter().collect(), has_header: true, offset: 0 };
    assert_eq!(arrived(&mut Bed::new(ALL), &batch).1, 0);
}

#[test]
fn a_frame_whose_checksum_cannot_be_read_is_not_merged() {
    let row = Segment::row(Segment::first(1, LEN), 2, LEN);
    let batch = Batch::of(&row);
    let mut offers: Vec<_> = batch.frames.iter().map(Offer::new).collect();
    let mut bed = Bed::new(ALL);
    // As of memory that this domain does not map.
    let none: Arc<[Region]> = Arc::new([]);
    bed.egress.deliver(Body::Regions(&none), &mut offers, Duration::ZERO).unwrap();
    assert!(offers.iter().all(|offer| offer.outcome == Outcome::SourceFault));
    assert_eq!(bed.counters.counts().frames, 0);
}

/// A frame without room is offered again and again: each time, its sender would have the worker sum 64 KiB.
#[test]
fn a_payload_is_summed_once_however_often_it_is_offered() {
    let mut row = Segment::row(Segment::first(1, LEN), 3, LEN);
    row[2].damage = Some(200);
    let batch = Batch::of(&row);
    let mut offers: Vec<_> = batch.frames.iter().map(Offer::new).collect();
    let mut bed = Bed::answering(ALL, |_| Outcome::Waiting);
    let mut deliver = |bed: &mut Bed| {
        offers.iter_mut().for_each(|offer| offer.outcome = Outcome::Waiting);
        bed.egress.deliver(Body::Regions(&batch.regions), &mut offers, Duration::ZERO).unwrap();
        offers.iter().map(|offer| offer.is_right).collect::<Vec<_>>()
    };
    let known = [Some(true), Some(true), Some(false)];
    assert_eq!(deliver(&mut bed), known);
    // Summing again would find other bytes.
    batch.regions[0].zero(0, batch.regions[0].len()).unwrap();
    let mut bed = Bed::new(ALL);
    assert_eq!(deliver(&mut bed), known);
    let lens: Vec<_> = bed.take().iter().map(|one| one.bytes.len()).collect();
    assert_eq!(lens, [66 + 2 * LEN, 66 + LEN]);
}

#[test]
fn all_segments_share_what_becomes_of_their_frame() {
    let row = Segment::row(Segment::first(1, LEN), 3, LEN);
    let other = Segment::first(2, LEN);
    let batch = Batch::of(&[row[0].clone(), other, row[1].clone(), row[2].clone()]);
    let dropped = Outcome::Dropped(DropReason::Stalled);
    for outcome in [dropped, Outcome::Waiting, Outcome::SourceFault] {
        let mut bed =
            Bed::answering(ALL, move |n| if n == 0 { outcome } else { Outcome::Delivered });
        let next = if outcome == Outcome::Waiting { outcome } else { Outcome::Delivered };
        assert_eq!(bed.deliver(&batch), [outcome, next, outcome, outcome]);
        assert_eq!(bed.counters.counts().frames, 0);
    }
}

#[test]
fn segments_whose_frame_is_too_large_go_one_by_one() {
    let row = Segment::row(Segment::first(1, LEN), 3, LEN);
    let batch =
        Batch::of(&[row[0].clone(), Segment::first(2, LEN), row[1].clone(), row[2].clone()]);
    let too_large = Outcome::Dropped(DropReason::TooLarge);
    let mut bed = Bed::answering(ALL, move |n| if n == 0 { too_large } else { Outcome::Delivered });
    assert_eq!(bed.deliver(&batch), [Outcome::Delivered; 4]);
    assert_eq!(bed.take().len(), 4);
    assert_eq!(bed.counters.counts().frames, 0);
}

#[test]
fn a_frame_that_is_sent_in_parts_sends_nothing_twice() {
    let row = Segment::row(Segment::first(1, LEN), 2, LEN);
    let other = Segment::first(2, LEN);
    let batch = Batch::of(&[row[0].clone(), other, row[1].clone()]);
    let parts = |n| if n == 1 { Outcome::Partial { segments: 1 } } else { Outcome::Delivered };
    let mut bed = Bed::answering(ALL, parts);
    assert_eq!(bed.deliver(&batch), [Outcome::Delivered; 3]);
    assert_eq!(bed.take().len(), 2);
}

/// A port that takes merged frames may begin to cut them between two checks of what it takes, as netback does for an XDP program.
#[test]
fn a_merged_frame_of_which_a_part_was_sent_leaves_the_rest_to_its_own_frames() {
    let row = Segment::row(Segment::first(1, LEN), 4, LEN);
    let other = Segment::first(2, LEN);
    let batch = Batch::of(&[row[0].clone(), row[1].clone(), other, row[2].clone(), row[3].clone()]);
    let (delivered, waits) = (Outcome::Delivered, Outcome::Waiting);
    for (parts, expected) in [
        (vec![Outcome::Partial { segments: 1 }, waits], [delivered, waits, waits, waits, waits]),
        (
            vec![Outcome::Partial { segments: 1 }, Outcome::Partial { segments: 3 }, waits],
            [delivered, delivered, waits, delivered, waits],
        ),
        (
            vec![Outcome::Partial { segments: 2 }, Outcome::Dropped(DropReason::Stalled), waits],
            [
                delivered,
                delivered,
                waits,
                Outcome::Dropped(DropReason::Stalled),
                Outcome::Dropped(DropReason::Stalled),
            ],
        ),
    ] {
        let mut bed = Bed::answering(ALL, move |n| parts[n]);
        assert_eq!(bed.deliver(&batch), expected);
    }
}

/// A port whose features a test changes.
struct Changing(Box<dyn Egress>, Arc<AtomicBool>);

impl Egress for Changing {
    fn deliver(
        &mut self,
        body: Body<'_>,
        offers: &mut [Offer<'_>],
        now: Duration,
    ) -> Result<(), Broken> {
        self.0.deliver(body, offers, now)
    }

    fn merging(&self) -> Option<Merging> {
        let features = if self.1.load(Relaxed) { Features::NONE } else { Features::ALL };
        Some(Merging { features, ..ALL })
    }
}

#[test]
fn nothing_is_merged_for_a_port_that_takes_it_no_more() {
    let batch = Batch::of(&Segment::row(Segment::first(1, LEN), 3, LEN));
    let has_program = Arc::<AtomicBool>::default();
    let bed = Bed::new(ALL);
    let bare = gro::GroLayer(None).strip_egress(bed.egress);
    let port = Box::new(Changing(bare, has_program.clone()));
    let mut bed = Bed { egress: gro::merge(port, &bed.counters), ..bed };
    for (now, frames) in [(false, 1), (true, 3), (false, 1)] {
        has_program.store(now, Relaxed);
        assert_eq!(arrived(&mut bed, &batch).0.len(), frames);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever the bytes are, all frames arrive.
    #[test]
    fn bytes_that_mean_nothing_arrive_too(
        mut frames in prop::collection::vec(prop::collection::vec(any::<u8>(), 60..200), 2..10),
        kind in prop::sample::select(vec![Checksum::Unknown, Checksum::Partial, Checksum::Validated]),
    ) {
        for bytes in &mut frames {
            bytes[12..15].copy_from_slice(&[8, 0, 0x45]);
            bytes[23] = 6;
        }
        let frames: Vec<_> = frames.into_iter().map(|bytes| (bytes, kind)).collect();
        if let Some(batch) = Batch::new(&frames) {
            let mut bed = Bed::new(ALL);
            bed.deliver(&batch);
            let arrived = bed.take();
            prop_assert_eq!(arrived.len(), frames.len());
        }
    }
}
