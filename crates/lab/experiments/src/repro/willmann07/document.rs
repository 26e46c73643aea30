//! The whole result, for JSON and pages.

use schemars::JsonSchema;
use serde::Serialize;

use super::claims::claims;
use super::rows::Row;
use crate::repro::cpus::Cpus;
use crate::repro::document::{self, Nothing};

/// The whole result.
pub type Document = document::Document<Network, Row>;
impl ::document::Document for Document {
    const SCHEMA: &str = "pvnet-repro-willmann07/1";
}

/// How it was measured.
pub type Method = document::Method<Network>;

/// The network of all rows.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct Network {
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
    /// The CPUs.
    #[serde(flatten)]
    pub cpus: Cpus,
}

/// Compares the rows with the paper.
pub fn document(rows: Vec<Row>, method: Method) -> Document {
    let claims = claims(&rows);
    Document::new("willmann07", method, rows, claims, Nothing {})
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
    pub fn example() -> Document {
        let mut seen = Measurements::new();
        let keys =
            [1, 24].map(|guests| Transferred { config: CDNA, direction: Direction::Tx, guests });
        keys.iter().for_each(|key| seen.push(*key, sample(700.0, 0.5)));
        let rows = rows(&[Part::Table2, Part::Figure3], &keys, &[1, 24], &seen);
        let notes = vec!["a note".to_owned()];
        let own = Network {
            nics: 2,
            rate_mbps: 400,
            coalesce_us: 500,
            connections: 2,
            congestion: "cubic".to_owned(),
            cpus: Cpus { server: Some(1), driver: Some(1), client: Some(0), note: None },
        };
        document(rows, Method { seconds: 1, rounds: 1, own, notes })
    }

    #[test]
    fn json_has_the_documented_shape() {
        let json = ::document::checked(&example());
        assert_eq!(json["paper"], "willmann07");
        assert!(json["machine"]["cpus"].as_u64() > Some(0));
        assert_eq!(
            (&json["method"]["nics"], &json["method"]["client_cpu"]),
            (&2.into(), &0.into())
        );
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
