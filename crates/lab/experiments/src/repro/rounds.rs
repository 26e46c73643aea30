//! Measures in interleaved rounds, so that a machine whose speed changes affects all measurements alike.

use std::fmt::Write as _;
use std::path::Path;

use lab::Progress;
use report::{Samples, Stats};

use super::server::Machine;
use crate::error::Result;
use crate::testbed::table;

/// Identifies a measurement.
pub trait Key: Copy + PartialEq {
    /// Identifies a server among those that run at once.
    type Server: Copy + PartialEq;

    /// The server that it needs.
    fn server(self) -> Self::Server;

    /// The number of the group of servers that run at once. The keys of a group must follow each other.
    fn group(self) -> u16 {
        0
    }
}

/// How many rounds there are, and how long they take.
#[derive(Clone, Copy, Debug)]
pub struct Schedule {
    /// Rounds.
    pub rounds: u32,
    /// Seconds of a measurement, roughly, including its overhead.
    pub each: f64,
    /// Seconds of a server's start, roughly.
    pub start: f64,
    /// Whether progress is not shown.
    pub is_quiet: bool,
}

impl Schedule {
    /// The time of these measurements in minutes, roughly.
    fn minutes<K: Key>(&self, keys: &[K]) -> f64 {
        let measurements = f64::from(self.rounds) * keys.len() as f64;
        (measurements * self.each + starts(keys) as f64 * self.start) / 60.0
    }

    fn progress<K: Key>(&self, keys: &[K]) -> Progress {
        let (count, starts) = (keys.len(), starts(keys));
        let progress = Progress::new(starts + self.rounds as usize * count, self.is_quiet);
        let (minutes, rounds) = (self.minutes(keys), self.rounds);
        progress.note(&format!(
            "{count} measurements on {starts} servers, {rounds} rounds: about {minutes:.1} minutes"
        ));
        progress
    }
}

/// The samples of a measurement, or why it failed.
type Seen<S> = std::result::Result<Vec<S>, String>;

/// The samples of all measurements, and the failures.
#[derive(Clone, Debug)]
pub struct Measurements<K, S>(Vec<(K, Seen<S>)>);

impl<K: Copy + PartialEq, S> Measurements<K, S> {
    /// None yet.
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    /// Adds a sample, unless the measurement has failed.
    pub fn push(&mut self, key: K, sample: S) {
        if let Ok(samples) = self.entry(key) {
            samples.push(sample);
        }
    }

    /// Notes why the measurement failed. It gets no further samples.
    pub fn fail(&mut self, key: K, why: String) {
        *self.entry(key) = Err(why);
    }

    /// Whether it failed before.
    pub fn has_failed(&self, key: K) -> bool {
        self.why(key).is_some()
    }

    /// How many failed.
    pub fn failures(&self) -> usize {
        self.0.iter().filter(|(_, seen)| seen.is_err()).count()
    }

    /// The samples of a measurement.
    pub fn of(&self, key: K) -> &[S] {
        self.find(key).and_then(|seen| seen.as_deref().ok()).unwrap_or(&[])
    }

    /// Statistics of a number of each sample.
    pub fn stats(&self, key: K, of: impl Fn(&S) -> Option<f64>) -> Option<Stats> {
        self.of(key).iter().filter_map(of).collect::<Samples>().stats()
    }

    /// The mean of a number of the samples; `None` without samples.
    pub fn mean(&self, key: K, of: impl Fn(&S) -> f64) -> Option<f64> {
        mean(self.of(key).iter().map(of))
    }

    /// All samples.
    pub fn all(&self) -> impl Iterator<Item = &S> {
        self.0.iter().flat_map(|(_, seen)| seen.iter().flatten())
    }

    /// Why there are no samples of a measurement; `None` if there are some.
    pub fn missing(&self, key: K) -> Option<String> {
        let none = || self.of(key).is_empty().then(|| "not measured".to_owned());
        self.why(key).map(|why| format!("failed: {why}")).or_else(none)
    }

    /// Why a measurement failed.
    fn why(&self, key: K) -> Option<&str> {
        self.find(key)?.as_ref().err().map(String::as_str)
    }

    fn find(&self, key: K) -> Option<&Seen<S>> {
        self.0.iter().find(|(known, _)| *known == key).map(|(_, seen)| seen)
    }

    fn entry(&mut self, key: K) -> &mut Seen<S> {
        let index = self.0.iter().position(|(known, _)| *known == key).unwrap_or_else(|| {
            self.0.push((key, Ok(Vec::new())));
            self.0.len() - 1
        });
        &mut self.0[index].1
    }
}

/// How keys are measured.
pub trait Experiment<K: Key> {
    /// A running server.
    type Running;
    /// What a measurement returns.
    type Sample;

    /// Starts a server of a group.
    fn start(&self, server: K::Server, group: u16) -> Result<Self::Running>;

    /// A server's notes on its setup.
    fn notes<'a>(&self, running: &'a Self::Running) -> &'a [String];

    /// A key's name in words.
    fn name(&self, key: K) -> String;

    /// Measures once.
    fn measure(&self, running: &mut Self::Running, key: K) -> Result<Self::Sample>;

    /// A sample in words.
    fn words(&self, sample: &Self::Sample) -> String;
}

/// The results of all rounds.
#[derive(Debug)]
pub struct Outcome<K, S> {
    /// The measurements.
    pub seen: Measurements<K, S>,
    /// The servers' notes, each once.
    pub notes: Vec<String>,
}

/// How many servers are started for these keys.
pub fn starts<K: Key>(keys: &[K]) -> usize {
    groups(keys).map(|group| servers(group).len()).sum()
}

/// Measures all keys. The servers of a group run at once, and their rounds are interleaved.
///
/// # Errors
/// An interrupt. Other failures are notes of their measurements.
pub fn in_rounds<K: Key, E: Experiment<K>>(
    experiment: &E,
    keys: &[K],
    schedule: &Schedule,
) -> Result<Outcome<K, E::Sample>> {
    let (progress, rounds) = (schedule.progress(keys), schedule.rounds);
    let (mut seen, mut notes) = (Measurements::new(), Vec::new());
    for group in groups(keys) {
        let mut running = start(experiment, group, &progress, &mut seen)?;
        for note in running.iter().flat_map(|(_, running)| experiment.notes(running)) {
            if !notes.contains(note) {
                notes.push(note.clone());
            }
        }
        for round in 0..rounds {
            // The order alternates, so that the after-effects of a key meet another key in every other round.
            let forth = group.iter().copied();
            let order: Vec<K> =
                if round.is_multiple_of(2) { forth.collect() } else { forth.rev().collect() };
            for key in order {
                let name = experiment.name(key);
                progress.step(format!("round {} of {rounds}: {name}", round + 1));
                let server = running.iter_mut().find(|(server, _)| *server == key.server());
                let Some((_, server)) = server.filter(|_| !seen.has_failed(key)) else {
                    progress.done("skipped: it has failed before");
                    continue;
                };
                match kept(experiment.measure(server, key))? {
                    Ok(sample) => {
                        progress.done(&experiment.words(&sample));
                        seen.push(key, sample);
                    }
                    Err(why) => {
                        progress.done(&format!("failed: {why}"));
                        seen.fail(key, why);
                    }
                }
            }
        }
    }
    Ok(Outcome { seen, notes })
}

fn groups<K: Key>(keys: &[K]) -> impl Iterator<Item = &[K]> {
    keys.chunk_by(|one, other| one.group() == other.group())
}

/// The servers of a group, each once.
fn servers<K: Key>(group: &[K]) -> Vec<K::Server> {
    let mut servers = Vec::new();
    for key in group {
        if !servers.contains(&key.server()) {
            servers.push(key.server());
        }
    }
    servers
}

/// Starts a group's servers. If one does not start, its measurements fail.
fn start<K: Key, E: Experiment<K>>(
    experiment: &E,
    group: &[K],
    progress: &Progress,
    seen: &mut Measurements<K, E::Sample>,
) -> Result<Vec<(K::Server, E::Running)>> {
    let mut running = Vec::new();
    for server in servers(group) {
        let of_it = || group.iter().copied().filter(|key| key.server() == server);
        let Some(key) = of_it().next() else { continue };
        progress.step(format!("start the server of {}", experiment.name(key)));
        match kept(experiment.start(server, key.group()))? {
            Ok(started) => running.push((server, started)),
            Err(why) => {
                progress.done(&format!("failed: {why}"));
                of_it().for_each(|key| seen.fail(key, why.clone()));
            }
        }
    }
    Ok(running)
}

/// Turns a failure into a row that says so, so that the other measurements go on. An interrupt ends
/// everything.
pub fn kept<T>(result: Result<T>) -> Result<std::result::Result<T, String>> {
    match result {
        Err(error) if error.is_interrupt() => Err(error),
        result => Ok(result.map_err(|error| error.to_string())),
    }
}

/// The mean; `None` without values.
pub fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let values: Vec<f64> = values.collect();
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

/// The table `[daemon]`.
pub fn daemon(folder: &Path) -> String {
    // On one CPU nothing arrives while the worker polls, so it sleeps at once.
    table(folder) + "workers = 1\nmeter = true\npoll_us = 0\n"
}

/// A configuration: the daemon, its NICs, and guests with an interface on each NIC. `nic` gets a NIC's number,
/// `interface` also the guest's, from 1.
pub fn with_guests(
    folder: &Path,
    machine: &Machine<'_>,
    nic: impl Fn(u8) -> String,
    interface: impl Fn(u8, u8) -> String,
) -> String {
    let mut text = daemon(folder);
    text.extend((0..machine.nics).map(nic));
    for (number, name) in (1..).zip(machine.guests) {
        // Writing to a String cannot fail.
        let _ = write!(text, "\n[[guest]]\nname = \"{name}\"\nmemory_mib = 32\n");
        text.extend((0..machine.nics).map(|nic| interface(nic, number)));
    }
    text
}

/// The MAC address of a guest on a NIC.
pub fn mac(nic: u8, guest: u8) -> String {
    format!("02:70:76:6e:{:02x}:{guest:02x}", 70 + nic)
}

/// An uplink on the driver domain's context of a card, with further lines.
pub fn uplink_on_card(nic: u8, card: &str, more: &str) -> String {
    let mac = mac(nic, 0xfe);
    format!(
        "\n[[uplink]]\nname = \"nic{nic}\"\nkind = \"cdna\"\nnic = \"{card}\"\nmac = \"{mac}\"\n{more}"
    )
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;
    use crate::error::Error;

    /// A key: the number of its group, and its server.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    struct Number(u16, char);

    impl Key for Number {
        type Server = char;

        fn server(self) -> char {
            self.1
        }

        fn group(self) -> u16 {
            self.0
        }
    }

    /// Server x does not start, and z can be measured only once.
    #[derive(Default)]
    struct Fake(RefCell<Vec<String>>);

    impl Experiment<Number> for Fake {
        type Running = Vec<String>;
        type Sample = usize;

        fn start(&self, server: char, group: u16) -> Result<Vec<String>> {
            self.0.borrow_mut().push(format!("start {group}{server}"));
            match server {
                'x' => Err(Error::Failed("no x".to_owned())),
                _ => Ok(vec!["a note".to_owned()]),
            }
        }

        fn notes<'a>(&self, running: &'a Vec<String>) -> &'a [String] {
            running
        }

        fn name(&self, key: Number) -> String {
            format!("{}{}", key.0, key.1)
        }

        fn measure(&self, _: &mut Vec<String>, key: Number) -> Result<usize> {
            let (mut done, name) = (self.0.borrow_mut(), self.name(key));
            let is_again = done.contains(&name);
            done.push(name);
            match key.1 {
                'z' if is_again => Err(Error::Failed("only once".to_owned())),
                _ => Ok(done.len()),
            }
        }

        fn words(&self, sample: &usize) -> String {
            sample.to_string()
        }
    }

    #[test]
    fn rounds_alternate_and_failures_end_only_their_own_measurement() {
        let keys = [Number(1, 'x'), Number(1, 'y'), Number(1, 'z'), Number(2, 'y')];
        let fake = Fake::default();
        let schedule = Schedule { rounds: 3, each: 2.0, start: 1.5, is_quiet: true };
        // Four keys in three rounds, and four servers.
        assert!((schedule.minutes(&keys) - 0.5).abs() < 1e-9);
        let Outcome { seen, notes } = in_rounds(&fake, &keys, &schedule).unwrap();
        let steps = ["start 1x", "start 1y", "start 1z", "1y", "1z", "1z", "1y", "1y"];
        let rest = ["start 2y", "2y", "2y", "2y"];
        assert_eq!(*fake.0.borrow(), [&steps[..], &rest[..]].concat());
        assert_eq!(notes, ["a note"]);
        assert_eq!((seen.failures(), starts(&keys)), (2, 4));
        assert_eq!((seen.why(keys[0]), seen.why(keys[2])), (Some("no x"), Some("only once")));
        assert_eq!(seen.of(keys[1]).len(), 3);
        assert!(seen.of(keys[2]).is_empty());
        assert_eq!(seen.missing(keys[0]).as_deref(), Some("failed: no x"));
        assert_eq!((seen.missing(keys[1]), seen.all().count()), (None, 6));
        assert_eq!(seen.missing(Number(9, 'y')).as_deref(), Some("not measured"));
    }

    #[test]
    fn a_failure_becomes_a_row_and_an_interrupt_ends_everything() {
        let failed = kept(Err::<(), _>(Error::Failed("it is so".to_owned())));
        assert_eq!(failed.unwrap().unwrap_err(), "it is so");
        assert!(kept(Err::<(), _>(Error::Lab(lab::Error::Interrupted))).is_err());
    }
}
