//! A card lives through bytes that decode to steps: a hostile guest's mailboxes, descriptors and memory, also in the middle of a
//! step, frames of honest guests and from the wire, revocations. The fuzz target `card` runs the same.
//!
//! A failure prints its bytes. `PVNET_FUZZ_INPUT=HEX` runs them alone; `PVNET_FUZZ_SECONDS=N` runs longer.

#[path = "../common/mod.rs"]
mod common;
mod world;

use std::hash::{BuildHasher, RandomState};
use std::panic::{catch_unwind, resume_unwind};
use std::time::{Duration, Instant};

use world::World;

/// Inputs that once were, or easily could be, a problem.
const CORPUS: [&[u8]; 5] = [
    &[],
    // Frames between honest guests and to the wire, which is busy meanwhile.
    &[93, 1, 60, 200, 5, 63, 232, 35, 62, 60, 0, 100, 93, 255, 100, 101],
    // Frames from the wire for everybody, with offloads that are none.
    &[84, 1, 100, 0, 85, 2, 100, 0, 86, 3, 200, 3, 87, 0, 0, 1, 100],
    // The hostile guest posts a buffer, sends to an honest one and to itself, and to an honest one again.
    &[33, 1, 255, 0, 34, 0, 60, 0, 34, 4, 60, 0, 34, 0, 60, 0, 100],
    // It enables everything, produces what it has not written, and is replaced.
    &[0, 2, 255, 1, 0, 0, 4, 9, 0, 100, 90, 0, 255, 255, 255, 0, 2, 255, 1, 0, 0, 4, 1, 0, 102],
];
const SECONDS: u64 = 5;

/// A small random generator.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn bytes(&mut self) -> Vec<u8> {
        let words = 2 + self.next() % 200;
        (0..words).flat_map(|_| self.next().to_le_bytes()).collect()
    }
}

/// Runs an input, and prints it if it fails.
fn run(input: &[u8]) {
    if let Err(panic) = catch_unwind(|| World::new().run(input)) {
        let hex: String = input.iter().map(|byte| format!("{byte:02x}")).collect();
        eprintln!(
            "failed; to repeat: PVNET_FUZZ_INPUT={hex} cargo test -p firmware --test stateful"
        );
        resume_unwind(panic);
    }
}

#[test]
fn any_steps_leave_the_other_contexts_alone() {
    if let Ok(hex) = std::env::var("PVNET_FUZZ_INPUT") {
        let byte = |n| u8::from_str_radix(&hex[n..n + 2], 16).unwrap();
        let input: Vec<u8> = (0..hex.len()).step_by(2).map(byte).collect();
        return run(&input);
    }
    CORPUS.iter().for_each(|input| run(input));
    let seconds = std::env::var("PVNET_FUZZ_SECONDS").map_or(SECONDS, |text| text.parse().unwrap());
    // Other inputs each time; a failure prints its own.
    let mut random = Random(RandomState::new().hash_one(0));
    let (start, mut inputs) = (Instant::now(), 0);
    while start.elapsed() < Duration::from_secs(seconds) {
        run(&random.bytes());
        inputs += 1;
    }
    println!("{inputs} inputs");
}
