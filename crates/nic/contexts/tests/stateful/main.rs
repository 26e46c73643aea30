//! Runs the hypervisor's part through steps that are decoded from bytes: a guest's call pages, a card that consumes, a balloon,
//! revocations. The fuzz target `enqueue` runs the same.
//!
//! A failure prints its bytes. `PVNET_FUZZ_INPUT=HEX` runs them alone; `PVNET_FUZZ_SECONDS=N` runs longer.

#[path = "../common/mod.rs"]
mod common;
mod world;

use lab::FuzzRounds;

/// Inputs that once were, or easily could be, a problem.
const CORPUS: [&[u8]; 3] = [
    &[],
    // The card has consumed what the guest itself wrote, and then the balloon asks.
    &[0, 0, 0, 0, 177, 9, 216, 5, 179, 200, 216, 6],
    // Descriptors of all of the guest's pages are enqueued, consumed, and enqueued again at the wrap of the indices.
    &[
        250, 255, 255, 255, 32, 0, 30, 1, 0, 40, 0, 0, 0, 20, 1, 112, 0, 176, 9, 0, 0, 20, 2, 112,
        0, 216, 5,
    ],
];
#[test]
fn any_calls_leave_pages_of_others_alone() {
    let rounds = FuzzRounds { package: "contexts", corpus: &CORPUS, seconds: 5, bytes: 1608 };
    rounds.run(world::run);
}
