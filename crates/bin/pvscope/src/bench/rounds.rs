//! Measured rounds, of one run of the benchmark or of several.

use std::path::Path;

use report::Samples;
use serde::{Deserialize, Serialize};

use super::Mode;
use crate::error::{Error, Result};

/// Time in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Seconds {
    /// Wall-clock time.
    pub wall: f64,
    /// Processor time of all threads of QEMU, including the models.
    pub processors: f64,
}

/// Rounds, each with the rows that were measured in it; the first is QEMU without a plugin.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Rounds {
    workload: String,
    milliseconds: u32,
    rounds: Vec<Vec<(Mode, Seconds)>>,
}

impl Rounds {
    /// The rounds in a file; none if it does not exist.
    pub fn read(file: &Path) -> Result<Self> {
        match std::fs::read(file) {
            Ok(text) => serde_json::from_slice(&text)
                .map_err(|error| Error::Usage(format!("{}: {error}", file.display()))),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(Error::path(file)(error)),
        }
    }

    pub fn write(&self, file: &Path) -> Result<()> {
        let text = serde_json::to_vec(self).map_err(|error| Error::Usage(error.to_string()))?;
        Ok(::report::write_atomic(file, &text)?)
    }

    /// Sets what is measured.
    ///
    /// # Errors
    /// In words, if earlier rounds are of something else.
    pub fn is_of(&mut self, workload: &str, milliseconds: u32) -> std::result::Result<(), String> {
        if !self.rounds.is_empty()
            && (&*self.workload, self.milliseconds) != (workload, milliseconds)
        {
            return Err(format!(
                "the rounds in this file are of {} for {} ms: give another file",
                self.workload, self.milliseconds
            ));
        }
        (self.workload, self.milliseconds) = (workload.to_owned(), milliseconds);
        Ok(())
    }

    pub fn add(&mut self, measured: Vec<(Mode, Seconds)>) {
        self.rounds.push(measured);
    }

    /// In how many rounds a row was measured.
    pub fn count(&self, mode: Mode) -> usize {
        self.rounds.iter().flatten().filter(|(own, _)| *own == mode).count()
    }

    /// The wall-clock times of a row; the ratios to that without a plugin in the same round; the ratios of processor time.
    pub fn samples(&self, mode: Mode) -> [Samples; 3] {
        let mut samples = [(); 3].map(|()| Samples::new());
        for round in &self.rounds {
            let of = |wanted| round.iter().find(|(own, _)| *own == wanted).map(|(_, spent)| *spent);
            if let (Some(plain), Some(spent)) = (of(Mode::None), of(mode)) {
                samples[0].push(spent.wall);
                samples[1].push(spent.wall / plain.wall);
                samples[2].push(spent.processors / plain.processors);
            }
        }
        samples
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_of_several_runs_add_up() {
        let folder = lab::TempDir::new().unwrap();
        let file = folder.path().join("rounds.json");
        let second = |wall| Seconds { wall, processors: 2.0 * wall };
        for factor in [1.5, 1.7, 1.6] {
            let mut rounds = Rounds::read(&file).unwrap();
            rounds.is_of("loopback", 100).unwrap();
            rounds.add(vec![(Mode::None, second(2.0)), (Mode::All, second(2.0 * factor))]);
            rounds.write(&file).unwrap();
        }
        let mut rounds = Rounds::read(&file).unwrap();
        let [seconds, ratios, processors] = rounds.samples(Mode::All);
        let median = |samples: &Samples| samples.stats().unwrap().median;
        assert!((median(&seconds) - 3.2).abs() < 1e-9);
        assert!((median(&ratios) - 1.6).abs() < 1e-9);
        assert!((median(&processors) - 1.6).abs() < 1e-9);
        assert_eq!((rounds.count(Mode::All), rounds.count(Mode::Single)), (3, 0));
        let message = rounds.is_of("loopback", 200).unwrap_err();
        assert!(message.contains("loopback for 100 ms"), "{message}");
        std::fs::write(&file, "no rounds").unwrap();
        assert!(Rounds::read(&file).is_err());
    }
}
