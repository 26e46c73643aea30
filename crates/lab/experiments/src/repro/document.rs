//! The whole result of an experiment, for JSON and pages.

use report::{Claim, Machine};
use schemars::JsonSchema;
use serde::Serialize;

/// The whole result. `M` is what the experiment's method has besides, `X` are results other than rows.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct Document<M, R, X = Nothing> {
    /// The paper.
    pub paper: &'static str,
    /// Where and when it ran.
    pub machine: Machine,
    /// How it was measured.
    pub method: Method<M>,
    /// The rows of tables and figures.
    pub rows: Vec<R>,
    /// What the paper claims, and whether it holds here.
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
    /// What the experiment's method has besides.
    #[serde(flatten)]
    pub own: M,
    /// What differs from the intended setup.
    pub notes: Vec<String>,
}

/// No further results.
#[derive(Clone, Debug, Default, JsonSchema, Serialize)]
pub struct Nothing {}

impl<M, R, X> Document<M, R, X> {
    /// A result of this machine.
    pub fn new(
        paper: &'static str,
        method: Method<M>,
        rows: Vec<R>,
        claims: Vec<Claim>,
        more: X,
    ) -> Self {
        Self { paper, machine: Machine::detect(), method, rows, claims, more }
    }

    /// The notes on the method, as sentences.
    pub fn notes(&self) -> impl Iterator<Item = String> {
        self.method.notes.iter().map(|note| format!("Note: {note}."))
    }
}
