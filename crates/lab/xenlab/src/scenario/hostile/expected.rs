//! The expected result of each attack.

use super::class::{Answers, Class, Report};
use super::status::PortSummary;

/// The expected state of the interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// It carries frames. Wrong requests get an error response.
    Up,
    /// It is disabled, and the reason contains this text.
    Down(&'static str),
    /// Either of these: only the attacker suffers.
    Either,
}

/// The expected result of an attack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expected {
    end: End,
    /// The exact answers, if they are predictable.
    answers: Option<Answers>,
    refused: u32,
    rx_errors: u32,
    echoes: u32,
    /// Some frames are counted as dropped for this reason.
    drops: Option<&'static str>,
}

impl Expected {
    const fn end(end: End) -> Self {
        Self { end, answers: None, refused: 0, rx_errors: 0, echoes: 0, drops: None }
    }

    /// Frames are still carried, as an echo proves.
    const fn up() -> Self {
        Self { echoes: 1, ..Self::end(End::Up) }
    }

    const fn down(reason: &'static str) -> Self {
        Self::end(End::Down(reason))
    }

    const fn refused(self, refused: u32) -> Self {
        Self { refused, ..self }
    }

    const fn answers(self, okay: u32, error: u32) -> Self {
        Self { answers: Some(Answers { okay, null: 0, error, dropped: 0, other: 0 }), ..self }
    }

    const fn drops(self, reason: &'static str) -> Self {
        Self { drops: Some(reason), ..self }
    }

    /// The expected result of an attack. `cycles` is its number of repetitions.
    #[must_use]
    pub fn of(class: Class, cycles: u32) -> Self {
        match class {
            Class::ProducerAhead => Self::down("more than 256 slots ahead"),
            Class::ProducerBack => Self::down("req_prod 1 ").answers(3, 0),
            Class::RxProducerAhead => Self::down("req_prod 513 ").refused(1),
            Class::TooManySlots => Self::up().answers(18, 19),
            Class::FatalSlots => Self::down("20 slots or more"),
            Class::UnfinishedChain => Self::down("more slots than the 2"),
            Class::CrossingPage => Self::down("cross the end of the page"),
            Class::OversizedFragments => Self::down("larger than the packet"),
            Class::RuntFrames => Self::up().answers(1, 3),
            // Slots of no bytes are passed over, as netback does.
            Class::EmptyFragments => Self::up().answers(7, 0),
            Class::SplitHeaders => Self { echoes: 3, ..Self::up() },
            Class::UnknownExtra => Self::down("unknown extra info type 9"),
            Class::EmptySegments => Self::down("GSO size is zero"),
            Class::WrongSegments => {
                // The packet without a blank checksum is repaired, as netback does.
                let answers = Answers { okay: 1, null: 5, error: 4, ..Answers::default() };
                Self { answers: Some(answers), ..Self::up() }
            }
            Class::NoChecksum => Self::up().answers(2, 2),
            Class::TxBadGrants => Self::up().answers(0, 12),
            Class::RxBadGrants => Self { rx_errors: 20, ..Self::up().drops("memory_fault") },
            Class::ManyAddresses => {
                let answers = Answers { dropped: 4096, ..Answers::default() };
                Self { answers: Some(answers), ..Self::up().drops("spoofed_mac") }
            }
            Class::DoledBuffers => Self::up().drops("stalled"),
            Class::QueueCounts => Self::down("asks for 4294967295 queues").refused(3),
            Class::BadRings => Self::down("does not grant").refused(10),
            Class::BadKeys => Self::down("missing or not a number").refused(12),
            Class::BadPorts => Self::down("no event channel").refused(4),
            Class::SharedRing => Self::end(End::Either),
            Class::ControlNonsense => Self::up().refused(9),
            Class::Killed => Self { echoes: 0, ..Self::up() },
            Class::Cycles => Self { echoes: cycles, ..Self::down("the frontend closed") },
            Class::ForgedProducer | Class::ForgedResponses => {
                Self::down("more than 256 slots ahead")
            }
            Class::HalfPublished | Class::RevokedFrames => Self::up().answers(0, 3),
            Class::ForgedSlots => Self::down("cross the end of the page"),
            Class::RevokedRing => Self::down("does not grant"),
            Class::RewrittenSlots
            | Class::EventStorm
            | Class::Flood
            | Class::UnknownFlood
            | Class::MulticastFlood
            | Class::MalformedFlood
            | Class::ControlFlood
            | Class::StoppingReceiver
            | Class::StateStorm
            | Class::StateJumps
            | Class::ConnectsTwice
            | Class::Vanishes
            | Class::RepeatedResponses => Self::up(),
        }
    }

    /// The differences from the observed result.
    #[must_use]
    pub fn complaints(&self, report: &Report, port: &PortSummary) -> Vec<String> {
        if report.skipped.is_some() {
            return Vec::new();
        }
        let mut complaints: Vec<_> = report.failure.iter().cloned().collect();
        let reason = port.reason.as_ref().map_or_else(String::new, ToString::to_string);
        match self.end {
            End::Up if port.state != "up" => complaints.push(format!("down: {reason}")),
            End::Down(_) if port.state != "down" => complaints.push("still up".to_owned()),
            End::Down(part) if !reason.contains(part) => {
                complaints.push(format!("down for another reason: {reason}"));
            }
            _ => {}
        }
        if let Some(answers) = self.answers.filter(|answers| *answers != report.answers) {
            complaints.push(format!("{:?} and not {answers:?}", report.answers));
        }
        for (what, seen, wanted) in [
            ("refusals", report.refused, self.refused),
            ("RX errors", report.rx_errors, self.rx_errors),
            ("echoes", report.echoes, self.echoes),
        ] {
            if seen != wanted {
                complaints.push(format!("{seen} {what} and not {wanted}"));
            }
        }
        if let Some(reason) = self.drops.filter(|reason| !port.drops.contains_key(*reason)) {
            complaints.push(format!("no drops counted as {reason}"));
        }
        complaints
    }
}

impl std::fmt::Display for Expected {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.end {
            End::Up => write!(f, "up")?,
            End::Down(reason) => write!(f, "down: …{}…", reason.trim())?,
            End::Either => write!(f, "up or down")?,
        }
        if let Some(Answers { okay, null, error, dropped, .. }) = self.answers {
            let counts = [("okay", okay), ("null", null), ("error", error), ("dropped", dropped)];
            for (name, count) in counts.into_iter().filter(|(_, count)| *count > 0) {
                write!(f, ", {count} {name}")?;
            }
        }
        for (name, count) in [("refused", self.refused), ("RX errors", self.rx_errors)] {
            if count > 0 {
                write!(f, ", {count} {name}")?;
            }
        }
        self.drops.map_or(Ok(()), |reason| write!(f, ", drops {reason}"))
    }
}

#[cfg(test)]
mod tests {
    use control_socket::Reason;

    use super::*;

    fn port(state: &str, reason: Option<Reason>) -> PortSummary {
        PortSummary {
            name: "hostile".to_owned(),
            state: state.to_owned(),
            reason,
            drops: [("stalled".to_owned(), 3)].into(),
        }
    }

    #[test]
    fn an_expected_result_has_no_complaints() {
        let report = Report::new(Class::FatalSlots);
        let expected = Expected::of(report.class, 0);
        let down = port("down", Some(Reason::Disabled("a packet of 20 slots or more".to_owned())));
        assert!(expected.complaints(&report, &down).is_empty());
        let mut report = Report::new(Class::DoledBuffers);
        report.echoes = 1;
        let expected = Expected::of(report.class, 0);
        assert!(expected.complaints(&report, &port("up", None)).is_empty());
    }

    #[test]
    fn every_difference_is_a_complaint() {
        let mut report = Report::new(Class::TooManySlots);
        report.failure = Some("no answer".to_owned());
        let complaints = Expected::of(report.class, 0).complaints(&report, &port("down", None));
        assert_eq!(complaints.len(), 4, "{complaints:?}");
        let report = Report::new(Class::QueueCounts);
        let other = port("down", Some(Reason::FrontendClosed));
        let complaints = Expected::of(report.class, 0).complaints(&report, &other);
        assert_eq!(
            complaints,
            ["down for another reason: the frontend closed", "0 refusals and not 3"]
        );
        let report = Report::new(Class::RxBadGrants);
        let complaints = Expected::of(report.class, 0).complaints(&report, &port("up", None));
        assert!(complaints.contains(&"no drops counted as memory_fault".to_owned()));
    }

    #[test]
    fn a_skipped_attack_is_not_checked() {
        let mut report = Report::new(Class::ControlNonsense);
        report.skipped = Some("not offered".to_owned());
        assert!(Expected::of(report.class, 0).complaints(&report, &port("down", None)).is_empty());
    }

    #[test]
    fn an_expectation_fits_into_a_table() {
        let text = |class| Expected::of(class, 0).to_string();
        assert_eq!(text(Class::TooManySlots), "up, 18 okay, 19 error");
        assert_eq!(text(Class::QueueCounts), "down: …asks for 4294967295 queues…, 3 refused");
        assert_eq!(text(Class::DoledBuffers), "up, drops stalled");
    }
}
