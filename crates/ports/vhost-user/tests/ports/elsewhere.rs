//! Checksums that are not where the parser finds the transport's: other protocols, and packets in tunnels.

use port::Outcome;
use wire::checksum::{Sum, pseudo_v4};

use crate::common::{GUEST_CSUM, LINUX, RING_PACKED, Vm, pass, plain, tcp, tso, udp};

const TCP: u8 = 6;
/// Where a TCP segment begins in the frames here, from the beginning of its IPv4 header.
const SEGMENT: usize = 20;

/// An IPv4 packet with a TCP segment whose checksum is unfinished: its field has the pseudo-header's sum.
fn packet(payload: usize) -> Vec<u8> {
    let mut packet = tcp(payload).split_off(14);
    let sum = pseudo(&packet).fold();
    packet[SEGMENT + 16..SEGMENT + 18].copy_from_slice(&sum.to_be_bytes());
    packet
}

fn pseudo(packet: &[u8]) -> Sum {
    let octets = |at: usize| <[u8; 4]>::try_from(&packet[at..at + 4]).unwrap();
    let len = u16::try_from(packet.len() - SEGMENT).unwrap();
    pseudo_v4(octets(12).into(), octets(16).into(), packet[9], len)
}

/// A packet behind such headers, which follow the addresses.
fn behind(headers: &[u8], payload: usize) -> Vec<u8> {
    [&tcp(0)[..12], headers, &packet(payload)].concat()
}

/// A TCP segment behind headers of each kind.
fn frames(payload: usize) -> Vec<Vec<u8>> {
    let mpls = [0x88, 0x47, 0, 0, 0x11, 64];
    let unknown = [0x88, 0xb5];
    let tags = [&[0x81, 0, 0, 5].repeat(9)[..], &[8, 0]].concat();
    let inside = 20 + packet(payload).len();
    let ipv4 = |protocol: u8, beside: usize| {
        let mut header = tcp(0)[12..34].to_vec();
        header[4..6].copy_from_slice(&u16::try_from(inside + beside).unwrap().to_be_bytes());
        header[11] = protocol;
        header
    };
    let gre = [ipv4(47, 4), vec![0, 0, 8, 0]].concat();
    // VXLAN without a checksum of its own, and an Ethernet header inside.
    let vxlan =
        [ipv4(17, 30), udp(0)[34..].to_vec(), vec![8, 0, 0, 0, 0, 0, 1, 0], tcp(0)[..14].to_vec()];
    let mut vxlan = vxlan.concat();
    let len = u16::try_from(inside - 20 + 30).unwrap();
    vxlan[26..28].copy_from_slice(&len.to_be_bytes());
    [&mpls[..], &unknown, &tags, &gre, &vxlan].map(|headers| behind(headers, payload)).into()
}

fn unfinished(vm: &Vm, start: usize, offset: u16) -> Vec<u8> {
    let mut metadata = plain(vm);
    metadata[0] = 1;
    metadata[6..8].copy_from_slice(&u16::try_from(start).unwrap().to_le_bytes());
    metadata[8..10].copy_from_slice(&offset.to_le_bytes());
    metadata
}

#[test]
fn a_checksum_that_the_parser_does_not_find_is_finished() {
    for layout in [0, RING_PACKED] {
        for features in [LINUX, LINUX & !GUEST_CSUM & !(1 << 7)] {
            let (mut red, mut blue) = (Vm::boot(LINUX | layout), Vm::boot(features | layout));
            let (mut from, mut to) = (red.served(1), blue.served(1));
            blue.post(64, 1526);
            for payload in [6, 31, 1200] {
                for (n, frame) in frames(payload).iter().enumerate() {
                    let start = frame.len() - packet(payload).len() + SEGMENT;
                    red.send(&unfinished(&red, start, 16), frame, &[12], false);
                    let (received, outcomes) = pass(&mut from, &mut to).unwrap();
                    assert_eq!((received.fresh, received.malformed), (1, 0), "{n} {payload}");
                    assert_eq!(outcomes, [Outcome::Delivered], "{n} {payload}");
                    assert!(red.tx.take().is_some());
                    let (metadata, arrived) = blue.receive().unwrap();
                    assert_eq!(metadata[..10], [0; 10], "{n} {payload}");
                    let packet = &arrived[start - SEGMENT..];
                    assert_eq!(packet[9], TCP);
                    let mut sum = pseudo(packet);
                    sum.add_bytes(&packet[SEGMENT..]);
                    assert_eq!(sum.fold(), 0xffff, "{n} {payload}");
                    let field = start + 16..start + 18;
                    assert_eq!(arrived[..field.start], frame[..field.start], "{n} {payload}");
                    assert_eq!(arrived[field.end..], frame[field.end..], "{n} {payload}");
                }
            }
        }
    }
}

/// UDP-Lite, whose checksum covers all bytes: its field is where UDP's is.
#[test]
fn a_transport_that_is_not_parsed_has_its_checksum_finished() {
    let (mut red, mut blue) = (Vm::boot(LINUX), Vm::boot(LINUX));
    let (mut from, mut to) = (red.served(1), blue.served(1));
    blue.post(4, 1526);
    let mut frame = udp(100);
    frame[23] = 136;
    frame[38..40].fill(0);
    let sum = pseudo(&frame[14..]).fold();
    frame[40..42].copy_from_slice(&sum.to_be_bytes());
    red.send(&unfinished(&red, 34, 6), &frame, &[12], false);
    assert_eq!(pass(&mut from, &mut to).unwrap().1, [Outcome::Delivered]);
    let (_, arrived) = blue.receive().unwrap();
    let mut sum = pseudo(&arrived[14..]);
    sum.add_bytes(&arrived[34..]);
    assert_eq!(sum.fold(), 0xffff);
}

/// Nothing is written where it was asked for, and the sender's next frame goes through.
#[test]
fn a_checksum_out_of_bounds_costs_the_frame() {
    for layout in [0, RING_PACKED] {
        let (mut red, mut blue) = (Vm::boot(LINUX | layout), Vm::boot(LINUX | layout));
        let (mut from, mut to) = (red.served(1), blue.served(1));
        blue.post(64, 1526);
        let mpls = |payload| frames(payload).swap_remove(0);
        let (long, short) = (mpls(1000), mpls(6));
        assert_eq!(short.len(), 64);
        let mut arp = [&tcp(0)[..12], &[8, 6], &[7; 40]].concat();
        arp[14..20].copy_from_slice(&[0, 1, 8, 0, 6, 4]);
        for (frame, start, offset) in [
            // Beyond the frame, and its last byte.
            (&short, 64, 0),
            (&short, 70, 16),
            (&short, 63, 0),
            (&short, 38, 25),
            // Beyond the private header.
            (&long, 38, 89),
            (&long, 127, 0),
            (&long, 200, 16),
            // The sum of both is small in 16 bits.
            (&long, 65_535, 1),
            (&long, 65_500, 100),
            (&long, 38, 65_535),
            (&long, 65_535, 65_535),
            // Addresses and the EtherType.
            (&long, 0, 0),
            (&long, 6, 0),
            (&long, 0, 16),
            (&long, 12, 16),
            (&long, 13, 0),
            // The addresses and ports of a packet that is parsed.
            (&tcp(100), 26, 0),
            (&tcp(100), 14, 12),
            (&tcp(100), 34, 0),
            (&tcp(100), 34, 15),
            (&arp, 14, 14),
        ] {
            red.send(&unfinished(&red, start, offset), frame, &[12], false);
            let (received, outcomes) = pass(&mut from, &mut to).unwrap();
            assert_eq!((received.fresh, received.malformed), (0, 1), "{start} {offset}");
            assert!(outcomes.is_empty() && blue.receive().is_none());
            assert!(red.tx.take().is_some());
        }
        // One to be segmented has its transport's.
        let mut metadata = tso(&red, 100);
        metadata[6] = 60;
        red.send(&metadata, &tcp(1000), &[12], false);
        assert_eq!(pass(&mut from, &mut to).unwrap().0.malformed, 1);
        red.send(&plain(&red), &tcp(6), &[12], false);
        assert_eq!(pass(&mut from, &mut to).unwrap().1, [Outcome::Delivered]);
        assert!(blue.receive().unwrap().1 == tcp(6));
    }
}
