//! The hypervisor's part lives through bytes that decode to steps: a guest's call pages, a card that consumes, a balloon,
//! revocations. The fuzz target `enqueue` runs the same.
//!
//! A failure prints its bytes. `PVNET_FUZZ_INPUT=HEX` runs them alone; `PVNET_FUZZ_SECONDS=N` runs longer.

#[path = "../common/mod.rs"]
mod common;
mod world;

use std::hash::{BuildHasher, RandomState};
use std::panic::{catch_unwind, resume_unwind};
use std::time::{Duration, Instant};

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
    if let Err(panic) = catch_unwind(|| world::run(input)) {
        let hex: String = input.iter().map(|byte| format!("{byte:02x}")).collect();
        eprintln!(
            "failed; to repeat: PVNET_FUZZ_INPUT={hex} cargo test -p contexts --test stateful"
        );
        resume_unwind(panic);
    }
}

#[test]
fn any_calls_leave_pages_of_others_alone() {
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
