//! Offloads to the guest: what its frontend takes, and what it gets.

use std::sync::Arc;
use std::time::Duration;

use machine::Machine;
use netback::Offered;
use offload::vnet::Unsupported;
use offload::{Checksum, Features, Gso, GsoKind};
use port::{Body, Frame, Outcome};
use port_testing::{offer, tcp, tcp_v6, transport_sum, udp, udp_v6};
use shm::Region;
use wire::checksum::Sum;
use wire::netif::{RxResponse, rx_flags};

use crate::common::guest::{DATA, OFFERED, RSP_PROD, RX_RING, Raw};
use crate::common::tampered::Tampered;

const TCP: u8 = 6;
const UDP: u8 = 17;
/// The ports of a DHCP reply, and others.
const DHCP: [u8; 4] = [0, 67, 0, 68];
const OTHER: [u8; 4] = [0, 68, 0, 67];

/// A frame of this protocol with an unfinished checksum.
fn frame(v6: bool, protocol: u8, ports: [u8; 4], payload: usize) -> Frame {
    let mut bytes = match (v6, protocol) {
        (false, TCP) => tcp(payload),
        (true, TCP) => tcp_v6(payload),
        (false, _) => udp(payload),
        (true, _) => udp_v6(payload),
    };
    let transport = if v6 { 54 } else { 34 };
    bytes[transport..][..4].copy_from_slice(&ports);
    Frame { checksum: Checksum::Partial, ..port_testing::frame(&bytes) }
}

/// Whether the checksum in the bytes of a frame is right.
fn is_finished(bytes: &[u8]) -> bool {
    transport_sum(bytes) == 0xffff
}

/// The responses to a guest whose frontend takes all that there is, and the bytes of each.
fn delivered(frame: &Frame, offered: Offered) -> Vec<(u16, Vec<u8>)> {
    let machine = Machine::new();
    let raw = Raw::new(&machine);
    let mut vif = raw.announce_as(Tampered::new(&machine), offered);
    let mut queue = raw.connect(&mut vif, Features::ALL);
    raw.post(0..16);
    let none: Arc<[Region]> = Arc::new([]);
    let outcome = offer(&mut queue.rx, Body::Regions(&none), frame, Duration::ZERO);
    assert_eq!(outcome, Ok(Outcome::Delivered));
    let responses = (0..raw.read::<u32>(RX_RING, RSP_PROD)).map(|n| raw.response(n));
    let bytes = |response: RxResponse| raw.received(DATA + u32::from(response.id), response);
    responses.map(|response| (response.flags, bytes(response))).collect()
}

#[test]
fn a_guest_without_offloads_gets_finished_checksums_whatever_its_frontend_takes() {
    let without = Offered { guest_offloads: false, ..OFFERED };
    for v6 in [false, true] {
        for protocol in [TCP, UDP] {
            let frame = frame(v6, protocol, OTHER, 40);
            let [(flags, bytes)] = &delivered(&frame, OFFERED)[..] else { panic!("one buffer") };
            assert!(flags & rx_flags::CSUM_BLANK != 0 && !is_finished(bytes));
            let [(flags, bytes)] = &delivered(&frame, without)[..] else { panic!("one buffer") };
            assert!(flags & rx_flags::CSUM_BLANK == 0 && is_finished(bytes), "{v6} {protocol}");
        }
        let mut frame = frame(v6, TCP, OTHER, 50);
        let kind = if v6 { GsoKind::TcpV6 } else { GsoKind::TcpV4 };
        frame.gso = Some(Gso { kind, size: 20 });
        let segments = delivered(&frame, without);
        assert_eq!(segments.len(), 3);
        for (flags, bytes) in segments {
            assert_eq!(flags & (rx_flags::CSUM_BLANK | rx_flags::EXTRA_INFO), 0, "{v6}");
            assert!(is_finished(&bytes), "{v6}");
        }
    }
}

#[test]
fn a_reply_of_a_dhcp_server_has_a_finished_checksum() {
    for (v6, protocol, ports, finished) in [
        (false, UDP, DHCP, true),
        (false, UDP, OTHER, false),
        (false, TCP, DHCP, false),
        (true, UDP, DHCP, false),
    ] {
        let arrived = delivered(&frame(v6, protocol, ports, 60), OFFERED);
        let [(flags, bytes)] = &arrived[..] else { panic!("one buffer") };
        assert_eq!(flags & rx_flags::CSUM_BLANK == 0, finished, "{v6} {protocol} {ports:?}");
        assert_eq!(is_finished(bytes), finished, "{v6} {protocol} {ports:?}");
    }
}

/// TCP behind a label: no netif flag says where its checksum is.
#[test]
fn a_checksum_elsewhere_is_finished() {
    let plain = frame(false, TCP, OTHER, 40);
    let mut bytes =
        [&plain.header()[..12], &[0x88, 0x47, 0, 0, 0x11, 64], &plain.header()[14..]].concat();
    bytes[54..56].fill(0);
    let mut frame = Frame::empty();
    frame.set_header(&bytes).unwrap();
    assert!(frame.set_checksum_elsewhere(Unsupported::Checksum { start: 38, offset: 16 }));
    let arrived = delivered(&frame, OFFERED);
    let [(flags, got)] = &arrived[..] else { panic!("one buffer") };
    assert_eq!(flags & (rx_flags::CSUM_BLANK | rx_flags::DATA_VALIDATED), 0);
    assert_eq!(Sum::of(&got[38..]).fold(), 0xffff);
}
