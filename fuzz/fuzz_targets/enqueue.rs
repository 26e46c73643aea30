//! Whatever a guest writes into its call page, before the hypervisor copies it and after, with a card that
//! consumes, a balloon and revocations in between: what is in a ring is the guest's, what a
//! translation reaches is the guest's, none of it was given up, and no reference is left at the end.
//!
//! `cargo test -p contexts --test stateful` runs the same with random inputs. Run with
//! `cargo fuzz run --features libfuzzer --sanitizer none enqueue`.
#![no_main]

#[path = "../../crates/nic/contexts/tests/common/mod.rs"]
mod common;
#[path = "../../crates/nic/contexts/tests/stateful/world.rs"]
mod world;

libfuzzer_sys::fuzz_target!(|input: &[u8]| world::run(input));
