//! The baseline of the pairs: text, a number per line, so that a change of it can be read.

use std::fmt::Write as _;

use super::cost::{Cost, Share};
use super::pairs::length;
use crate::check::{BaselineFile, BaselineProvenance};
use crate::error::{Error, Result};

/// The bands in percent, of all and of a share: docs/xen-cost.md has what they are chosen by.
const BANDS: (f64, f64) = (2.5, 5.0);
/// The same between guests, where TCP has two courses.
const BETWEEN_GUESTS: (f64, f64) = (10.0, 15.0);
/// The same over a NIC, where the course decides how many bytes are under way.
const OVER_NIC: (f64, f64) = (4.0, 6.0);
/// A share that changes by less than this part of the total has not changed: with each course of TCP a small one is another.
const LEAST: f64 = 0.01;

/// The costs of workloads, and what they depend on.
#[derive(Clone, Debug, PartialEq)]
pub struct Baseline {
    pub provenance: BaselineProvenance,
    pub costs: Vec<Cost>,
}

impl Baseline {
    pub fn of(&self, workload: &str) -> Option<&Cost> {
        self.costs.iter().find(|cost| cost.workload == workload)
    }

    /// The same with the costs of some workloads in place of their own.
    ///
    /// # Errors
    /// They depend on something else.
    pub fn with(self, other: Self) -> Result<Self> {
        self.provenance.check(&other.provenance).map_err(Error::Usage)?;
        // In its order, so that a change of the file can be read.
        let mut costs = self.costs;
        for new in &other.costs {
            match costs.iter_mut().find(|cost| cost.workload == new.workload) {
                Some(cost) => cost.clone_from(new),
                None => costs.push(new.clone()),
            }
        }
        Ok(Self { costs, ..other })
    }
}

impl BaselineFile for Baseline {
    const TITLE: &'static str = "# pvscope repro netback, version 1: costs of a byte, packet or round. Made by `make gate-xen-update`.";

    fn provenance(&self) -> &BaselineProvenance {
        &self.provenance
    }

    fn numbers(&self, text: &mut String) {
        for cost in &self.costs {
            let Cost { workload, units, frame_payload, acks, shares, events, .. } = cost;
            let _ = writeln!(text, "\nworkload {workload} {units} {frame_payload:.1} {acks:.4}");
            for (name, counts) in shares {
                let numbers = [counts.instructions, counts.cycles, counts.copied];
                let numbers = numbers.map(|number| format!("{number:.5}")).join(" ");
                let _ = writeln!(text, "share {name} {numbers}");
            }
            for (name, count) in events {
                let _ = writeln!(text, "event {name} {count:.9}");
            }
        }
    }

    fn take<'a>(
        lines: impl Iterator<Item = (usize, &'a str)>,
    ) -> std::result::Result<Self, String> {
        let (mut provenance, mut costs) = (BaselineProvenance::default(), Vec::<Cost>::new());
        for (number, line) in lines {
            let wrong = || format!("line {number} is not understood: {line:?}");
            let (key, rest) = line.split_once(' ').ok_or_else(wrong)?;
            let words: Vec<&str> = rest.split(' ').collect();
            let number = |place: usize| -> Option<f64> { words.get(place)?.parse().ok() };
            let name = words.first().copied().unwrap_or_default().to_owned();
            match (key, costs.last_mut()) {
                ("workload", _) => {
                    let units =
                        words.get(1).and_then(|word| word.parse().ok()).ok_or_else(wrong)?;
                    let (frame_payload, acks) = number(2).zip(number(3)).ok_or_else(wrong)?;
                    costs.push(Cost {
                        workload: name,
                        units,
                        frame_payload,
                        acks,
                        ..Cost::default()
                    });
                }
                ("share", Some(cost)) => {
                    let [instructions, cycles, copied] = [1, 2, 3].map(number);
                    let counts = || -> Option<_> {
                        Some(super::cost::Counts {
                            instructions: instructions?,
                            cycles: cycles?,
                            copied: copied?,
                        })
                    };
                    cost.shares.insert(name, counts().ok_or_else(wrong)?);
                }
                ("event", Some(cost)) => {
                    cost.events.insert(name, number(1).ok_or_else(wrong)?);
                }
                (_, None) => provenance.add(key, rest),
                _ => return Err(wrong()),
            }
        }
        Ok(Self { provenance, costs })
    }
}

/// What differs between a workload's costs and those of the baseline, a sentence each.
pub fn differences(before: &Cost, now: &Cost) -> Vec<String> {
    let all = before.sum(&Share::ALL);
    let (total, share) = match now.workload.as_str() {
        workload if length(workload) > 1 => BETWEEN_GUESTS,
        workload if workload.starts_with("wire-") => OVER_NIC,
        _ => BANDS,
    };
    let rows = |shares: &[Share], name: &str, band: f64| {
        let (before, now) = (before.sum(shares), now.sum(shares));
        [
            (format!("model cycles, {name}"), before.cycles, now.cycles, all.cycles, band),
            (
                format!("instructions, {name}"),
                before.instructions,
                now.instructions,
                all.instructions,
                band,
            ),
        ]
    };
    let mut compared = rows(&Share::ALL, "all", total).to_vec();
    compared.extend(Share::ALL.iter().flat_map(|one| rows(&[*one], one.name(), share)));
    let differing = compared.into_iter().filter_map(|(what, before, now, all, band)| {
        let change = 100.0 * (now - before) / before.max(f64::MIN_POSITIVE);
        let matters = (now - before).abs() >= all * LEAST && change.abs() > band;
        matters.then_some((what, before, now, change))
    });
    let workload = &now.workload;
    differing
        .map(|(what, before, now, change)| {
            format!("{workload}: {what}: {before:.3} → {now:.3} ({change:+.1} %)")
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::cost;
    use super::super::pairs::Unit;
    use super::*;

    fn cost() -> Cost {
        Cost { functions: Vec::new(), ..cost::tests::cost("rounds-pvnet", Unit::Round) }
    }

    #[test]
    fn what_is_written_is_read() {
        let provenance = BaselineProvenance::new(vec![("kernel", "4b37".to_owned())]);
        let baseline = Baseline {
            provenance,
            costs: vec![cost(), Cost { workload: "x".to_owned(), ..cost() }],
        };
        assert_eq!(Baseline::parse(&baseline.text()), Ok(baseline.clone()), "{}", baseline.text());
        let broken = baseline.text().replace("share guest", "share guest many");
        let message = Baseline::parse(&broken).unwrap_err();
        assert!(message.contains("many") && message.contains("line "), "{message}");
        assert!(Baseline::parse("version 0\n").unwrap_err().contains("--update"));
    }

    #[test]
    fn some_workloads_are_replaced_if_they_depend_on_the_same() {
        let of = |kernel: &str, names: &[&str], units| {
            let provenance = BaselineProvenance::new(vec![("kernel", kernel.to_owned())]);
            let cost = |name: &&str| Cost { workload: (*name).to_owned(), units, ..cost() };
            Baseline { provenance, costs: names.iter().map(cost).collect() }
        };
        let all = of("4b37", &["a", "b"], 1).with(of("4b37", &["b"], 2)).unwrap();
        assert_eq!(["a", "b"].map(|name| all.of(name).unwrap().units), [1, 2]);
        assert!(all.with(of("other", &["b"], 3)).is_err());
    }

    #[test]
    fn a_share_that_grows_beyond_its_band_is_named() {
        let before = cost();
        assert_eq!(differences(&before, &before), [""; 0]);
        let mut now = before.clone();
        let programs = now.shares.get_mut(Share::Dom0Programs.name()).unwrap();
        programs.instructions *= 1.04;
        assert_eq!(differences(&before, &now), [""; 0], "within the band");
        let of = |instructions: f64| {
            let mut cost = before.clone();
            let programs = cost.shares.get_mut(Share::Dom0Programs.name()).unwrap();
            programs.instructions = instructions;
            cost
        };
        assert_eq!(differences(&of(4.0), &of(4.8)), [""; 0], "less than a hundredth of all");
        assert_eq!(differences(&of(4.0), &of(5.0)).len(), 1);
        now.shares.get_mut(Share::Dom0Programs.name()).unwrap().instructions *= 1.04;
        let found = differences(&before, &now);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(
            found[0].starts_with("rounds-pvnet: instructions, dom0-programs: 20.000 →"),
            "{found:?}"
        );
        now.shares.values_mut().for_each(|counts| counts.cycles *= 1.03);
        let found = differences(&before, &now);
        assert!(found.iter().any(|line| line.contains("model cycles, all")), "{found:?}");
        let named =
            |cost: &Cost, workload: &str| Cost { workload: workload.to_owned(), ..cost.clone() };
        let of = |workload| differences(&named(&before, workload), &named(&now, workload));
        assert_eq!(of("guests-pvnet"), [""; 0], "another course");
        assert!(!of("wire-rx-tap").iter().any(|line| line.contains("model cycles, all")));
    }
}
