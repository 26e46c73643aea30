//! What is written to a device, depending on its features.

use std::time::Duration;

use hypervisor::{GrantRef, Granted, GrantedMemory, Guest, Hypervisor, PAGE_SIZE, PeerMemory};
use machine::{DRIVER_DOMAIN, MachineGuest, MemorySize, SharedPages};
use offload::{Checksum, Features, Gso, GsoKind};
use port::{
    Body, DropReason, Egress, FRAME_MAX, Fragment, Frame, Offer, Outcome, Place, SEGMENTS_MAX,
    WINDOW,
};
use shm::Region;
use wire::virtio_net::{flags, gso};

use super::*;
use crate::TapEgress;

const PAYLOAD: usize = 8000;
const MSS: u16 = 1448;
const SEGMENTS: u64 = 6;

const CSUM: Features = Features { csum_v4: true, csum_v6: true, ..Features::NONE };
const SG: Features = Features { sg: true, ..Features::NONE };
const CSUM_SG: Features = Features { sg: true, ..CSUM };

/// A guest with a frame in its memory, a page or less of it in each of three grants.
pub(super) struct Sender {
    memory: Arc<dyn GrantedMemory>,
    /// The same bytes in memory of this domain.
    pub(super) regions: Arc<[Region]>,
    grants: Vec<GrantRef>,
    _pages: SharedPages,
    _inside: MachineGuest,
}

impl Sender {
    pub(super) fn new(platform: &Platform, bytes: &[u8]) -> Self {
        let domain = platform.create(MemorySize::default()).unwrap();
        let inside = MachineGuest::inside(platform, &domain).unwrap();
        let (pages, grants) = inside.share(DRIVER_DOMAIN, 3).unwrap();
        pages.copy_in(0, &bytes[HEADER_MAX.min(bytes.len())..]).unwrap();
        let region = Region::anonymous(3 * PAGE_SIZE).unwrap();
        region.copy_in(0, &bytes[HEADER_MAX.min(bytes.len())..]).unwrap();
        let (hypervisor, peer) = (platform.clone(), platform.peer(domain.id()).unwrap());
        let memory = Arc::new(PeerMemory { hypervisor, peer });
        Self { memory, regions: [region].into(), grants, _pages: pages, _inside: inside }
    }

    /// The frame, its body as grants or (for the driver domain) as a range of its mapping.
    pub(super) fn frame(&self, bytes: &[u8], gso: Option<Gso>) -> Frame {
        let mut frame = Frame { checksum: Checksum::Partial, gso, ..port_testing::frame(bytes) };
        let chunks = bytes[frame.header().len()..].chunks(PAGE_SIZE);
        for (gref, chunk) in self.grants.iter().zip(chunks) {
            let len = u16::try_from(chunk.len()).unwrap();
            let granted = Granted { gref: *gref, offset: 0, mapped: None };
            frame.fragments.push(Fragment::granted(granted, len));
        }
        frame
    }

    /// The same for a body in mapped memory.
    pub(super) fn mapped(&self, bytes: &[u8], gso: Option<Gso>) -> Frame {
        let mut frame = self.frame(bytes, gso);
        for (page, fragment) in frame.fragments.iter_mut().enumerate() {
            *fragment = Fragment::in_region(0, (page * PAGE_SIZE) as u64, fragment.len);
        }
        frame
    }

    pub(super) fn granted_body(&self) -> Body<'_> {
        Body::Granted { memory: &self.memory, mapped: None }
    }
}

fn send_one(
    platform: &Platform,
    features: Features,
    body: Body<'_>,
    frame: &Frame,
) -> (Outcome, Vec<(VirtioNetHdr, Vec<u8>)>) {
    let (tap, behind) = tap();
    let mut egress = TapEgress::new(platform.meter().clone(), tap, features);
    let outcome = offer(&mut egress, body, frame, Duration::ZERO).unwrap();
    (outcome, std::iter::from_fn(|| receive(&behind)).collect())
}

pub(super) fn tso() -> Gso {
    Gso { kind: GsoKind::TcpV4, size: MSS }
}

/// Does what metadata asks the device for, as a NIC: sums.
pub(super) fn finish((metadata, mut frame): (VirtioNetHdr, Vec<u8>)) -> Vec<u8> {
    if metadata.flags & flags::NEEDS_CSUM != 0 {
        let start = usize::from(metadata.csum_start.get());
        let field = start + usize::from(metadata.csum_offset.get());
        let sum = wire::checksum::Sum::of(&frame[start..]).finish();
        frame[field..field + 2].copy_from_slice(&sum.to_be_bytes());
    }
    frame
}

/// A frame beyond the MTU from a guest's pages: the counts are of copied bytes, those copied
/// here, pages that a device fetched from, and segments.
#[test]
fn what_a_device_lacks_is_done_in_software() {
    use Counted::{CopiedBytes, DmaMaps, DriverBytes, Segments};
    let bytes = tcp(PAYLOAD);
    let (len, header) = (bytes.len() as u64, HEADER_MAX as u64);
    for (features, granted, mapped) in [
        (Features::NONE, [len - header, header, 0, SEGMENTS], [0, len, 0, SEGMENTS]),
        (CSUM, [len - header, header, 0, SEGMENTS], [0, len, 0, SEGMENTS]),
        (SG, [len - header, header, 0, SEGMENTS], [0, len, 0, SEGMENTS]),
        (CSUM_SG, [0, 0, 2, SEGMENTS], [0, 0, 0, SEGMENTS]),
        (Features::ALL, [0, 0, 2, 0], [0, 0, 0, 0]),
    ] {
        for is_mapped in [false, true] {
            let platform = platform();
            let sender = Sender::new(&platform, &bytes);
            let (frame, body) = match is_mapped {
                true => (sender.mapped(&bytes, Some(tso())), Body::Regions(&sender.regions)),
                false => (sender.frame(&bytes, Some(tso())), sender.granted_body()),
            };
            let (outcome, sent) = send_one(&platform, features, body, &frame);
            assert_eq!(outcome, Outcome::Delivered, "{features:?}");
            let seen = counts(&platform, [CopiedBytes, DriverBytes, DmaMaps, Segments]);
            assert_eq!(seen, if is_mapped { mapped } else { granted }, "{features:?}");
            check_sent(features, &bytes, sent);
        }
    }
}

fn check_sent(features: Features, bytes: &[u8], sent: Vec<(VirtioNetHdr, Vec<u8>)>) {
    for (metadata, _) in &sent {
        let asks_for_sum = metadata.flags == flags::NEEDS_CSUM;
        assert_eq!(asks_for_sum, features.csum_v4, "{features:?}: {metadata:?}");
        let asks_for_cut = metadata.gso_type == gso::TCPV4;
        assert_eq!(asks_for_cut, features.tso_v4, "{features:?}: {metadata:?}");
    }
    if features.tso_v4 {
        assert_eq!(sent[0].1, bytes);
        assert_eq!((sent.len(), sent[0].0.gso_size.get()), (1, MSS));
    } else {
        let finished: Vec<_> = sent.into_iter().map(finish).collect();
        assert_eq!(finished, segments(bytes, tso()), "{features:?}");
    }
}

#[test]
fn a_frame_of_the_mtu_is_summed_or_gathered_where_the_device_does_not() {
    use Counted::{CopiedBytes, DmaMaps, DriverBytes, Segments};
    let bytes = tcp(1400);
    let (len, header) = (bytes.len() as u64, HEADER_MAX as u64);
    for (features, expected) in [
        (Features::NONE, [len - header, header, 0, 0]),
        (CSUM, [len - header, header, 0, 0]),
        (CSUM_SG, [0, 0, 1, 0]),
    ] {
        let platform = platform();
        let sender = Sender::new(&platform, &bytes);
        let frame = sender.frame(&bytes, None);
        let body = sender.granted_body();
        let (outcome, mut sent) = send_one(&platform, features, body, &frame);
        assert_eq!((outcome, sent.len()), (Outcome::Delivered, 1), "{features:?}");
        let sent = sent.remove(0);
        assert_eq!(sent.0.flags == flags::NEEDS_CSUM, features.csum_v4);
        assert_eq!(finish(sent), segments(&bytes, tso())[0], "{features:?}");
        let seen = counts(&platform, [CopiedBytes, DriverBytes, DmaMaps, Segments]);
        assert_eq!(seen, expected, "{features:?}");
    }
}

/// Frames that a device cannot gather are fetched together: one batch of copies for many. One that cannot be read stays alone.
#[test]
fn frames_are_copied_in_one_batch() {
    let (platform, bytes) = (platform(), tcp(1400));
    let sender = Sender::new(&platform, &bytes);
    let frame = sender.frame(&bytes, None);
    let mut unreadable = frame.clone();
    let nobodys = Granted { gref: GrantRef(u32::MAX), offset: 0, mapped: None };
    unreadable.fragments[0] = Fragment::granted(nobodys, unreadable.fragments[0].len);
    let (tap, behind) = tap();
    let mut egress = TapEgress::new(platform.meter().clone(), tap, CSUM);
    let mut carry = |frames: &[&Frame]| {
        let before = counts(&platform, [Counted::CopyBatches])[0];
        let outcomes = deliver(&mut egress, sender.granted_body(), frames, Duration::ZERO);
        let sent: Vec<_> = std::iter::from_fn(|| receive(&behind)).map(finish).collect();
        assert!(sent.iter().all(|sent| *sent == segments(&bytes, tso())[0]));
        (outcomes, sent.len(), counts(&platform, [Counted::CopyBatches])[0] - before)
    };
    assert_eq!(carry(&[&frame; 8]), (vec![Outcome::Delivered; 8], 8, 1));
    let (outcomes, sent, _) = carry(&[&frame, &unreadable, &frame]);
    assert_eq!(outcomes, [Outcome::Delivered, Outcome::SourceFault, Outcome::Delivered]);
    assert_eq!(sent, 2);
}

/// Segments that one call sends at most.
const PART: u16 = 64;

/// Whether the device sums and gathers or gets contiguous segments, and wherever the body lies.
#[test]
fn a_frame_of_many_segments_is_sent_in_parts() {
    let (size, payload) = (PART, SEGMENTS_MAX * usize::from(PART));
    let frames = [
        (tcp(payload), Gso { kind: GsoKind::TcpV4, size }),
        (tcp_v6(payload), Gso { kind: GsoKind::TcpV6, size }),
    ];
    for (features, (bytes, gso), is_mapped) in [Features::NONE, CSUM, SG, CSUM_SG]
        .into_iter()
        .flat_map(|features| frames.iter().map(move |frame| (features, frame)))
        .flat_map(|(features, frame)| [false, true].map(|is_mapped| (features, frame, is_mapped)))
    {
        let platform = platform();
        let sender = Sender::new(&platform, bytes);
        let (frame, body) = match is_mapped {
            true => (sender.mapped(bytes, Some(*gso)), Body::Regions(&sender.regions)),
            false => (sender.frame(bytes, Some(*gso)), sender.granted_body()),
        };
        let (tap, behind) = tap();
        let mut egress = TapEgress::new(platform.meter().clone(), tap, features);
        let mut sent = Vec::new();
        let mut offers = [Offer::new(&frame), Offer::new(&frame)];
        for (segments, next) in [(PART, Outcome::Waiting), (2 * PART, Outcome::Waiting)] {
            egress.deliver(body, &mut offers, Duration::ZERO).unwrap();
            let outcomes = offers.each_ref().map(|offer| offer.outcome);
            assert_eq!(outcomes, [Outcome::Partial { segments }, next], "{features:?}");
            offers[0].sent = segments;
            sent.extend(std::iter::from_fn(|| receive(&behind)).map(finish));
            assert_eq!(sent.len(), usize::from(segments), "{features:?}");
        }
        egress.deliver(body, &mut offers, Duration::ZERO).unwrap();
        let outcomes = offers.each_ref().map(|offer| offer.outcome);
        let not_begun = Outcome::Partial { segments: 0 };
        assert_eq!(outcomes, [Outcome::Delivered, not_begun], "{features:?}");
        sent.extend(std::iter::from_fn(|| receive(&behind)).map(finish));
        assert!(sent == segments(bytes, *gso), "{features:?}");
        assert_eq!(counts(&platform, [Counted::Segments]), [SEGMENTS_MAX as u64]);
    }
}

#[test]
fn a_call_makes_a_bounded_number_of_system_calls_and_divides_no_frame_that_fits() {
    let (long, short) = (tcp(40 * 100), tcp(10));
    let platform = platform();
    let sender = Sender::new(&platform, &long);
    let to_cut = sender.mapped(&long, Some(Gso { kind: GsoKind::TcpV4, size: 100 }));
    let plain = sender.mapped(&short, None);
    let (tap, behind) = tap();
    let mut egress = TapEgress::new(platform.meter().clone(), tap, CSUM_SG);
    let mut offer = |frames: &[&Frame]| {
        let body = Body::Regions(&sender.regions);
        let outcomes = deliver(&mut egress, body, frames, Duration::ZERO);
        (outcomes, std::iter::from_fn(|| receive(&behind)).count())
    };
    let (outcomes, sent) = offer(&[&plain, &to_cut, &to_cut, &plain]);
    let not_begun = Outcome::Partial { segments: 0 };
    assert_eq!(outcomes[..2], [Outcome::Delivered; 2]);
    assert_eq!((outcomes[2], outcomes[3], sent), (not_begun, Outcome::Waiting, 41));
    // A whole window of frames that are not cut.
    let (outcomes, sent) = offer(&[&plain; WINDOW]);
    assert_eq!((outcomes, sent), (vec![Outcome::Delivered; WINDOW], WINDOW));
}

#[test]
fn a_frame_that_is_all_header_is_not_copied() {
    let bytes = tcp(10);
    for features in [CSUM, CSUM_SG] {
        let platform = platform();
        let sender = Sender::new(&platform, &bytes);
        let frame = sender.frame(&bytes, None);
        let (outcome, sent) = send_one(&platform, features, sender.granted_body(), &frame);
        assert_eq!((outcome, &sent[0].1), (Outcome::Delivered, &bytes));
        let copied = counts(&platform, [Counted::CopiedBytes, Counted::DriverBytes]);
        assert_eq!(copied, [0, 0]);
    }
}

#[test]
fn a_grant_that_permits_nothing_is_the_senders_fault() {
    let bytes = tcp(PAYLOAD);
    for features in [Features::NONE, CSUM, CSUM_SG, Features::ALL] {
        let platform = platform();
        let sender = Sender::new(&platform, &bytes);
        let mut frame = sender.frame(&bytes, Some(tso()));
        let Place::Grant(granted) = &mut frame.fragments[1].place else { panic!() };
        granted.gref = GrantRef(u32::MAX);
        let (outcome, sent) = send_one(&platform, features, sender.granted_body(), &frame);
        assert_eq!((outcome, sent.len()), (Outcome::SourceFault, 0), "{features:?}");
    }
}

#[test]
fn contradictions_and_countless_segments_are_dropped() {
    let bytes = tcp(PAYLOAD);
    let platform = platform();
    let sender = Sender::new(&platform, &bytes);
    for features in [Features::NONE, CSUM_SG] {
        for (gso, reason) in [
            (Gso { kind: GsoKind::TcpV6, size: MSS }, DropReason::Malformed),
            (Gso { kind: GsoKind::TcpV4, size: 8 }, DropReason::TooLarge),
        ] {
            let frame = sender.frame(&bytes, Some(gso));
            let (outcome, _) = send_one(&platform, features, sender.granted_body(), &frame);
            assert_eq!(outcome, Outcome::Dropped(reason), "{features:?}");
        }
    }
    assert_eq!(counts(&platform, [Counted::Segments]), [0]);
}

/// A packet socket takes no frame beyond the interface's MTU (EMSGSIZE). The stand-in takes none beyond its buffer.
#[test]
fn a_frame_that_the_device_finds_too_long_is_dropped_as_such() {
    let bytes = tcp(PAYLOAD);
    let platform = platform();
    let sender = Sender::new(&platform, &bytes);
    let frame = sender.mapped(&bytes, None);
    let (tap, behind) = tap();
    rustix::net::sockopt::set_socket_send_buffer_size(&*tap, 0).unwrap();
    let mut egress = TapEgress::new(platform.meter().clone(), tap, Features::ALL);
    let outcome = offer(&mut egress, Body::Regions(&sender.regions), &frame, Duration::ZERO);
    assert_eq!(outcome, Ok(Outcome::Dropped(DropReason::TooLarge)));
    assert!(receive(&behind).is_none());
}

const SIZE: u16 = 1448;
const HEADER: usize = 54;

#[test]
fn a_frame_of_the_most_segments_is_one_system_call() {
    let platform = platform();
    let count = (FRAME_MAX - HEADER) / usize::from(SIZE);
    let (merged, regions, whole) = port_testing::merged(count, SIZE);
    // In fragments where they lie, and copied whole.
    for features in [Features::ALL, Features { sg: false, ..Features::ALL }] {
        let (tap, behind) = tap();
        let mut egress = TapEgress::new(platform.meter().clone(), tap, features);
        assert_eq!(egress.merging().unwrap().longest, FRAME_MAX);
        let outcome = offer(&mut egress, Body::Regions(&regions), &merged, Duration::ZERO);
        assert_eq!(outcome, Ok(Outcome::Delivered));
        let frames: Vec<_> = std::iter::from_fn(|| receive(&behind)).collect();
        if features.sg {
            let [(metadata, bytes)] = frames.as_slice() else { panic!("{}", frames.len()) };
            assert!(*bytes == whole);
            assert_eq!((metadata.gso_type, metadata.gso_size.get()), (gso::TCPV4, SIZE));
        } else {
            assert_eq!(frames.len(), count, "it is cut again");
            let payloads: Vec<_> = frames.iter().flat_map(|(_, bytes)| &bytes[HEADER..]).collect();
            assert!(payloads.into_iter().eq(&whole[HEADER..]));
        }
    }
}
