//! One thing that a feature needs, and how its trial ended.

use schemars::JsonSchema;
use serde::Serialize;

/// One thing that was tried.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Check {
    /// What it is about.
    pub(super) what: &'static str,
    /// How it ended.
    pub(super) result: Verdict,
    /// What was found, or why it failed.
    pub(super) found: String,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) next: Option<String>,
}

/// How a trial ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Verdict {
    /// It works.
    Works,
    /// It does not, and the feature does without, slower or with less.
    Reduced,
    /// It does not, and the feature needs it.
    Missing,
}

impl Check {
    /// What the feature needs.
    pub(super) fn needed(
        what: &'static str,
        tried: Result<String, String>,
        next: impl Into<String>,
    ) -> Self {
        Self::new(what, tried, Verdict::Missing, next.into())
    }

    /// What the feature can do without.
    pub(super) fn wished(
        what: &'static str,
        tried: Result<String, String>,
        next: impl Into<String>,
    ) -> Self {
        Self::new(what, tried, Verdict::Reduced, next.into())
    }

    fn new(
        what: &'static str,
        tried: Result<String, String>,
        otherwise: Verdict,
        next: String,
    ) -> Self {
        match tried {
            Ok(found) => Self { what, result: Verdict::Works, found, next: None },
            Err(found) => Self { what, result: otherwise, found, next: Some(next) },
        }
    }
}

/// An error as text, on one line.
pub(super) fn text(error: impl std::fmt::Display) -> String {
    error.to_string().trim_end().replace('\n', "; ")
}
