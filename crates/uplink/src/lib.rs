//! The way out: a tap device as a port.

#![forbid(unsafe_code)]
