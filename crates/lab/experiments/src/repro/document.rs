//! The whole result of an experiment, for JSON and pages.

use report::html::Report;
use report::{Claim, Machine, Statement, Unit, claims_table};
use schemars::JsonSchema;
use serde::Serialize;

use super::results::Section;

/// The whole result. `M` is the experiment's own part of the method, `X` are results other than rows.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct Document<M, R, X = Nothing> {
    /// The paper.
    pub paper: &'static str,
    /// The machine, and the time of the run.
    pub machine: Machine,
    /// How it was measured.
    pub method: Method<M>,
    /// The rows of tables and figures.
    pub rows: Vec<R>,
    /// The paper's claims, and whether they hold here.
    pub claims: Vec<Claim>,
    /// Further results.
    #[serde(flatten)]
    pub more: X,
}

/// How it was measured.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct Method<M> {
    /// Seconds of each transfer.
    pub seconds: u32,
    /// Interleaved rounds.
    pub rounds: u32,
    /// The experiment's own part of the method.
    #[serde(flatten)]
    pub own: M,
    /// What differs from the intended setup.
    pub notes: Vec<String>,
}

/// A statement of a paper.
pub fn statement(
    source: &'static str,
    says: &'static str,
    number: impl Into<Option<f64>>,
    unit: Unit,
) -> Statement {
    Statement { source, says, number: number.into(), unit }
}

const CLAIMS: &str = "What the paper claims";

/// No further results.
#[derive(Clone, Debug, Default, JsonSchema, Serialize)]
pub struct Nothing {}

impl<M, R, X> Document<M, R, X> {
    /// A result of a run on this machine.
    pub fn new(
        paper: &'static str,
        method: Method<M>,
        rows: Vec<R>,
        claims: Vec<Claim>,
        more: X,
    ) -> Self {
        Self { paper, machine: Machine::detect(), method, rows, claims, more }
    }

    /// The claims as a section of the printed result, if there are any.
    pub fn claims_section(&self) -> Option<Section> {
        (!self.claims.is_empty()).then(|| Section::table(CLAIMS, claims_table(&self.claims)))
    }

    /// The grounds of the verdicts.
    pub fn grounds(&self) -> impl Iterator<Item = String> {
        self.claims.iter().map(|claim| format!("{}: {}", claim.source, claim.grounds()))
    }

    /// Adds the claims to a page, if there are any.
    pub fn show_claims(&self, page: &mut Report) {
        if !self.claims.is_empty() {
            page.section(CLAIMS).table("", &claims_table(&self.claims));
            self.grounds().for_each(|grounds| _ = page.paragraph(&grounds));
        }
    }

    /// Ends a page with the method, remarks, and the machine.
    pub fn show_method(
        &self,
        page: &mut Report,
        how: &str,
        remarks: impl IntoIterator<Item = String>,
    ) {
        page.section("How it was measured").paragraph(how);
        remarks.into_iter().for_each(|remark| _ = page.paragraph(&remark));
        page.machine(&self.machine);
    }

    /// The notes on the method, as sentences.
    pub fn notes(&self) -> impl Iterator<Item = String> {
        self.method.notes.iter().map(|note| format!("Note: {note}."))
    }
}
