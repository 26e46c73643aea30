//! Checksums against etherparse.

use crate::common::{Network, network, parse, payload, tcp, transport_checksums};
use offload::{Error, blank_checksum, complete_checksum, complete_checksum_at};
use proptest::prelude::*;
use wire::headers::{ChecksumLocation, Headers};

/// Overwrites the checksum, completes it, and gives what etherparse computes and what the frame holds.
fn completed(frame: &mut [u8], before: u16) -> (u16, u16) {
    let headers = Headers::parse(frame).expect("whole headers");
    let location = headers.checksum_location().expect("TCP or UDP");
    let at = usize::from(location.start + location.offset);
    frame[at..at + 2].copy_from_slice(&before.to_be_bytes());
    complete_checksum(frame, &headers).expect("a good frame");
    transport_checksums(&parse(frame))
}

proptest! {
    #[test]
    fn tcp_checksums_are_right(
        network in network(),
        tcp in tcp(),
        payload_len in 0usize..3000,
        before in any::<u16>(),
        padding in 0usize..8,
    ) {
        let mut frame = network.tcp_frame(&tcp, &payload(payload_len));
        let right = frame.clone();
        frame.extend(vec![0xff; padding]);
        let (computed, held) = completed(&mut frame, before);
        prop_assert_eq!(held, computed);
        prop_assert_eq!(&frame[..right.len()], &right);
    }

    /// A receiver sums what a blank checksum covers, the field included.
    #[test]
    fn a_blank_checksum_holds_the_pseudo_header(
        network in network(),
        tcp in tcp(),
        payload_len in 0usize..3000,
        before in any::<u16>(),
    ) {
        let right = network.tcp_frame(&tcp, &payload(payload_len));
        let headers = Headers::parse(&right).expect("whole headers");
        let location = headers.checksum_location().expect("TCP");
        let at = usize::from(location.start + location.offset);
        let mut frame = right.clone();
        frame[at..at + 2].copy_from_slice(&before.to_be_bytes());
        let header = &mut frame[..headers.payload_offset.into()];
        prop_assert_eq!(blank_checksum(header, right.len(), &headers), Ok(()));
        let mut sum = wire::checksum::Sum::new();
        sum.add_bytes(&frame[location.start.into()..]);
        frame[at..at + 2].copy_from_slice(&sum.finish().to_be_bytes());
        prop_assert!(frame == right);
    }

    #[test]
    fn udp_checksums_are_right(
        network in network(),
        ports in any::<(u16, u16)>(),
        payload_len in 0usize..3000,
        before in any::<u16>(),
        padding in 0usize..8,
    ) {
        let mut frame = network.udp_frame(ports, &payload(payload_len));
        let right = frame.clone();
        frame.extend(vec![0xff; padding]);
        let (computed, held) = completed(&mut frame, before);
        prop_assert_eq!(held, computed);
        prop_assert_ne!(held, 0);
        prop_assert_eq!(&frame[..right.len()], &right);
    }
}

fn plain(v6: bool) -> Network {
    Network { vlan_tags: 0, v6, options: 0, ident: 0, addresses: 0 }
}

/// A datagram whose own two payload bytes make the sum 0xffff, so that its complement is zero.
#[test]
fn a_udp_checksum_of_zero_is_sent_as_ffff() {
    for v6 in [false, true] {
        let mut frame = plain(v6).udp_frame((1, 2), &[0, 0]);
        let without = transport_checksums(&parse(&frame)).0;
        let end = frame.len();
        frame[end - 2..].copy_from_slice(&without.to_be_bytes());
        assert_eq!(completed(&mut frame, 0).1, 0xffff);
    }
}

#[test]
fn what_has_no_checksum_is_refused() {
    let mut arp = [0; 60];
    arp[12..14].copy_from_slice(&[0x08, 0x06]);
    let headers = Headers::parse(&arp).expect("an ARP frame");
    assert_eq!(complete_checksum(&mut arp, &headers), Err(Error::Transport));

    let mut fragment = plain(false).udp_frame((1, 2), &payload(100));
    fragment[20] |= 0x20;
    let headers = Headers::parse(&fragment).expect("whole headers");
    assert_eq!(complete_checksum(&mut fragment, &headers), Err(Error::Transport));
}

#[test]
fn impossible_lengths_are_refused_and_change_nothing() {
    let whole = plain(false).udp_frame((1, 2), &payload(100));
    let headers = Headers::parse(&whole).expect("whole headers");
    let refused = |frame: &[u8]| {
        let mut changed = frame.to_vec();
        assert_eq!(complete_checksum(&mut changed, &headers), Err(Error::Length));
        assert_eq!(changed, frame);
    };
    refused(&whole[..whole.len() - 1]);
    let udp_len = 14 + 20 + 4;
    for wrong in [0u16, 7, 109] {
        let mut frame = whole.clone();
        frame[udp_len..udp_len + 2].copy_from_slice(&wrong.to_be_bytes());
        refused(&frame);
    }
}

/// The sum of RFC 1071, word by word.
fn plain_sum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|word| [word[0], word.get(1).copied().unwrap_or(0)]);
    let mut sum: u64 = words.map(|word| u64::from(u16::from_be_bytes(word))).sum();
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    u16::try_from(sum).unwrap()
}

proptest! {
    /// Any bytes, and any place: one that the frame has is completed, and any other refused.
    #[test]
    fn a_checksum_at_any_place_is_completed_or_refused(
        mut frame in prop::collection::vec(any::<u8>(), 0..200),
        start in prop_oneof![0u16..220, any::<u16>()],
        offset in prop_oneof![0u16..220, any::<u16>()],
    ) {
        let before = frame.clone();
        let field = usize::from(start) + usize::from(offset);
        let completed = complete_checksum_at(&mut frame, ChecksumLocation { start, offset });
        if field + 2 > before.len() {
            prop_assert_eq!(completed, Err(Error::Place));
            prop_assert_eq!(frame, before);
            return Ok(());
        }
        prop_assert_eq!(completed, Ok(()));
        let sum = u16::from_be_bytes([frame[field], frame[field + 1]]);
        let right = !plain_sum(&before[start.into()..]);
        prop_assert_eq!(sum, if right == 0 { 0xffff } else { right });
        frame[field..field + 2].copy_from_slice(&before[field..field + 2]);
        prop_assert_eq!(frame, before, "only the field is written");
    }
}

#[test]
fn a_sum_of_zero_is_stored_as_all_ones() {
    let mut frame = [0xff; 6];
    let at = ChecksumLocation { start: 2, offset: 2 };
    assert_eq!(complete_checksum_at(&mut frame, at), Ok(()));
    assert_eq!(frame, [0xff; 6]);
}
