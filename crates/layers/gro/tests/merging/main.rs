//! Merged segments: of honest senders, beside a model, and of hostile ones.

mod common;

mod hostile;
mod model;
