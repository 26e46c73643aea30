//! The rows of the result.

use report::Stats;
use schemars::JsonSchema;
use serde::Serialize;

use super::config::{Line, Placement};
use super::measure::{Cost, Sample};
use super::{DEFAULT, MTU, over_linux};
use crate::repro::rounds::{self, Key};

/// Identifies a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// How the guest receives.
    pub line: Line,
    /// Where the guest and the driver domain run.
    pub placement: Placement,
    /// Packets per interrupt.
    pub coalesce: u16,
    /// Bytes of a packet, with its IP and UDP headers.
    pub size: u16,
}

/// A row.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct Row {
    /// The figure: 8 with the paper's default coalescing, 11 for all.
    pub figure: &'static str,
    /// How the guest receives.
    #[serde(rename = "config")]
    pub line: Line,
    /// Where the guest and the driver domain run.
    pub cpus: Placement,
    /// Packets per interrupt.
    pub coalesce: u16,
    /// Bytes of a packet, with its IP and UDP headers.
    pub size: u16,
    /// The cost of a packet: the median of each part.
    pub ns_per_packet: Option<Cost>,
    /// The total's spread, in nanoseconds.
    pub total: Option<Stats>,
    /// The extra cost over Linux's, as a part of Linux's.
    pub over_linux: Option<f64>,
    /// The paper's number.
    pub paper_over_linux: Option<f64>,
    /// Packets received per second.
    pub pps: Option<f64>,
    /// Datagrams that were lost, 0 to 1.
    pub lost: Option<f64>,
    /// Packets per notification of the guest; none on Linux.
    pub packets_per_interrupt: Option<f64>,
    /// The share of the frames that a tap's queue put into the guest's pages; none without such a queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub direct: Option<f64>,
    /// Why there is no measurement, or a remark on it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// If this part of the datagrams was lost, the row has a note.
const LOSSY: f64 = 0.01;
/// If the packets per interrupt differ from the wanted number by this part of it, the row has a note.
const OFF: f64 = 0.25;

impl Key for Received {
    type Server = (Line, Placement);

    fn server(self) -> Self::Server {
        (self.line, self.placement)
    }

    fn group(self) -> u16 {
        // At most 64 packets per interrupt.
        self.coalesce * 2 + u16::from(self.placement == Placement::Apart)
    }
}

/// The packets per interrupt of a group.
pub const fn coalesce(group: u16) -> u16 {
    group / 2
}

impl Received {
    /// Its name, for people.
    pub fn name(self) -> String {
        name(self.line, self.placement, self.coalesce, self.size)
    }
}

impl Row {
    /// Its name, for people.
    pub fn name(&self) -> String {
        name(self.line, self.cpus, self.coalesce, self.size)
    }
}

fn name(line: Line, placement: Placement, coalesce: u16, size: u16) -> String {
    let (line, placement) = (line.name(), placement.name());
    format!("{line}, {placement}, {coalesce} per interrupt, {size} bytes")
}

/// The samples of all measurements, and the failures.
pub type Measurements = rounds::Measurements<Received, Sample>;

/// The rows of both figures.
pub fn rows(keys: &[Received], seen: &Measurements) -> Vec<Row> {
    let eight = keys.iter().filter(|key| key.coalesce == DEFAULT).map(|key| row("8", *key, seen));
    eight.chain(keys.iter().map(|key| row("11", *key, seen))).collect()
}

fn row(figure: &'static str, key: Received, seen: &Measurements) -> Row {
    let median = |of: fn(&Sample) -> f64| seen.stats(key, |it| Some(of(it))).map(|it| it.median);
    let total = |key| seen.stats(key, |sample| Some(sample.cost.total));
    let linux = total(Received { line: Line::Linux, ..key }).map(|stats| stats.median);
    let cost = || {
        Some(Cost {
            guest: median(|sample| sample.cost.guest)?,
            driver: median(|sample| sample.cost.driver)?,
            hypervisor: median(|sample| sample.cost.hypervisor)?,
            total: median(|sample| sample.cost.total)?,
        })
    };
    let over = |total: f64| linux.filter(|linux| *linux > 0.0).map(|linux| total / linux - 1.0);
    let lost = median(|sample| sample.lost);
    let per_interrupt = seen.stats(key, |it| it.per_interrupt).map(|it| it.median);
    Row {
        figure,
        line: key.line,
        cpus: key.placement,
        coalesce: key.coalesce,
        size: key.size,
        ns_per_packet: cost(),
        total: total(key),
        over_linux: total(key).and_then(|stats| over(stats.median)),
        // The paper's packets have 1500 bytes.
        paper_over_linux: over_linux(key.line, key.coalesce).filter(|_| key.size == MTU),
        pps: median(|sample| sample.pps),
        lost,
        packets_per_interrupt: per_interrupt,
        direct: seen.stats(key, |it| it.direct).map(|it| it.median),
        note: note(key, seen, lost, per_interrupt),
    }
}

fn note(
    key: Received,
    seen: &Measurements,
    lost: Option<f64>,
    per_interrupt: Option<f64>,
) -> Option<String> {
    if let Some(missing) = seen.missing(key) {
        return Some(missing);
    }
    let lost = lost.filter(|lost| *lost >= LOSSY);
    let lost = lost.map(|lost| format!("{:.1} % of the packets were lost", lost * 100.0));
    let wanted = f64::from(key.coalesce);
    let others = per_interrupt.filter(|seen| (seen / wanted - 1.0).abs() > OFF);
    let others = others.map(|seen| format!("{seen:.1} packets shared an interrupt"));
    let all: Vec<String> = [lost, others].into_iter().flatten().collect();
    (!all.is_empty()).then(|| all.join("; "))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A sample with this total.
    pub fn sample(total: f64) -> Sample {
        let cost = Cost { guest: total / 2.0, driver: total / 4.0, hypervisor: total / 4.0, total };
        Sample { cost, pps: 20_000.0, lost: 0.0, per_interrupt: None, direct: None }
    }

    /// The key of a line with packets of the MTU.
    pub fn key(line: Line, coalesce: u16) -> Received {
        Received { line, placement: Placement::Together, coalesce, size: MTU }
    }

    #[test]
    fn costs_are_compared_with_linux_at_the_same_coalescing() {
        let mut seen = Measurements::new();
        let keys: Vec<Received> = [6, 64]
            .into_iter()
            .flat_map(|frames| [Line::Linux, Line::Original].map(|line| key(line, frames)))
            .collect();
        for (key, total) in keys.iter().zip([1000.0, 4000.0, 800.0, 2000.0]) {
            seen.push(*key, sample(total));
        }
        let rows = rows(&keys, &seen);
        // Figure 8 has two of them, Figure 11 all four.
        assert_eq!(rows.len(), 6);
        let of = |figure, line, coalesce| {
            let is = |row: &&Row| (row.figure, row.line, row.coalesce) == (figure, line, coalesce);
            rows.iter().find(is).unwrap()
        };
        assert_eq!(of("8", Line::Original, 6).over_linux, Some(3.0));
        assert_eq!(of("8", Line::Original, 6).paper_over_linux, Some(3.55));
        assert_eq!(of("11", Line::Original, 64).over_linux, Some(1.5));
        assert_eq!(of("11", Line::Linux, 64).over_linux, Some(0.0));
    }

    #[test]
    fn rows_say_what_is_wrong_with_them() {
        let mut seen = Measurements::new();
        let keys = [Line::Linux, Line::Original, Line::Direct].map(|line| key(line, 64));
        seen.push(keys[0], Sample { lost: 0.25, per_interrupt: Some(32.0), ..sample(1.0) });
        seen.fail(keys[1], "it ended".to_owned());
        let notes: Vec<_> = rows(&keys, &seen).into_iter().map(|row| row.note.unwrap()).collect();
        let first = "25.0 % of the packets were lost; 32.0 packets shared an interrupt";
        assert_eq!(notes, [first, "failed: it ended", "not measured"]);
    }
}
