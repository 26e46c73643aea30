//! The wrappers around ports that are not there, on a clock that the tests turn.

mod compose;
mod fake;
mod police;
mod shape;
