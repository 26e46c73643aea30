//! A whole backend lives through bytes that decode to steps: rings, control ring, store, both directions, persistent
//! grants, restarts of the daemon. The fuzz target `backend` runs the same.
//!
//! A failure prints its bytes. `PVNET_FUZZ_INPUT=HEX` runs them alone; `PVNET_FUZZ_SECONDS=N` runs longer.

#[path = "../common/mod.rs"]
mod common;

mod friend;
mod hostile;
mod world;

use lab::FuzzRounds;

use world::World;

/// Inputs that once were, or easily could be, a problem.
const CORPUS: [&[u8]; 7] = [
    &[],
    &[3],
    // Frames between honest guests, a restart in their midst.
    &[3, 78, 0, 0, 0, 2, 78, 1, 0, 200, 5, 98, 0, 105, 105, 98, 1, 94, 105],
    // A frame to everybody, buffers for the others' frames, and a killed daemon.
    &[0, 0, 2, 0, 200, 0, 12, 64, 78, 0, 1, 100, 0, 98, 2, 105, 94, 105],
    // A response index that is forged, then a restart.
    &[1, 0, 0, 0, 200, 0, 105, 64, 0, 2, 200, 0, 0, 0, 94, 105, 74, 1, 105],
    // Pages that stay mapped, and a daemon that is killed meanwhile.
    &[2, 36, 0, 3, 1, 0, 2, 0, 3, 0, 20, 9, 3, 0, 105, 0, 0, 1, 200, 0, 98, 2, 20, 10, 3, 0, 105],
    // An interface that the toolstack takes away, and a guest that closes.
    &[0, 97, 0, 74, 6, 105, 94, 105],
];
#[test]
fn any_steps_leave_the_other_guests_alone() {
    let mut world = World::new();
    let rounds = FuzzRounds { package: "netback", corpus: &CORPUS, seconds: 10, bytes: 968 };
    rounds.run(|input| world.run(input));
}
