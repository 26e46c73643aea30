//! TCP segments that were merged.

use std::fmt;

use control_socket::{GroStatus, PortStatus};
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;

/// A count: its name, its help, and its field of the status.
type Count = (&'static str, &'static str, fn(&GroStatus) -> u64);

const COUNTS: [Count; 2] = [
    ("pvnet_port_gro_segments", "TCP segments for the port that were merged", |gro| gro.segments),
    ("pvnet_port_gro_frames", "Frames for the port that were merged from segments", |gro| {
        gro.frames
    }),
];

pub(super) fn encode(
    ports: &[PortStatus],
    encoder: &mut DescriptorEncoder<'_>,
) -> Result<(), fmt::Error> {
    let kind = ConstCounter::new(0u64).metric_type();
    for (name, help, count) in COUNTS {
        let mut family = encoder.encode_descriptor(name, help, None, kind)?;
        for port in ports {
            let labels = [("port", port.name.as_str())];
            ConstCounter::new(count(&port.gro)).encode(family.encode_family(&labels)?)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use control_socket::{PortKind, PortState, Status};

    use super::super::{render, tests::assert_lines};
    use super::*;

    #[test]
    fn merged_segments_become_metrics() {
        let gro = GroStatus { segments: 90, frames: 2 };
        let port = PortStatus { gro, ..PortStatus::new("red", PortKind::Guest, PortState::Up) };
        let text = render(Status { ports: vec![port], ..Status::default() }).unwrap();
        let lines = [
            "pvnet_port_gro_segments_total{port=\"red\"} 90",
            "pvnet_port_gro_frames_total{port=\"red\"} 2",
        ];
        assert_lines(&text, &lines);
    }
}
