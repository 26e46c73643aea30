//! Frontends that disconnect or die.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use xenlab::scenario::Report;

use crate::Cli;
use crate::connect::HostileDevice;
use crate::device::Outcome;
use crate::link::Link;
use crate::races::FLOWS;

/// Connects. `main` then ends the process without closing the device.
pub fn vanishes(attack: &mut Attack<'_>) -> Outcome<Option<Link>> {
    let link = Link::connect(attack.device)?;
    attack.did("the end of the process");
    attack.prove(link)
}

/// A child that is killed while both rings are full.
pub fn killed(attack: &mut Attack<'_>) -> Outcome<Option<Link>> {
    let vif = attack.cli.vif.to_string();
    let mut child = Command::new(std::env::current_exe()?)
        .args(["flood", "--vif", &vif, "--seconds", "60"])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()?;
    let mut line = String::new();
    let read = child.stderr.take().map(|stderr| BufReader::new(stderr).read_line(&mut line));
    child.kill()?;
    child.wait()?;
    read.transpose()?;
    if line.trim() != FLOWS {
        return Err(format!("the child says {line:?}").into());
    }
    attack.did("kill -9 in the middle of a flood");
    Ok(None)
}

/// Repeats a connection, so that a leak adds up.
pub fn cycles(attack: &mut Attack<'_>) -> Outcome<Option<Link>> {
    for _ in 0..attack.cli.count {
        let mut link = Link::connect(attack.device)?;
        link.echo(attack.device)?;
        attack.report.echoes += 1;
        attack.device.close()?;
    }
    attack.did(format!("{} connections, an echo each", attack.report.echoes));
    Ok(None)
}

/// A running attack and its report.
pub struct Attack<'a> {
    pub cli: &'a Cli,
    pub device: &'a HostileDevice,
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
