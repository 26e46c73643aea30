//! One stream of datagrams, and what each packet cost.

use std::time::Duration;

use control_socket::Status;
use hypervisor::Counted;
use lab::{Children, CpuMeter, Interrupt, Iperf, Process, thread_times};
use serde::Serialize;

use crate::error::{Error, Result};
use crate::repro::cpus::Cpus;
use crate::repro::server::Server;
use crate::repro::shares::{Times, shares};

/// Nanoseconds of the server's CPU per packet that the guest received.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Cost {
    /// The guest: its program, stack and frontend.
    pub guest: f64,
    /// The driver domain.
    pub driver: f64,
    /// The hypervisor.
    pub hypervisor: f64,
    /// All of them.
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
}

/// What a stream is like.
#[derive(Clone, Copy, Debug)]
pub struct Stream {
    /// Bytes of a packet, with its IP and UDP headers.
    pub size: u16,
    /// Packets per second that the peer sends.
    pub pps: u32,
    /// How many of them without a pause.
    pub burst: u16,
    /// Seconds that are measured.
    pub seconds: u32,
}

/// Bytes of the headers of IP and UDP.
const HEADERS: u16 = 28;
/// Before the measured time, and after it.
const MARGIN: Duration = Duration::from_secs(1);

/// Runs a stream from the peer to the first guest.
pub fn measure(server: &Server, stream: Stream, cpus: &Cpus) -> Result<Sample> {
    let Stream { size, pps, burst, seconds } = stream;
    let address = server.addresses()[0];
    let whole = seconds + 2 * u32::try_from(MARGIN.as_secs()).unwrap_or(1);
    let iperf = Iperf::tcp(&server.peer, server.first(), address, whole)
        .bursts(pps, size.saturating_sub(HEADERS), burst)
        .on([cpus.client, cpus.server]);
    let stream = iperf.start()?;
    let window = window(server, stream.server_pid(), seconds, cpus)?;
    Ok(window.sample(stream.finish()?.lost_percent / 100.0))
}

/// What happened in the middle of a stream.
struct Window {
    cost: Cost,
    pps: f64,
    per_interrupt: Option<f64>,
}

impl Window {
    fn sample(self, lost: f64) -> Sample {
        let Self { cost, pps, per_interrupt } = self;
        Sample { cost, pps, lost, per_interrupt }
    }
}

fn window(server: &Server, receiver: u32, seconds: u32, cpus: &Cpus) -> Result<Window> {
    Interrupt::sleep(MARGIN)?;
    let before = server.status()?;
    let (times, packets) = (times(server, receiver, before.as_ref())?, server.received()?);
    let meter = CpuMeter::start_on(cpus.server, &[], Children::Ignored)?;
    Interrupt::sleep(Duration::from_secs(seconds.into()))?;
    let usage = meter.read()?;
    let after = server.status()?;
    let (mut later, received) =
        (self::times(server, receiver, after.as_ref())?, server.received()?);
    if server.daemon().is_none() {
        // A native server's receiving stack runs in interrupts, which are no process's.
        later.guests = times.guests + usage.busy;
    }
    let packets = received.saturating_sub(packets) as f64;
    if packets < 1.0 {
        return Err(Error::Failed("no packet arrived".to_owned()));
    }
    let (share, _) = shares(&times, &later, &usage);
    let per_packet = usage.wall.as_secs_f64() * 1e9 / packets;
    let guest = (share.guest_system + share.guest_user) * per_packet;
    let (driver, hypervisor) = (share.driver * per_packet, share.hypervisor * per_packet);
    let interrupts = before.zip(after).map(|(before, after)| interrupts(&before, &after));
    Ok(Window {
        cost: Cost { guest, driver, hypervisor, total: guest + driver + hypervisor },
        pps: packets / usage.wall.as_secs_f64(),
        per_interrupt: interrupts.filter(|count| *count > 0).map(|count| packets / count as f64),
    })
}

fn times(server: &Server, receiver: u32, status: Option<&Status>) -> Result<Times> {
    let threads = server.daemon().map(thread_times).transpose()?.unwrap_or_default();
    let metered = Duration::from_nanos(status.map_or(0, |status| status.meter.nanoseconds));
    let mut times = Times { metered, ..Times::default() }.with_daemon(&threads);
    for pid in server.guests.iter().map(Process::pid).chain([receiver]) {
        times.guests += thread_times(pid)?.iter().map(|thread| thread.ran).sum::<Duration>();
    }
    Ok(times)
}

/// Notifications and virtual interrupts of guests.
fn interrupts(before: &Status, after: &Status) -> u64 {
    let contexts = |status: &Status| -> u64 {
        let contexts = status.nics.iter().flat_map(|nic| &nic.contexts);
        contexts.map(|context| context.interrupts).sum()
    };
    let events = (after.meter.counts - before.meter.counts).of(Counted::Notifications);
    events + contexts(after).saturating_sub(contexts(before))
}
