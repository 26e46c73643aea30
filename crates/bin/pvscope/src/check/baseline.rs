//! The baseline's file: text, a number per line, so that a change of it can be read.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use super::measured::Measured;
use crate::error::{Error, Result};

/// A baseline in a file: the windows' of `pvscope check`, or the costs of `pvscope repro netback`.
pub trait BaselineFile: Sized {
    /// The first line.
    const TITLE: &'static str;

    fn provenance(&self) -> &BaselineProvenance;

    /// What follows the provenance.
    fn numbers(&self, text: &mut String);

    /// Takes the lines after the first, with their numbers; none is empty.
    fn take<'a>(lines: impl Iterator<Item = (usize, &'a str)>)
    -> std::result::Result<Self, String>;

    /// Reads a file.
    ///
    /// # Errors
    /// It is missing, or a line is not understood.
    fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).map_err(Error::path(path))?;
        let failed = |reason| Error::Usage(format!("{}: {reason}", path.display()));
        Self::parse(&text).map_err(failed)
    }

    fn write(&self, path: &Path) -> Result<()> {
        Ok(report::write_atomic(path, self.text().as_bytes())?)
    }

    fn text(&self) -> String {
        let mut text = format!("{}\n", Self::TITLE);
        for line in self.provenance().lines() {
            let _ = writeln!(text, "{line}");
        }
        self.numbers(&mut text);
        text
    }

    fn parse(text: &str) -> std::result::Result<Self, String> {
        let mut lines = text.lines();
        if lines.next() != Some(Self::TITLE) {
            let wrong =
                "this is no baseline of this version of pvscope: make it anew with --update";
            return Err(wrong.to_owned());
        }
        Self::take((2..).zip(lines).filter(|(_, line)| !line.is_empty()))
    }
}

/// Windows, and what their numbers depend on.
#[derive(Clone, Debug, PartialEq)]
pub struct Baseline {
    pub provenance: BaselineProvenance,
    pub windows: BTreeMap<String, Measured>,
}

impl BaselineFile for Baseline {
    const TITLE: &'static str = "# pvscope check, version 3: counts per frame of `pvnet-lab bench pps --lockstep`. Made by `make gate-update`.";

    fn provenance(&self) -> &BaselineProvenance {
        &self.provenance
    }

    fn numbers(&self, text: &mut String) {
        let all = |text: &mut String, key, digits, counts: &BTreeMap<String, f64>| {
            for (what, count) in counts {
                let _ = writeln!(text, "{key} {count:.digits$} {what}");
            }
        };
        for (name, window) in &self.windows {
            let _ = writeln!(text, "\nwindow {name} {}", window.bytes);
            all(text, "instructions", 2, &window.instructions);
            all(text, "l1-misses", 3, &window.l1_misses);
            all(text, "misses", 3, &window.misses);
            for (what, count) in &window.counts {
                let _ = writeln!(text, "count {count} {what}");
            }
            all(text, "function", 2, &window.functions);
            all(text, "missed", 3, &window.missed);
        }
    }

    fn take<'a>(
        lines: impl Iterator<Item = (usize, &'a str)>,
    ) -> std::result::Result<Self, String> {
        let (mut provenance, mut windows) = (BaselineProvenance::default(), BTreeMap::new());
        let mut window: Option<&mut Measured> = None;
        for (number, line) in lines {
            let wrong = || format!("line {number} is not understood: {line:?}");
            let (key, rest) = line.split_once(' ').ok_or_else(wrong)?;
            if key == "window" {
                let (name, bytes) = rest.split_once(' ').ok_or_else(wrong)?;
                let bytes = bytes.parse().map_err(|_| wrong())?;
                let new = Measured { bytes, ..Measured::default() };
                window = Some(windows.entry(name.to_owned()).or_insert(new));
                continue;
            }
            let Some(window) = &mut window else {
                provenance.add(key, rest);
                continue;
            };
            let (value, name) = rest.split_once(' ').ok_or_else(wrong)?;
            let counts = match key {
                "instructions" => &mut window.instructions,
                "l1-misses" => &mut window.l1_misses,
                "misses" => &mut window.misses,
                "function" => &mut window.functions,
                "missed" => &mut window.missed,
                "count" => {
                    window.counts.insert(name.to_owned(), value.parse().map_err(|_| wrong())?);
                    continue;
                }
                _ => return Err(wrong()),
            };
            counts.insert(name.to_owned(), value.parse().map_err(|_| wrong())?);
        }
        Ok(Self { provenance, windows })
    }
}

/// The keys and values. Numbers of another machine or another compiler are not compared.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BaselineProvenance(Vec<(String, String)>);

impl BaselineProvenance {
    /// Of these keys and values.
    pub fn new(values: Vec<(&str, String)>) -> Self {
        Self(values.into_iter().map(|(key, value)| (key.to_owned(), value)).collect())
    }

    /// Adds one that was read.
    pub fn add(&mut self, key: &str, value: &str) {
        self.0.push((key.to_owned(), value.to_owned()));
    }

    /// The lines of a file: `KEY VALUE`.
    pub fn lines(&self) -> Vec<String> {
        self.0.iter().map(|(key, value)| format!("{key} {value}")).collect()
    }

    /// Says what differs.
    ///
    /// # Errors
    /// In words, if numbers of the two cannot be compared.
    pub fn check(&self, now: &Self) -> std::result::Result<(), String> {
        let value = |of: &Self, key: &str| {
            let found = of.0.iter().find(|(known, _)| known == key);
            found.map_or_else(|| "nothing".to_owned(), |(_, value)| value.clone())
        };
        let keys = now.0.iter().map(|(key, _)| key);
        let differing = keys.filter(|key| value(self, key) != value(now, key));
        let differing: Vec<String> = differing
            .map(|key| format!("{key} is {} here and {} there", value(now, key), value(self, key)))
            .collect();
        if differing.is_empty() {
            return Ok(());
        }
        Err(format!(
            "this baseline was made with something else, so its numbers say nothing here: {}. Use the same, or make it anew with \
             --update",
            differing.join("; ")
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub fn sample() -> Baseline {
        let window = Measured {
            bytes: 64,
            instructions: [("pvnet".to_owned(), 812.25), ("kernel".to_owned(), 12.5)].into(),
            l1_misses: [("pvnet".to_owned(), 3.125)].into(),
            misses: [("dtlb".to_owned(), 1.5)].into(),
            counts: [("hypercalls".to_owned(), 128)].into(),
            functions: [("pvnet ring::FrontRing<Tx, P>::take".to_owned(), 33.5)].into(),
            missed: [("kernel schedule".to_owned(), 0.125)].into(),
        };
        let provenance = BaselineProvenance::new(vec![("profile", "release".to_owned())]);
        Baseline { provenance, windows: [("header-64".to_owned(), window)].into() }
    }

    #[test]
    fn what_is_written_is_read() {
        let text = sample().text();
        assert_eq!(Baseline::parse(&text), Ok(sample()), "{text}");
    }

    #[test]
    fn a_broken_file_is_refused_with_its_line() {
        let text = sample().text().replace("812.25", "many");
        let message = Baseline::parse(&text).unwrap_err();
        assert!(message.contains("many") && message.contains("line "), "{message}");
        let message = Baseline::parse("version 0\n").unwrap_err();
        assert!(message.contains("--update"), "{message}");
    }

    #[test]
    fn what_differs_is_named() {
        let of = |kernel: &str| {
            BaselineProvenance::new(vec![
                ("profile", "release".to_owned()),
                ("kernel", kernel.to_owned()),
            ])
        };
        assert_eq!(of("a").check(&of("a")), Ok(()));
        let message = of("a").check(&of("b")).unwrap_err();
        assert!(message.contains("kernel is b here and a there"), "{message}");
        assert!(!message.contains("profile"), "{message}");
    }
}
