//! Metrics of every family.

use std::fmt;

use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};

/// A metric without labels.
pub(super) fn plain(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    metric: &impl EncodeMetric,
) -> Result<(), fmt::Error> {
    metric.encode(encoder.encode_descriptor(name, help, None, metric.metric_type())?)
}

/// Seconds, as Prometheus wants times.
pub(super) fn seconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1e9
}
