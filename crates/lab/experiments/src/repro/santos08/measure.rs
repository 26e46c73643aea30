//! One stream of datagrams, and what each packet cost.

use std::time::Duration;

use control_socket::Status;
use hypervisor::Counted;
use lab::{Interrupt, Iperf};
use serde::Serialize;

use crate::error::{Error, Result};
use crate::repro::cpus::Cpus;
use crate::repro::server::Server;
use crate::repro::shares::Shares;
use crate::repro::window::watch;

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
/// The stream begins so long before the measured time, and ends so long after it.
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
    Interrupt::sleep(MARGIN)?;
    let receiver = [stream.server_pid()];
    let window = watch(server, &receiver, seconds, cpus, || server.received())?;
    let lost = stream.finish()?.lost_percent / 100.0;
    let [before, after] = window.values;
    let packets = after.saturating_sub(before) as f64;
    if packets < 1.0 {
        return Err(Error::Failed("no packet arrived".to_owned()));
    }
    let wall = window.usage.wall.as_secs_f64();
    let Shares { hypervisor, driver, guest_system, guest_user, .. } = window.share;
    let [guest, driver, hypervisor] =
        [guest_system + guest_user, driver, hypervisor].map(|share| share * wall * 1e9 / packets);
    let interrupts = window.status.map_or(0, |[before, after]| interrupts(&before, &after));
    Ok(Sample {
        cost: Cost { guest, driver, hypervisor, total: guest + driver + hypervisor },
        pps: packets / wall,
        lost,
        per_interrupt: (interrupts > 0).then(|| packets / interrupts as f64),
    })
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
