//! A card lives through steps that the input decodes to: a hostile guest's mailboxes, descriptors and memory, also in the middle
//! of a step, frames of two honest guests and from the wire, revocations. It does not panic, only the hostile guest's
//! context is stopped, the others' frames arrive once, unchanged and in order, and a revoked context's memory has no user.
//!
//! `cargo test -p firmware --test stateful` runs the same with random inputs. Run with
//! `cargo fuzz run --features libfuzzer --sanitizer none card`.
#![no_main]

#[path = "../../crates/nic/firmware/tests/common/mod.rs"]
mod common;
#[path = "../../crates/nic/firmware/tests/stateful/world.rs"]
mod world;

use libfuzzer_sys::fuzz_target;
use world::World;

fuzz_target!(|input: &[u8]| World::new().run(input));
