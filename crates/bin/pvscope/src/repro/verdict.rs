//! What a paper says, held against what was recorded.

use serde::Serialize;

/// What becomes of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// It is so here.
    Holds,
    /// It is so, but much less.
    HoldsWeakly,
    /// It is not.
    DoesNotHold,
    /// There was too little to tell by.
    CannotBeTold,
}

impl Verdict {
    /// In words.
    pub fn words(self) -> &'static str {
        match self {
            Self::Holds => "holds",
            Self::HoldsWeakly => "holds weakly",
            Self::DoesNotHold => "does not hold",
            Self::CannotBeTold => "cannot be told",
        }
    }
}

/// How a verdict comes of a number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rule {
    /// It holds from the first number on, weakly from the second on.
    AtLeast(f64, f64),
    /// It holds up to the first number, weakly up to the second.
    AtMost(f64, f64),
    /// It holds up to so far from the paper's number, the first, weakly up to so far.
    Near(f64, f64, f64),
    /// It holds at the paper's number, weakly at half and twice of it.
    Doubling(f64),
}

impl Rule {
    /// The verdict.
    pub fn of(self, here: Option<f64>) -> Verdict {
        let Some(here) = here.filter(|here| here.is_finite()) else { return Verdict::CannotBeTold };
        let (holds, weakly) = match self {
            Self::AtLeast(full, some) => (here >= full, here >= some),
            Self::AtMost(full, some) => (here <= full, here <= some),
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

    /// The rule in words, its numbers in a unit.
    pub fn words(self, unit: Unit) -> String {
        let show = |number| unit.show(number);
        match self {
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

/// What a number is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Unit {
    /// A part of a whole: shown in per cent.
    Share,
    /// One quantity divided by another of the same source.
    Times,
    /// Bytes of a cache: shown in KiB or MiB.
    Bytes,
    /// Entries of a TLB.
    Entries,
}

impl Unit {
    /// How far apart two numbers are, for people.
    fn distance(self, by: f64) -> String {
        if self == Self::Share { format!("{:.0} points", 100.0 * by) } else { self.show(by) }
    }

    /// A number for people.
    pub fn show(self, number: f64) -> String {
        match self {
            Self::Share => format!("{:.1} %", 100.0 * number),
            Self::Times => format!("× {number:.2}"),
            Self::Bytes if number >= 1_048_576.0 => format!("{:.0} MiB", number / 1_048_576.0),
            Self::Bytes => format!("{:.0} KiB", number / 1024.0),
            Self::Entries => format!("{number:.0} entries"),
        }
    }
}

/// A claim of a paper's, and what was recorded.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Claim {
    /// Where it is in the paper.
    pub source: &'static str,
    /// Of what it was recorded here.
    pub workload: &'static str,
    /// What the paper says.
    pub paper_says: &'static str,
    /// Its number, where the text has one.
    pub paper: Option<f64>,
    /// What is compared.
    pub what: String,
    /// What it is here.
    pub here: Option<f64>,
    /// What both are.
    pub unit: Unit,
    /// How the verdict comes about.
    pub rule: String,
    /// The verdict.
    pub verdict: Verdict,
    /// What is to be known of it: what was recorded beside, and what differs from then.
    pub differs: String,
}

/// What a claim is, before anything was recorded.
#[derive(Clone, Copy, Debug)]
pub struct Said {
    /// Where it is in the paper.
    pub source: &'static str,
    /// What the paper says.
    pub says: &'static str,
    /// Its number, where the text has one.
    pub number: Option<f64>,
    /// What its number is.
    pub unit: Unit,
}

impl Said {
    /// The claim and its verdict.
    pub fn held(
        self,
        workload: &'static str,
        what: impl Into<String>,
        here: Option<f64>,
        rule: Rule,
    ) -> Claim {
        Claim {
            source: self.source,
            workload,
            paper_says: self.says,
            paper: self.number,
            what: what.into(),
            here: here.filter(|here| here.is_finite()),
            unit: self.unit,
            rule: rule.words(self.unit),
            verdict: rule.of(here),
            differs: String::new(),
        }
    }
}

impl Claim {
    /// Adds what is to be known of it.
    pub fn differs(mut self, text: impl Into<String>) -> Self {
        self.differs = text.into();
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts_come_of_the_rule() {
        let words = |rule: Rule, here| rule.of(here).words();
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
        let size = Rule::Doubling(128.0);
        assert_eq!(
            [128.0, 64.0, 256.0, 512.0].map(|here| words(size, Some(here))),
            ["holds", "holds weakly", "holds weakly", "does not hold"]
        );
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
    }
}
