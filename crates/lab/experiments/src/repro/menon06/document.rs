//! The whole result, for JSON and pages.

use schemars::JsonSchema;
use serde::Serialize;

use super::claims::{Order, claims, orders};
use super::plan::Planned;
use super::rows::{Measurements, Row, rows};
use crate::repro::cpus::Cpus;
use crate::repro::document;

/// The whole result. Its rows are the paper's bars, in the paper's order.
pub type Document = document::Document<Cpus, Row, Orders>;
impl ::document::Document for Document {
    const SCHEMA: &str = "pvnet-repro-menon06/1";
}

/// How it was measured.
pub type Method = document::Method<Cpus>;

/// Further results: where the order differs from the paper's.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct Orders {
    /// Pairs of configurations.
    pub orders: Vec<Order>,
}

/// Compares the measurements with the paper.
pub fn document(plan: &[Planned], seen: &Measurements, method: Method) -> Document {
    let rows = rows(plan, seen);
    let (claims, orders) = (claims(&rows), orders(&rows));
    Document::new("menon06", method, rows, claims, Orders { orders })
}

#[cfg(test)]
pub(super) mod tests {
    use report::Verdict;

    use super::super::paper::Figure;
    use super::super::plan::plan;
    use super::super::rows::tests::measurements;
    use super::*;

    /// A document of these figures; a configuration's name gives its throughput.
    pub fn example(figures: &[Figure], mbps: impl Fn(&str) -> f64) -> Document {
        let (plan, seen) = measurements(figures, mbps);
        let own = Cpus { server: Some(1), driver: Some(1), client: Some(0), note: None };
        let notes = vec!["a note".to_owned()];
        document(&plan, &seen, Method { seconds: 1, rounds: 2, own, notes })
    }

    #[test]
    fn claims_without_a_measurement_cannot_be_told() {
        let plan = plan(&[Figure::Nine, Figure::Thirteen], &[], Err("no superpages"));
        let own = Cpus { server: None, driver: None, client: None, note: None };
        let method = Method { seconds: 1, rounds: 1, own, notes: vec![] };
        let document = document(&plan, &Measurements::new(), method);
        assert_eq!(document.claims.len(), 2);
        assert!(document.claims.iter().all(|claim| claim.verdict == Verdict::CannotBeTold));
    }

    #[test]
    fn json_is_as_the_schema_says() {
        let document = example(&[Figure::Five, Figure::Nine], |_| 100.0);
        ::document::checked(&document);
    }

    #[test]
    fn json_has_the_documented_shape() {
        let rates = |config: &str| if config == "none" { 100.0 } else { 300.0 };
        let document = example(&[Figure::Five], rates);
        let json = serde_json::to_value(&document).unwrap();
        assert_eq!(json["paper"], "menon06");
        assert!(json["machine"]["cpus"].as_u64() > Some(0));
        assert_eq!(json["method"]["server_cpu"], 1);
        assert!(json["orders"].is_array());
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
