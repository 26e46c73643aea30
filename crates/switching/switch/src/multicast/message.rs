//! Messages of IGMP (RFC 1112, 2236, 3376) and MLD (RFC 2710, 3810), as far as they lie in a frame's private header.

use arrayvec::ArrayVec;
use frame::{Frame, HEADER_ROOM};
use wire::ethernet::MacAddr;
use wire::headers::{Network, Transport};
use wire::ip::Protocol;
use wire::ipv6;

use super::address::is_local;

/// The IP protocol of IGMP.
const IGMP: u8 = 2;
/// Seconds that a host has for an answer where the query does not say.
const RESPONSE_SECONDS: u32 = 10;
/// The most records that a private header has room for: those of IGMP are the shortest.
const RECORDS_MAX: usize = HEADER_ROOM / RECORD_V4;
/// Bytes of a record before its sources: four, and the group's address.
const RECORD_V4: usize = 8;

mod kind {
    pub(super) const IGMP_QUERY: u8 = 0x11;
    pub(super) const IGMP_V1_REPORT: u8 = 0x12;
    pub(super) const IGMP_V2_REPORT: u8 = 0x16;
    pub(super) const IGMP_LEAVE: u8 = 0x17;
    pub(super) const IGMP_V3_REPORT: u8 = 0x22;
    pub(super) const MLD_QUERY: u8 = 130;
    pub(super) const MLD_V1_REPORT: u8 = 131;
    pub(super) const MLD_DONE: u8 = 132;
    pub(super) const MLD_V2_REPORT: u8 = 143;
}

/// What a host says about a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GroupChange {
    Join,
    Leave,
}

/// A message, as far as snooping uses it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Message {
    /// A router asks. `general`: for all groups, with the seconds to answer. Also what may be a query behind the private
    /// header.
    Query { general: Option<u32> },
    /// A host reports or leaves groups. Not `is_complete` if more of them lie behind the private header.
    Report { changes: ArrayVec<(MacAddr, GroupChange), RECORDS_MAX>, is_complete: bool },
}

pub(super) fn message(frame: &Frame) -> Option<Message> {
    let header = frame.header();
    let l3 = usize::from(frame.headers.l3_offset);
    match frame.headers.network {
        Network::Ipv4 => {
            let is_first = be16(header, l3 + 6)? & 0x1fff == 0;
            let is_igmp = *header.get(l3 + 9)? == IGMP && is_first;
            let start = l3 + 4 * usize::from(header.get(l3)? & 0x0f);
            is_igmp.then(|| igmp(header.get(start..).unwrap_or_default()))?
        }
        // The parse of the headers has passed UDP and TCP.
        Network::Ipv6 if matches!(frame.headers.transport, Transport::Udp | Transport::Tcp) => None,
        Network::Ipv6 => {
            let next = Protocol(*header.get(l3 + 6)?);
            let Ok(upper) = ipv6::walk_extensions(next, header, l3 + ipv6::HEADER_LEN) else {
                // Whose extensions go on behind the header may be a query. Hosts take none with another hop limit (RFC 3810 §6.2).
                let may_be = header.get(l3 + 7) == Some(&1);
                return may_be.then_some(Message::Query { general: None });
            };
            let is_first = !upper.fragment || be16(header, upper.offset - 6)? & 0xfff8 == 0;
            let is_icmp = upper.protocol == Protocol::ICMPV6 && is_first;
            is_icmp.then(|| mld(header.get(upper.offset..).unwrap_or_default()))?
        }
        Network::Arp | Network::Other => None,
    }
}

fn igmp(message: &[u8]) -> Option<Message> {
    // One that ends before its type may be a query.
    let Some(kind) = message.first() else { return Some(Message::Query { general: None }) };
    let group = || group_v4(message.get(4..)?);
    match *kind {
        kind::IGMP_QUERY => {
            let is_general = message.get(4..8) == Some(&[0; 4]);
            let tenths = match *message.get(1).unwrap_or(&0) {
                // Version 1 has none.
                0 => 10 * RESPONSE_SECONDS,
                // An exponent only in version 3, which is longer; for others this is more than they mean.
                code @ 128.. => (u32::from(code & 0x0f) | 0x10) << (((code >> 4) & 7) + 3),
                code => code.into(),
            };
            Some(Message::Query { general: is_general.then(|| tenths.div_ceil(10)) })
        }
        kind::IGMP_V1_REPORT | kind::IGMP_V2_REPORT => Some(one(group(), GroupChange::Join)),
        kind::IGMP_LEAVE => Some(one(group(), GroupChange::Leave)),
        kind::IGMP_V3_REPORT => Some(records(message, 4, group_v4)),
        _ => None,
    }
}

fn mld(message: &[u8]) -> Option<Message> {
    let Some(kind) = message.first() else { return Some(Message::Query { general: None }) };
    let group = || group_v6(message.get(8..)?);
    match *kind {
        kind::MLD_QUERY => {
            let is_general = message.get(8..24) == Some(&[0; 16]);
            let code = u32::from(be16(message, 4).unwrap_or(0));
            let millis = match code {
                0x8000.. => ((code & 0x0fff) | 0x1000) << (((code >> 12) & 7) + 3),
                code => code,
            };
            Some(Message::Query { general: is_general.then(|| millis.div_ceil(1000)) })
        }
        kind::MLD_V1_REPORT => Some(one(group(), GroupChange::Join)),
        kind::MLD_DONE => Some(one(group(), GroupChange::Leave)),
        kind::MLD_V2_REPORT => Some(records(message, 16, group_v6)),
        _ => None,
    }
}

/// A report on one group.
fn one(group: Option<MacAddr>, change: GroupChange) -> Message {
    let mut changes = ArrayVec::new();
    let group = group.filter(|group| !is_local(*group));
    changes.extend(group.map(|group| (group, change)));
    Message::Report { changes, is_complete: true }
}

/// The records of a report of IGMPv3 or MLDv2, with addresses of `address` bytes.
fn records(message: &[u8], address: usize, group: impl Fn(&[u8]) -> Option<MacAddr>) -> Message {
    let mut changes = ArrayVec::new();
    let mut left = be16(message, 6).unwrap_or(u16::MAX);
    let mut rest = message.get(8..).unwrap_or_default();
    while left > 0 {
        let Some((record, sources)) = rest.split_at_checked(4 + address) else { break };
        let count = u16::from_be_bytes([record[2], record[3]]);
        let change = match (record[0], count) {
            (1 | 3, 0) => Some(GroupChange::Leave),
            (2 | 4, _) | (1 | 3 | 5, 1..) => Some(GroupChange::Join),
            _ => None,
        };
        let group = group(&record[4..]).filter(|group| !is_local(*group));
        if let (Some(group), Some(change)) = (group, change)
            && changes.try_push((group, change)).is_err()
        {
            break;
        }
        left -= 1;
        let skip = address * usize::from(count) + 4 * usize::from(record[1]);
        rest = sources.get(skip..).unwrap_or_default();
    }
    Message::Report { changes, is_complete: left == 0 }
}

/// The MAC address of an IPv4 group: its last 23 bits.
fn group_v4(address: &[u8]) -> Option<MacAddr> {
    let [224..=239, b, c, d] = *address.first_chunk()? else { return None };
    Some(MacAddr([0x01, 0x00, 0x5e, b & 0x7f, c, d]))
}

/// The MAC address of an IPv6 group: its last 32 bits.
fn group_v6(address: &[u8]) -> Option<MacAddr> {
    let [0xff, .., a, b, c, d] = *address.first_chunk::<16>()? else { return None };
    Some(MacAddr([0x33, 0x33, a, b, c, d]))
}

fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|bytes| u16::from_be_bytes(*bytes))
}
