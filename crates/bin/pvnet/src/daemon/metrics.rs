//! Prometheus metrics: a snapshot of the status at every scrape.

mod cards;
#[cfg(test)]
mod packaged;
mod ports;
mod process;

use std::fmt;

use control_socket::{
    GuestCopyStatus, KeptPages, Learning, MappedMemory, MeterStatus, PersistentStatus, PortState,
    PortStatus, Status,
};
use hypervisor::Counted;
use port::{Metric, whole};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric, text};
use prometheus_client::metrics::TypedMetric;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

/// A form of the metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    /// OpenMetrics 1.0.
    OpenMetrics,
    /// Prometheus's text format 0.0.4.
    Text,
}

impl Format {
    pub(super) fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
        }
    }

    /// The metrics of a status in this form.
    pub(super) fn render(self, status: Status) -> Result<String, fmt::Error> {
        let open = render(status)?;
        Ok(match self {
            Self::OpenMetrics => open,
            Self::Text => as_text(&open),
        })
    }
}

/// The metrics of a status, in OpenMetrics.
fn render(status: Status) -> Result<String, fmt::Error> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Snapshot(status)));
    let mut body = String::new();
    text::encode(&mut body, &registry)?;
    Ok(body)
}

/// OpenMetrics in the older format. There a counter's help and type are those of its series, whose name has the suffix.
fn as_text(open: &str) -> String {
    let lines: Vec<_> = open.lines().collect();
    let mut text = String::with_capacity(open.len());
    fn counter(line: &str) -> Option<&str> {
        line.strip_prefix("# TYPE ")?.strip_suffix(" counter")
    }
    for (number, line) in lines.iter().enumerate() {
        if *line == "# EOF" {
            continue;
        }
        let of_next = lines.get(number + 1).and_then(|next| counter(next));
        let help = of_next
            .and_then(|name| Some((name, line.strip_prefix("# HELP ")?.strip_prefix(name)?)));
        match (help, counter(line)) {
            (Some((name, help)), _) => text.extend(["# HELP ", name, "_total", help]),
            (None, Some(name)) => text.extend(["# TYPE ", name, "_total counter"]),
            (None, None) => text.push_str(line),
        }
        text.push('\n');
    }
    text
}

/// The status at one moment, as metrics.
#[derive(Debug)]
struct Snapshot(Status);

/// What is counted and measured of every port. A counter of a port is a field of its status and a row here; those of a layer are
/// in its crate.
const PORTS: &[Metric<PortStatus>] = &[
    Metric::counter("pvnet_port_ingress_frames", "Frames from the port into the switch", |port| {
        whole(port.ingress.frames)
    }),
    Metric::counter("pvnet_port_ingress_bytes", "Bytes from the port into the switch", |port| {
        whole(port.ingress.bytes)
    }),
    Metric::counter("pvnet_port_egress_frames", "Frames from the switch out of the port", |port| {
        whole(port.egress.frames)
    }),
    Metric::counter("pvnet_port_egress_bytes", "Bytes from the switch out of the port", |port| {
        whole(port.egress.bytes)
    }),
    Metric::counter("pvnet_port_station_moves", "Stations that moved to the port", |port| {
        whole(port.learning.moves)
    }),
    Metric::counter(
        "pvnet_port_refused_moves",
        "Frames whose source address another port kept",
        |port| whole(port.learning.refused_moves),
    ),
    Metric::counter(
        "pvnet_port_refused_connections",
        "Connections to its socket while it was taken",
        |port| whole(port.refused_connections),
    ),
    Metric::counter(
        "pvnet_port_refused_addresses",
        "Frames whose source address was not learnt",
        |port| whole(port.learning.refused_addresses),
    ),
    Metric::counter(
        "pvnet_port_gso_checksum_fixups",
        "Unsegmented TCP frames from the port with a finished checksum, which was made unfinished",
        |port| whole(port.gso_checksum_fixups),
    ),
    Metric::counter(
        "pvnet_port_lock_waits",
        "Waits of workers for another worker that was sending to the port",
        |port| whole(port.lock_waits.count),
    ),
    Metric::gauge("pvnet_port_up", "Whether the port carries traffic", |port| {
        whole((port.state == PortState::Up).into())
    }),
];

const MAPPED_MEMORY: &[Metric<MappedMemory>] = &[
    Metric::gauge(
        "pvnet_port_mapped_memory_bytes",
        "Memory of a virtual machine that its front-end has mapped in the daemon, with its logs",
        |memory| whole(memory.bytes),
    ),
    Metric::gauge(
        "pvnet_port_mapped_memory_limit_bytes",
        "The most that a front-end may have mapped in the daemon: memory_mib, and room for logs",
        |memory| whole(memory.limit),
    ),
];

/// A number of the pages that stay mapped, in both directions.
fn kept(grants: &PersistentStatus, of: fn(&KeptPages) -> u64) -> Vec<(&'static str, u64)> {
    vec![("tx", of(&grants.tx)), ("rx", of(&grants.rx))]
}

/// Guests' pages that stay mapped.
const KEPT_PAGES: &[Metric<PersistentStatus>] = &[
    Metric::counter("pvnet_port_grant_hits", "Lookups of a page that found it mapped", |grants| {
        kept(grants, |pages| pages.hits)
    }),
    Metric::counter(
        "pvnet_port_grant_misses",
        "Lookups of a page that did not find it mapped",
        |grants| kept(grants, |pages| pages.misses),
    ),
    Metric::counter(
        "pvnet_port_grant_evictions",
        "Mapped pages that lost their place to others",
        |grants| kept(grants, |pages| pages.evictions),
    ),
    Metric::gauge(
        "pvnet_port_mapped_pages",
        "The guest's pages that stay mapped now: the active set",
        |grants| kept(grants, |pages| pages.mapped as u64),
    ),
];

/// What guests copy themselves.
const GUEST_COPIES: &[Metric<GuestCopyStatus>] = &[
    Metric::counter(
        "pvnet_port_guest_copy_expired",
        "Buffers that the guest did not copy in time",
        |copies| whole(copies.expired),
    ),
    Metric::counter(
        "pvnet_port_guest_copy_hypercalls",
        "Hypercalls in which the guest copied",
        |copies| whole(copies.hypercalls),
    ),
    Metric::counter(
        "pvnet_port_guest_copies",
        "Copies that the guest's hypercalls did",
        |copies| whole(copies.copies),
    ),
    Metric::counter(
        "pvnet_port_guest_copied_bytes",
        "Bytes that the guest's hypercalls copied",
        |copies| whole(copies.bytes),
    ),
    Metric::counter(
        "pvnet_port_guest_copies_refused",
        "Copies of the guest that were refused",
        |copies| whole(copies.refused),
    ),
    Metric::gauge(
        "pvnet_port_granted_buffers",
        "Buffers that are granted to the guest and not copied yet",
        |copies| whole(copies.granted),
    ),
];

impl Collector for Snapshot {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let encoder = &mut encoder;
        let ports = &self.0.ports;
        of_ports(ports, Some, PORTS, encoder)?;
        of_ports(ports, |port| port.limit.as_ref(), limit::METRICS, encoder)?;
        of_ports(ports, |port| Some(&port.gro), gro::METRICS, encoder)?;
        of_ports(ports, |port| port.mapped_memory.as_ref(), MAPPED_MEMORY, encoder)?;
        of_ports(ports, |port| port.persistent_grants.as_ref(), KEPT_PAGES, encoder)?;
        of_ports(ports, |port| port.guest_copy.as_ref(), GUEST_COPIES, encoder)?;
        ports::encode(ports, encoder)?;
        let Learning { moves, refused_moves, refused_addresses } = self.0.learning;
        let help = "Stations that moved from one port to another";
        plain(encoder, "pvnet_switch_station_moves", help, &ConstCounter::new(moves))?;
        let help = "Frames whose source address another port kept";
        plain(encoder, "pvnet_switch_refused_moves", help, &ConstCounter::new(refused_moves))?;
        let (help, refused) = ("Frames whose source address was not learnt", refused_addresses);
        plain(encoder, "pvnet_switch_refused_addresses", help, &ConstCounter::new(refused))?;
        let help = "Addresses in the switch's table";
        plain(encoder, "pvnet_switch_addresses", help, &gauge(self.0.addresses.len() as u64))?;
        if let Some(known) = &self.0.multicast {
            ports::multicast(known, encoder)?;
        }
        ports::mirrors(&self.0.mirrors, encoder)?;
        cards::encode(&self.0.nics, encoder)?;
        meter(&self.0.meter, encoder)?;
        process::encode(&self.0, encoder)
    }
}

fn meter(meter: &MeterStatus, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let count = |what| meter.counts.of(what);
    plain(encoder, "pvnet_meter_on", "Whether the meter counts now", &gauge(meter.on.into()))?;
    let help = "Time inside grant and event operations, while the meter was on";
    let time = ConstCounter::new(seconds(meter.nanoseconds));
    plain(encoder, "pvnet_hypervisor_seconds", help, &time)?;
    let help = "Time inside guests' hypercalls that copy, while the meter was on";
    let time = ConstCounter::new(seconds(count(Counted::GuestCopyNanoseconds)));
    plain(encoder, "pvnet_guest_copy_seconds", help, &time)?;

    use Counted::{CopiedBytes, DriverBytes, GuestCopiedBytes, GuestCopyNanoseconds};
    let other = [CopiedBytes, DriverBytes, GuestCopiedBytes, GuestCopyNanoseconds];
    let operations = Counted::ALL.into_iter().filter(|what| !other.contains(what));
    let operations =
        operations.map(|what| ([("operation", what.name())], ConstCounter::new(count(what))));
    let help = "Operations of the hypervisor and the driver domain, while the meter was on";
    family(encoder, "pvnet_hypervisor_operations", help, operations)?;
    let copied = [
        ("hypervisor", count(CopiedBytes)),
        ("guest_hypercalls", count(GuestCopiedBytes)),
        ("driver", count(DriverBytes)),
        ("guests", meter.guest_bytes),
    ];
    let copied = copied.map(|(by, bytes)| ([("by", by)], ConstCounter::new(bytes)));
    let help = "Bytes copied, by copier; the guests' also while the meter was off";
    family(encoder, "pvnet_copied_bytes", help, copied)
}

/// Metrics of the ports that have such a status; nothing where none has.
fn of_ports<'a, S: 'a>(
    ports: &'a [PortStatus],
    of: impl Fn(&'a PortStatus) -> Option<&'a S>,
    metrics: &[Metric<S>],
    encoder: &mut DescriptorEncoder<'_>,
) -> fmt::Result {
    let ports: Vec<_> = ports.iter().filter_map(|port| Some((&*port.name, of(port)?))).collect();
    if ports.is_empty() {
        return Ok(());
    }
    for Metric { name, help, is_counter, values } in metrics {
        let series = ports.iter().flat_map(|(port, status)| {
            values(status).into_iter().map(move |(direction, value)| {
                let direction = Some(("direction", direction)).filter(|(_, name)| !name.is_empty());
                let labels: Vec<_> = [("port", *port)].into_iter().chain(direction).collect();
                (labels, value)
            })
        });
        match is_counter {
            true => family(encoder, name, help, series.map(|(l, n)| (l, ConstCounter::new(n))))?,
            false => family(encoder, name, help, series.map(|(l, n)| (l, gauge(n))))?,
        }
    }
    Ok(())
}

/// A metric with its series, each with its labels.
fn family<M: EncodeMetric + TypedMetric>(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    series: impl IntoIterator<Item = (impl EncodeLabelSet, M)>,
) -> fmt::Result {
    let mut family = encoder.encode_descriptor(name, help, None, M::TYPE)?;
    series.into_iter().try_for_each(|(labels, value)| value.encode(family.encode_family(&labels)?))
}

/// A metric without labels.
fn plain(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    metric: &impl EncodeMetric,
) -> fmt::Result {
    metric.encode(encoder.encode_descriptor(name, help, None, metric.metric_type())?)
}

fn gauge(value: u64) -> ConstGauge<i64> {
    ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX))
}

/// Seconds, as Prometheus wants times.
fn seconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use control_socket::{GroStatus, PortKind, Traffic};
    use frame::DropReason;

    use super::*;

    pub(super) fn assert_lines(text: &str, lines: &[&str]) {
        for line in lines {
            assert!(text.lines().any(|other| other == *line), "{line} is not in\n{text}");
        }
    }

    /// As `promtool check metrics` has it: each series has a help and a type under its own name.
    #[test]
    fn every_series_of_the_older_format_has_a_help_and_a_type() {
        let status = packaged::everything();
        let text = Format::Text.render(status).unwrap();
        let described = |kind: &str, name: &str| {
            let start = format!("# {kind} {name} ");
            text.lines().filter(|line| line.starts_with(&start)).count()
        };
        let mut counters = 0;
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let name = line.split(['{', ' ']).next().unwrap();
            let histogram = ["_bucket", "_sum", "_count"];
            let family = histogram.iter().find_map(|end| {
                let family = name.strip_suffix(end)?;
                text.contains(&format!("# TYPE {family} histogram\n")).then_some(family)
            });
            let family = family.unwrap_or(name);
            assert_eq!([described("HELP", family), described("TYPE", family)], [1, 1], "{line}");
            counters += usize::from(name.ends_with("_total"));
        }
        assert!(counters > 30 && !text.contains("# EOF"), "{text}");
    }

    #[test]
    fn the_meter_becomes_metrics() {
        let mut status = Status::default();
        let counted =
            [Counted::Hypercalls, Counted::Maps, Counted::CopiedBytes, Counted::DriverBytes];
        status.meter.counts = counted.into_iter().zip(1..).collect();
        status.meter.on = true;
        status.meter.nanoseconds = 1_500_000_000;
        status.meter.guest_bytes = 99;
        let text = render(status).unwrap();
        assert_lines(
            &text,
            &[
                "pvnet_meter_on 1",
                "pvnet_hypervisor_seconds_total 1.5",
                "pvnet_hypervisor_operations_total{operation=\"hypercalls\"} 1",
                "pvnet_hypervisor_operations_total{operation=\"maps\"} 2",
                "pvnet_copied_bytes_total{by=\"hypervisor\"} 3",
                "pvnet_copied_bytes_total{by=\"driver\"} 4",
                "pvnet_copied_bytes_total{by=\"guests\"} 99",
            ],
        );
        let operations = text.matches("pvnet_hypervisor_operations_total{").count();
        // Bytes and times are other metrics.
        assert_eq!(operations, Counted::ALL.len() - 4, "{text}");
    }

    #[test]
    fn a_port_becomes_metrics() {
        let port = PortStatus {
            ingress: Traffic { frames: 3, bytes: 4000 },
            egress: Traffic { frames: 5, bytes: 6000 },
            learning: Learning { moves: 8, refused_moves: 9, refused_addresses: 10 },
            drops: [(DropReason::Stalled, 7)].into_iter().collect(),
            ..PortStatus::new("red", PortKind::Guest, PortState::Up)
        };
        let tx = KeptPages { mapped: 14, hits: 15, misses: 16, evictions: 17 };
        let rx = KeptPages { mapped: 18, ..KeptPages::default() };
        let grants = PersistentStatus { bound: 512, bytes: 32 << 12, tx, rx };
        let gro = GroStatus { segments: 90, frames: 2 };
        let port = PortStatus { persistent_grants: Some(grants), gro, ..port };
        let learning = Learning { moves: 11, refused_moves: 12, refused_addresses: 13 };
        let status = Status { ports: vec![port], learning, ..Status::default() };
        let text = render(status).unwrap();
        let lines = [
            "pvnet_port_ingress_frames_total{port=\"red\"} 3",
            "pvnet_port_egress_bytes_total{port=\"red\"} 6000",
            "pvnet_port_up{port=\"red\"} 1",
            "pvnet_port_dropped_frames_total{port=\"red\",reason=\"stalled\"} 7",
            "pvnet_port_station_moves_total{port=\"red\"} 8",
            "pvnet_port_refused_moves_total{port=\"red\"} 9",
            "pvnet_port_refused_addresses_total{port=\"red\"} 10",
            "pvnet_switch_station_moves_total 11",
            "pvnet_switch_refused_moves_total 12",
            "pvnet_switch_refused_addresses_total 13",
            "pvnet_switch_addresses 0",
            "pvnet_port_grant_hits_total{port=\"red\",direction=\"tx\"} 15",
            "pvnet_port_grant_misses_total{port=\"red\",direction=\"tx\"} 16",
            "pvnet_port_grant_evictions_total{port=\"red\",direction=\"tx\"} 17",
            "pvnet_port_mapped_pages{port=\"red\",direction=\"rx\"} 18",
            "pvnet_port_gro_segments_total{port=\"red\"} 90",
            "pvnet_port_gro_frames_total{port=\"red\"} 2",
        ];
        assert_lines(&text, &lines);
    }
}
