//! The whole result, for JSON and pages.

use std::collections::BTreeSet;

use schemars::JsonSchema;
use serde::Serialize;

use super::DEFAULT_QUEUES;
use super::claims::{any_dip, claims, dips};
use super::flows::{Distribution, Hashes};
use super::model::{Check, Costs};
use super::rows::Row;
use crate::repro::document;

/// The whole result. Its rows are the measured ones, then the model's.
pub type Document = document::Document<Streams, Row, Computed>;
impl ::document::Document for Document {
    const SCHEMA: &str = "pvnet-repro-xenserver7/1";
}

/// How it was measured.
pub type Method = document::Method<Streams>;

/// The streams of all rows.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct Streams {
    /// TCP streams.
    pub streams: u32,
    /// TCP's congestion control at both ends.
    pub congestion: String,
    /// CPUs that daemons, guests and programs share.
    pub cpus: usize,
    /// Sets of ports over which flows per queue are computed.
    pub port_sets: usize,
}

/// The computed results.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct Computed {
    /// How streams spread over queues, by each hash.
    pub flows: Vec<Spreading>,
    /// The model's input, and how it fits the measurements; none without a measurement of one queue.
    pub model: Option<Model>,
}

/// How streams spread over queues, by one hash.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct Spreading {
    /// `switch`: that of this switch, over sets of ports that the kernel gave. `article`: that of the article's kernels, over
    /// the same sets, with another key for each. `uniform`: an even hash with a random key, exactly.
    pub hash: &'static str,
    /// By the number of queues.
    pub queues: Vec<Distribution>,
    /// The chance that the busiest queue has more streams than with one queue fewer, by the number of queues.
    pub dips: Vec<Dip>,
    /// The chance of at least one of these dips.
    pub any_dip: Option<f64>,
}

/// The chance that one more queue makes the busiest queue busier.
#[derive(Clone, Copy, Debug, PartialEq, JsonSchema, Serialize)]
pub struct Dip {
    /// The queues, one more than before.
    pub queues: usize,
    /// The chance, 0 to 1.
    pub chance: f64,
}

/// The model.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct Model {
    /// Its input.
    pub costs: Costs,
    /// Its predictions for measured points.
    pub checks: Vec<Check>,
}

impl Spreading {
    fn new(hash: &'static str, queues: Vec<Distribution>) -> Self {
        let dips = dips(&queues).into_iter().map(|(queues, chance)| Dip { queues, chance });
        Self { hash, dips: dips.collect(), any_dip: any_dip(&queues), queues }
    }
}

/// Spreads the flows and compares the rows with the paper.
pub fn document(
    rows: Vec<Row>,
    queues: &[usize],
    sets: &[Vec<Hashes>],
    model: Option<Model>,
    method: Method,
) -> Document {
    let streams = method.own.streams as usize;
    // This costs nothing, so it is computed for more numbers of queues than are measured.
    let queues: BTreeSet<usize> = (1..=DEFAULT_QUEUES).chain(queues.iter().copied()).collect();
    let of = |of: &dyn Fn(usize) -> Distribution| queues.iter().map(|it| of(*it)).collect();
    let switch: Vec<Distribution> = of(&|queues| Distribution::of_sets(sets, queues));
    let uniform: Vec<Distribution> = of(&|queues| Distribution::uniform(streams, queues));
    let checks = model.as_ref().map_or(&[][..], |model| &model.checks);
    let claims = claims(&rows, checks, &switch, &uniform);
    let article = of(&|queues| Distribution::of_sets_there(sets, queues));
    let flows = vec![
        Spreading::new("switch", switch),
        Spreading::new("article", article),
        Spreading::new("uniform", uniform),
    ];
    Document::new("xenserver7", method, rows, claims, Computed { flows, model })
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::fit::Fit;
    use super::super::rows::tests::{seen, sets};
    use super::super::rows::{Point, measured, modelled};
    use super::*;

    /// A document of a machine with two CPUs.
    pub fn example() -> Document {
        let (seen, sets) = (seen(), sets());
        let queues: Vec<usize> = (1..=8).collect();
        let points = [1, 2].map(|queues| Point { queues, workers: queues });
        let fit = Fit::new(&seen, &points, 2);
        let costs = fit.costs().unwrap();
        let mut rows = measured(&points, &seen);
        rows.extend(modelled(&queues, &costs, &sets));
        let model = Model { costs, checks: fit.checks(&costs, &sets) };
        let congestion = "cubic".to_owned();
        let own = Streams { streams: 8, congestion, cpus: 2, port_sets: sets.len() };
        let method = Method { seconds: 1, rounds: 3, own, notes: vec!["a note".to_owned()] };
        document(rows, &queues, &sets, Some(model), method)
    }

    #[test]
    fn json_has_the_documented_shape() {
        let json = ::document::checked(&example());
        assert_eq!(json["paper"], "xenserver7");
        assert!(json["machine"]["cpus"].as_u64() > Some(0));
        assert_eq!(json["method"]["congestion"], "cubic");
        let (measured, model) = (&json["rows"][0], &json["rows"][5]);
        assert_eq!((&measured["queues"], &measured["model"]), (&1.into(), &false.into()));
        assert_eq!(measured["mbps"]["median"], 20_000.0);
        assert_eq!(measured["mbps"]["n"], 3);
        for number in ["ring_full", "ns_per_kib", "locked", "worker_busy", "paper_mbps"] {
            assert!(measured[number].is_f64(), "{number} in {measured}");
        }
        assert!(measured["cost"]["daemon"].is_f64() && measured["flows"]["seen"].is_f64());
        assert_eq!((&model["queues"], &model["model"]), (&4.into(), &true.into()));
        assert!(model["ring_full"].is_null() && model["limit"].is_string(), "{model}");
        let [switch, article, uniform] = [0, 1, 2].map(|hash| &json["flows"][hash]);
        assert_eq!((&switch["hash"], &uniform["hash"]), (&"switch".into(), &"uniform".into()));
        assert_eq!(
            (&article["hash"], &article["dips"][3]["queues"]),
            (&"article".into(), &5.into())
        );
        assert_eq!(uniform["queues"][0]["most"], serde_json::json!({ "8": 1.0 }));
        assert_eq!(switch["dips"][3]["queues"], 5);
        assert!(switch["any_dip"].is_f64() && json["claims"][0]["verdict"].is_string());
        assert!(json["model"]["costs"]["worker"].is_f64());
        assert!(json["model"]["checks"][1]["error"].is_f64());
    }
}
