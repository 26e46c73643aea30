//! The whole result, for JSON and pages.

use schemars::JsonSchema;
use serde::Serialize;

use super::claims::claims;
use super::reads::ReadRow;
use super::rows::Row;
use crate::repro::cpus::Cpus;
use crate::repro::document;

/// The whole result.
pub type Document = document::Document<Stream, Row, Reads>;
impl ::document::Document for Document {
    const SCHEMA: &str = "pvnet-repro-santos08/1";
}

/// How it was measured.
pub type Method = document::Method<Stream>;

/// The stream of all rows.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct Stream {
    /// Packets per second that the peer sends.
    pub pps: u32,
    /// Nanoseconds of a copy of a packet of the MTU from one page to another, on this machine.
    pub copy_ns: f64,
    /// The CPUs, if guest and driver domain are together.
    #[serde(flatten)]
    pub cpus: Cpus,
}

/// What reading the payload costs a guest.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct Reads {
    /// By line and placement.
    pub reads: Vec<ReadRow>,
}

/// Compares the rows with the paper.
pub fn document(rows: Vec<Row>, reads: Vec<ReadRow>, method: Method) -> Document {
    let claims = claims(&rows, &reads, method.own.copy_ns);
    Document::new("santos08", method, rows, claims, Reads { reads })
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::config::Line;
    use super::super::reads::tests::read_row;
    use super::super::rows::tests::{key, sample};
    use super::super::rows::{Measurements, rows};
    use super::*;

    /// A document with two lines at 6 packets per interrupt.
    pub fn example() -> Document {
        let keys = [Line::Linux, Line::GuestCopy].map(|line| key(line, 6));
        let mut seen = Measurements::new();
        seen.push(keys[0], sample(1000.0));
        seen.push(keys[1], sample(2500.0));
        let cpus = Cpus { server: Some(1), driver: Some(1), client: Some(0), note: None };
        let own = Stream { pps: 20_000, copy_ns: 100.0, cpus };
        let method = Method { seconds: 1, rounds: 1, own, notes: vec!["a note".to_owned()] };
        document(rows(&keys, &seen), vec![read_row(Line::Copy, 300.0)], method)
    }

    #[test]
    fn json_has_the_documented_shape() {
        let json = ::document::checked(&example());
        assert_eq!(json["paper"], "santos08");
        assert!(json["machine"]["cpus"].as_u64() > Some(0));
        let method = &json["method"];
        assert_eq!((&method["pps"], &method["server_cpu"]), (&20_000.into(), &1.into()));
        let row = &json["rows"][1];
        assert_eq!((&row["figure"], &row["config"]), (&"8".into(), &"guest-copy".into()));
        assert_eq!((&row["coalesce"], &row["cpus"]), (&6.into(), &"together".into()));
        for part in ["guest", "driver", "hypervisor", "total"] {
            assert!(row["ns_per_packet"][part].is_f64(), "{row}");
        }
        assert_eq!(row["over_linux"], 1.5);
        assert!(row["paper_over_linux"].is_null());
        let read = &json["reads"][0];
        assert_eq!((&read["config"], &read["read_ns"]["median"]), (&"copy".into(), &300.0.into()));
    }
}
