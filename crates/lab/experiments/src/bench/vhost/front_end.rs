//! The front-end program: two guests in one thread. Each line of its standard input is a request.
//!
//! It is a process of its own, so that the kernel's counters tell when it lost its CPU, as they do for the back-end.

use std::io::{BufRead as _, Write as _};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};
use virtqueue::Layout;

use super::guest::Guest;
use crate::error::{Error, Result};

/// Frames per publication, at the sender and at the receiver.
const BATCH: u16 = 32;
/// The most frames in flight. The receiver has a buffer for each, so that a back-end without back pressure drops none.
const WINDOW: u64 = 192;
/// How long a frame may take.
const LATE: Duration = Duration::from_secs(5);
/// How long a back-end may take until it serves both guests.
const START: Duration = Duration::from_secs(20);
/// How long the rings are empty before a measurement.
const QUIET: Duration = Duration::from_millis(2);
/// The guests' addresses.
pub const MACS: [[u8; 6]; 2] = [[2, 0x70, 0x76, 0x6e, 2, 0], [2, 0x70, 0x76, 0x6e, 2, 1]];

/// A ring's layout on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum RingLayout {
    Split,
    Packed,
}

/// Options of the front-end program.
#[derive(Args)]
pub struct FrontEndArgs {
    /// The sockets of both guests' back-ends.
    #[arg(long, num_args = 2, required = true)]
    sockets: Vec<PathBuf>,
    /// The layout of the rings.
    #[arg(long)]
    layout: RingLayout,
}

/// A request to the program, as a line of JSON.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub enum Request {
    /// Sends frames of `len` bytes from the first guest to the second for a number of milliseconds, as fast as it can.
    Throughput { len: u16, ms: u64 },
    /// Sends `count` frames to and fro, one at a time, with pauses between them.
    RoundTrips { count: u32, pause_us: u64 },
    /// Sends `count` frames from the first guest to the second, one at a time, with pauses between them.
    First { count: u32, pause_us: u64 },
}

/// The program's reply, as a line of JSON.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Reply {
    /// Connected.
    Ready,
    /// Frames that arrived per second.
    Throughput(f64),
    /// The 50th and 99th percentile in nanoseconds.
    Times([u64; 2]),
    /// The program ends for this reason.
    Failed(String),
}

/// Runs the front-end program until its standard input ends.
pub fn run(args: &FrontEndArgs) -> Result<()> {
    let layout = match args.layout {
        RingLayout::Split => Layout::Split,
        RingLayout::Packed => Layout::Packed,
    };
    let mut pair = match Pair::connect(&args.sockets, layout) {
        Ok(pair) => pair,
        Err(why) => return fail(why),
    };
    say(&Reply::Ready)?;
    for line in std::io::stdin().lock().lines() {
        let line = line.map_err(Error::Print)?;
        let request = serde_json::from_str(&line).map_err(report::Error::from)?;
        match pair.serve(request) {
            Ok(reply) => say(&reply)?,
            Err(why) => return fail(why),
        }
    }
    Ok(())
}

fn say(reply: &Reply) -> Result<()> {
    let mut stdout = std::io::stdout().lock();
    let line = crate::output::json(reply)?;
    stdout.write_all(line.as_bytes()).and_then(|()| stdout.flush()).map_err(Error::Print)
}

fn fail(why: String) -> Result<()> {
    say(&Reply::Failed(why.clone()))?;
    Err(Error::Failed(why))
}

/// Both guests, and how many frames the first has sent to the second.
struct Pair {
    guests: [Guest; 2],
    sent: u64,
    received: u64,
}

impl Pair {
    fn connect(sockets: &[PathBuf], layout: Layout) -> std::result::Result<Self, String> {
        let [one, two] = sockets else { return Err("two sockets are needed".into()) };
        let connect = |socket| Guest::connect(socket, layout, START);
        let mut guests = [connect(one)?, connect(two)?];
        // Frames both ways let a switch learn both ports; otherwise it would flood every frame. A back-end may drop
        // frames until it serves both guests.
        for (from, to) in [(1, 0), (0, 1)] {
            guests[from].fill(MACS[to], MACS[from])?;
            let end = Instant::now() + START;
            while !exchange(&mut guests, from, to)? {
                if Instant::now() > end {
                    return Err(format!("no frame came from guest {from} to guest {to}"));
                }
            }
        }
        let mut pair = Self { guests, sent: 0, received: 0 };
        pair.drain()?;
        Ok(pair)
    }

    /// Takes the frames that are left on the rings of both guests.
    fn drain(&mut self) -> std::result::Result<(), String> {
        let mut quiet = Instant::now();
        while quiet.elapsed() < QUIET {
            for guest in &mut self.guests {
                guest.reclaim()?;
                while guest.receive(BATCH, |_, _| ())? > 0 {
                    quiet = Instant::now();
                }
                guest.post()?;
            }
        }
        Ok(())
    }

    fn serve(&mut self, request: Request) -> std::result::Result<Reply, String> {
        self.drain()?;
        let pause = Duration::from_micros;
        match request {
            Request::Throughput { len, ms } => {
                self.throughput(len, Duration::from_millis(ms)).map(Reply::Throughput)
            }
            Request::RoundTrips { count, pause_us } => {
                self.times(count, pause(pause_us), true).map(Reply::Times)
            }
            Request::First { count, pause_us } => {
                self.times(count, pause(pause_us), false).map(Reply::Times)
            }
        }
    }

    /// Frames per second from the first guest to the second. Each is checked.
    fn throughput(&mut self, len: u16, duration: Duration) -> std::result::Result<f64, String> {
        (self.sent, self.received) = (0, 0);
        let began = Instant::now();
        let mut now = began;
        while now < began + duration {
            for _ in 0..64 {
                self.send(len)?;
                self.receive(len)?;
            }
            now = Instant::now();
        }
        let rate = self.received as f64 / (now - began).as_secs_f64();
        let end = now + LATE;
        while self.received < self.sent {
            self.receive(len)?;
            if Instant::now() > end {
                return Err(format!("{} frames were lost", self.sent - self.received));
            }
        }
        Ok(rate)
    }

    #[inline]
    fn send(&mut self, len: u16) -> std::result::Result<(), String> {
        let sender = &mut self.guests[0];
        sender.reclaim()?;
        let window = u16::try_from(WINDOW - (self.sent - self.received)).unwrap_or(0);
        let count = sender.tx.free().min(window).min(BATCH);
        if count > 0 {
            sender.send(self.sent, count, len)?;
            self.sent += u64::from(count);
        }
        Ok(())
    }

    #[inline]
    fn receive(&mut self, len: u16) -> std::result::Result<(), String> {
        let Self { guests: [_, receiver], received, .. } = self;
        let mut wrong = None;
        receiver.receive(BATCH, |number, written| {
            if (number, written) != (*received, u32::from(len)) {
                wrong.get_or_insert((number, written, *received));
            }
            *received += 1;
        })?;
        if let Some((number, written, expected)) = wrong {
            let why = format!("frame {number} of {written} bytes in place of frame {expected}");
            return Err(why);
        }
        receiver.post()
    }

    /// Percentiles of the time of a frame of 64 bytes: to the other guest, and back if `back`.
    fn times(
        &mut self,
        count: u32,
        pause: Duration,
        back: bool,
    ) -> std::result::Result<[u64; 2], String> {
        let mut times = Vec::with_capacity(count as usize);
        for _ in 0..count {
            if !pause.is_zero() {
                std::thread::sleep(pause);
            }
            let began = Instant::now();
            cross(&mut self.guests, 0, 1)?;
            if back {
                cross(&mut self.guests, 1, 0)?;
            }
            times.push(u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX));
        }
        times.sort_unstable();
        let percentile = |n: usize| times.get(times.len() * n / 100).copied().unwrap_or(0);
        Ok([percentile(50), percentile(99)])
    }
}

/// Sends a frame, and waits a moment for it. Returns whether it came.
fn exchange(guests: &mut [Guest; 2], from: usize, to: usize) -> std::result::Result<bool, String> {
    guests[from].reclaim()?;
    if guests[from].tx.free() > 0 {
        guests[from].send(0, 1, 64)?;
    }
    let end = Instant::now() + Duration::from_millis(20);
    while Instant::now() < end {
        if guests[to].receive(1, |_, _| ())? > 0 {
            guests[to].post()?;
            return Ok(true);
        }
    }
    Ok(false)
}

/// Sends a frame and waits for it.
#[inline]
fn cross(guests: &mut [Guest; 2], from: usize, to: usize) -> std::result::Result<(), String> {
    guests[from].send(0, 1, 64)?;
    let mut polls = 0u32;
    let mut end = None;
    while guests[to].receive(1, |_, _| ())? == 0 {
        polls += 1;
        // The clock is read only now and then: reading it takes as long as many polls of a ring.
        if polls.is_multiple_of(1 << 16)
            && Instant::now() > *end.get_or_insert_with(|| Instant::now() + LATE)
        {
            return Err("a frame was lost".into());
        }
    }
    guests[to].post()?;
    guests[from].reclaim()
}
