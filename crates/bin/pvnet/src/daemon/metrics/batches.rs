//! The batches of ports, as histograms.

use std::fmt;

use control_socket::{Histogram, PortStatus};
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;

use super::encode::seconds;

/// Encodes them for the ports that have carried frames, or could have.
pub(super) fn encode(
    ports: &[PortStatus],
    encoder: &mut DescriptorEncoder<'_>,
) -> Result<(), fmt::Error> {
    let kind = MetricType::Histogram;
    let ports: Vec<_> =
        ports.iter().filter(|port| !port.batches.nanoseconds.buckets.is_empty()).collect();
    let help = "Frames of the batches that a worker took from the port (ingress), or that it accepted at once (egress)";
    let mut family = encoder.encode_descriptor("pvnet_port_batch_frames", help, None, kind)?;
    for port in &ports {
        let batches =
            [("ingress", &port.batches.ingress_frames), ("egress", &port.batches.egress_frames)];
        for (direction, histogram) in batches {
            let labels = [("port", port.name.as_str()), ("direction", direction)];
            one(&mut family, &labels, histogram, |frames| frames as f64)?;
        }
    }
    let help = "Time of batches from the port in the daemon, from the turn that took them until their last frame was delivered or dropped";
    let name = "pvnet_port_residence_seconds";
    let mut family = encoder.encode_descriptor(name, help, None, kind)?;
    for port in &ports {
        let labels = [("port", port.name.as_str())];
        one(&mut family, &labels, &port.batches.nanoseconds, seconds)?;
    }
    Ok(())
}

fn one(
    family: &mut MetricEncoder<'_>,
    labels: &impl EncodeLabelSet,
    Histogram { count, sum, buckets }: &Histogram,
    unit: fn(u64) -> f64,
) -> Result<(), fmt::Error> {
    let bounded: u64 = buckets.values().sum();
    let beyond = (f64::INFINITY, count.saturating_sub(bounded));
    let buckets = buckets.iter().map(|(bound, count)| (unit(*bound), *count));
    let buckets: Vec<_> = buckets.chain([beyond]).collect();
    family.encode_family(labels)?.encode_histogram::<NoLabelSet>(unit(*sum), *count, &buckets, None)
}

#[cfg(test)]
mod tests {
    use control_socket::{BatchStatus, PortKind, PortState, Status};

    use super::super::{render, tests::assert_lines};
    use super::*;

    #[test]
    fn batches_become_histograms() {
        let frames = Histogram { count: 6, sum: 20, buckets: [(1, 2), (2, 0), (4, 4)].into() };
        let nanoseconds =
            Histogram { count: 5, sum: 2_000_000_000, buckets: [(256, 1), (512, 3)].into() };
        let batches = BatchStatus {
            ingress_frames: frames.clone(),
            egress_frames: frames,
            nanoseconds,
            worker_nanoseconds: 0,
        };
        let new = |name| PortStatus::new(name, PortKind::Guest, PortState::Up);
        let ports = vec![PortStatus { batches, ..new("red") }, new("blue")];
        let text = render(Status { ports, ..Status::default() }).unwrap();
        let lines = [
            "# TYPE pvnet_port_batch_frames histogram",
            "pvnet_port_batch_frames_bucket{le=\"1.0\",port=\"red\",direction=\"ingress\"} 2",
            "pvnet_port_batch_frames_bucket{le=\"2.0\",port=\"red\",direction=\"egress\"} 2",
            "pvnet_port_batch_frames_bucket{le=\"4.0\",port=\"red\",direction=\"egress\"} 6",
            "pvnet_port_batch_frames_bucket{le=\"+Inf\",port=\"red\",direction=\"egress\"} 6",
            "pvnet_port_batch_frames_sum{port=\"red\",direction=\"ingress\"} 20.0",
            "pvnet_port_residence_seconds_bucket{le=\"2.56e-7\",port=\"red\"} 1",
            "pvnet_port_residence_seconds_bucket{le=\"5.12e-7\",port=\"red\"} 4",
            "pvnet_port_residence_seconds_bucket{le=\"+Inf\",port=\"red\"} 5",
            "pvnet_port_residence_seconds_sum{port=\"red\"} 2.0",
            "pvnet_port_residence_seconds_count{port=\"red\"} 5",
        ];
        assert_lines(&text, &lines);
        assert!(!text.contains("le=\"1.0\",port=\"blue\""), "{text}");
    }
}
