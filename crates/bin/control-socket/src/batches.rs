//! Histograms of a port's batches of frames.

use std::collections::BTreeMap;
use std::ops::AddAssign;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize, Serializer};

/// How many frames a port's batches have, and how long they are in the daemon.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BatchStatus {
    /// Frames of each batch that a worker took from the port in one turn.
    pub ingress_frames: Histogram,
    /// Frames of each batch that the port accepted at once.
    pub egress_frames: Histogram,
    /// Nanoseconds for which each batch from the port was in the daemon: from the turn in which a worker took it to the end of
    /// that in which its last frame was delivered or dropped. Time that frames wait in the sender's ring does not count; waiting
    /// for room in another port does.
    pub nanoseconds: Histogram,
    /// Nanoseconds of workers in turns of the port's queues, by the clock: what frames from the port and its control ring cost.
    #[serde(default)]
    pub worker_nanoseconds: u64,
}

impl BatchStatus {
    pub(crate) fn is_empty(&self) -> bool {
        self.ingress_frames.count == 0
            && self.egress_frames.count == 0
            && self.worker_nanoseconds == 0
    }
}

/// Values, counted by powers of two.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Histogram {
    /// How many values there are.
    pub count: u64,
    /// Their sum.
    pub sum: u64,
    /// How many values are as large as the key, or smaller and larger than the key before. Those above all keys are in `count`
    /// only. JSON leaves out buckets without a value.
    #[serde(default, serialize_with = "serialize_filled")]
    pub buckets: BTreeMap<u64, u64>,
}

impl AddAssign<&Self> for BatchStatus {
    fn add_assign(&mut self, other: &Self) {
        self.ingress_frames += &other.ingress_frames;
        self.egress_frames += &other.egress_frames;
        self.nanoseconds += &other.nanoseconds;
        self.worker_nanoseconds += other.worker_nanoseconds;
    }
}

impl AddAssign<&Self> for Histogram {
    fn add_assign(&mut self, other: &Self) {
        self.count += other.count;
        self.sum += other.sum;
        for (bound, count) in &other.buckets {
            *self.buckets.entry(*bound).or_default() += count;
        }
    }
}

fn serialize_filled<S: Serializer>(
    buckets: &BTreeMap<u64, u64>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_map(buckets.iter().filter(|(_, count)| **count > 0))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_histogram_in_json_has_the_buckets_with_values() {
        let buckets = [(1, 3), (2, 0), (4, 5)].into();
        let histogram = Histogram { count: 9, sum: 40, buckets };
        let value = serde_json::to_value(&histogram).unwrap();
        assert_eq!(value, json!({ "count": 9, "sum": 40, "buckets": { "1": 3, "4": 5 } }));
        let read = serde_json::from_value::<Histogram>(value).unwrap();
        assert_eq!((read.count, &read.buckets), (9, &[(1, 3), (4, 5)].into()));
        let mut sum = Histogram { count: 2, sum: 3, buckets: [(1, 1), (2, 1)].into() };
        sum += &read;
        assert_eq!(sum, Histogram { count: 11, sum: 43, buckets: [(1, 4), (2, 1), (4, 5)].into() });
    }
}
