//! The MAC addresses of multicast groups.

use frame::Frame;
use wire::ethernet::MacAddr;
use wire::headers::Network;

/// IPv4 and IPv6 have queriers of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Family {
    V4,
    V6,
}

/// The IP version of a group's MAC address; none for other groups, which are always flooded.
#[inline]
pub(super) fn family_of(group: MacAddr) -> Option<Family> {
    match group.0 {
        [0x01, 0x00, 0x5e, 0..=0x7f, ..] => Some(Family::V4),
        [0x33, 0x33, ..] => Some(Family::V6),
        _ => None,
    }
}

/// The IP version of a message of IGMP or MLD.
pub(super) fn family_of_message(frame: &Frame) -> Family {
    match frame.headers.network {
        Network::Ipv4 => Family::V4,
        _ => Family::V6,
    }
}

/// Whether a group is always flooded: 224.0.0.0/24, `ff02::1` and its neighbours, and solicited nodes (RFC 4541 §2.1.2, §3). What
/// shares a MAC address with them is flooded too.
pub(super) fn is_local(group: MacAddr) -> bool {
    matches!(
        group.0,
        [0x01, 0x00, 0x5e, 0, 0, _] | [0x33, 0x33, 0, 0, 0, _] | [0x33, 0x33, 0xff, ..]
    )
}
