//! Runs a fuzz target's check as an ordinary test, with random inputs for a while.

use std::hash::{BuildHasher, RandomState};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::{Duration, Instant};

use crate::transfer::{Random, hexadecimal};

/// The inputs of a test `stateful`: bytes that it decodes to steps, and carries out.
pub struct FuzzRounds<'a> {
    /// The package with the test.
    pub package: &'a str,
    /// Inputs that once were, or easily could be, a problem. They are run first.
    pub corpus: &'a [&'a [u8]],
    /// How long random inputs follow, in seconds. The variable `PVNET_FUZZ_SECONDS` overrides it.
    pub seconds: u64,
    /// The most bytes of an input.
    pub bytes: usize,
}

impl FuzzRounds<'_> {
    /// Calls `run` with the inputs, or only with the one in the variable `PVNET_FUZZ_INPUT` (hexadecimal).
    ///
    /// # Panics
    /// If `run` does, after printing the input; or if a variable cannot be parsed.
    pub fn run(&self, mut run: impl FnMut(&[u8])) {
        let mut run = |input: &[u8]| self.run_one(input, &mut run);
        if let Ok(hex) = std::env::var("PVNET_FUZZ_INPUT") {
            let byte = |n| {
                let digits = hex.get(n..n + 2).expect("PVNET_FUZZ_INPUT: an odd number of digits");
                u8::from_str_radix(digits, 16).expect("PVNET_FUZZ_INPUT: not hexadecimal")
            };
            let input: Vec<u8> = (0..hex.len()).step_by(2).map(byte).collect();
            return run(&input);
        }
        self.corpus.iter().for_each(|input| run(input));
        let seconds = std::env::var("PVNET_FUZZ_SECONDS");
        let seconds = seconds.map_or(self.seconds, |text| text.parse().unwrap());
        // Other inputs each time; a failure prints its own.
        let mut random = Random::new(RandomState::new().hash_one(0));
        let (start, mut inputs) = (Instant::now(), 0);
        while start.elapsed() < Duration::from_secs(seconds) {
            let mut len = [0; 4];
            random.fill(&mut len);
            let mut input = vec![0; u32::from_le_bytes(len) as usize % (self.bytes + 1)];
            random.fill(&mut input);
            run(&input);
            inputs += 1;
        }
        println!("{inputs} inputs");
    }

    fn run_one(&self, input: &[u8], run: &mut impl FnMut(&[u8])) {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| run(input))) {
            let hex = hexadecimal(input);
            let package = self.package;
            eprintln!(
                "failed; to repeat: PVNET_FUZZ_INPUT={hex} cargo test -p {package} --test stateful"
            );
            resume_unwind(panic);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "the second input")]
    fn a_failure_is_passed_on() {
        let rounds = FuzzRounds { package: "lab", corpus: &[&[], &[7]], seconds: 0, bytes: 8 };
        rounds.run(|input| assert!(input.is_empty(), "the second input"));
    }
}
