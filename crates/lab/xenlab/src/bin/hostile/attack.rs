//! A running attack.

use std::time::{Duration, Instant};

use xenlab::scenario::Report;

use crate::Cli;
use crate::connect::Device;
use crate::link::Link;
use crate::wait::Outcome;

/// A running attack and its report.
pub struct Attack<'a> {
    pub cli: &'a Cli,
    pub device: &'a Device,
    pub began: Instant,
    pub report: Report,
}

impl Attack<'_> {
    /// Checks that the interface is still up after the attack: an echo comes back.
    pub fn prove(&mut self, mut link: Link) -> Outcome<Option<Link>> {
        link.echo(self.device)?;
        self.report.echoes += 1;
        Ok(Some(link))
    }

    /// Adds a line to the report.
    pub fn did(&mut self, what: impl Into<String>) {
        self.report.did.push(what.into());
    }

    /// How long an attack that repeats runs.
    pub fn duration(&self) -> Duration {
        Duration::from_secs(self.cli.seconds)
    }

    pub fn note_state(&mut self) -> Outcome {
        self.report.backend = self.device.backend_state()?.map(|state| state as u8);
        let elapsed = self.began.elapsed().as_millis();
        self.report.milliseconds = u64::try_from(elapsed).unwrap_or(u64::MAX);
        Ok(())
    }
}
