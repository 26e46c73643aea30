//! The measurements of a transfer that all experiments share.

use std::time::Duration;

use control_socket::Status;
use hypervisor::Counted;
use lab::{Children, CpuMeter, CpuUsage, Interrupt, Process, thread_times, user_time};
use schemars::JsonSchema;
use serde::Serialize;

use super::cpus::Cpus;
use super::server::Server;
use super::shares::{Shares, Times, shares};
use crate::error::Result;

named::named! {
    /// The direction of the stream, as seen from the server.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema, Serialize)]
    #[serde(rename_all = "lowercase")]
    pub enum Direction {
        /// The server sends.
        Tx => "tx",
        /// The server receives.
        Rx => "rx",
    }
}

/// Payload of an MTU-sized frame with TCP's usual options, in bytes. It counts as a packet, even if
/// larger frames carried it.
pub const PAYLOAD: u32 = 1448;

/// The measurements of a server during a window of time, with a value of type `T` before and after.
#[derive(Debug)]
pub struct Window<T> {
    /// The server's CPU.
    pub usage: CpuUsage,
    /// Where its time went.
    pub share: Shares,
    /// The share of the server's CPU that other programs and machines had.
    pub others: f64,
    /// The share of the client's CPU that was busy.
    pub client_busy: f64,
    /// The daemon's counters before and after; none without a daemon.
    pub status: Option<[Status; 2]>,
    /// The value before and after.
    pub values: [T; 2],
}

/// Measures a server for `seconds`. The caller's traffic must last as long. `programs` are the processes of the guests'
/// programs.
pub fn watch<T>(
    server: &Server,
    programs: &[u32],
    seconds: u32,
    cpus: &Cpus,
    value: impl Fn() -> Result<T>,
) -> Result<Window<T>> {
    let before = server.status()?;
    let (times_before, value_before) = (times(server, programs, before.as_ref())?, value()?);
    let meter = CpuMeter::start_on(cpus.server, &[], Children::Ignored)?;
    let client_meter = CpuMeter::start_on(cpus.client, &[], Children::Ignored)?;
    // This is the measured time.
    Interrupt::sleep(Duration::from_secs(seconds.into()))?;
    let (usage, client_usage) = (meter.read()?, client_meter.read()?);
    let after = server.status()?;
    let (mut times_after, value_after) = (times(server, programs, after.as_ref())?, value()?);
    if server.daemon().is_none() {
        // A native server's receiving stack runs in interrupts, whose time belongs to no process.
        times_after.guests = times_before.guests + usage.busy;
    }
    let (share, others) = shares(&times_before, &times_after, &usage);
    Ok(Window {
        share,
        others,
        client_busy: client_usage.cpus(client_usage.busy),
        status: before.zip(after).map(<[Status; 2]>::from),
        values: [value_before, value_after],
        usage,
    })
}

fn times(server: &Server, programs: &[u32], status: Option<&Status>) -> Result<Times> {
    let threads = server.daemon().map(thread_times).transpose()?.unwrap_or_default();
    let metered = Duration::from_nanos(status.map_or(0, |status| status.meter.nanoseconds));
    let mut times = Times { metered, ..Times::default() }.with_daemon(&threads);
    for pid in server.guests.iter().map(Process::pid).chain(programs.iter().copied()) {
        times.guests += thread_times(pid)?.iter().map(|thread| thread.ran).sum::<Duration>();
    }
    for pid in programs {
        times.guest_user += user_time(*pid)?;
    }
    Ok(times)
}

/// Notifications and virtual interrupts of guests between two readings.
pub fn guest_interrupts(before: &Status, after: &Status) -> u64 {
    let events = (after.meter.counts - before.meter.counts).of(Counted::Notifications);
    events + of_contexts(after, false).saturating_sub(of_contexts(before, false))
}

/// Virtual interrupts of the driver domain's contexts between two readings.
pub fn driver_interrupts(before: &Status, after: &Status) -> u64 {
    of_contexts(after, true).saturating_sub(of_contexts(before, true))
}

/// Interrupts of all contexts of the driver domain, or of all others.
fn of_contexts(status: &Status, of_driver: bool) -> u64 {
    // A context that is named after a guest with a port is a queue that the driver domain keeps for the guest.
    let is_port = |name: &str| status.ports.iter().any(|port| port.name == name);
    let contexts = status.nics.iter().flat_map(|nic| &nic.contexts);
    let chosen = contexts.filter(|context| is_port(&context.guest) == of_driver);
    chosen.map(|context| context.interrupts).sum()
}
