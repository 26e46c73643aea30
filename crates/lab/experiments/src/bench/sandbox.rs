//! `pvnet-lab bench sandbox`: what the daemon's filter of system calls costs each frame to an uplink.
//!
//! Two threads each have a worker in lockstep, a guest, and a tap or a second guest. One thread is under the filter of a daemon with
//! `sandbox = "full"`. They carry frames in turn, on one CPU. Frames between guests take no system call, so their row shows the error
//! of the measurement.

use std::sync::mpsc;
use std::time::{Duration, Instant};

use clap::Args;
use lab::{Interrupt, Namespace, Progress};
use report::{Benchmark, human};
use sandbox::{CallRules, restrict_calls_of_thread};

use super::pps::lockstep::{PathKind, Size, Window, carry, enter, path};
use super::rows::{Common, Rows, in_turn};
use crate::error::{Error, Result};

/// Options of this benchmark.
#[derive(Args)]
pub struct SandboxArgs {
    #[command(flatten)]
    pub common: Common,
    /// Frames of each measurement. It consists of 20 slices that alternate.
    #[arg(long, value_name = "N", default_value_t = 200_000, value_parser = clap::value_parser!(u64).range(20..=100_000_000))]
    pub frames: u64,
}

const SLICES: u32 = 20;
/// Frames before the first measurement: more than any ring has slots.
const WARM_UP: u64 = 1024;

const WINDOWS: [Window; 3] = [
    Window { path: PathKind::Header, size: Size::Small },
    Window { path: PathKind::UplinkTx, size: Size::Small },
    Window { path: PathKind::UplinkTx, size: Size::Full },
];

/// Runs the benchmark.
pub fn run(args: &SandboxArgs) -> Result<Benchmark> {
    lab::preflight(&[])?;
    let rounds = args.common.rounds;
    let progress = Progress::new(WINDOWS.len() * rounds as usize, args.common.quiet);
    let cpu = lab::cpus()?.pop();
    let mut rows = Rows::default();
    for window in WINDOWS {
        let pair = lab::on_cpu(cpu, || {
            Ok::<_, Error>([Carrier::start(window, false)?, Carrier::start(window, true)?])
        })?;
        for round in 0..rounds {
            progress.step(format!("round {} of {rounds}: {window}", round + 1));
            let [free, filtered] = nanoseconds(&pair, args.frames)?;
            rows.push(&format!("{window}"), "ns/frame", free);
            rows.push(&format!("{window}+sandbox"), "ns/frame", filtered);
            progress.done(&format!("{} and {} ns/frame", human(free), human(filtered)));
        }
    }
    Ok(rows.finish("sandbox"))
}

/// Nanoseconds per frame without and with the filter, in slices that alternate.
fn nanoseconds(pair: &[Carrier; 2], frames: u64) -> Result<[f64; 2]> {
    let frames = frames / u64::from(SLICES);
    let mut times = [Duration::ZERO; 2];
    for slice in 0..SLICES {
        Interrupt::check()?;
        for n in in_turn(slice, [0, 1]) {
            times[n] += pair[n].carry(frames)?;
        }
    }
    Ok(times.map(|time| time.as_nanos() as f64 / (frames * u64::from(SLICES)) as f64))
}

/// A thread with a path. It ends when this is dropped.
struct Carrier {
    orders: mpsc::Sender<u64>,
    times: mpsc::Receiver<std::result::Result<Duration, String>>,
    _network: Option<Namespace>,
}

impl Carrier {
    /// Starts a thread for this window, under the filter or not, in a network namespace of its own.
    fn start(window: Window, is_filtered: bool) -> Result<Self> {
        // A thread inherits the network namespace of the thread that starts it.
        let network = enter()?;
        let (orders, received) = mpsc::channel();
        let (answers, times) = mpsc::channel();
        let serve = move || {
            let serve = serve(window, is_filtered, &received, &answers);
            // The other side may be gone.
            let _ = serve.map_err(|reason| answers.send(Err(format!("{window}: {reason}"))));
        };
        let thread = std::thread::Builder::new().name("carrier".to_owned()).spawn(serve);
        thread.map_err(|error| Error::Failed(format!("cannot start a thread: {error}")))?;
        let carrier = Self { orders, times, _network: network };
        carrier.carry(WARM_UP)?;
        Ok(carrier)
    }

    fn carry(&self, frames: u64) -> Result<Duration> {
        // If the thread has ended, its last message says why.
        let _ = self.orders.send(frames);
        let time = self.times.recv().map_err(|_| Error::Failed("a thread gave no time".into()))?;
        time.map_err(Error::Failed)
    }
}

fn serve(
    window: Window,
    is_filtered: bool,
    orders: &mpsc::Receiver<u64>,
    times: &mpsc::Sender<std::result::Result<Duration, String>>,
) -> std::result::Result<(), String> {
    let mut path = path(&window)?;
    if is_filtered {
        restrict_calls_of_thread(CallRules::default()).map_err(|error| error.to_string())?;
    }
    for frames in orders {
        let start = Instant::now();
        carry(&mut *path, frames)?;
        let _ = times.send(Ok(start.elapsed()));
    }
    Ok(())
}
