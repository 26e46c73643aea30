//! The state of ports: what they are, why they are down, what they may carry, and which of them get copies and multicast groups.

use std::fmt;

use control_socket::{Histogram, MirrorStatus, MulticastStatus, PortStatus, Reason};
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;

use super::{family, gauge, plain, seconds};

pub(super) fn encode(ports: &[PortStatus], encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let kinds = ports
        .iter()
        .map(|port| ([("port", port.name.clone()), ("kind", port.kind.to_string())], gauge(1)));
    let help = "1 for each port, with its kind: guest or uplink";
    family(encoder, "pvnet_port_info", help, kinds)?;
    let reasons = ports.iter().filter_map(|port| {
        let code = code(port.reason.as_ref()?)?;
        Some(([("port", port.name.clone()), ("reason", code)], gauge(1)))
    });
    let help = "1 for each port that carries no traffic, or not well, with the reason's code";
    family(encoder, "pvnet_port_reason", help, reasons)?;
    let times = |of: fn(&PortStatus) -> u64| {
        let time = move |port| ConstCounter::new(seconds(of(port)));
        ports.iter().map(move |port| ([("port", &*port.name)], time(port)))
    };
    let help = "Time of workers in turns of the port's queues, also while the worker had no CPU";
    let turns = times(|port| port.batches.worker_nanoseconds);
    family(encoder, "pvnet_port_worker_seconds", help, turns)?;
    let help = "Time of workers' waits for another worker that was sending to the port";
    let waits = times(|port| port.lock_waits.nanoseconds);
    family(encoder, "pvnet_port_lock_wait_seconds", help, waits)?;
    // Zeros too: a reason that appears with its first drop would show no increase.
    let drops = ports.iter().flat_map(|port| {
        let by_daemon = port.drops.iter().map(|(reason, count)| (reason.name(), count));
        by_daemon.chain(by_kernel(port)).map(|(reason, count)| {
            ([("port", &*port.name), ("reason", reason)], ConstCounter::new(count))
        })
    });
    let help = "Dropped frames that came from the port or were for it, by reason";
    family(encoder, "pvnet_port_dropped_frames", help, drops)?;
    batches(ports, encoder)?;
    guest_queues(ports, encoder)
}

/// The code that a reason has in JSON.
fn code(reason: &Reason) -> Option<String> {
    let value = serde_json::to_value(reason).ok()?;
    value.get("code")?.as_str().map(ToOwned::to_owned)
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

/// How the frames of guests' queues came.
fn guest_queues(ports: &[PortStatus], encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let queues = ports.iter().flat_map(|port| port.guest_queues.iter().map(move |q| (port, q)));
    let frames = queues.flat_map(|(port, queue)| {
        let others = [
            ("direct", queue.direct),
            ("misdirected", queue.misdirected),
            ("late", queue.late),
            ("dropped", queue.dropped),
        ];
        let copied = queue.copied.iter().map(|(why, count)| (why.as_str(), *count));
        others.into_iter().chain(copied).map(move |(how, count)| {
            let [port, how] = [&*port.name, how].map(str::to_owned);
            let labels = [("port", port), ("queue", queue.queue.to_string()), ("how", how)];
            (labels, ConstCounter::new(count))
        })
    });
    let help = "Frames of an uplink's queue for a guest: put into the guest's buffers, copied (by reason), or lost";
    family(encoder, "pvnet_guest_queue_frames", help, frames)
}

/// Encodes the batches, as histograms, of the ports that have carried frames, or could have.
fn batches(ports: &[PortStatus], encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
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
) -> fmt::Result {
    let bounded: u64 = buckets.values().sum();
    let beyond = (f64::INFINITY, count.saturating_sub(bounded));
    let buckets = buckets.iter().map(|(bound, count)| (unit(*bound), *count));
    let buckets: Vec<_> = buckets.chain([beyond]).collect();
    family.encode_family(labels)?.encode_histogram::<NoLabelSet>(unit(*sum), *count, &buckets, None)
}

pub(super) fn mirrors(
    mirrors: &[MirrorStatus],
    encoder: &mut DescriptorEncoder<'_>,
) -> fmt::Result {
    let frames = mirrors.iter().flat_map(|MirrorStatus { name, copied, lost, .. }| {
        [("copied", *copied), ("lost", *lost)]
            .map(|(what, count)| ([("mirror", &**name), ("what", what)], ConstCounter::new(count)))
    });
    let help = "Frames that a mirror has copied, or lost because its target was behind";
    family(encoder, "pvnet_mirror_frames", help, frames)
}

pub(super) fn multicast(
    known: &MulticastStatus,
    encoder: &mut DescriptorEncoder<'_>,
) -> fmt::Result {
    let MulticastStatus { groups, members, pruned, refused } = *known;
    let help = "Multicast groups with members, per VLAN";
    plain(encoder, "pvnet_multicast_groups", help, &gauge(groups as u64))?;
    plain(
        encoder,
        "pvnet_multicast_members",
        "Members of multicast groups",
        &gauge(members as u64),
    )?;
    let help = "Ports that miss groups which they have not joined; 0 before a querier has asked them twice";
    plain(encoder, "pvnet_multicast_pruned_ports", help, &gauge(pruned as u64))?;
    let help = "Joins beyond a limit, whose ports got all groups from then on";
    plain(encoder, "pvnet_multicast_refused_joins", help, &ConstCounter::new(refused))
}

#[cfg(test)]
mod tests {
    use control_socket::{
        BatchStatus, DeviceDrops, GuestQueueStatus, LimitStatus, LimitedPackets, MappedMemory,
        PortKind, PortState, Rates, Status,
    };
    use frame::DropReason;

    use super::super::render;
    use super::super::tests::assert_lines;
    use super::*;

    #[test]
    fn the_state_of_a_port_becomes_metrics() {
        let rates = Rates { bytes_per_second: Some(125_000), packets_per_second: None };
        let packets = LimitedPackets { ingress: 7, egress: 0 };
        let port = PortStatus {
            reason: Some(Reason::DeviceFailed("out0: deleted at 12:03:04".to_owned())),
            gso_checksum_fixups: 3,
            mapped_memory: Some(MappedMemory { bytes: 4096, limit: 1 << 30 }),
            limit: Some(LimitStatus { ingress: Some(rates), egress: None, packets }),
            batches: BatchStatus { worker_nanoseconds: 1_500_000_000, ..BatchStatus::default() },
            ..PortStatus::new("up0", PortKind::Uplink, PortState::Down)
        };
        let text = render(Status { ports: vec![port], ..Status::default() }).unwrap();
        let lines = [
            "pvnet_port_up{port=\"up0\"} 0",
            "pvnet_port_gso_checksum_fixups_total{port=\"up0\"} 3",
            "pvnet_port_info{port=\"up0\",kind=\"uplink\"} 1",
            // The code alone: each detail would be another time series.
            "pvnet_port_reason{port=\"up0\",reason=\"device_failed\"} 1",
            "pvnet_port_limit_bytes_per_second{port=\"up0\",direction=\"ingress\"} 125000",
            "pvnet_port_limit_packets_total{port=\"up0\",direction=\"ingress\"} 7",
            "pvnet_port_worker_seconds_total{port=\"up0\"} 1.5",
            "pvnet_port_mapped_memory_bytes{port=\"up0\"} 4096",
            "pvnet_port_mapped_memory_limit_bytes{port=\"up0\"} 1073741824",
        ];
        assert_lines(&text, &lines);
        assert!(!text.contains("direction=\"egress\""), "{text}");
    }

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
