//! Unsegmented UDP: to a device that takes it, to one that does not, and from one.

use std::net::UdpSocket;
use std::time::Duration;

use offload::{Checksum, Features, Gso, GsoKind, vnet};
use port::{Body, Budget, Fragment, Frame, Ingress, Outcome, Received};
use shm::Region;
use wire::headers::Headers;
use wire::virtio_net::gso;

use super::network::{LIMIT, in_own_network, ip};
use super::*;
use crate::TapEgress;
use crate::tap::{Tap, TapOffload};

const SIZE: u16 = 1200;
const PAYLOAD: usize = 3000;
const GSO: Gso = Gso { kind: GsoKind::UdpV4, size: SIZE };

/// A frame to be cut, its body in mapped memory.
fn frame(bytes: &[u8]) -> (Frame, Arc<[Region]>) {
    let mut frame =
        Frame { checksum: Checksum::Partial, gso: Some(GSO), ..port_testing::frame(bytes) };
    let region = Region::anonymous(8192).unwrap();
    region.copy_in(0, &bytes[HEADER_MAX..]).unwrap();
    let len = u16::try_from(bytes.len() - HEADER_MAX).unwrap();
    frame.fragments.push(Fragment::in_region(0, 0, len));
    (frame, [region].into())
}

fn deliver(platform: &Platform, tap: Arc<TapQueue>, features: Features, bytes: &[u8]) -> Outcome {
    let (frame, regions) = frame(bytes);
    let mut egress = TapEgress::new(platform.meter().clone(), tap, features);
    offer(&mut egress, Body::Regions(&regions), &frame, Duration::ZERO).unwrap()
}

/// Whatever the operator says that the device does: a packet socket does not say that it takes it.
#[test]
fn a_device_that_does_not_say_that_it_takes_it_gets_datagrams() {
    let bytes = udp(PAYLOAD);
    let csum_sg = Features { sg: true, csum_v4: true, ..Features::NONE };
    for features in [Features::NONE, csum_sg, Features::ALL] {
        let platform = platform();
        let (tap, behind) = tap();
        assert_eq!(deliver(&platform, tap, features, &bytes), Outcome::Delivered);
        let sent: Vec<_> = std::iter::from_fn(|| receive(&behind)).collect();
        assert!(sent.iter().all(|(metadata, _)| metadata.gso_type == gso::NONE));
        let finished: Vec<_> = sent.into_iter().map(super::egress::finish).collect();
        assert!(finished == segments(&bytes, GSO), "{features:?}");
        assert_eq!(counts(&platform, [Counted::Segments]), [3]);
    }
}

/// The kernel behind a tap makes the same datagrams of it.
#[test]
fn a_socket_behind_a_tap_gets_the_datagrams_whoever_cuts_them() {
    in_own_network(|| {
        let tap = Tap::open("pv0", 1, TapOffload::ALL).unwrap().remove(0);
        // A kernel before 6.2 does not know it.
        let is_known = tap.segments_udp();
        ip("link set pv0 address 02:00:00:00:00:01 addrgenmode none");
        ip("address add 10.0.0.2/24 dev pv0");
        ip("link set pv0 up");
        let socket = UdpSocket::bind("10.0.0.2:80").unwrap();
        socket.set_read_timeout(Some(LIMIT)).unwrap();
        let (bytes, tap) = (udp(PAYLOAD), Arc::new(tap));
        for features in [Features::NETIF, Features::ALL] {
            let platform = platform();
            assert_eq!(deliver(&platform, tap.clone(), features, &bytes), Outcome::Delivered);
            let mut payload = Vec::new();
            for len in [1200, 1200, 600] {
                let mut datagram = [0; 4000];
                assert_eq!(socket.recv(&mut datagram).unwrap(), len, "{features:?}");
                payload.extend_from_slice(&datagram[..len]);
            }
            assert!(payload == bytes[42..]);
            let whole = is_known && features.uso_v4;
            assert_eq!(counts(&platform, [Counted::Segments]), [if whole { 0 } else { 3 }]);
        }
    });
}

#[test]
fn a_frame_from_a_device_is_taken_over_whole() {
    let (tap, behind) = tap();
    let mut ingress = reader(tap);
    let bytes = udp(PAYLOAD);
    let metadata = vnet::encode(&Headers::parse(&bytes).unwrap(), Checksum::Partial, Some(GSO));
    send(&behind, metadata, &bytes);
    let mut received = Received::default();
    ingress.receive(&mut Budget::default(), &mut received).unwrap();
    assert_eq!((received.fresh, received.malformed), (1, 0));
    let window = ingress.window();
    let frame = window.frame(window.order()[0]);
    assert_eq!((frame.checksum, frame.gso), (Checksum::Partial, Some(GSO)));
    assert_eq!(frame.packets(), 3);
}
