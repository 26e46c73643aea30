//! Frames that are read or written by one call.

use std::io;
use std::time::Duration;

use hypervisor::{GrantRef, Granted};
use offload::{Checksum, Features, Gso, GsoKind, vnet};
use port::{Body, Budget, DropReason, Fragment, Frame, Ingress, Outcome, Received, WINDOW};
use rustix::fs::inotify;
use wire::headers::Headers;

use super::egress::{Sender, finish, tso};
use super::network::{in_own_network, ip};
use super::*;
use crate::tap::{Tap, TapOffload};
use crate::{TapEgress, open_rings};

const FEATURES: [Features; 3] = [
    Features::NONE,
    Features { csum_v4: true, csum_v6: true, sg: true, ..Features::NONE },
    Features::ALL,
];

/// Whether there are rings from here on: not where the kernel or a filter forbids them.
fn with_rings() -> bool {
    match open_rings(4) {
        Ok(()) => true,
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EPERM)) => false,
        Err(error) => panic!("{error}"),
    }
}

/// Offers frames, `at_once` in a call. Returns what becomes of them, and what comes out of the other side.
fn carry(
    features: Features,
    body: Body<'_>,
    frames: &[&Frame],
    at_once: usize,
) -> (Vec<Outcome>, Vec<Vec<u8>>) {
    let (tap, behind) = tap();
    let mut egress = TapEgress::new(platform().meter().clone(), tap, features);
    let (mut outcomes, mut seen) = (Vec::new(), Vec::new());
    for frames in frames.chunks(at_once) {
        outcomes.extend(deliver(&mut egress, body, frames, Duration::ZERO));
        seen.extend(std::iter::from_fn(|| receive(&behind)).map(finish));
    }
    (outcomes, seen)
}

#[test]
fn frames_that_are_written_together_are_as_if_each_were_written_alone() {
    if !with_rings() {
        return;
    }
    let (platform, long, short) = (platform(), tcp(7000), tcp(10));
    let (of_long, of_short) = (Sender::new(&platform, &long), Sender::new(&platform, &short));
    let to_cut = of_long.frame(&long, Some(tso()));
    let whole = of_long.frame(&long, None);
    let all_header = of_short.frame(&short, None);
    let mut unreadable = whole.clone();
    let nobodys = Granted { gref: GrantRef(u32::MAX), offset: 0, mapped: None };
    unreadable.fragments[0] = Fragment::granted(nobodys, unreadable.fragments[0].len);
    let impossible = of_long.frame(&long, Some(Gso { kind: GsoKind::TcpV6, size: 1448 }));
    let (w, s, c) = (&whole, &all_header, &to_cut);
    for frames in [
        &[w, w][..],
        &[s, s, s],
        &[s, w, s, w, w, s],
        &[w, s, c, s, w],
        &[c, s, s, c, c, w, w, s],
        &[w, &unreadable, w, s, s, &unreadable, s, w],
        &[s, &impossible, s, w, w, &impossible],
        &[s; WINDOW],
        &[w; 20],
    ] {
        for features in FEATURES {
            let body = of_long.granted_body();
            let alone = carry(features, body, frames, 1);
            assert!(carry(features, body, frames, WINDOW) == alone, "{features:?}");
            assert!(alone.0.contains(&Outcome::Delivered));
        }
    }
}

#[test]
fn of_frames_that_are_written_together_those_without_room_are_dropped() {
    if !with_rings() {
        return;
    }
    let (platform, bytes) = (platform(), tcp(7000));
    let sender = Sender::new(&platform, &bytes);
    let frame = sender.frame(&bytes, None);
    let (tap, behind) = tap();
    rustix::net::sockopt::set_socket_send_buffer_size(&*tap, 40_000).unwrap();
    let mut egress = TapEgress::new(platform.meter().clone(), tap, Features::ALL);
    let body = sender.granted_body();
    let outcomes = deliver(&mut egress, body, &[&frame; WINDOW], Duration::ZERO);
    let sent = std::iter::from_fn(|| receive(&behind)).count();
    assert!((1..WINDOW).contains(&sent), "{sent}");
    let (delivered, dropped) = outcomes.split_at(sent);
    assert!(delivered.iter().all(|outcome| *outcome == Outcome::Delivered));
    assert!(dropped.iter().all(|outcome| *outcome == Outcome::Dropped(DropReason::NoRoom)));
}

/// Real taps take them, and say what they do not take.
#[test]
fn a_tap_takes_frames_that_are_written_together() {
    in_own_network(|| {
        if !with_rings() {
            return;
        }
        let tap = Arc::new(Tap::open("together", 1, TapOffload::NONE).unwrap().remove(0));
        let (platform, short, long) = (platform(), tcp(10), tcp(1400));
        let sender = Sender::new(&platform, &long);
        let (s, l) = (sender.frame(&short, None), sender.frame(&long, None));
        let mut egress = TapEgress::new(platform.meter().clone(), tap, Features::ALL);
        let mut carry =
            |frames: &[&Frame]| deliver(&mut egress, sender.granted_body(), frames, Duration::ZERO);
        // EIO: it is down.
        assert_eq!(carry(&[&s, &l]), [Outcome::Dropped(DropReason::PortGone); 2]);
        ip("link set together up");
        assert_eq!(carry(&[&s, &l, &s, &l, &l]), [Outcome::Delivered; 5]);
        let counted = |what| {
            let path = format!("/sys/class/net/together/statistics/{what}");
            std::fs::read_to_string(path).map_err(io::Error::other)
        };
        // The namespace of /sys is that of its mount.
        if let Ok(packets) = counted("rx_packets") {
            assert_eq!(packets.trim(), "5");
        }
    });
}

/// A turn reads one frame more than the turn before had by one call, and then as many again, whole or not.
#[test]
fn frames_that_are_read_together_are_those_that_were_sent() {
    if !with_rings() {
        return;
    }
    let (tap, behind) = tap();
    let mut ingress = reader(tap);
    // A frame of one byte is none.
    let headers = Headers::parse(&tcp(10)).unwrap();
    let metadata = || vnet::encode(&headers, Checksum::Unknown, None);
    for sizes in [&[7000, 1][..], &[10; 9], &[1400, 60, 1, 7000, 1, 10], &[10], &[60, 1, 7000, 60]]
    {
        let frames: Vec<_> = sizes.iter().map(|size| tcp(*size)).collect();
        for (frame, size) in frames.iter().zip(sizes) {
            let bytes = if *size == 1 { &frame[..1] } else { &frame[..] };
            send(&behind, metadata(), bytes);
        }
        let mut received = Received::default();
        ingress.receive(&mut Budget::default(), &mut received).unwrap();
        let sound = frames.iter().zip(sizes).filter(|(_, size)| **size != 1);
        let sound: Vec<_> = sound.map(|(frame, _)| frame.clone()).collect();
        assert_eq!(received.fresh, sound.len(), "{sizes:?}");
        assert_eq!(usize::try_from(received.malformed).unwrap(), sizes.len() - sound.len());
        assert!(ingress.is_drained());
        let window = ingress.window();
        let seen = window.order().iter().map(|slot| whole(&ingress, window.frame(*slot)));
        assert!(seen.eq(sound));
        ingress.finish(&[Outcome::Delivered; WINDOW]);
    }
    // What a budget leaves in the tap is not the end, and no budget is exceeded by more than a frame.
    let mut take = |mut budget: Budget, packets: u64| {
        for _ in 0..4 {
            send(&behind, metadata(), &tcp(10));
        }
        let mut received = Received::default();
        budget.within(u64::MAX, packets, |part| ingress.receive(part, &mut received)).unwrap();
        let taken = (received.fresh, ingress.is_drained());
        ingress.receive(&mut Budget::default(), &mut received).unwrap();
        ingress.finish(&[Outcome::Delivered; WINDOW]);
        taken
    };
    assert_eq!(take(Budget::default(), u64::MAX), (4, true));
    assert_eq!(take(Budget::new(2 * Budget::SYSTEM_CALL, u64::MAX), u64::MAX), (2, false));
    assert_eq!(take(Budget::new(256, 100), u64::MAX), (2, false));
    assert_eq!(take(Budget::default(), 1), (1, false));
}

/// Linux 6.1 cannot read taps so, and no kernel such a device. Asked again and again, it held a worker for ever.
#[test]
fn a_device_that_rings_cannot_read_is_read_by_itself() {
    if !with_rings() {
        return;
    }
    let (said, hears) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let device = inotify::init(inotify::CreateFlags::NONBLOCK).unwrap();
        let mut ingress = reader(Arc::new(TapQueue::of_socket(device, "none")));
        let mut received = Received::default();
        ingress.receive(&mut Budget::default(), &mut received).unwrap();
        said.send((received.fresh, ingress.is_drained())).unwrap();
    });
    assert_eq!(hears.recv_timeout(Duration::from_secs(30)), Ok((0, true)));
}
