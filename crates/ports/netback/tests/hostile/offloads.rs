//! Offloads to the guest: what its frontend takes, and what it gets.

use std::sync::Arc;
use std::time::Duration;

use machine::Machine;
use netback::Offered;
use offload::vnet::Unsupported;
use offload::{Checksum, Features, Gso, GsoKind};
use port::{Body, Egress, Frame, Offer, Outcome};
use shm::Region;
use wire::checksum::{Sum, pseudo_v4, pseudo_v6};
use wire::netif::{RxRequest, RxResponse, rx_flags};

use crate::common::device::OFFERED;
use crate::common::guest::{DATA, PAGE, REQ_PROD, RSP_PROD, RX_RING, Raw};
use crate::common::tampered::Tampered;

const TCP: u8 = 6;
const UDP: u8 = 17;
/// The ports of a DHCP reply, and others.
const DHCP: [u8; 4] = [0, 67, 0, 68];
const OTHER: [u8; 4] = [0, 68, 0, 67];

/// A frame of this protocol with an unfinished checksum.
fn frame(v6: bool, protocol: u8, ports: [u8; 4], payload: u8) -> Frame {
    let transport = if protocol == TCP { 20 } else { 8 };
    let len = [0, transport + payload];
    let mut bytes = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
    if v6 {
        bytes.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
        bytes.extend(len);
        bytes.extend([protocol, 64]);
        bytes.extend([0xfd; 32]);
    } else {
        bytes.extend([8, 0, 0x45, 0, 0, 20 + len[1], 0, 0, 0, 0, 64, protocol, 0, 0]);
        bytes.extend([10, 0, 0, 1, 10, 0, 0, 2]);
    }
    bytes.extend(ports);
    match protocol {
        TCP => bytes.extend([0, 0, 0, 0, 0, 0, 0, 0, 0x50, 0x10, 1, 0, 0, 0, 0, 0]),
        _ => bytes.extend([len[0], len[1], 0, 0]),
    }
    bytes.extend((0..payload).map(|n| n.wrapping_mul(7)));
    let mut frame = Frame::empty();
    frame.set_header(&bytes).unwrap();
    frame.checksum = Checksum::Partial;
    frame
}

/// Whether the checksum in the bytes of a frame is right.
fn is_finished(bytes: &[u8]) -> bool {
    let octets = |at: usize| <[u8; 4]>::try_from(&bytes[at..at + 4]).unwrap();
    let long = |at: usize| <[u8; 16]>::try_from(&bytes[at..at + 16]).unwrap();
    let (mut sum, start): (Sum, _) = match bytes[12] {
        8 => {
            let len = u16::try_from(bytes.len() - 34).unwrap();
            (pseudo_v4(octets(26).into(), octets(30).into(), bytes[23], len), 34)
        }
        _ => {
            let len = u32::try_from(bytes.len() - 54).unwrap();
            (pseudo_v6(long(22).into(), long(38).into(), bytes[20], len), 54)
        }
    };
    sum.add_bytes(&bytes[start..]);
    sum.fold() == 0xffff
}

/// The responses to a guest whose frontend takes all that there is, and the bytes of each.
fn delivered(frame: &Frame, offered: Offered) -> Vec<(u16, Vec<u8>)> {
    let machine = Machine::new();
    let raw = Raw::new(&machine);
    let mut vif = raw.announce_as(Tampered::new(&machine), offered);
    let mut queue = raw.connect(&mut vif, Features::ALL);
    for n in 0..16u16 {
        let request = RxRequest { id: n, pad: 0, gref: DATA + u32::from(n) };
        raw.write(RX_RING, Raw::slot::<RxRequest>(n.into()), request);
    }
    raw.write(RX_RING, REQ_PROD, 16u32);
    let none: Arc<[Region]> = Arc::new([]);
    let mut offers = [Offer::new(frame)];
    queue.rx.deliver(Body::Regions(&none), &mut offers, Duration::ZERO).unwrap();
    assert_eq!(offers[0].outcome, Outcome::Delivered);
    let responses = 0..raw.read::<u32>(RX_RING, RSP_PROD);
    responses
        .map(|n| {
            let response: RxResponse = raw.read(RX_RING, Raw::slot::<RxRequest>(n));
            let mut bytes = vec![0; usize::try_from(response.status).unwrap()];
            let at = (DATA + u32::from(response.id)) as usize * PAGE;
            raw.memory.copy_out(at + usize::from(response.offset), &mut bytes).unwrap();
            (response.flags, bytes)
        })
        .collect()
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
    let bytes =
        [&plain.header()[..12], &[0x88, 0x47, 0, 0, 0x11, 64], &plain.header()[14..]].concat();
    let mut frame = Frame::empty();
    frame.set_header(&bytes).unwrap();
    assert!(frame.set_checksum_elsewhere(Unsupported::Checksum { start: 38, offset: 16 }));
    let arrived = delivered(&frame, OFFERED);
    let [(flags, got)] = &arrived[..] else { panic!("one buffer") };
    assert_eq!(flags & (rx_flags::CSUM_BLANK | rx_flags::DATA_VALIDATED), 0);
    assert_eq!(bytes[54..56], [0; 2]);
    assert_eq!(Sum::of(&got[38..]).fold(), 0xffff);
}
