//! Prometheus metrics over HTTP: a snapshot of the status at every scrape.

mod batches;
mod cards;
mod drops;
mod encode;
mod flooding;
#[cfg(test)]
mod packaged;
mod ports;
mod process;

use std::fmt;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use control_socket::{
    GuestCopyStatus, KeptPages, Learning, MappedMemory, MeterStatus, PersistentStatus, PortState,
    PortStatus, Status,
};
use hypervisor::Counted;
use machine::{Accepted, Acceptor};
use port::{Metric, whole};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, text};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

use crate::daemon::clients::{Clients, Timed};
use crate::daemon::error::Error;
use crate::daemon::event::Event;
use crate::daemon::nics::Nics;
use crate::daemon::thread::{spawn, spawn_for_client};
use encode::{metrics, plain, seconds};

/// How long a scraper may take for its whole request, and then to read the whole response.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Scrapers at a time.
const SCRAPERS_MAX: usize = 8;

/// Where a scrape comes from.
#[derive(Clone)]
struct Source {
    events: mpsc::Sender<Event>,
    nics: Option<Arc<Nics>>,
}

/// Serves metrics at `address` until the process ends.
pub(super) fn serve(
    address: SocketAddr,
    events: mpsc::Sender<Event>,
    nics: Option<Arc<Nics>>,
) -> Result<(), Error> {
    let listener =
        TcpListener::bind(address).map_err(|source| Error::Metrics { address, source })?;
    let source = Source { events, nics };
    spawn("metrics", move || accept(&listener, &source, TIMEOUT))?;
    Ok(())
}

/// Serves each scraper on a thread, so that a slow one delays no other.
fn accept(listener: &TcpListener, source: &Source, limit: Duration) {
    let clients = Clients::new(SCRAPERS_MAX);
    let mut acceptor = Acceptor::new("scrapers");
    loop {
        let stream = match acceptor.accept(listener) {
            Accepted::Connection(stream) => TcpStream::from(stream),
            Accepted::Excess(_) => continue,
            Accepted::Stopped => return,
        };
        let Some(client) = clients.enter() else {
            let body = format!("{SCRAPERS_MAX} scrapers are connected\n");
            // This fails if the scraper has gone. Its socket is fresh, so nothing waits.
            let _ = respond(&stream, limit, "503 Service Unavailable", "text/plain", &body);
            continue;
        };
        let source = source.clone();
        // If no thread starts, the scraper sees its connection end.
        let _ = spawn_for_client("metrics", move || {
            // This fails if the scraper has gone.
            let _ = answer(&stream, &source, limit);
            drop(client);
        });
    }
}

fn answer(stream: &TcpStream, source: &Source, limit: Duration) -> io::Result<()> {
    let mut line = String::new();
    BufReader::new(Timed::new(stream, limit).take(1024)).read_line(&mut line)?;
    let (status, kind, body) = if line.starts_with("GET /metrics ") {
        let text = scrape(source)?;
        ("200 OK", "application/openmetrics-text; version=1.0.0; charset=utf-8", text)
    } else {
        ("404 Not Found", "text/plain", "metrics are at /metrics\n".to_owned())
    };
    respond(stream, limit, status, kind, &body)
}

fn respond(
    stream: &TcpStream,
    limit: Duration,
    status: &str,
    kind: &str,
    body: &str,
) -> io::Result<()> {
    let length = body.len();
    write!(
        Timed::new(stream, limit),
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n\
         Connection: close\r\n\r\n{body}"
    )
}

fn scrape(source: &Source) -> io::Result<String> {
    let (sender, receiver) = mpsc::channel();
    let gone = |_| io::Error::from(io::ErrorKind::BrokenPipe);
    source.events.send(Event::Status(sender)).map_err(gone)?;
    let mut status = receiver.recv_timeout(TIMEOUT).map_err(io::Error::other)?;
    status.nics = source.nics.as_ref().map(|nics| nics.status()).unwrap_or_default();
    render(status).map_err(io::Error::other)
}

fn render(status: Status) -> Result<String, fmt::Error> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Snapshot(status)));
    let mut body = String::new();
    text::encode(&mut body, &registry)?;
    Ok(body)
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
        "TCP frames from the port to be segmented whose checksum was not blank, and was made so",
        |port| whole(port.gso_checksum_fixups),
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
    Metric::counter("pvnet_port_grant_hits", "Look-ups of a page that found it mapped", |grants| {
        kept(grants, |pages| pages.hits)
    }),
    Metric::counter(
        "pvnet_port_grant_misses",
        "Look-ups of a page that did not find it mapped",
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

/// A counter of the switch's table: its name, its help, and its field of the status.
type TableCounter = (&'static str, &'static str, fn(&Learning) -> u64);

const TABLE_COUNTERS: [TableCounter; 3] = [
    ("pvnet_switch_station_moves", "Stations that moved from one port to another", |learning| {
        learning.moves
    }),
    ("pvnet_switch_refused_moves", "Frames whose source address another port kept", |learning| {
        learning.refused_moves
    }),
    ("pvnet_switch_refused_addresses", "Frames whose source address was not learnt", |learning| {
        learning.refused_addresses
    }),
];

impl Snapshot {
    /// How the frames of guests' queues came.
    fn encode_guest_queues(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let mut family = encoder.encode_descriptor(
            "pvnet_guest_queue_frames",
            "Frames of an uplink's queue for a guest: put into the guest's buffers, copied (by reason), or lost",
            None,
            ConstCounter::new(0u64).metric_type(),
        )?;
        for port in &self.0.ports {
            for queue in &port.guest_queues {
                let others = [
                    ("direct", queue.direct),
                    ("misdirected", queue.misdirected),
                    ("late", queue.late),
                    ("dropped", queue.dropped),
                ];
                let copied = queue.copied.iter().map(|(why, count)| (why.as_str(), *count));
                for (how, count) in others.into_iter().chain(copied) {
                    let number = queue.queue.to_string();
                    let labels = [("port", &*port.name), ("queue", &*number), ("how", how)];
                    ConstCounter::new(count).encode(family.encode_family(&labels)?)?;
                }
            }
        }
        Ok(())
    }
}

impl Collector for Snapshot {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let ports = &self.0.ports;
        metrics(ports, Some, PORTS, &mut encoder)?;
        metrics(ports, |port| port.limit.as_ref(), limit::METRICS, &mut encoder)?;
        metrics(ports, |port| Some(&port.gro), gro::METRICS, &mut encoder)?;
        metrics(ports, |port| port.mapped_memory.as_ref(), MAPPED_MEMORY, &mut encoder)?;
        metrics(ports, |port| port.persistent_grants.as_ref(), KEPT_PAGES, &mut encoder)?;
        metrics(ports, |port| port.guest_copy.as_ref(), GUEST_COPIES, &mut encoder)?;
        ports::encode(ports, &mut encoder)?;
        drops::encode(ports, &mut encoder)?;
        batches::encode(ports, &mut encoder)?;
        self.encode_guest_queues(&mut encoder)?;
        for (name, help, value) in TABLE_COUNTERS {
            plain(&mut encoder, name, help, &ConstCounter::new(value(&self.0.learning)))?;
        }
        let addresses = i64::try_from(self.0.addresses.len()).unwrap_or(i64::MAX);
        let help = "Addresses in the switch's table";
        plain(&mut encoder, "pvnet_switch_addresses", help, &ConstGauge::new(addresses))?;
        if let Some(known) = &self.0.multicast {
            flooding::multicast(known, &mut encoder)?;
        }
        flooding::mirrors(&self.0.mirrors, &mut encoder)?;
        cards::encode(&self.0.nics, &mut encoder)?;
        meter(&self.0.meter, &mut encoder)?;
        process::encode(&self.0, &mut encoder)
    }
}

/// Bytes copied, by the label of the copier.
type Copier = (&'static str, fn(&MeterStatus) -> u64);

const COPIERS: [Copier; 4] = [
    ("hypervisor", |meter| meter.counts.of(Counted::CopiedBytes)),
    ("guest_hypercalls", |meter| meter.counts.of(Counted::GuestCopiedBytes)),
    ("driver", |meter| meter.counts.of(Counted::DriverBytes)),
    ("guests", |meter| meter.guest_bytes),
];

fn meter(meter: &MeterStatus, encoder: &mut DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
    let on = ConstGauge::new(i64::from(meter.on));
    plain(encoder, "pvnet_meter_on", "Whether the meter counts now", &on)?;
    let help = "Time inside grant and event operations, while the meter was on";
    let time = ConstCounter::new(seconds(meter.nanoseconds));
    plain(encoder, "pvnet_hypervisor_seconds", help, &time)?;
    let help = "Time inside guests' hypercalls that copy, while the meter was on";
    let time = ConstCounter::new(seconds(meter.counts.of(Counted::GuestCopyNanoseconds)));
    plain(encoder, "pvnet_guest_copy_seconds", help, &time)?;

    let kind = ConstCounter::new(0u64).metric_type();
    let help = "Operations of the hypervisor and the driver domain, while the meter was on";
    let name = "pvnet_hypervisor_operations";
    let mut family = encoder.encode_descriptor(name, help, None, kind)?;
    use Counted::{CopiedBytes, DriverBytes, GuestCopiedBytes, GuestCopyNanoseconds};
    let other = [CopiedBytes, DriverBytes, GuestCopiedBytes, GuestCopyNanoseconds];
    for what in Counted::ALL.into_iter().filter(|what| !other.contains(what)) {
        let labels = [("operation", what.name())];
        ConstCounter::new(meter.counts.of(what)).encode(family.encode_family(&labels)?)?;
    }
    let help = "Bytes copied, by copier; the guests' also while the meter was off";
    let mut family = encoder.encode_descriptor("pvnet_copied_bytes", help, None, kind)?;
    for (by, copied) in COPIERS {
        ConstCounter::new(copied(meter)).encode(family.encode_family(&[("by", by)])?)?;
    }
    Ok(())
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

    /// A server with this limit, and what the control thread does for it.
    fn server(limit: Duration) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (events, inbox) = mpsc::channel();
        let source = Source { events, nics: None };
        std::thread::spawn(move || accept(&listener, &source, limit));
        std::thread::spawn(move || {
            for event in inbox {
                if let Event::Status(answer) = event {
                    answer.send(Status::default()).unwrap();
                }
            }
        });
        address
    }

    fn scraped(address: SocketAddr) -> String {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    }

    #[test]
    fn a_scraper_that_trickles_delays_no_other() {
        // Long enough that only the test's own limit can end it.
        let address = server(Duration::from_secs(600));
        let mut slow = TcpStream::connect(address).unwrap();
        slow.write_all(b"G").unwrap();
        assert!(scraped(address).contains("200 OK"));
        slow.write_all(b"E").unwrap();
    }

    #[test]
    fn a_scraper_that_trickles_is_closed() {
        let address = server(Duration::from_millis(100));
        let mut slow = TcpStream::connect(address).unwrap();
        slow.set_read_timeout(Some(Duration::from_millis(10))).unwrap();
        for byte in b"GET /".iter().cycle().take(1000) {
            // The close is an end or an error, by whether a byte was on its way.
            let sent = slow.write_all(&[*byte]);
            match slow.read(&mut [0]) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && sent.is_ok() => {}
                _ => return,
            }
        }
        panic!("it is still connected");
    }

    #[test]
    fn scrapers_are_bounded() {
        let address = server(Duration::from_secs(600));
        let idle: Vec<_> =
            (0..SCRAPERS_MAX).map(|_| TcpStream::connect(address).unwrap()).collect();
        let mut late = TcpStream::connect(address).unwrap();
        let mut text = String::new();
        late.read_to_string(&mut text).unwrap();
        assert!(text.contains("503") && text.contains("8 scrapers"), "{text}");
        drop(idle);
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
