//! Frontends that disconnect or die.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

use crate::Attack;
use crate::device::Outcome;
use crate::link::Link;
use crate::races::FLOWS;

/// Connects. `main` then exits without closing the device.
pub fn vanishes(attack: &mut Attack<'_>) -> Outcome<Option<Link>> {
    let link = Link::connect(attack.device)?;
    attack.did("the end of the process");
    attack.prove(link)
}

/// Kills a child process while both rings are full.
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
