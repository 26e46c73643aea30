//! The rows of the result.

use std::collections::BTreeMap;

use report::Stats;
use schemars::JsonSchema;
use serde::Serialize;

use super::config::Config;
use super::measure::Sample;
use super::paper::{Numbers, Part, paper};
use crate::repro::rounds::{self, Key, mean};
use crate::repro::shares::Shares;
use crate::repro::transfer::Direction;

/// Identifies a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transferred {
    /// The server.
    pub config: Config,
    /// Whether it sends.
    pub direction: Direction,
    /// Its guests.
    pub guests: u8,
}

/// A row.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct Row {
    /// Its table or figure.
    #[serde(skip)]
    pub part: Part,
    /// The table's number, if it is of a table.
    pub table: Option<&'static str>,
    /// The figure's number, if it is of a figure.
    pub figure: Option<&'static str>,
    /// The configuration.
    pub config: Config,
    /// The direction as the guests see it.
    pub direction: Direction,
    /// Guests.
    pub guests: u8,
    /// Payload of all NICs, in 10⁶ bits per second.
    pub mbps: Option<Stats>,
    /// Shares of the server CPU's time, 0 to 1: means of all rounds.
    pub share: Option<Shares>,
    /// Interrupts per second.
    pub interrupts_per_s: Option<Interrupts>,
    /// Payloads of MTU-sized frames per interrupt of a guest.
    pub packets_per_interrupt: Option<f64>,
    /// Jain's index over the guests.
    pub jain: Option<f64>,
    /// Microseconds of the server's CPU per payload of an MTU-sized frame, without idle time.
    pub us_per_packet: Option<Shares>,
    /// The share of the client's CPU that was busy.
    pub client_busy: Option<f64>,
    /// The paper's numbers.
    pub paper: Option<Numbers>,
    /// Why there is no measurement, or a remark on it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// Interrupts per second; none if they are not counted.
#[derive(Clone, Copy, Debug, PartialEq, JsonSchema, Serialize)]
pub struct Interrupts {
    /// Of the driver domain.
    pub driver: Option<f64>,
    /// Of all guests.
    pub guest: Option<f64>,
}

/// From this share on, the client's CPU counts as saturated.
const SATURATED: f64 = 0.95;
/// From this share on, other programs on the server's CPU are mentioned.
const DISTURBED: f64 = 0.02;

impl Key for Transferred {
    type Server = Config;

    fn server(self) -> Config {
        self.config
    }

    fn group(self) -> u16 {
        self.guests.into()
    }
}

impl Transferred {
    /// Its name, for people.
    pub fn name(self) -> String {
        format!("{}, {}, {} guests", self.config.name(), self.direction.name(), self.guests)
    }
}

/// The samples of all measurements, and the failures.
pub type Measurements = rounds::Measurements<Transferred, Sample>;

/// The rows of these parts.
pub fn rows(parts: &[Part], keys: &[Transferred], guests: &[u8], seen: &Measurements) -> Vec<Row> {
    let of = |part: &Part| {
        let part = *part;
        let keys = part.rows(guests).into_iter().map(|(config, direction, guests)| Transferred {
            config,
            direction,
            guests,
        });
        keys.map(move |key| (part, key))
    };
    let all = parts.iter().flat_map(of).filter(|(_, key)| keys.contains(key));
    all.map(|(part, key)| row(part, key, seen)).collect()
}

fn mean_shares(samples: &[Sample]) -> Option<Shares> {
    let of = |part: fn(&Shares) -> f64| mean(samples.iter().map(|sample| part(&sample.share)));
    Some(Shares {
        hypervisor: of(|share| share.hypervisor)?,
        driver: of(|share| share.driver)?,
        guest_system: of(|share| share.guest_system)?,
        guest_user: of(|share| share.guest_user)?,
        idle: of(|share| share.idle)?,
    })
}

fn row(part: Part, key: Transferred, seen: &Measurements) -> Row {
    let Transferred { config, direction, guests } = key;
    let samples = seen.of(key);
    let share = mean_shares(samples);
    let packets = mean(samples.iter().map(Sample::packets_per_second)).filter(|all| *all > 0.0);
    let interrupts = |domain: usize| mean(samples.iter().filter_map(|it| it.interrupts[domain]));
    let guest = interrupts(1);
    let scaled = |share: Shares, packets: f64| {
        let scale = |part: f64| part * 1e6 / packets;
        Shares {
            hypervisor: scale(share.hypervisor),
            driver: scale(share.driver),
            guest_system: scale(share.guest_system),
            guest_user: scale(share.guest_user),
            idle: 0.0,
        }
    };
    let client_busy = mean(samples.iter().map(|sample| sample.client_busy));
    let others = mean(samples.iter().map(|sample| sample.others)).unwrap_or(0.0);
    Row {
        part,
        table: part.table(),
        figure: part.figure(),
        config,
        direction,
        guests,
        mbps: seen.stats(key, |sample| Some(sample.mbps)),
        share,
        interrupts_per_s: (!samples.is_empty())
            .then(|| Interrupts { driver: interrupts(0), guest }),
        packets_per_interrupt: packets
            .zip(guest.filter(|guest| *guest > 0.0))
            .map(|(packets, guest)| packets / guest),
        jain: mean(samples.iter().map(|sample| sample.jain)),
        us_per_packet: share.zip(packets).map(|(share, packets)| scaled(share, packets)),
        client_busy,
        paper: paper(part, config, direction, guests),
        note: note(seen.missing(key), client_busy, others),
    }
}

fn note(missing: Option<String>, client: Option<f64>, others: f64) -> Option<String> {
    if missing.is_some() {
        return missing;
    }
    let saturated = client.is_some_and(|busy| busy >= SATURATED).then(|| {
        "the client's CPU was saturated: compare the cost per packet, not Mb/s".to_owned()
    });
    let disturbed = (others > DISTURBED).then(|| {
        format!("other programs had {:.0} % of the server's CPU, counted as idle", others * 100.0)
    });
    let all: Vec<String> = [saturated, disturbed].into_iter().flatten().collect();
    (!all.is_empty()).then(|| all.join("; "))
}

/// Notes that rows share, with the rows' names.
pub fn notes(rows: &[Row]) -> Vec<String> {
    let mut notes: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for row in rows {
        let name = format!("{} {} {}", row.config.name(), row.direction.name(), row.guests);
        if let Some(note) = &row.note {
            let names = notes.entry(note).or_default();
            // A measurement may be in several tables.
            if !names.contains(&name) {
                names.push(name);
            }
        }
    }
    let sentence = |(note, names): (&str, Vec<String>)| format!("{}: {note}", names.join(", "));
    notes.into_iter().map(sentence).collect()
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::config::CDNA;
    use super::*;

    /// A sample at this rate.
    pub fn sample(mbps: f64, client_busy: f64) -> Sample {
        let share =
            Shares { hypervisor: 0.1, driver: 0.0, guest_system: 0.3, guest_user: 0.1, idle: 0.5 };
        let interrupts = [Some(0.0), Some(1000.0)];
        Sample { mbps, share, others: 0.0, interrupts, jain: 1.0, client_busy }
    }

    #[test]
    fn costs_are_per_packet_and_packets_per_interrupt() {
        let key = Transferred { config: CDNA, direction: Direction::Tx, guests: 1 };
        let mut seen = Measurements::new();
        // 10,000 packets of 1448 bytes per second.
        seen.push(key, sample(115.84, 0.5));
        let rows = rows(&[Part::Table2], &[key], &[1], &seen);
        let [row] = &rows[..] else { panic!("{rows:?}") };
        assert!((row.packets_per_interrupt.unwrap() - 10.0).abs() < 1e-6);
        assert!((row.us_per_packet.unwrap().hypervisor - 10.0).abs() < 1e-6);
        assert_eq!(row.paper.unwrap().mbps, 1867.0);
        assert_eq!(row.note, None);
    }

    #[test]
    fn rows_say_what_is_wrong_with_them() {
        let of = |config| Transferred { config, direction: Direction::Tx, guests: 1 };
        let (xen, rice) = (of(Config::XenIntel), of(Config::XenRicenic));
        let mut seen = Measurements::new();
        seen.push(of(CDNA), sample(1.0, 0.99));
        seen.fail(xen, "it ended".to_owned());
        assert!(seen.has_failed(xen) && seen.failures() == 1);
        let rows = rows(&[Part::Table2], &[xen, rice, of(CDNA)], &[1], &seen);
        let notes: Vec<_> = rows.iter().map(|row| row.note.clone().unwrap()).collect();
        assert_eq!(notes[..2], ["failed: it ended", "not measured"]);
        assert!(notes[2].contains("saturated"));
        assert!(super::notes(&rows)[0].starts_with("xen-intel tx 1: "));
    }
}
