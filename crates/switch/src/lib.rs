//! The learning switch: which port a destination lives on.

#![forbid(unsafe_code)]
