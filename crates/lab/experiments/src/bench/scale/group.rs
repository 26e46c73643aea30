//! A daemon and its guests, all in the calling thread.

use std::path::Path;
use std::time::{Duration, Instant};

use control_socket::join_socket;
use lab::{Children, CpuMeter, Interrupt, Rss};
use netfront::Received;
use report::Samples;
use rustix::fs::fstat;

use crate::bench::guest::{Guest, text};
use crate::error::{Error, Result};
use crate::load::jain;
use crate::testbed::{Daemon, table};

/// Bytes of a frame.
const LEN: u16 = 64;
/// Frames per publication of one guest.
const BATCH: usize = 32;
/// Rounds over all guests between two readings of the clock.
const ROUNDS: u32 = 16;
/// How long the last frames may take.
const LAST: Duration = Duration::from_millis(200);
/// The unit of `st_blocks`, in bytes.
const SECTOR: u64 = 512;

/// A daemon with guests without a kernel stack. Each sends to the next one.
pub struct Group {
    /// Its guests, dropped before their daemon.
    guests: Vec<Guest>,
    daemon: Daemon,
    size: u16,
    frame: Received,
}

/// The cost of attaching the guests.
#[derive(Clone, Copy, Debug)]
pub struct Attached {
    /// The median time to join and connect, in milliseconds.
    pub milliseconds: f64,
    /// The growth of the daemon's private memory per guest, in KiB.
    pub daemon_kib: f64,
    /// The memory of a guest's memory file, in KiB.
    pub memory_kib: f64,
}

/// The result of all guests sending at once.
#[derive(Clone, Copy, Debug)]
pub struct Sent {
    /// Millions of frames that arrived per second, all guests together.
    pub mpps: f64,
    /// Jain's index over the guests.
    pub jain: f64,
}

impl Group {
    /// Starts a daemon whose configuration has `size` guests. None is attached.
    pub fn start(size: u16) -> Result<Self> {
        let daemon = Daemon::start(|folder| config_text(folder, size))?;
        Ok(Self { guests: Vec::new(), daemon, size, frame: Received::default() })
    }

    /// How many guests it has.
    pub fn size(&self) -> u16 {
        self.size
    }

    /// Attaches all guests, one after the other.
    pub fn attach(&mut self) -> Result<Attached> {
        let private = |daemon: &Daemon| {
            Rss::of(daemon.pid()).map(|rss| rss.bytes.saturating_sub(rss.shmem_bytes))
        };
        let before = private(&self.daemon)?;
        let mut times = Samples::new();
        let socket = join_socket(self.daemon.folder());
        for number in 0..self.size {
            Interrupt::check()?;
            let start = Instant::now();
            let guest = Guest::join(&socket, &name(number), &netfront::Config::default());
            let failed =
                |error| Error::Failed(format!("guest {} of {}: {error}", number + 1, self.size));
            self.guests.push(guest.map_err(failed)?);
            times.push(start.elapsed().as_secs_f64() * 1e3);
        }
        self.introduce()?;
        // Memory is resident only after its first use.
        self.send(Duration::from_millis(100))?;
        let per_guest = |bytes: u64| bytes as f64 / 1024.0 / f64::from(self.size);
        let files = self.guests.iter().map(|guest| fstat(guest.machine.memory()));
        let blocks: u64 =
            files.map(|file| file.map_or(0, |file| file.st_blocks.unsigned_abs())).sum();
        Ok(Attached {
            milliseconds: times.stats().map_or(0.0, |stats| stats.median),
            daemon_kib: per_guest(private(&self.daemon)?.saturating_sub(before)),
            memory_kib: per_guest(blocks * SECTOR),
        })
    }

    /// Makes the switch learn all ports, and prepares the frames.
    fn introduce(&mut self) -> Result<()> {
        for sender in 0..self.guests.len() {
            self.guests[sender].send_hello().map_err(Error::Failed)?;
            // A broadcast takes a buffer of every guest.
            self.take()?;
        }
        self.drain()?;
        let next: Vec<_> = self.guests.iter().map(|guest| guest.mac).collect();
        for (guest, to) in self.guests.iter_mut().zip(next.into_iter().cycle().skip(1)) {
            guest.fill(LEN, to);
        }
        Ok(())
    }

    /// The daemon's CPU while all guests are idle, in per cent of one.
    pub fn idle(&self, duration: Duration) -> Result<f64> {
        let meter = CpuMeter::start(&[self.daemon.pid()], Children::Ignored)?;
        Interrupt::sleep(duration)?;
        let usage = meter.read()?;
        Ok(100.0 * usage.cpus(usage.of(self.daemon.pid())))
    }

    /// Has all guests send as much as they can.
    pub fn send(&mut self, duration: Duration) -> Result<Sent> {
        let mut received = vec![0; self.guests.len()];
        let began = Instant::now();
        let mut now = began;
        while now < began + duration {
            Interrupt::check()?;
            for _ in 0..ROUNDS {
                self.round(&mut received).map_err(Error::Failed)?;
            }
            now = Instant::now();
        }
        let total: u64 = received.iter().sum();
        let mpps = total as f64 / (now - began).as_secs_f64() / 1e6;
        let jain = jain(&received);
        self.drain()?;
        Ok(Sent { mpps, jain })
    }

    /// Each guest sends a batch, and takes the frames that have arrived at it.
    fn round(&mut self, received: &mut [u64]) -> std::result::Result<(), String> {
        for (guest, received) in self.guests.iter_mut().zip(received) {
            guest.queue.tx.reclaim().map_err(text)?;
            for _ in 0..BATCH {
                if !guest.send_filled(LEN, |_, _| Ok(()))? {
                    break;
                }
            }
            guest.queue.tx.publish();
            *received += guest.receive_all(&mut self.frame)?;
        }
        Ok(())
    }

    /// Takes the frames in flight, until no more come.
    fn drain(&mut self) -> Result<()> {
        let mut last = Instant::now();
        while last.elapsed() < LAST {
            match self.take()? {
                0 => std::thread::yield_now(),
                _ => last = Instant::now(),
            }
        }
        Ok(())
    }

    /// Takes all frames that have arrived. Returns how many.
    fn take(&mut self) -> Result<u64> {
        let mut taken = 0;
        for guest in &mut self.guests {
            guest.queue.tx.reclaim().map_err(text).map_err(Error::Failed)?;
            taken += guest.receive_all(&mut self.frame).map_err(Error::Failed)?;
        }
        Ok(taken)
    }
}

fn name(number: u16) -> String {
    format!("guest-{number}")
}

fn config_text(folder: &Path, guests: u16) -> String {
    let guest = |number: u16| {
        let [high, low] = number.to_be_bytes();
        let name = name(number);
        format!("[[guest]]\nname = \"{name}\"\nmac = \"02:70:76:6e:{high:02x}:{low:02x}\"\n")
    };
    table(folder) + &(0..guests).map(guest).collect::<String>()
}
