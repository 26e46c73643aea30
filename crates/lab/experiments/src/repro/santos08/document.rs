//! The whole result, for JSON and pages.

use report::{Claim, Machine};
use serde::Serialize;

use super::claims::claims;
use super::rows::Row;

/// The whole result.
#[derive(Clone, Debug, Serialize)]
pub struct Document {
    /// The paper.
    pub paper: &'static str,
    /// Where and when it ran.
    pub machine: Machine,
    /// How it was measured.
    pub method: Method,
    /// The rows of the figures.
    pub rows: Vec<Row>,
    /// What the paper claims, and whether it holds here.
    pub claims: Vec<Claim>,
}

/// How it was measured.
#[derive(Clone, Debug, Serialize)]
pub struct Method {
    /// Seconds of each stream.
    pub seconds: u32,
    /// Interleaved rounds.
    pub rounds: u32,
    /// Packets per second that the peer sends.
    pub pps: u32,
    /// The server's CPU; any if absent.
    pub server_cpu: Option<usize>,
    /// The client's CPU; any if absent.
    pub client_cpu: Option<usize>,
    /// What differs from the intended setup.
    pub notes: Vec<String>,
}

impl Document {
    /// Compares the rows with the paper.
    pub fn new(rows: Vec<Row>, method: Method) -> Self {
        let claims = claims(&rows);
        Self { paper: "santos08", machine: Machine::detect(), method, rows, claims }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::config::Line;
    use super::super::rows::tests::{key, sample};
    use super::super::rows::{Measurements, rows};
    use super::*;

    /// A document with two lines at 6 packets per interrupt.
    pub fn document() -> Document {
        let keys = [Line::Linux, Line::GuestCopy].map(|line| key(line, 6));
        let mut seen = Measurements::new();
        seen.push(keys[0], sample(1000.0));
        seen.push(keys[1], sample(2500.0));
        let (server_cpu, client_cpu) = (Some(1), Some(0));
        let notes = vec!["a note".to_owned()];
        let method = Method { seconds: 1, rounds: 1, pps: 20_000, server_cpu, client_cpu, notes };
        Document::new(rows(&keys, &seen), method)
    }

    #[test]
    fn json_has_the_documented_shape() {
        let json = serde_json::to_value(document()).unwrap();
        assert_eq!(json["paper"], "santos08");
        assert!(json["machine"]["cpus"].as_u64() > Some(0));
        let row = &json["rows"][1];
        assert_eq!((&row["figure"], &row["config"]), (&"8".into(), &"guest-copy".into()));
        assert_eq!(row["coalesce"], 6);
        for part in ["guest", "driver", "hypervisor", "total"] {
            assert!(row["ns_per_packet"][part].is_f64(), "{row}");
        }
        assert_eq!(row["over_linux"], 1.5);
        assert!(row["paper_over_linux"].is_null());
    }
}
