//! What a guest can do to its backend, and what it tells of it.

use std::fmt;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// A kind of attack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Class {
    /// More requests than the TX ring has slots (XSA-39, CVE-2013-0216).
    ProducerAhead,
    /// Requests that were made are taken back (XSA-39).
    ProducerBack,
    /// More buffers than the RX ring has slots, from the start (XSA-39).
    RxProducerAhead,
    /// A packet of nineteen slots, one more than anybody must take (CVE-2013-0217).
    TooManySlots,
    /// A packet of twenty slots and more (XSA-39, CVE-2013-0217).
    FatalSlots,
    /// A packet that goes on where the ring ends (XSA-90, XSA-374: disabled from the worker).
    UnfinishedChain,
    /// Bytes beyond the end of a page.
    CrossingPage,
    /// Fragments that are larger than their packet.
    OversizedFragments,
    /// Frames shorter than their Ethernet header.
    RuntFrames,
    /// Fragments of no bytes (XSA-448, CVE-2023-46838).
    EmptyFragments,
    /// Headers in pieces of four bytes; they must arrive (XSA-423, CVE-2022-3643; XSA-432).
    SplitHeaders,
    /// An extra slot of a type that there is not.
    UnknownExtra,
    /// Segments of no bytes.
    EmptySegments,
    /// Segmentation of what is no TCP, of the other IP, into crumbs.
    WrongSegments,
    /// A checksum to complete where there is none.
    NoChecksum,
    /// Frames in pages that were never granted, or are no more (XSA-361, XSA-362, XSA-367).
    TxBadGrants,
    /// Buffers that were never granted, are no more, or may only be read (XSA-396).
    RxBadGrants,
    /// Slots that another thread rewrites all the time (XSA-155, CVE-2015-8550).
    RewrittenSlots,
    /// Events without end (XSA-332, XSA-391).
    EventStorm,
    /// Sound frames as fast as they are taken.
    Flood,
    /// Thousands of source addresses.
    ManyAddresses,
    /// One buffer now and then (XSA-392, CVE-2021-28714).
    DoledBuffers,
    /// The state in the store rewritten without end (XSA-326, XSA-349).
    StateStorm,
    /// From each state to each other.
    StateJumps,
    /// No queues, one more than offered, four thousand million (CVE-2026-45890).
    QueueCounts,
    /// Rings that were never granted, or may only be read.
    BadRings,
    /// Keys that are no numbers.
    BadKeys,
    /// One page for both rings.
    SharedRing,
    /// Event channels that are not offered, or to another domain.
    BadPorts,
    /// Connected once more, with other rings.
    ConnectsTwice,
    /// Requests of the control ring that are out of bounds (XSA-270, CVE-2018-15471).
    ControlNonsense,
    /// The process ends while it is connected.
    Vanishes,
    /// The process is killed while it sends.
    Killed,
    /// Connects and closes, as often as told.
    Cycles,
}

impl Class {
    /// All of them, in the order in which they are run.
    #[must_use]
    pub fn all() -> &'static [Self] {
        Self::value_variants()
    }

    /// What it does, in a sentence.
    #[must_use]
    pub fn help(self) -> String {
        let value = self.to_possible_value();
        value.and_then(|value| value.get_help().map(ToString::to_string)).unwrap_or_default()
    }

    /// The advisories it is named after, as in its description; most had this as a bug.
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

/// Responses on the TX ring, by their status.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answers {
    /// Taken.
    pub okay: u32,
    /// To an extra, which has no status.
    pub null: u32,
    /// The request was wrong.
    pub error: u32,
    /// The frame went nowhere.
    pub dropped: u32,
    /// Of no status that there is.
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

/// What a guest did, and what it saw.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// Which attack.
    pub class: Class,
    /// What was done, for people.
    pub did: Vec<String>,
    /// The TX ring's answers to what was wrong.
    pub answers: Answers,
    /// Connections, or requests of the control ring, that the backend refused.
    pub refused: u32,
    /// Responses on the RX ring that are errors.
    pub rx_errors: u32,
    /// Echoes that came back, as proof that frames are carried both ways.
    pub echoes: u32,
    /// The backend's state in the end.
    pub backend: Option<u8>,
    /// How long it took to get there, since the attack began.
    pub milliseconds: u64,
    /// Why nothing was done.
    pub skipped: Option<String>,
    /// What did not go as the guest itself expected.
    pub failure: Option<String>,
}

impl Report {
    /// Nothing yet.
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
    fn names_are_the_same_for_people_and_programs() {
        for class in Class::all() {
            let json = serde_json::to_string(class).expect("name");
            assert_eq!(json, format!("\"{class}\""));
            assert!(!class.help().is_empty());
        }
    }

    #[test]
    fn advisories_are_read_out_of_the_description() {
        assert_eq!(Class::ProducerAhead.advisories(), "XSA-39 CVE-2013-0216");
        assert_eq!(Class::UnfinishedChain.advisories(), "XSA-90 XSA-374");
        assert_eq!(Class::Flood.advisories(), "");
    }
}
