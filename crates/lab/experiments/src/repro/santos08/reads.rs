//! Measures what reading the payload costs a guest, which depends on whose cache the copy has warmed.
//!
//! A guest with a kernel stack copies each payload several times, and only the first time is the payload in another CPU's
//! cache. So this guest is a frontend without a stack. It takes the frames of a burst, then reads every byte of them. The
//! time of its thread is measured separately for both.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use control_socket::join_socket;
use lab::on_cpu;
use netfront::Received;
use report::Stats;
use schemars::JsonSchema;
use serde::Serialize;
use shm::Iovec;

use super::config::{Coalesced, Line, Placement};
use super::measure::{Stream, source};
use crate::bench::guest::{Guest, text, thread_cpu};
use crate::error::{Error, Result};
use crate::repro::cpus::Cpus;
use crate::repro::rounds::{self, Experiment, Key};
use crate::repro::server::{Machine, Network, Server, Setup, wire};
use crate::repro::shares::Shares;
use crate::repro::transfer::watch;

/// The compared lines. They differ in who writes the payload into the guest's pages.
pub const LINES: [Line; 4] = [Line::GuestCopy, Line::Copy, Line::Steered, Line::MultiqueueReuse];

/// Identifies a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    /// How the guest receives.
    pub line: Line,
    /// Where the guest and the driver domain run.
    pub placement: Placement,
}

impl Key for Reading {
    type Server = Self;

    fn server(self) -> Self {
        self
    }
}

/// The samples of all measurements, and the failures.
pub type Measurements = rounds::Measurements<Reading, Sample>;

/// Nanoseconds of CPU time per packet.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// The guest, without reading.
    taken: f64,
    /// The guest's reading of every byte.
    read: f64,
    /// The driver domain and the hypervisor.
    driver: f64,
}

/// A row.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct ReadRow {
    /// How the guest receives.
    #[serde(rename = "config")]
    pub line: Line,
    /// Where the guest and the driver domain run.
    pub cpus: Placement,
    /// Nanoseconds of the guest per packet, without the reading.
    pub without_ns: Option<Stats>,
    /// Additional nanoseconds for reading every byte.
    pub read_ns: Option<Stats>,
    /// Nanoseconds of the driver domain and the hypervisor.
    pub driver_ns: Option<Stats>,
    /// Why there is no measurement.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// The rows of these measurements.
pub fn rows(keys: &[Reading], seen: &Measurements) -> Vec<ReadRow> {
    let row = |key: &Reading| {
        let of = |of: fn(&Sample) -> f64| seen.stats(*key, |sample| Some(of(sample)));
        ReadRow {
            line: key.line,
            cpus: key.placement,
            without_ns: of(|sample| sample.taken),
            read_ns: of(|sample| sample.read),
            driver_ns: of(|sample| sample.driver),
            note: seen.missing(*key),
        }
    };
    keys.iter().map(row).collect()
}

/// Streams of datagrams to guests without a stack.
pub struct Readings<'a> {
    /// The CPUs, if guest and driver domain are together.
    pub cpus: &'a Cpus,
    /// The packets.
    pub stream: Stream,
    /// The longest wait after the last packet, in microseconds.
    pub us: u32,
}

/// A line whose guest is a thread of this process.
#[derive(Clone, Copy)]
struct WithoutGuests(Coalesced);

impl Setup for WithoutGuests {
    fn toml(self, folder: &Path, machine: &Machine<'_>) -> Option<String> {
        self.0.toml(folder, machine)
    }

    fn has_cards(self) -> bool {
        self.0.has_cards()
    }

    fn starts_guests(self) -> bool {
        false
    }
}

/// A server with its guest.
pub struct Running {
    // Fields are dropped in this order: the guest before its daemon.
    reader: Reader,
    server: Server,
}

impl Experiment<Reading> for Readings<'_> {
    type Running = Running;
    type Sample = Sample;

    fn start(&self, Reading { line, placement }: Reading, _: u16) -> Result<Running> {
        let cpus = placement.cpus(self.cpus);
        let setup = Coalesced { line, frames: self.stream.burst, us: self.us };
        let server = Server::start(WithoutGuests(setup), 1, Network::ONE_NIC, &cpus)?;
        let reader = Reader::start(&server, &cpus)?;
        // Without a stack, nobody answers the peer's ARP requests.
        let (address, wire) = (server.addresses()[0].to_string(), wire(0));
        server.peer.ip(&["neigh", "replace", &address, "lladdr", &reader.mac, "dev", &wire])?;
        Ok(Running { reader, server })
    }

    fn notes<'a>(&self, running: &'a Running) -> &'a [String] {
        &running.server.notes
    }

    fn name(&self, Reading { line, placement }: Reading) -> String {
        format!("reading, {}, {}", line.name(), placement.name())
    }

    fn measure(&self, running: &mut Running, key: Reading) -> Result<Sample> {
        let Running { reader, server } = running;
        let cpus = key.placement.cpus(self.cpus);
        let _source = source(server, self.stream, &cpus)?;
        let counts = || {
            lab::Interrupt::check()?;
            Ok(reader.counts.now())
        };
        let window = watch(server, &[], self.stream.seconds, &cpus, counts)?;
        let [before, after] = window.values;
        let since = |index: usize| after[index].saturating_sub(before[index]) as f64;
        let frames = since(0);
        if frames < 1.0 {
            return Err(reader.failure());
        }
        let (cpu, read) = (since(1) / frames, since(2) / frames);
        let Shares { hypervisor, driver, .. } = window.share;
        let driver = (hypervisor + driver) * window.usage.wall.as_secs_f64() * 1e9 / frames;
        Ok(Sample { taken: (cpu - read).max(0.0), read, driver })
    }

    fn words(&self, sample: &Sample) -> String {
        format!("reading takes {:.0} ns of {:.0}", sample.read, sample.read + sample.taken)
    }
}

/// Counts of frames, of nanoseconds of the guest's thread, and of those nanoseconds in which it read.
#[derive(Debug, Default)]
struct Counts([AtomicU64; 3]);

impl Counts {
    fn add(&self, all: [u64; 3]) {
        for (sum, more) in self.0.iter().zip(all) {
            sum.fetch_add(more, Ordering::Relaxed);
        }
    }

    fn now(&self) -> [u64; 3] {
        self.0.each_ref().map(|count| count.load(Ordering::Relaxed))
    }
}

/// A guest without a stack, in a thread. Dropping it ends it.
struct Reader {
    counts: Arc<Counts>,
    mac: String,
    is_ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<std::result::Result<(), String>>>,
}

/// The most frames that are taken before they are read: as many as a ring has.
const BATCH: usize = 256;
/// How often the thread checks whether it should end.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

impl Reader {
    fn start(server: &Server, cpus: &Cpus) -> Result<Self> {
        let socket = join_socket(server.folder()?);
        let name = server.first().name();
        let mut guest =
            Guest::join(&socket, name, &netfront::Config::default()).map_err(Error::Failed)?;
        guest.send_hello().map_err(Error::Failed)?;
        let mac = guest.mac.to_string();
        let (counts, is_ended) = (Arc::new(Counts::default()), Arc::new(AtomicBool::new(false)));
        let (of_thread, ends) = (counts.clone(), is_ended.clone());
        let work = move || read_all(guest, &of_thread, &ends);
        let spawn = || {
            std::thread::Builder::new()
                .name("reader".to_owned())
                .spawn(work)
                .map_err(|error| Error::Failed(format!("cannot start the guest's thread: {error}")))
        };
        let thread = Some(on_cpu(cpus.server, spawn)?);
        Ok(Self { counts, mac, is_ended, thread })
    }

    /// Why no frame came.
    fn failure(&mut self) -> Error {
        let ended = self.thread.take_if(|thread| thread.is_finished());
        let why = ended.and_then(|thread| thread.join().ok()?.err());
        Error::Failed(why.unwrap_or_else(|| "no packet arrived".to_owned()))
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.is_ended.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // Its errors have shown in the measurements.
            let _ = thread.join();
        }
    }
}

/// Takes and reads frames.
fn read_all(
    mut guest: Guest,
    counts: &Counts,
    is_ended: &AtomicBool,
) -> std::result::Result<(), String> {
    let mut frames = vec![Received::default(); BATCH];
    // The destination of reads, which stays in the first-level cache.
    let mut page = [0; 4096];
    let mut before = thread_cpu();
    while !is_ended.load(Ordering::Relaxed) {
        guest.wait(CHECK_INTERVAL)?;
        loop {
            let mut taken = 0;
            while taken < BATCH && guest.queue.rx.receive(&mut frames[taken]).map_err(text)? {
                taken += 1;
            }
            if taken == 0 {
                break;
            }
            let begin = thread_cpu();
            for frame in &frames[..taken] {
                for fragment in guest.queue.rx.fragments(frame) {
                    if let Iovec::Shared { region, offset, len } = fragment {
                        region.copy_out(offset, &mut page[..len]).map_err(text)?;
                    }
                }
            }
            let end = thread_cpu();
            guest.queue.rx.publish();
            let nanoseconds = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
            let [all, read] = [end.saturating_sub(before), end.saturating_sub(begin)];
            counts.add([taken as u64, nanoseconds(all), nanoseconds(read)]);
            before = end;
        }
        guest.queue.tx.reclaim().map_err(text)?;
    }
    Ok(())
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A row of a line whose reading takes `read` ns, with guest and driver domain apart.
    pub fn read_row(line: Line, read: f64) -> ReadRow {
        let stats = |value| Some(Stats::single(value));
        let cpus = Placement::Apart;
        let (without_ns, driver_ns) = (stats(1000.0), stats(2000.0));
        ReadRow { line, cpus, without_ns, read_ns: stats(read), driver_ns, note: None }
    }

    #[test]
    fn rows_have_both_parts_and_say_what_is_missing() {
        let keys = LINES.map(|line| Reading { line, placement: Placement::Apart });
        let mut seen = Measurements::new();
        seen.push(keys[0], Sample { taken: 900.0, read: 60.0, driver: 2000.0 });
        let rows = rows(&keys, &seen);
        assert_eq!(rows[0].read_ns.map(|read| read.median), Some(60.0));
        assert_eq!(
            (rows[0].note.as_deref(), rows[1].note.as_deref()),
            (None, Some("not measured"))
        );
    }

    #[test]
    fn counts_add_up() {
        let counts = Counts::default();
        counts.add([1, 20, 3]);
        counts.add([4, 50, 6]);
        assert_eq!(counts.now(), [5, 70, 9]);
    }
}
