//! Extras and flags that are invalid, or that the frame's headers contradict.

use wire::netif::extra::{Extra, ExtraInfo};
use wire::netif::tx_flags::{CSUM_BLANK, DATA_VALIDATED, EXTRA_INFO};
use wire::netif::{GsoKind, status};

use crate::World;
use crate::frames::{Tcp, arp, udp};
use crate::raw::{self, extra, slot_of, with_extras};

const BLANK: u16 = CSUM_BLANK | DATA_VALIDATED;

fn gso(size: u16, kind: GsoKind) -> ExtraInfo {
    extra(Extra::Gso { size: size.try_into().unwrap(), kind, features: 0 }, false)
}

/// A packet with these extras disables the vif, and the reason contains `reason`.
fn disables(extras: &[ExtraInfo], reason: &str) {
    let mut world = World::new();
    world.h.memory.write(raw::DATA, 0, &Tcp::default().bytes());
    world.h.send(&with_extras(60, BLANK, extras));
    let found = world.disabled();
    assert!(found.contains(reason), "{found}");
}

#[test]
fn a_gso_size_of_zero_disables_the_vif() {
    disables(&[ExtraInfo { kind: 1, flags: 0, data: [0, 0, 1, 0, 0, 0] }], "GSO size is zero");
}

#[test]
fn multicast_control_that_was_not_offered_is_answered_with_an_error() {
    let mut world = World::new();
    let group = wire::ethernet::MacAddr([1, 0, 0x5e, 0, 0, 1]);
    for wish in [Extra::McastAdd(group), Extra::McastDel(group)] {
        world.answered(&with_extras(60, 0, &[extra(wish, false)]), status::ERROR);
    }
}

#[test]
fn a_gso_size_that_makes_thousands_of_segments_is_answered_with_an_error() {
    let mut world = World::new();
    world.h.memory.write(raw::DATA, 0, &Tcp { len: 2000, ..Tcp::default() }.bytes());
    for size in [1, 7] {
        let slots = with_extras(2000, BLANK, &[gso(size, GsoKind::TcpV4)]);
        world.answered(&slots, status::ERROR);
    }
    world.answered(&with_extras(2000, BLANK, &[gso(8, GsoKind::TcpV4)]), status::OKAY);
}

#[test]
fn gso_that_the_headers_contradict_is_answered_with_an_error() {
    let mut world = World::new();
    let mut refused = |bytes: &[u8], flags, kind| {
        world.h.memory.write(raw::DATA, 0, bytes);
        let len = u16::try_from(bytes.len()).unwrap();
        world.answered(&with_extras(len, flags, &[gso(1448, kind)]), status::ERROR);
    };
    let tcp = Tcp::default().bytes();
    refused(&tcp, BLANK, GsoKind::TcpV6);
    refused(&udp(200), BLANK, GsoKind::TcpV4);
    refused(&arp(), BLANK, GsoKind::TcpV4);
    // A checksum that is not blank is made so only where the headers agree.
    for flags in [0, DATA_VALIDATED] {
        refused(&tcp, flags, GsoKind::TcpV6);
        refused(&udp(200), flags, GsoKind::TcpV4);
        refused(&Tcp { fragment: true, ..Tcp::default() }.bytes(), flags, GsoKind::TcpV4);
        refused(&Tcp { total_len: Some(1000), ..Tcp::default() }.bytes(), flags, GsoKind::TcpV4);
    }
    assert_eq!(world.h.port.as_ref().unwrap().gso_checksum_fixups(), 0);
}

#[test]
fn a_frame_to_be_segmented_without_a_blank_checksum_gets_one_in_private_memory() {
    let mut world = World::new();
    let bytes = Tcp { len: 2000, ..Tcp::default() }.bytes();
    world.h.memory.write(raw::DATA, 0, &bytes);
    for (fixups, flags) in [(1, 0), (2, DATA_VALIDATED), (2, BLANK)] {
        let slots = with_extras(2000, flags, &[gso(500, GsoKind::TcpV4)]);
        world.answered(&slots, status::OKAY);
        assert_eq!(world.h.port.as_ref().unwrap().gso_checksum_fixups(), fixups);
    }
    assert!(world.h.memory.read(raw::DATA, 2000) == bytes, "the guest's memory is its own");
}

#[test]
fn a_blank_checksum_where_there_is_none_is_answered_with_an_error() {
    let mut world = World::new();
    let fragment = Tcp { fragment: true, ..Tcp::default() }.bytes();
    for bytes in [arp(), fragment] {
        world.h.memory.write(raw::DATA, 0, &bytes);
        let len = u16::try_from(bytes.len()).unwrap();
        world.answered(&[slot_of(0, 0, len, BLANK)], status::ERROR);
        world.answered(&[slot_of(0, 0, len, 0)], status::OKAY);
    }
}

#[test]
fn an_extra_announced_on_a_later_slot_means_nothing() {
    let mut world = World::new();
    let bytes = Tcp { len: 300, ..Tcp::default() }.bytes();
    world.h.memory.write(raw::DATA, 0, &bytes[..200]);
    world.h.memory.write(raw::DATA + 1, 0, &bytes[200..]);
    let slots =
        [slot_of(0, 0, 300, wire::netif::tx_flags::MORE_DATA), slot_of(1, 0, 100, EXTRA_INFO)];
    world.answered(&slots, status::OKAY);
}
