//! Every way to a frame's bytes gives the same bytes, wherever they lie.

use std::ops::Range;
use std::sync::Arc;

use crate::common::{At, Pages, Sender, fragments, granted, mapped, noise};
use frame::{
    Body, Bounce, Fragment, Frame, Gather, Linear, Memory, Offset, Outcome, Place, ScatterList,
    WINDOW, linearise,
};
use hypervisor::{GrantRef, GrantedMemory, MappedGrants, MappedPages, PAGE_SIZE, Source};
use proptest::prelude::*;
use shm::Region;

/// The bytes of each run that a cursor gives, at most `places[n]` of them in the n-th.
fn gathered(frame: &Frame, memory: &Memory<'_, Pages>, places: &[u16]) -> Option<Vec<u8>> {
    let mut gather = Gather::new(frame, memory);
    let (mut bytes, mut places) = (Vec::new(), places.iter().cycle());
    while let Some((source, len)) = gather.next(*places.next()?) {
        assert!(len > 0);
        let mut run = vec![0; len.into()];
        match source {
            Source::Private(private) => run.copy_from_slice(private.get(..len.into())?),
            Source::Mapped { region, offset } => region.copy_out(offset, &mut run).ok()?,
            Source::Grant { peer, gref, offset } => {
                let bytes = hypervisor::Granted { gref, offset, mapped: None };
                peer.0.copy_out(peer.find(bytes, run.len())?, &mut run).ok()?;
            }
            Source::MappedGrant { .. } => {
                let (region, offset) = source.mapped()?;
                region.copy_out(offset, &mut run).ok()?;
            }
        }
        bytes.extend(run);
    }
    Some(bytes)
}

/// The bytes that a device finds.
fn scattered<'a>(iovecs: impl Iterator<Item = shm::Iovec<'a>>) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    for iovec in iovecs {
        match iovec {
            shm::Iovec::Private(private) => bytes.extend(private),
            shm::Iovec::Shared { region, offset, len } => {
                let mut part = vec![0; len];
                region.copy_out(offset, &mut part).ok()?;
                bytes.extend(part);
            }
        }
    }
    Some(bytes)
}

/// Gathers by the memory as its own platform reaches it.
fn gathered_from(frame: &Frame, sender: &Sender, places: &[u16]) -> Option<Vec<u8>> {
    match sender {
        Sender::Mapped(regions) => gathered(frame, &Memory::Regions(regions), places),
        Sender::Granted(memory) => {
            let any: &dyn std::any::Any = &**memory;
            let peer: &Pages = any.downcast_ref().unwrap();
            gathered(frame, &Memory::Granted { peer, mapped: None }, places)
        }
    }
}

/// What each way makes of a frame: none where it refuses.
fn every_way(frame: &Frame, sender: &Sender, places: &[u16]) -> [Option<Vec<u8>>; 4] {
    let body = sender.body();
    let mut whole = vec![0xee; frame.len as usize];
    let linear = linearise(frame, body, &mut whole);
    let mut bounce = Bounce::default();
    let bounced = bounce.copy::<Pages>(frame, body);
    assert!(linear.is_ok() == bounced.is_ok());
    assert!(linear.is_ok() || linear == Err(Outcome::SourceFault));
    [
        linear.ok().map(|_| whole),
        bounced.ok().and_then(|(frame, memory)| gathered(frame, &memory, places)),
        gathered_from(frame, sender, places),
        ScatterList::of(frame, body).and_then(|list| scattered(list.all())),
    ]
}

fn total(places: &[At]) -> usize {
    places.iter().map(|(_, _, len)| len).sum()
}

proptest! {
    #[test]
    fn every_way_gives_the_same_bytes(
        header in 0usize..=128,
        at in fragments(),
        seed in any::<u64>(),
        places in prop::collection::vec(1u16..5000, 1..8),
        range in any::<(prop::sample::Index, prop::sample::Index)>(),
    ) {
        let bytes = noise(header + total(&at), seed);
        let ends = [range.0, range.1].map(|end| end.index(bytes.len() + 1));
        let part: Range<usize> = ends[0].min(ends[1])..ends[0].max(ends[1]);
        for (frame, sender) in [granted(&bytes, header, &at), mapped(&bytes, header, &at)] {
            for way in every_way(&frame, &sender, &places) {
                prop_assert!(way.as_ref() == Some(&bytes));
            }
            let list = ScatterList::of(&frame, sender.body()).unwrap();
            prop_assert_eq!(scattered(list.range(part.clone())).unwrap(), &bytes[part.clone()]);
        }
    }

    /// Also of a frame that was merged from several, in part in private memory, and of its beginning.
    #[test]
    fn every_way_gives_the_same_bytes_of_a_merged_frame(
        header in 1usize..=128,
        at in fragments(),
        first in any::<prop::sample::Index>(),
        private in prop::collection::vec(0usize..=128, 1..8),
        places in prop::collection::vec(1u16..5000, 1..8),
        range in any::<(prop::sample::Index, prop::sample::Index)>(),
    ) {
        let bytes = noise(header + total(&at), 9);
        let first = first.index(at.len() + 1);
        for (frame, sender) in [granted(&bytes, header, &at), mapped(&bytes, header, &at)] {
            let (mut merged, mut one) = (Frame::empty(), frame.clone());
            let rest: Vec<_> = one.fragments.drain(first..).collect();
            let mut end = header + total(&at[..first]);
            one.len = u32::try_from(end).unwrap();
            merged.begin_merge(&one);
            let mut expected = bytes[..end].to_vec();
            for (n, fragment) in rest.into_iter().enumerate() {
                let own = noise(private[n % private.len()], n as u64);
                let mut other = Frame::empty();
                // Its headers are left out.
                other.headers.payload_offset = u8::try_from(own.len() / 3).unwrap();
                other.bytes[..own.len()].copy_from_slice(&own);
                other.header_len = u8::try_from(own.len()).unwrap();
                other.len = u32::from(fragment.len) + u32::from(other.header_len);
                other.fragments.push(fragment);
                prop_assert!(merged.append(&other));
                expected.extend(&own[own.len() / 3..]);
                expected.extend(&bytes[end..end + usize::from(fragment.len)]);
                end += usize::from(fragment.len);
            }
            let ends = [range.0, range.1].map(|end| end.index(expected.len() + 1));
            let part = ends[0].min(ends[1])..ends[0].max(ends[1]);
            let list = ScatterList::of(&merged, sender.body()).unwrap();
            prop_assert_eq!(scattered(list.range(part.clone())).unwrap(), &expected[part.clone()]);
            drop(list);
            for way in every_way(&merged, &sender, &places) {
                prop_assert!(way.as_ref() == Some(&expected));
            }
            let left = part.end.max(header);
            merged.truncate(left);
            for way in every_way(&merged, &sender, &places) {
                prop_assert!(way.unwrap() == expected[..left]);
            }
        }
    }

    /// One fragment that cannot be read spoils the frame, for every way alike.
    #[test]
    fn what_one_way_refuses_all_refuse(
        header in 0usize..=128,
        at in fragments(),
        which in any::<prop::sample::Index>(),
        fault in 0..3,
    ) {
        prop_assume!(total(&at) > 0);
        let bytes = noise(header + total(&at), 1);
        for (mut frame, sender) in [granted(&bytes, header, &at), mapped(&bytes, header, &at)] {
            let filled: Vec<_> = (0..at.len()).filter(|n| at[*n].2 > 0).collect();
            let Fragment { place, len } = &mut frame.fragments[filled[which.index(filled.len())]];
            match (place, fault) {
                (Place::Grant(granted), 0) => granted.gref = GrantRef(7),
                // One byte beyond the page.
                (Place::Grant(granted), 1) => granted.offset = 4097 - *len,
                (place @ Place::Grant(_), _) => *place = Place::Region { index: 0, offset: Offset::new(0) },
                (Place::Region { index, .. }, 0) => *index = 2,
                (Place::Region { offset, .. }, 1) => *offset = Offset::new(u64::MAX - 5),
                (Place::Region { offset, .. }, _) => {
                    let end = (crate::common::PAGES * PAGE_SIZE) as u64;
                    *offset = Offset::new(end + 1 - u64::from(*len));
                }
            }
            for way in every_way(&frame, &sender, &[4096]) {
                prop_assert!(way.is_none());
            }
        }
    }

    /// A page that is mapped as well is read where it is mapped, as long as it is the same page.
    #[test]
    fn a_mapped_grant_is_read_where_it_is_mapped(
        at in fragments(),
        stale in any::<bool>(),
    ) {
        let bytes = noise(total(&at), 3);
        let (mut frame, sender) = granted(&bytes, 0, &at);
        let Sender::Granted(memory) = &sender else { unreachable!() };
        let any: &dyn std::any::Any = &**memory;
        let peer: &Pages = any.downcast_ref().unwrap();
        // The same bytes at places in the opposite order.
        let region = Region::anonymous(crate::common::PAGES * PAGE_SIZE).unwrap();
        let mut grefs = vec![None; crate::common::PAGES];
        for fragment in &mut frame.fragments {
            let Place::Grant(granted) = &mut fragment.place else { unreachable!() };
            let page = peer.find(hypervisor::Granted { offset: 0, ..*granted }, 1).unwrap();
            let place = crate::common::PAGES - 1 - page / PAGE_SIZE;
            Region::copy_between(&peer.0, page, &region, place * PAGE_SIZE, PAGE_SIZE).unwrap();
            granted.mapped = hypervisor::MappedAt::new(u16::try_from(place).unwrap());
            grefs[place] = if stale { Some(GrantRef(7)) } else { Some(granted.gref) };
        }
        let mapped = Some(MappedGrants { peer, pages: MappedPages { region: &region, grefs: &grefs, frames: None } });
        if !stale {
            // Then nobody looks there.
            peer.0.zero(0, peer.0.len()).unwrap();
        }
        let memory = Memory::Granted { peer, mapped };
        prop_assert!(gathered(&frame, &memory, &[1500]) == Some(bytes));
    }
}

#[test]
fn a_frame_of_another_length_than_its_fragments_is_refused() {
    let at = [(0, 0, 100), (1, 0, 100)];
    let bytes = noise(328, 5);
    for (mut frame, sender) in [granted(&bytes, 128, &at), mapped(&bytes, 128, &at)] {
        let body = sender.body();
        // Else the bytes behind them would be another frame's, or theirs would overwrite another frame's.
        for len in [329, 327, 228, 128] {
            frame.len = len;
            let mut whole = vec![0; len as usize];
            assert_eq!(linearise(&frame, body, &mut whole), Err(Outcome::SourceFault));
            let mut bounce = Bounce::default();
            assert!(bounce.copy::<Pages>(&frame, body).is_err());
        }
    }
}

#[test]
fn fragments_of_another_kind_of_memory_are_refused() {
    let at = [(0, 0, 100)];
    let bytes = noise(228, 5);
    let (in_pages, pages) = granted(&bytes, 128, &at);
    let (in_regions, regions) = mapped(&bytes, 128, &at);
    for (frame, sender) in [(&in_pages, &regions), (&in_regions, &pages)] {
        for way in every_way(frame, sender, &[4096]) {
            assert_eq!(way, None);
        }
    }
    let no_regions: Arc<[Region]> = Arc::new([]);
    assert!(ScatterList::of(&in_regions, Body::Regions(&no_regions)).is_none());
    let memory: Arc<dyn GrantedMemory> = Arc::new(Pages(Region::anonymous(PAGE_SIZE).unwrap()));
    assert!(
        ScatterList::of(&in_regions, Body::Granted { memory: &memory, mapped: None }).is_none()
    );
}

/// The frames in `linear`, in order.
fn taken(linear: &mut Linear) -> Vec<Vec<u8>> {
    std::iter::from_fn(|| linear.take().map(bytes_of)).collect()
}

fn bytes_of(iovec: shm::Iovec<'_>) -> Vec<u8> {
    match iovec {
        shm::Iovec::Private(bytes) => bytes.to_vec(),
        shm::Iovec::Shared { region, offset, len } => {
            let mut bytes = vec![0; len];
            region.copy_out(offset, &mut bytes).unwrap();
            bytes
        }
    }
}

proptest! {
    /// Frames that are copied together are what they are alone: as many as there is room for, in order.
    #[test]
    fn frames_in_a_batch_are_whole(
        frames in prop::collection::vec((0usize..=128, fragments(), any::<u64>()), 1..12),
        again in any::<bool>(),
    ) {
        let mut linear = Linear::default();
        for (header, at, seed) in frames {
            let bytes = noise(header + total(&at), seed);
            for (frame, sender) in [granted(&bytes, header, &at), mapped(&bytes, header, &at)] {
                let count = if again { 5 } else { 2 * WINDOW };
                let own = linear.fill(std::iter::repeat_n(&frame, count), sender.body());
                let copies = taken(&mut linear);
                prop_assert!(linear.is_empty());
                prop_assert!(!copies.is_empty() && copies.len() <= count.min(WINDOW));
                // Two of the longest frames fit.
                prop_assert!(copies.len() >= 2 && copies.iter().all(|copy| *copy == bytes));
                let private = match sender {
                    Sender::Granted(_) => header,
                    Sender::Mapped(_) => bytes.len(),
                };
                prop_assert_eq!(own, (private * copies.len()) as u64);
            }
        }
    }
}

/// What is put before a frame stays before it, also where the frame begins with its page; and frames can be checked before they are taken.
#[test]
fn frames_lie_behind_their_metadata() {
    let mut linear = Linear::default();
    for (header, offset) in [(0, 0), (0, 4095), (100, 0), (128, 128), (14, 10)] {
        let bytes = noise(header + 1, 3);
        let (frame, sender) = granted(&bytes, header, &[(0, offset, 1)]);
        let before = |frame: &Frame| frame.len.to_le_bytes();
        let expected = [&frame.len.to_le_bytes(), &bytes[..]].concat();
        linear.fill_behind([&frame; 3].into_iter(), sender.body(), before);
        assert!(linear.rest().map(bytes_of).eq([&expected[..]; 3]));
        linear.skip(2);
        assert_eq!(taken(&mut linear), [expected]);
        linear.skip(1);
        assert!(linear.is_empty());
    }
}

/// Nothing of an earlier batch, or of the frames beside it, comes in place of a frame that cannot be read.
#[test]
fn a_batch_with_a_frame_that_cannot_be_read_is_none() {
    let bytes = noise(3000, 1);
    let (good, sender) = granted(&bytes, 100, &[(0, 0, 2900)]);
    let mut bad = good.clone();
    bad.fragments[0] =
        Fragment::granted(hypervisor::Granted { gref: GrantRef(1), offset: 0, mapped: None }, 2900);
    let mut linear = Linear::default();
    linear.fill([&good, &good].into_iter(), sender.body());
    assert_eq!(taken(&mut linear), [bytes.clone(), bytes.clone()]);
    linear.fill([&good, &bad, &good].into_iter(), sender.body());
    assert!(taken(&mut linear).is_empty());
    // Fragments that are not of the sender's kind end the batch before that frame.
    bad.fragments[0] = Fragment::in_region(0, 0, 2900);
    linear.fill([&good, &bad].into_iter(), sender.body());
    assert_eq!(taken(&mut linear), [bytes]);
}
