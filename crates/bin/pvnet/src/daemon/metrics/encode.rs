//! Metrics of every family.

use std::fmt;

use control_socket::PortStatus;
use port::Metric;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

/// Metrics of the ports that have such a status.
pub(super) fn metrics<'a, S: 'a>(
    ports: &'a [PortStatus],
    of: impl Fn(&'a PortStatus) -> Option<&'a S>,
    metrics: &[Metric<S>],
    encoder: &mut DescriptorEncoder<'_>,
) -> Result<(), fmt::Error> {
    let ports: Vec<_> = ports.iter().filter_map(|port| Some((&*port.name, of(port)?))).collect();
    if ports.is_empty() {
        return Ok(());
    }
    for Metric { name, help, is_counter, values } in metrics {
        let kind = if *is_counter { MetricType::Counter } else { MetricType::Gauge };
        let mut family = encoder.encode_descriptor(name, help, None, kind)?;
        for (port, status) in &ports {
            for (direction, value) in values(status) {
                let labels = [("port", *port), ("direction", direction)];
                let labels = if direction.is_empty() { &labels[..1] } else { &labels[..] };
                let metric = family.encode_family(&labels)?;
                match is_counter {
                    true => ConstCounter::new(value).encode(metric)?,
                    false => {
                        ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX)).encode(metric)?;
                    }
                }
            }
        }
    }
    Ok(())
}

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
