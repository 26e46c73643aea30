//! The classes of attacks, and an attacker's report.

use std::fmt;

use clap::ValueEnum;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A kind of attack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Class {
    /// More requests than the TX ring has slots (XSA-39, CVE-2013-0216).
    ProducerAhead,
    /// The TX ring's producer index goes back (XSA-39).
    ProducerBack,
    /// More buffers than the RX ring has slots, from the start (XSA-39).
    RxProducerAhead,
    /// A packet of nineteen slots, one more than a backend must accept (CVE-2013-0217).
    TooManySlots,
    /// A packet of twenty slots and more (XSA-39, CVE-2013-0217).
    FatalSlots,
    /// A packet whose last slot announces another one (XSA-90, XSA-374: disabled from the worker).
    UnfinishedChain,
    /// Bytes beyond the end of a page.
    CrossingPage,
    /// Fragments that are larger than their packet.
    OversizedFragments,
    /// Frames shorter than their Ethernet header.
    RuntFrames,
    /// Fragments of no bytes (XSA-448, CVE-2023-46838).
    EmptyFragments,
    /// Headers in fragments of 4, 10 and 33 bytes, which must arrive (XSA-423, CVE-2022-3643; XSA-432).
    SplitHeaders,
    /// An extra slot of an unknown type.
    UnknownExtra,
    /// A segment size of zero.
    EmptySegments,
    /// Segmentation of packets that are not TCP, with the wrong IP version, or into tiny segments.
    WrongSegments,
    /// A checksum to complete in packets that have none.
    NoChecksum,
    /// Frames in pages that were never granted or whose grant was revoked (XSA-361, XSA-362, XSA-367).
    TxBadGrants,
    /// Buffers that were never granted, were revoked, or are read-only (XSA-396).
    RxBadGrants,
    /// Slots that another thread rewrites continuously (XSA-155, CVE-2015-8550).
    RewrittenSlots,
    /// Event notifications without pause (XSA-332, XSA-391).
    EventStorm,
    /// Valid frames as fast as the backend takes them.
    Flood,
    /// Frames without pause to an address that nobody has.
    UnknownFlood,
    /// Frames without pause to a multicast group.
    MulticastFlood,
    /// Frames without pause that are shorter than their Ethernet header.
    MalformedFlood,
    /// Control ring requests without pause that are out of bounds.
    ControlFlood,
    /// Thousands of source addresses.
    ManyAddresses,
    /// Receive buffers one at a time, far apart (XSA-392, CVE-2021-28714).
    DoledBuffers,
    /// Receives for 10 ms and stands still for 150 ms, in turn.
    StoppingReceiver,
    /// The frontend's state rewritten without pause (XSA-326, XSA-349).
    StateStorm,
    /// Every transition from one state to another.
    StateJumps,
    /// Zero queues, one more than offered, and 2³² - 1 (CVE-2026-45890).
    QueueCounts,
    /// Rings that were never granted, were revoked, or are read-only.
    BadRings,
    /// Keys whose values are no 32-bit numbers.
    BadKeys,
    /// One page for both rings.
    SharedRing,
    /// Event channels that do not exist or belong to another domain.
    BadPorts,
    /// A second connection with other rings.
    ConnectsTwice,
    /// Control ring requests that are out of bounds (XSA-270, CVE-2018-15471).
    ControlNonsense,
    /// The process ends while it is connected.
    Vanishes,
    /// The process is killed while it sends.
    Killed,
    /// Connections opened and closed repeatedly.
    Cycles,
    /// While the backend is dead: more requests than the TX ring has slots.
    ForgedProducer,
    /// While the backend is dead: a response to a request that was never sent.
    ForgedResponses,
    /// While the backend is dead: the response producer goes back to where the last publication began.
    RepeatedResponses,
    /// While the backend is dead: responses in the slots of requests that wait.
    HalfPublished,
    /// While the backend is dead: a request that waits is rewritten with bytes beyond the end of a page.
    ForgedSlots,
    /// While the backend is dead: the TX ring's grant is revoked.
    RevokedRing,
    /// While the backend is dead: the grants of frames that wait are revoked.
    RevokedFrames,
}

impl Class {
    /// All classes, in the order in which they run.
    #[must_use]
    pub fn all() -> &'static [Self] {
        Self::value_variants()
    }

    /// Whether pvnet is killed and started again in the middle.
    #[must_use]
    pub fn needs_restart(self) -> bool {
        matches!(
            self,
            Self::ForgedProducer
                | Self::ForgedResponses
                | Self::RepeatedResponses
                | Self::HalfPublished
                | Self::ForgedSlots
                | Self::RevokedRing
                | Self::RevokedFrames
        )
    }

    /// Its description.
    #[must_use]
    pub fn help(self) -> String {
        let value = self.to_possible_value();
        value.and_then(|value| value.get_help().map(ToString::to_string)).unwrap_or_default()
    }

    /// The advisories in its description.
    #[must_use]
    pub fn advisories(self) -> String {
        let help = self.help();
        let words = help.split([' ', '(', ')', ',', ';', ':']);
        let named = words.filter(|word| word.starts_with("XSA-") || word.starts_with("CVE-"));
        named.collect::<Vec<_>>().join(" ")
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.to_possible_value().map_or(Ok(()), |value| f.write_str(value.get_name()))
    }
}

/// Counts of responses on the TX ring, by status.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
pub struct Answers {
    /// Accepted.
    pub okay: u32,
    /// Responses to extras, which have no status.
    pub null: u32,
    /// The request was wrong.
    pub error: u32,
    /// The frame was dropped.
    pub dropped: u32,
    /// With an unknown status.
    pub other: u32,
}

impl std::ops::AddAssign for Answers {
    fn add_assign(&mut self, more: Self) {
        self.okay += more.okay;
        self.null += more.null;
        self.error += more.error;
        self.dropped += more.dropped;
        self.other += more.other;
    }
}

/// An attacker's report.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
pub struct Report {
    /// The attack.
    pub class: Class,
    /// The steps of the attack, as text.
    pub did: Vec<String>,
    /// The responses to the wrong requests on the TX ring.
    pub answers: Answers,
    /// Connections or control ring requests that the backend refused.
    pub refused: u32,
    /// Error responses on the RX ring.
    pub rx_errors: u32,
    /// Echoes that came back: frames are carried both ways.
    pub echoes: u32,
    /// The backend's last state.
    pub backend: Option<u8>,
    /// How long the attack took, in milliseconds.
    pub milliseconds: u64,
    /// Why nothing was done.
    pub skipped: Option<String>,
    /// What failed in the attack itself.
    pub failure: Option<String>,
}

impl Report {
    /// An empty report.
    #[must_use]
    pub fn new(class: Class) -> Self {
        Self {
            class,
            did: Vec::new(),
            answers: Answers::default(),
            refused: 0,
            rx_errors: 0,
            echoes: 0,
            backend: None,
            milliseconds: 0,
            skipped: None,
            failure: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_the_same_on_the_command_line_and_in_json() {
        for class in Class::all() {
            let json = serde_json::to_string(class).expect("name");
            assert_eq!(json, format!("\"{class}\""));
            assert!(!class.help().is_empty());
        }
    }

    #[test]
    fn attacks_that_need_a_restart_are_the_last_ones() {
        let mut rest = Class::all().iter().skip_while(|class| !class.needs_restart());
        assert_eq!(rest.clone().count(), 7);
        assert!(rest.all(|class| class.needs_restart()));
    }

    #[test]
    fn advisories_are_found_in_the_description() {
        assert_eq!(Class::ProducerAhead.advisories(), "XSA-39 CVE-2013-0216");
        assert_eq!(Class::UnfinishedChain.advisories(), "XSA-90 XSA-374");
        assert_eq!(Class::Flood.advisories(), "");
    }
}
