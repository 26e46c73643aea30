//! The rules: each claim of the papers that is judged here, with the band in which it holds. They were committed before the recordings
//! that they judge. A change of a band needs new recordings, and its reason in decision 0039.
//!
//! - A claim holds in its band and does not hold outside. There is nothing in between.
//! - A factor or a share saved that the paper gives must be found within a factor of 1.5 of it, if not stated otherwise. Words get the
//!   band that [`PaperClaim::why`] explains.
//! - [`PaperClaim::without`] is the number of a system that lacks what the paper claims. It must lie outside the band (a test checks this):
//!   a band that contains it would let anything pass.
//! - Numbers that follow from each other are one reading, and judged once. The workload is chosen here too.
//! - The copies of the papers that this file was written from have no page numbers; figures and sections give the place.

pub mod chadha07;
pub mod menon06;

use report::{Claim, Rule, Statement, Unit};

/// A claim of a paper, and the rule that judges it.
#[derive(Clone, Copy, Debug)]
pub struct PaperClaim {
    /// The figure or section.
    pub source: &'static str,
    pub says: &'static str,
    pub number: Option<f64>,
    /// The unit of all numbers.
    pub unit: Unit,
    /// The workload that is judged.
    pub workload: &'static str,
    /// What is compared.
    pub what: &'static str,
    /// The band in which it holds.
    pub band: Rule,
    /// Why this band.
    pub why: &'static str,
    /// The number of a system without what the paper claims; none for plain counts.
    pub without: Option<f64>,
}

impl PaperClaim {
    /// The verdict on a number.
    pub fn judge(&self, here: Option<f64>) -> Claim {
        let &Self { source, says, number, unit, workload, what, band, why, without } = self;
        let mut claim =
            Statement { source, says, number, unit }.compare(workload, what, here, band);
        let without = without.map_or_else(String::new, |without| {
            format!(" Without what the paper says: {}.", unit.show(without))
        });
        claim.rule = format!("{}. {why}{without}", claim.rule);
        claim
    }
}

/// The band from `1/1.5` to `1.5` times the paper's factor.
const fn near(number: f64) -> Rule {
    Rule::Between(number / 1.5, number * 1.5)
}

/// The band from half to twice the paper's count.
const fn within_twice(number: f64) -> Rule {
    Rule::Between(number / 2.0, number * 2.0)
}

const COUNT: &str = "Half to twice: Linux 2.6.13 and Xen 3.0.2 of 32 bits against Linux 6.1 and Xen 4.17 of 64. A path of another \
                     kind is off by more.";

/// A count of instructions in Figures 7 to 10.
const fn instructions(
    source: &'static str,
    says: &'static str,
    number: f64,
    workload: &'static str,
    what: &'static str,
) -> PaperClaim {
    let (unit, why, without) = (Unit::Instructions, COUNT, None);
    let (number, band) = (Some(number), within_twice(number));
    PaperClaim { source, says, number, unit, workload, what, band, why, without }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use report::Verdict;

    use super::*;
    use crate::workload::Workload;

    fn all() -> impl Iterator<Item = PaperClaim> {
        chadha07::ALL.into_iter().chain(menon06::ALL)
    }

    #[test]
    fn the_papers_number_is_in_the_band_and_the_lack_of_an_effect_is_not() {
        for rule in all() {
            let PaperClaim { source, says, number, without, band, .. } = rule;
            for (number, verdict) in [(number, Verdict::Holds), (without, Verdict::DoesNotHold)] {
                assert!(number.is_none() || band.of(number) == verdict, "{source}: {says}");
            }
        }
    }

    #[test]
    fn nothing_holds_weakly() {
        for rule in all() {
            let around = (-100..=100).map(|step| f64::from(step) / 20.0);
            let around = around.chain((0..=40_000).step_by(50).map(f64::from));
            let words = rule.band.words(rule.unit);
            assert!(!words.contains("weakly"), "{words}");
            for here in around {
                assert_ne!(rule.band.of(Some(here)), Verdict::HoldsWeakly, "{}", rule.says);
            }
        }
    }

    #[test]
    fn a_reading_is_counted_once_and_its_workload_exists() {
        let mut seen = HashSet::new();
        for rule in all() {
            assert!(seen.insert((rule.workload, rule.what)), "{}", rule.what);
            assert!(Workload::named(rule.workload).is_ok(), "{}", rule.workload);
            let said = [rule.source, rule.says, rule.what, rule.why];
            assert!(said.iter().all(|text| !text.is_empty()), "{}: {said:?}", rule.workload);
        }
    }
}
