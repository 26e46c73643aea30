//! Claims: what a paper says, the number found here, and the verdict.

use schemars::JsonSchema;
use serde::Serialize;

use crate::table::Table;
use crate::verdict::{Rule, Sensitivity, Unit, Verdict};

/// What a paper says, compared with what was measured here.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize)]
pub struct Claim {
    /// Where it is in the paper.
    pub source: &'static str,
    /// The workload that was measured here.
    pub workload: &'static str,
    /// What the paper says.
    pub paper_says: &'static str,
    /// Its number, where the text has one.
    pub paper: Option<f64>,
    /// What is compared.
    pub what: String,
    /// The number here; none if it could not be measured.
    pub here: Option<f64>,
    /// The unit of both numbers.
    pub unit: Unit,
    /// How the number became the verdict, in words.
    pub rule: String,
    /// The verdict.
    pub verdict: Verdict,
    /// How far a limit of the rule must move until the verdict is another one.
    pub sensitivity: Option<Sensitivity>,
    /// What else a reader must know: what differs from the paper's setup, and other numbers that explain this one.
    pub differs: String,
}

/// What a paper says.
#[derive(Clone, Copy, Debug)]
pub struct Statement {
    /// Where it is in the paper.
    pub source: &'static str,
    /// What the paper says.
    pub says: &'static str,
    /// Its number, where the text has one.
    pub number: Option<f64>,
    /// The number's unit.
    pub unit: Unit,
}

impl Statement {
    /// Compares it with a number from here.
    pub fn compare(
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
            sensitivity: rule.sensitivity(here),
            differs: String::new(),
        }
    }
}

impl Claim {
    /// Adds what else a reader must know.
    #[must_use]
    pub fn differs(mut self, text: impl Into<String>) -> Self {
        self.differs = text.into();
        self
    }

    /// The verdict with both numbers, as one sentence.
    #[must_use]
    pub fn result(&self) -> String {
        let Self { source, workload, paper, here, unit, verdict, .. } = self;
        let paper = paper.map(|paper| format!(", the paper's {}", unit.show(paper)));
        let here = here.map_or_else(|| "not known".to_owned(), |here| unit.show(here));
        format!("{source}, {workload}: {}: {here}{}.", verdict.words(), paper.unwrap_or_default())
    }

    /// What the verdict stands on, in sentences.
    #[must_use]
    pub fn grounds(&self) -> String {
        let Self { paper_says, what, rule, unit, differs, .. } = self;
        let changes = self.sensitivity.map_or_else(String::new, |sensitivity| {
            let Sensitivity { limit, by } = sensitivity;
            let (limit, other) = (unit.show(limit), unit.show(limit + by));
            format!(
                "The verdict changes if the limit is {other} instead of {limit} ({}). ",
                sensitivity.show(*unit)
            )
        });
        let text =
            format!("The paper says: {paper_says}. Compared: {what} ({rule}). {changes}{differs}");
        text.trim_end().to_owned()
    }
}

/// A table of claims with their verdicts.
#[must_use]
pub fn claims_table<'a>(claims: impl IntoIterator<Item = &'a Claim>) -> Table {
    let mut table = Table::new()
        .left("in the paper")
        .left("workload")
        .left("what is compared")
        .right("paper")
        .right("here")
        .left("verdict")
        .right("limit moves");
    for claim in claims {
        let number = |number: Option<f64>| number.map(|number| claim.unit.show(number));
        table.row([
            claim.source.to_owned(),
            claim.workload.to_owned(),
            claim.what.clone(),
            number(claim.paper).unwrap_or_else(|| "in words".to_owned()),
            number(claim.here).unwrap_or_else(|| "–".to_owned()),
            claim.verdict.words().to_owned(),
            claim
                .sensitivity
                .map_or_else(|| "–".to_owned(), |sensitivity| sensitivity.show(claim.unit)),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(here: Option<f64>) -> Claim {
        let statement =
            Statement { source: "Figure 9", says: "fewer", number: Some(3.8), unit: Unit::Times };
        statement.compare("tx", "misses", here, Rule::AtLeast(3.0, 1.5)).differs("Less.")
    }

    #[test]
    fn a_claim_is_described_in_sentences() {
        let weak = claim(Some(2.0));
        assert_eq!(weak.result(), "Figure 9, tx: holds weakly: × 2.00, the paper's × 3.80.");
        assert!(weak.grounds().starts_with("The paper says: fewer. Compared: misses (holds from"));
        assert!(weak.grounds().ends_with("Less."));
        assert!(weak.grounds().contains("if the limit is × 2.00 instead of × 1.50 (+33 %)"));
        assert_eq!(
            claim(None).result(),
            "Figure 9, tx: cannot be told: not known, the paper's × 3.80."
        );
    }

    #[test]
    fn a_number_that_is_none_is_not_shown() {
        let claims = [claim(Some(2.0)), claim(Some(f64::INFINITY))];
        let table = claims_table(&claims);
        let cells: Vec<_> = table.rows().iter().map(|row| (&*row[4], &*row[5])).collect();
        assert_eq!(cells, [("× 2.00", "holds weakly"), ("–", "cannot be told")]);
    }
}
