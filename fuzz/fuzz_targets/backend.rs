//! A whole backend lives through steps that the input decodes to: a hostile guest's rings, control ring, lists, grant
//! table, pages and keys, frames in both directions beside two honest guests, and restarts of the daemon. It does not
//! panic, only the hostile guest is disabled, the others' frames arrive once and unchanged, and no page stays mapped.
//!
//! `cargo test -p netback --test stateful` runs the same with random inputs. Run with
//! `cargo fuzz run --features libfuzzer --sanitizer none backend`.
#![no_main]

#[path = "../../crates/ports/netback/tests/common/mod.rs"]
mod common;
#[path = "../../crates/ports/netback/tests/stateful/friend.rs"]
mod friend;
#[path = "../../crates/ports/netback/tests/stateful/hostile.rs"]
mod hostile;
#[path = "../../crates/ports/netback/tests/stateful/world.rs"]
mod world;

use std::cell::RefCell;

use libfuzzer_sys::fuzz_target;
use world::World;

thread_local! {
    static WORLD: RefCell<World> = RefCell::new(World::new());
}

fuzz_target!(|input: &[u8]| {
    WORLD.with_borrow_mut(|world| world.run(input));
});
