//! The userspace driver domain: daemon and command line.

#![forbid(unsafe_code)]
fn main() {}
