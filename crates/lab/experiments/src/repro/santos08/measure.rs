//! Measures a stream of datagrams, and the cost of each packet.

use std::time::Duration;

use control_socket::Status;
use lab::{Interrupt, Process, on_cpu};
use schemars::JsonSchema;
use serde::Serialize;

use crate::error::{Error, Result};
use crate::load::{Arrived, LISTENS};
use crate::repro::cpus::Cpus;
use crate::repro::server::Server;
use crate::repro::shares::Shares;
use crate::repro::transfer::{guest_interrupts, watch};
use crate::testbed::this;

/// Nanoseconds of CPU time per packet that the guest received.
#[derive(Clone, Copy, Debug, Default, PartialEq, JsonSchema, Serialize)]
pub struct Cost {
    /// The guest: its program, stack and frontend.
    pub guest: f64,
    /// The driver domain.
    pub driver: f64,
    /// The hypervisor.
    pub hypervisor: f64,
    /// The sum of the three.
    pub total: f64,
}

/// The results of one stream.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// What a packet cost.
    pub cost: Cost,
    /// Packets received per second.
    pub pps: f64,
    /// Datagrams that did not arrive, 0 to 1.
    pub lost: f64,
    /// Packets per notification of the guest; none on Linux.
    pub per_interrupt: Option<f64>,
    /// The share of the frames, 0 to 1, that a tap's queue put into the guest's pages; none without such a queue.
    pub direct: Option<f64>,
}

/// A stream.
#[derive(Clone, Copy, Debug)]
pub struct Stream {
    /// Bytes of a packet, with its IP and UDP headers.
    pub size: u16,
    /// Packets per second that the peer sends.
    pub pps: u32,
    /// Packets of a burst, which are sent without a pause.
    pub burst: u16,
    /// Seconds that are measured.
    pub seconds: u32,
}

/// Bytes of the headers of IP and UDP.
const HEADERS: u16 = 28;
/// How long before the measured time the stream begins.
const WARM_UP: Duration = Duration::from_millis(250);
/// Seconds that the stream would go on after the measured time. It is ended before.
const LONGER: u32 = 60;
/// How long a sink may take to listen, and to end.
const SLACK: Duration = Duration::from_secs(15);

/// Starts the stream to the first guest. On return, it is under way.
pub fn source(server: &Server, stream: Stream, cpus: &Cpus) -> Result<Process> {
    let Stream { size, pps, burst, seconds } = stream;
    let payload = size.saturating_sub(HEADERS);
    let mut command = this(Some(&server.peer))?;
    command.args(["load", "source", &server.addresses()[0].to_string()]);
    command.args(["--pps", &pps.to_string(), "--burst", &burst.to_string()]);
    command.args(["--size", &payload.to_string(), "--seconds", &(seconds + LONGER).to_string()]);
    let source = on_cpu(cpus.client, || Process::capture(command))?;
    Interrupt::sleep(WARM_UP)?;
    Ok(source)
}

fn sink(server: &Server, cpus: &Cpus) -> Result<Process> {
    let mut command = this(Some(server.first()))?;
    command.args(["load", "sink", "--json", "-"]);
    let mut sink = on_cpu(cpus.server, || Process::capture(command))?;
    sink.says(LISTENS, SLACK)?;
    Ok(sink)
}

/// Measures a stream from the peer to the first guest.
pub fn measure(server: &Server, stream: Stream, cpus: &Cpus) -> Result<Sample> {
    let mut sink = sink(server, cpus)?;
    let mut source = source(server, stream, cpus)?;
    let window = watch(server, &[sink.pid()], stream.seconds, cpus, || server.received())?;
    if source.ended()?.is_some() {
        return Err(Error::Failed(format!("the source ended early: {}", source.stderr().trim())));
    }
    // The sink ends last, so that it does not miss packets in flight.
    source.stop()?;
    sink.stop()?;
    let arrived: Arrived = serde_json::from_str(&sink.stdout()).map_err(report::Error::from)?;
    let [before, after] = window.values;
    let packets = after.saturating_sub(before) as f64;
    if packets < 1.0 || arrived.received == 0 {
        return Err(Error::Failed("no packet arrived".to_owned()));
    }
    let wall = window.usage.wall.as_secs_f64();
    let Shares { hypervisor, driver, guest_system, guest_user, .. } = window.share;
    let [guest, driver, hypervisor] =
        [guest_system + guest_user, driver, hypervisor].map(|share| share * wall * 1e9 / packets);
    let status = window.status.as_ref();
    let interrupts = status.map_or(0, |[before, after]| guest_interrupts(before, after));
    Ok(Sample {
        cost: Cost { guest, driver, hypervisor, total: guest + driver + hypervisor },
        pps: packets / wall,
        lost: arrived.lost(),
        per_interrupt: (interrupts > 0).then(|| packets / interrupts as f64),
        direct: status.and_then(|[before, after]| direct(before, after)),
    })
}

/// The share of the frames from taps' queues for guests that were put directly into the guests' pages.
fn direct(before: &Status, after: &Status) -> Option<f64> {
    let counts = |status: &Status| {
        let queues = status.ports.iter().flat_map(|port| &port.guest_queues);
        queues.fold((0, 0), |(direct, copied), queue| {
            (direct + queue.direct, copied + queue.copied.values().sum::<u64>())
        })
    };
    let ((direct_before, copied_before), (direct, copied)) = (counts(before), counts(after));
    let (direct, copied) =
        (direct.saturating_sub(direct_before), copied.saturating_sub(copied_before));
    (direct + copied > 0).then(|| direct as f64 / (direct + copied) as f64)
}
