//! Errors as text for the command line.

use std::fmt::Display;

/// An error as text; for `map_err`.
pub fn text(error: impl Display) -> String {
    error.to_string()
}
