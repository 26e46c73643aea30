//! Runs a card through steps that are decoded from bytes: a hostile guest's mailboxes, descriptors and memory, also in the middle of a
//! step of the card, frames of honest guests and from the wire, revocations. The fuzz target `card` runs the same.
//!
//! A failure prints its bytes. `PVNET_FUZZ_INPUT=HEX` runs them alone; `PVNET_FUZZ_SECONDS=N` runs longer.

#[path = "../common/mod.rs"]
mod common;
mod world;

use lab::FuzzRounds;

use world::World;

/// Inputs that once were, or easily could be, a problem.
const CORPUS: [&[u8]; 6] = [
    &[],
    // Frames between honest guests and to the wire, which is busy meanwhile.
    &[93, 1, 60, 200, 5, 63, 232, 35, 62, 60, 0, 100, 93, 255, 100, 101],
    // Frames from the wire for everybody, with offloads that are none.
    &[84, 1, 100, 0, 85, 2, 100, 0, 86, 3, 200, 3, 87, 0, 0, 1, 100],
    // The hostile guest posts a buffer, sends to an honest one and to itself, and to an honest one again.
    &[33, 1, 255, 0, 34, 0, 60, 0, 34, 4, 60, 0, 34, 0, 60, 0, 100],
    // It enables everything, produces what it has not written, and is replaced.
    &[0, 2, 255, 1, 0, 0, 4, 9, 0, 100, 90, 0, 255, 255, 255, 0, 2, 255, 1, 0, 0, 4, 1, 0, 102],
    // It sends what is at the last address of all and behind it.
    &[50, 0, 0, 0, 0, 0, 64, 61, 0, 1, 0, 4, 1, 0, 0, 0, 1, 0, 0, 0, 102],
];
#[test]
fn any_steps_leave_the_other_contexts_alone() {
    let rounds = FuzzRounds { package: "firmware", corpus: &CORPUS, seconds: 5, bytes: 1608 };
    rounds.run(|input| World::new().run(input));
}
