//! A client's outcome, and how it is shown.

use std::path::PathBuf;

use clap::Args;
use document::Document;
use report::{Table, human};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::output;

/// A client's outcome.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct Outcome {
    /// Whether the client sent.
    pub sends: bool,
    /// Seconds that were measured.
    pub seconds: f64,
    /// Payload of all connections in 10⁶ bits per second.
    pub mbps: f64,
    /// Jain's index over the connections.
    pub jain: f64,
    /// Each connection.
    pub connections: Vec<Carried>,
}

/// What one connection carried.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct Carried {
    /// The server.
    pub server: String,
    /// Payload bytes.
    pub bytes: u64,
    /// Payload in 10⁶ bits per second.
    pub mbps: f64,
}

impl document::Document for Outcome {
    const SCHEMA: &str = "pvnet-load/1";
}

impl Outcome {
    /// The outcome of connections that carried `bytes`.
    pub fn new(sends: bool, seconds: f64, bytes: Vec<(String, u64)>) -> Self {
        let mbps = |bytes: u64| bytes as f64 * 8.0 / 1e6 / seconds.max(f64::EPSILON);
        let all: Vec<u64> = bytes.iter().map(|(_, bytes)| *bytes).collect();
        let connections = bytes.into_iter();
        Self {
            sends,
            seconds,
            mbps: mbps(all.iter().sum()),
            jain: jain(&all),
            connections: connections
                .map(|(server, bytes)| Carried { server, bytes, mbps: mbps(bytes) })
                .collect(),
        }
    }

    /// A line per connection, and one for all.
    pub fn table(&self) -> Table {
        let mut table = Table::new().left("server").right("connection").right("Mb/s");
        for (number, Carried { server, mbps, .. }) in (1..).zip(&self.connections) {
            table.row([server.clone(), number.to_string(), human(*mbps)]);
        }
        let count = self.connections.len().to_string();
        table.row(["all".to_owned(), count, human(self.mbps)]);
        table
    }
}

/// The option for the result's file.
#[derive(Args)]
pub struct ResultArgs {
    /// Write the result to FILE as JSON; - is standard output, instead of text.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

impl ResultArgs {
    fn is_stdout(&self) -> bool {
        self.json.as_deref().is_some_and(|file| file.as_os_str() == "-")
    }

    /// Checks that the file can be written, so that an error comes before the measurement.
    pub fn prepare(&self) -> Result<()> {
        match &self.json {
            Some(file) if !self.is_stdout() => output::prepare(file),
            _ => Ok(()),
        }
    }

    /// Writes the result, and has it printed as text unless standard output has the JSON.
    pub fn show(&self, result: &impl Document, print: impl FnOnce() -> Result<()>) -> Result<()> {
        if self.is_stdout() {
            return output::print(&output::line(result)?);
        }
        print()?;
        match &self.json {
            Some(file) => output::write_json(file, result),
            None => Ok(()),
        }
    }
}

/// Jain's index: 1 if all have the same, 1/n if one of n has everything (Jain, Chiu and Hawe 1984).
pub fn jain(shares: &[u64]) -> f64 {
    let sum: f64 = shares.iter().map(|share| *share as f64).sum();
    let squares: f64 = shares.iter().map(|share| (*share as f64).powi(2)).sum();
    if squares == 0.0 { 0.0 } else { sum * sum / (shares.len() as f64 * squares) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_become_rates_and_an_index() {
        let bytes = [("a", 250_000), ("b", 750_000)].map(|(name, bytes)| (name.to_owned(), bytes));
        let outcome = Outcome::new(true, 2.0, bytes.into());
        assert!((outcome.mbps - 4.0).abs() < 1e-9 && (outcome.jain - 0.8).abs() < 1e-9);
        assert!((outcome.connections[1].mbps - 3.0).abs() < 1e-9);
        let table = outcome.table();
        assert_eq!(table.rows()[0], ["a", "1", "1.00"]);
        assert_eq!(table.rows()[2], ["all", "2", "4.00"]);
        document::checked(&outcome);
        let json = serde_json::to_string(&outcome).unwrap();
        assert_eq!(serde_json::from_str::<Outcome>(&json).unwrap(), outcome);
    }

    #[test]
    fn the_index_runs_from_one_for_all_to_one_for_one() {
        assert!((jain(&[7; 24]) - 1.0).abs() < 1e-9);
        assert!((jain(&[9, 0, 0, 0]) - 0.25).abs() < 1e-9);
        assert!((jain(&[3, 1]) - 0.8).abs() < 1e-9);
        assert_eq!(jain(&[0, 0]), 0.0);
    }
}
