//! A guest that attacks its backend.

mod class;

pub use class::{Answers, Class, Report};
