//! A whole backend lives through bytes that decode to steps: rings, control ring, store, both directions, persistent
//! grants, restarts of the daemon. The fuzz target `backend` runs the same.
//!
//! A failure prints its bytes. `PVNET_FUZZ_INPUT=HEX` runs them alone; `PVNET_FUZZ_SECONDS=N` runs longer.

#[path = "../common/mod.rs"]
mod common;

mod friend;
mod hostile;
mod world;

use std::hash::{BuildHasher, RandomState};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::{Duration, Instant};

use common::random::Random;
use world::World;

/// Inputs that once were, or easily could be, a problem.
const CORPUS: [&[u8]; 6] = [
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
];
const SECONDS: u64 = 10;

fn any_bytes(random: &mut Random) -> Vec<u8> {
    let words = 2 + random.next() % 120;
    (0..words).flat_map(|_| random.next().to_le_bytes()).collect()
}

/// Runs an input, and prints it if it fails.
fn run(world: &mut World, input: &[u8]) {
    let result = catch_unwind(AssertUnwindSafe(|| world.run(input)));
    if let Err(panic) = result {
        let hex: String = input.iter().map(|byte| format!("{byte:02x}")).collect();
        eprintln!(
            "failed; to repeat: PVNET_FUZZ_INPUT={hex} cargo test -p netback --test stateful"
        );
        resume_unwind(panic);
    }
}

#[test]
fn any_steps_leave_the_other_guests_alone() {
    let mut world = World::new();
    if let Ok(hex) = std::env::var("PVNET_FUZZ_INPUT") {
        let byte = |n| u8::from_str_radix(&hex[n..n + 2], 16).unwrap();
        let input: Vec<u8> = (0..hex.len()).step_by(2).map(byte).collect();
        return run(&mut world, &input);
    }
    CORPUS.iter().for_each(|input| run(&mut world, input));
    let seconds = std::env::var("PVNET_FUZZ_SECONDS").map_or(SECONDS, |text| text.parse().unwrap());
    // Other inputs each time; a failure prints its own.
    let mut random = Random(RandomState::new().hash_one(0));
    let (start, mut inputs) = (Instant::now(), 0);
    while start.elapsed() < Duration::from_secs(seconds) {
        run(&mut world, &any_bytes(&mut random));
        inputs += 1;
    }
    println!("{inputs} inputs");
}
