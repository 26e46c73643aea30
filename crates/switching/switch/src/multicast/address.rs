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

/// Queries that must stay unanswered: one may be lost.
const QUERIES: u8 = 2;
/// Seconds after a leave in which another host behind the port can answer the querier's question (RFC 3376 §8.8: two seconds).
const LEAVE_SECONDS: u32 = 3;
/// Seconds that hosts have at least for an answer, whatever the query allows.
const ANSWER_SECONDS: u32 = 10;

/// The queries since the last report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Age {
    unanswered: u8,
    /// When an answer to the last one is overdue.
    until: u32,
}

impl Age {
    /// A query was sent, to be answered within `seconds`.
    pub(super) fn ask(&mut self, now: u32, seconds: u32) {
        self.unanswered = self.unanswered.saturating_add(1).min(QUERIES);
        self.until = now.saturating_add(seconds.max(ANSWER_SECONDS)).saturating_add(1);
    }

    /// A host has left: nobody else may answer for it.
    pub(super) fn leave(&mut self, now: u32) {
        *self = Self { unanswered: QUERIES, until: now.saturating_add(LEAVE_SECONDS) };
    }

    /// Whether enough queries have stayed unanswered.
    pub(super) fn is_over(self, now: u32) -> bool {
        self.unanswered >= QUERIES && now >= self.until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_queries_must_stay_unanswered() {
        let mut age = Age::default();
        assert!(!age.is_over(u32::MAX), "nobody has asked");
        age.ask(100, 10);
        assert!(!age.is_over(u32::MAX), "one may be lost");
        age.ask(200, 0);
        assert!(!age.is_over(210) && age.is_over(211));
        age.ask(300, 60);
        assert!(!age.is_over(360) && age.is_over(361));
        age.leave(400);
        assert!(!age.is_over(402) && age.is_over(403));
        age.ask(u32::MAX, u32::MAX);
        assert!(age.is_over(u32::MAX));
    }
}
