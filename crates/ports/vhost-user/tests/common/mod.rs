//! A virtual machine in a test: a front-end, and a driver in the guest's memory.

#![allow(dead_code, unused_imports, reason = "each test file uses a part of it")]

mod features;
mod frames;
mod front_end;
pub mod message;
mod pass;
mod served;
mod vm;

pub use features::*;
pub use frames::*;
pub use front_end::*;
pub use pass::*;
pub use served::*;
pub use vm::*;
