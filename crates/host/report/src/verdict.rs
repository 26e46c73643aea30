//! Verdicts: whether a number from a paper is found here too, by a rule that was chosen before.

use schemars::JsonSchema;
use serde::Serialize;

/// Whether a claim holds here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// It holds.
    Holds,
    /// It holds, but much less.
    HoldsWeakly,
    /// It does not hold.
    DoesNotHold,
    /// Too little was measured.
    CannotBeTold,
}

impl Verdict {
    /// In words.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Self::Holds => "holds",
            Self::HoldsWeakly => "holds weakly",
            Self::DoesNotHold => "does not hold",
            Self::CannotBeTold => "cannot be told",
        }
    }
}

/// How far a limit of a rule must move until the verdict is another one.
#[derive(Clone, Copy, Debug, PartialEq, JsonSchema, Serialize)]
pub struct Sensitivity {
    /// The nearest limit.
    pub limit: f64,
    /// How far it must move, in the unit of the claim: up if positive.
    pub by: f64,
}

impl Sensitivity {
    /// The distance for people: of the limit in per cent, of a share in points.
    #[must_use]
    pub fn show(self, unit: Unit) -> String {
        let Self { limit, by } = self;
        if unit == Unit::Share || limit == 0.0 {
            unit.difference(by)
        } else {
            let sign = if by < 0.0 { "−" } else { "+" };
            format!("{sign}{:.0} %", 100.0 * (by / limit).abs())
        }
    }
}

/// How a number becomes a verdict.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rule {
    /// It holds from the first number on, weakly from the second on. If both are equal, it holds or does not.
    AtLeast(f64, f64),
    /// It holds up to the first number, weakly up to the second. If both are equal, it holds or does not.
    AtMost(f64, f64),
    /// It holds above the number, never weakly.
    Above(f64),
    /// It holds from the first number to the second, never weakly.
    Between(f64, f64),
    /// It holds if it is no farther from the first number, the paper's, than the second; weakly if no farther than
    /// the third.
    Near(f64, f64, f64),
    /// It holds at the paper's number, weakly at half and twice of it.
    Doubling(f64),
}

impl Rule {
    /// It holds from this number on, and never weakly.
    #[must_use]
    pub const fn at_least(least: f64) -> Self {
        Self::AtLeast(least, least)
    }

    /// It holds up to this number, and never weakly.
    #[must_use]
    pub const fn at_most(most: f64) -> Self {
        Self::AtMost(most, most)
    }

    /// The verdict on a number; there is none of what was not measured.
    #[must_use]
    pub fn of(self, here: Option<f64>) -> Verdict {
        let Some(here) = here.filter(|here| here.is_finite()) else { return Verdict::CannotBeTold };
        let (holds, weakly) = match self {
            Self::AtLeast(full, some) => (here >= full, here >= some),
            Self::AtMost(full, some) => (here <= full, here <= some),
            Self::Above(bound) => (here > bound, here > bound),
            Self::Between(low, high) => {
                ((low..=high).contains(&here), (low..=high).contains(&here))
            }
            Self::Near(paper, near, far) => {
                let off = (here - paper).abs();
                (off <= near, off <= far)
            }
            Self::Doubling(paper) => {
                // Sizes are powers of two: a hundredth tells them apart.
                let off = (here / paper).log2().abs();
                (off < 0.01, off < 1.01)
            }
        };
        match (holds, weakly) {
            (true, _) => Verdict::Holds,
            (false, true) => Verdict::HoldsWeakly,
            (false, false) => Verdict::DoesNotHold,
        }
    }

    /// The limits at which the verdict changes.
    fn limits(self) -> Vec<f64> {
        match self {
            Self::AtLeast(one, other) | Self::AtMost(one, other) | Self::Between(one, other) => {
                vec![one, other]
            }
            Self::Above(bound) => vec![bound],
            Self::Near(paper, near, far) => {
                vec![paper - far, paper - near, paper + near, paper + far]
            }
            Self::Doubling(paper) => vec![paper / 2.0, paper, paper * 2.0],
        }
    }

    /// How far the verdict on a number is from another one; none if there is no verdict.
    #[must_use]
    pub fn sensitivity(self, here: Option<f64>) -> Option<Sensitivity> {
        let here = here.filter(|here| here.is_finite())?;
        let distance = |limit: &f64| (limit - here).abs();
        let limit = self.limits().into_iter().min_by(|a, b| distance(a).total_cmp(&distance(b)))?;
        Some(Sensitivity { limit, by: here - limit })
    }

    /// The rule in words, with its numbers in `unit`.
    #[must_use]
    pub fn words(self, unit: Unit) -> String {
        let show = |number| unit.show(number);
        match self {
            Self::AtLeast(full, some) if full <= some => format!("holds from {}", show(full)),
            Self::AtMost(full, some) if full >= some => format!("holds up to {}", show(full)),
            Self::Above(bound) => format!("holds above {}", show(bound)),
            Self::Between(low, high) => format!("holds from {} to {}", show(low), show(high)),
            Self::AtLeast(full, some) => {
                format!("holds from {}, weakly from {}", show(full), show(some))
            }
            Self::AtMost(full, some) => {
                format!("holds up to {}, weakly up to {}", show(full), show(some))
            }
            Self::Near(paper, near, far) => format!(
                "holds up to {} off {}, weakly up to {} off",
                unit.distance(near),
                show(paper),
                unit.distance(far)
            ),
            Self::Doubling(paper) => {
                format!("holds at {}, weakly at half or twice of it", show(paper))
            }
        }
    }
}

/// The unit of a claim's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Unit {
    /// A part of a whole, 0 to 1: shown in per cent.
    Share,
    /// One quantity divided by another of the same source.
    Times,
    /// Bytes of a cache: shown in KiB or MiB.
    Bytes,
    /// Entries of a TLB.
    Entries,
    /// Instructions from one place to another.
    Instructions,
    /// Events for each frame.
    PerFrame,
}

impl Unit {
    /// A difference of two numbers, for people.
    fn distance(self, by: f64) -> String {
        if self == Self::Share { format!("{:.0} points", 100.0 * by) } else { self.show(by) }
    }

    /// A difference with its sign, for people.
    fn difference(self, by: f64) -> String {
        let sign = if by < 0.0 { "−" } else { "+" };
        if self == Self::Share {
            format!("{sign}{:.1} points", 100.0 * by.abs())
        } else {
            format!("{sign}{}", self.show(by.abs()))
        }
    }

    /// A number for people.
    #[must_use]
    pub fn show(self, number: f64) -> String {
        match self {
            Self::Share => format!("{:.1} %", 100.0 * number),
            Self::Times => format!("× {number:.2}"),
            Self::Bytes if number >= 1_048_576.0 => format!("{:.0} MiB", number / 1_048_576.0),
            Self::Bytes => format!("{:.0} KiB", number / 1024.0),
            Self::Entries => format!("{number:.0} entries"),
            Self::Instructions => format!("{number:.0} instructions"),
            Self::PerFrame => format!("{number:.2} per frame"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(rule: Rule, here: Option<f64>) -> &'static str {
        rule.of(here).words()
    }

    #[test]
    fn rules_make_verdicts() {
        let least = Rule::AtLeast(0.2, 0.05);
        assert_eq!(words(least, Some(0.2)), "holds");
        assert_eq!(words(least, Some(0.19)), "holds weakly");
        assert_eq!(words(least, Some(-0.3)), "does not hold");
        assert_eq!(words(least, None), "cannot be told");
        assert_eq!(words(least, Some(f64::NAN)), "cannot be told");
        let most = Rule::AtMost(0.2, 0.4);
        assert_eq!(
            [0.2, 0.3, 0.5].map(|here| words(most, Some(here))),
            ["holds", "holds weakly", "does not hold"]
        );
        let near = Rule::Near(0.3, 0.1, 0.2);
        assert_eq!(
            [0.35, 0.15, 0.6].map(|here| words(near, Some(here))),
            ["holds", "holds weakly", "does not hold"]
        );
        let above = Rule::Above(1.0);
        assert_eq!([1.0, 1.1].map(|here| words(above, Some(here))), ["does not hold", "holds"]);
        let size = Rule::Doubling(128.0);
        assert_eq!(
            [128.0, 64.0, 256.0, 512.0].map(|here| words(size, Some(here))),
            ["holds", "holds weakly", "holds weakly", "does not hold"]
        );
    }

    #[test]
    fn a_band_has_two_sides_and_nothing_weak() {
        let band = Rule::Between(2.0, 3.0);
        assert_eq!(
            [1.9, 2.0, 3.0, 3.1].map(|here| words(band, Some(here))),
            ["does not hold", "holds", "holds", "does not hold"]
        );
        assert_eq!(band.words(Unit::Times), "holds from × 2.00 to × 3.00");
    }

    #[test]
    fn the_sensitivity_is_the_distance_to_the_nearest_limit() {
        let shown = |rule: Rule, here, unit| rule.sensitivity(Some(here)).unwrap().show(unit);
        assert_eq!(shown(Rule::Between(2.0, 3.0), 2.1, Unit::Times), "+5 %");
        assert_eq!(shown(Rule::Between(2.0, 3.0), 2.9, Unit::Times), "−3 %");
        assert_eq!(shown(Rule::AtLeast(2.0, 2.0), 1.0, Unit::Times), "−50 %");
        assert_eq!(shown(Rule::AtMost(0.2, 0.2), 0.231, Unit::Share), "+3.1 points");
        assert_eq!(shown(Rule::Near(0.3, 0.1, 0.2), 0.42, Unit::Share), "+2.0 points");
        let moved = Rule::AtMost(0.2, 0.2).sensitivity(Some(0.231)).unwrap();
        let other = moved.limit + moved.by;
        assert_eq!(words(Rule::AtMost(other, other), Some(0.231)), "holds");
        assert_eq!(Rule::Above(1.0).sensitivity(None), None);
    }

    #[test]
    fn numbers_are_shown_in_their_unit() {
        assert_eq!(Unit::Share.show(0.738), "73.8 %");
        assert_eq!(Unit::Bytes.show(4_194_304.0), "4 MiB");
        assert_eq!(Unit::Bytes.show(524_288.0), "512 KiB");
        assert_eq!(
            Rule::Near(0.3, 0.1, 0.2).words(Unit::Share),
            "holds up to 10 points off 30.0 %, weakly up to 20 points off"
        );
        assert_eq!(
            Rule::AtLeast(0.2, 0.05).words(Unit::Share),
            "holds from 20.0 %, weakly from 5.0 %"
        );
        assert_eq!(Rule::AtLeast(1.9, 1.9).words(Unit::Times), "holds from × 1.90");
        assert_eq!(Rule::AtMost(1.5, 1.5).words(Unit::Times), "holds up to × 1.50");
        assert_eq!(Rule::Above(1.0).words(Unit::Times), "holds above × 1.00");
    }
}
