//! The whole result, for JSON and pages.

use report::{Claim, Machine};
use serde::Serialize;

use super::claims::claims;
use super::orders::{Order, orders};
use super::plan::Planned;
use super::rows::{Measurements, Row, rows};

/// The whole result.
#[derive(Clone, Debug, Serialize)]
pub struct Document {
    /// The paper.
    pub paper: &'static str,
    /// Where and when it ran.
    pub machine: Machine,
    /// How it was measured.
    pub method: Method,
    /// The paper's bars, in its order.
    pub rows: Vec<Row>,
    /// What the paper claims, and whether it holds here.
    pub claims: Vec<Claim>,
    /// Pairs of configurations whose order differs from the paper's.
    pub orders: Vec<Order>,
}

/// How it was measured.
#[derive(Clone, Debug, Serialize)]
pub struct Method {
    /// Seconds of each transfer.
    pub seconds: u32,
    /// Interleaved rounds.
    pub rounds: u32,
    /// The server's CPU; any if absent.
    pub server_cpu: Option<usize>,
    /// The client's CPU; any if absent.
    pub client_cpu: Option<usize>,
    /// What differs from the intended setup.
    pub notes: Vec<String>,
}

impl Document {
    /// Compares what was measured with the paper.
    pub fn new(plan: &[Planned], seen: &Measurements, method: Method) -> Self {
        let rows = rows(plan, seen);
        Self {
            paper: "menon06",
            machine: Machine::detect(),
            method,
            claims: claims(&rows),
            orders: orders(&rows),
            rows,
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use report::Verdict;

    use super::super::paper::Figure;
    use super::super::plan::plan;
    use super::super::rows::tests::measurements;
    use super::*;

    /// A document of these figures; a configuration's name gives its throughput.
    pub fn document(figures: &[Figure], mbps: impl Fn(&str) -> f64) -> Document {
        let (plan, seen) = measurements(figures, mbps);
        let notes = vec!["a note".to_owned()];
        let method =
            Method { seconds: 1, rounds: 2, server_cpu: Some(1), client_cpu: Some(0), notes };
        Document::new(&plan, &seen, method)
    }

    #[test]
    fn claims_without_a_measurement_cannot_be_told() {
        let plan = plan(&[Figure::Nine, Figure::Thirteen], &[], Err("no superpages"));
        let method =
            Method { seconds: 1, rounds: 1, server_cpu: None, client_cpu: None, notes: vec![] };
        let document = Document::new(&plan, &Measurements::default(), method);
        assert_eq!(document.claims.len(), 1);
        assert_eq!(document.claims[0].verdict, Verdict::CannotBeTold);
    }

    #[test]
    fn json_has_the_documented_shape() {
        let rates = |config: &str| if config == "none" { 100.0 } else { 300.0 };
        let document = document(&[Figure::Five], rates);
        let json = serde_json::to_value(&document).unwrap();
        assert_eq!(json["paper"], "menon06");
        assert!(json["machine"]["cpus"].as_u64() > Some(0));
        let rows = json["rows"].as_array().unwrap();
        assert_eq!(rows.len(), 6);
        let row = rows.iter().find(|row| row["config"] == "high-ioc").unwrap();
        assert_eq!((&row["figure"], &row["direction"]), (&"5".into(), &"tx".into()));
        assert_eq!(row["paper_mbps"], 3230.0);
        let mbps = &row["mbps"];
        assert_eq!((mbps["min"].as_f64(), mbps["n"].as_u64()), (Some(300.0), Some(2)));
        assert!((row["ratio_to_none"].as_f64().unwrap() - 3.0).abs() < 1e-9, "{row}");
        assert!((row["paper_ratio_to_none"].as_f64().unwrap() - 4.307).abs() < 1e-3, "{row}");
        for part in ["guest", "driver", "hypervisor"] {
            assert!(row["cpu_s_per_gb"][part].as_f64() > Some(0.0), "{row}");
        }
        for count in ["maps", "copies", "bytes_copied"] {
            assert!(row["per_packet"][count].as_f64() > Some(0.0), "{row}");
        }
        assert!(row.get("not_measurable").is_none());
    }
}
