//! Dropped frames, by port and reason.

use std::fmt;

use control_socket::PortStatus;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;

/// Encodes them, zeros too: a reason that appears with its first drop would show no increase.
pub(super) fn encode(
    ports: &[PortStatus],
    encoder: &mut DescriptorEncoder<'_>,
) -> Result<(), fmt::Error> {
    let kind = ConstCounter::new(0u64).metric_type();
    let help = "Dropped frames that came from the port or were for it, by reason";
    let mut family = encoder.encode_descriptor("pvnet_port_dropped_frames", help, None, kind)?;
    for port in ports {
        let by_daemon = port.drops.iter().map(|(reason, count)| (reason.name(), count));
        for (reason, count) in by_daemon.chain(by_kernel(port)) {
            let labels = [("port", port.name.as_str()), ("reason", reason)];
            ConstCounter::new(count).encode(family.encode_family(&labels)?)?;
        }
    }
    Ok(())
}

/// What the kernel dropped of the port's frames.
fn by_kernel(port: &PortStatus) -> impl Iterator<Item = (&'static str, u64)> {
    let device = port.device_drops;
    let device =
        device.map(|drops| [("device_ingress", drops.ingress), ("device_egress", drops.egress)]);
    // Frames for which a guest had no buffer in its queue of the device.
    let queues = port.guest_queues.iter().map(|queue| queue.dropped).sum();
    let queues = (!port.guest_queues.is_empty()).then_some(("guest_queue", queues));
    let socket = port.socket_drops.map(|drops| ("socket", drops));
    device.into_iter().flatten().chain(queues).chain(socket)
}

#[cfg(test)]
mod tests {
    use control_socket::{DeviceDrops, GuestQueueStatus, PortKind, PortState, Status};
    use frame::DropReason;

    use super::super::{render, tests::assert_lines};
    use super::*;

    #[test]
    fn each_reason_is_there_before_its_first_drop() {
        let port = PortStatus::new("red", PortKind::Guest, PortState::Up);
        let text = render(Status { ports: vec![port], ..Status::default() }).unwrap();
        let page = include_str!("../../../../../../docs/operations.md");
        for reason in DropReason::ALL {
            let name = reason.name();
            assert!(page.contains(&format!("`{name}`")), "{name} is not in docs/operations.md");
            let line =
                format!("pvnet_port_dropped_frames_total{{port=\"red\",reason=\"{name}\"}} 0");
            assert_lines(&text, &[&line]);
        }
        assert!(!text.contains("device_"), "it has no device:\n{text}");
    }

    #[test]
    fn what_the_kernel_drops_has_reasons_too() {
        let queue = |dropped| GuestQueueStatus { dropped, ..GuestQueueStatus::default() };
        let port = PortStatus {
            device_drops: Some(DeviceDrops { ingress: 3, egress: 4 }),
            guest_queues: vec![queue(5), queue(6)],
            socket_drops: Some(7),
            ..PortStatus::new("up0", PortKind::Uplink, PortState::Up)
        };
        let text = render(Status { ports: vec![port], ..Status::default() }).unwrap();
        let of = "pvnet_port_dropped_frames_total{port=\"up0\",reason=";
        assert_lines(
            &text,
            &[
                &format!("{of}\"device_ingress\"}} 3"),
                &format!("{of}\"device_egress\"}} 4"),
                &format!("{of}\"guest_queue\"}} 11"),
                &format!("{of}\"socket\"}} 7"),
            ],
        );
    }
}
