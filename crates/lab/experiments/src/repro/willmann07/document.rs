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
    /// The rows of tables and figures.
    pub rows: Vec<Row>,
    /// What the paper claims, and whether it holds here.
    pub claims: Vec<Claim>,
}

/// How it was measured.
#[derive(Clone, Debug, Serialize)]
pub struct Method {
    /// Seconds of each transfer.
    pub seconds: u32,
    /// Interleaved rounds.
    pub rounds: u32,
    /// NICs of every server.
    pub nics: u8,
    /// The line rate of each, in 10⁶ bits per second; 0 for none.
    pub rate_mbps: u32,
    /// The longest time until a context's guest is interrupted, in microseconds.
    pub coalesce_us: u32,
    /// TCP connections of each guest on each NIC.
    pub connections: u32,
    /// TCP's congestion control.
    pub congestion: String,
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
        Self { paper: "willmann07", machine: Machine::detect(), method, rows, claims }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::config::CDNA;
    use super::super::paper::Part;
    use super::super::rows::tests::sample;
    use super::super::rows::{Measurements, Transferred, rows};
    use super::*;
    use crate::repro::transfer::Direction;

    /// A document with the CDNA rows of Table 2 and Figure 3.
    pub fn document() -> Document {
        let mut seen = Measurements::new();
        let keys =
            [1, 24].map(|guests| Transferred { config: CDNA, direction: Direction::Tx, guests });
        keys.iter().for_each(|key| seen.push(*key, sample(700.0, 0.5)));
        let rows = rows(&[Part::Table2, Part::Figure3], &keys, &[1, 24], &seen);
        let notes = vec!["a note".to_owned()];
        let (server_cpu, client_cpu) = (Some(1), Some(0));
        let method = Method {
            seconds: 1,
            rounds: 1,
            nics: 2,
            rate_mbps: 400,
            coalesce_us: 500,
            connections: 2,
            congestion: "cubic".to_owned(),
            server_cpu,
            client_cpu,
            notes,
        };
        Document::new(rows, method)
    }

    #[test]
    fn json_has_the_documented_shape() {
        let json = serde_json::to_value(document()).unwrap();
        assert_eq!(json["paper"], "willmann07");
        assert!(json["machine"]["cpus"].as_u64() > Some(0));
        let row = &json["rows"][0];
        assert_eq!((&row["table"], &row["figure"]), (&"2".into(), &serde_json::Value::Null));
        assert_eq!((&row["config"], &row["direction"]), (&"cdna-hypervisor".into(), &"tx".into()));
        assert_eq!((row["guests"].as_u64(), row["mbps"]["n"].as_u64()), (Some(1), Some(1)));
        for part in ["hypervisor", "driver", "guest_system", "guest_user", "idle"] {
            assert!(row["share"][part].is_f64(), "{row}");
        }
        for domain in ["driver", "guest"] {
            assert!(row["interrupts_per_s"][domain].is_f64(), "{row}");
        }
        assert!(row["packets_per_interrupt"].is_f64() && row["jain"].is_f64(), "{row}");
        assert_eq!(row["paper"]["mbps"], 1867.0);
        assert_eq!(json["rows"][1]["figure"], "3");
    }
}
