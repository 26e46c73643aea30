//! `pvnet bench pps`: frames per second between two generator guests without a kernel stack.
//!
//! One CPU has the daemon's worker, another the generator, which is both guests. It measures the
//! backend, the rings, and the caches between two cores.

mod generator;

use std::path::Path;
use std::time::Duration;

use clap::Args;
use control_socket::join_socket;
use hypervisor::Counted;
use lab::{CpuMeter, Progress};
use report::{Benchmark, human};
use rustix::thread::{CpuSet, Pid, sched_getaffinity, sched_setaffinity};

use super::common::Common;
use super::rows::Rows;
use crate::error::{Error, Result};
use crate::testbed::Daemon;
use generator::Generator;

/// Options of this benchmark.
#[derive(Args)]
pub struct PpsArgs {
    #[command(flatten)]
    pub common: Common,
    /// Seconds of each measurement.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..))]
    pub seconds: u64,
    /// Frame lengths in bytes, without the checksum that a wire would add.
    #[arg(long, value_name = "LEN,…", value_delimiter = ',', default_values_t = [64, 1514], value_parser = clap::value_parser!(u16).range(60..=4096))]
    pub sizes: Vec<u16>,
    /// Keep none of the guests' pages mapped in the daemon: each frame takes grant operations.
    #[arg(long)]
    pub no_persistent_grants: bool,
}

/// A sample is kept only if both threads had this share of their CPUs: on a shared machine, others
/// get the CPUs now and then.
const CPU_MIN: f64 = 0.97;
/// How often a disturbed sample is taken again. The least disturbed one is kept.
const TRIES: u32 = 5;
/// The length of the run that counts hypercalls.
const COUNTED: Duration = Duration::from_millis(200);
/// Microseconds of polling: the worker must not sleep between two batches of the generator.
const POLL_US: u64 = 1000;
/// The names of the guests.
const NAMES: [&str; 2] = ["generator-a", "generator-b"];

/// Runs the benchmark.
pub fn run(args: &PpsArgs) -> Result<Benchmark> {
    let cpus = Cpus::take_two()?;
    let steps = 1 + args.common.rounds as usize * args.sizes.len();
    let progress = Progress::new(steps, args.common.quiet);
    progress.step("start pvnet on one CPU and two generator guests on another");
    cpus.enter(0)?;
    let daemon = Daemon::start(config_text)?;
    cpus.enter(1)?;
    let socket = join_socket(daemon.folder());
    let persistent_grants = !args.no_persistent_grants;
    let config = netfront::Config { persistent_grants, ..netfront::Config::default() };
    let mut generator = Generator::join(&socket, NAMES, &config).map_err(Error::Failed)?;
    let mut rows = Rows::default();
    for round in 0..args.common.rounds {
        for len in &args.sizes {
            progress.step(format!("round {} of {}: {len} bytes", round + 1, args.common.rounds));
            let mpps = sample(&daemon, &mut generator, *len, Duration::from_secs(args.seconds))?;
            rows.push(&format!("gen-{len}/pvnet"), "Mpps", mpps);
            let calls = hypercalls(&daemon, &mut generator, *len)?;
            rows.push(&format!("hypercalls-{len}/pvnet"), "per frame", calls);
            progress.done(&format!("{} Mpps, {} hypercalls per frame", human(mpps), human(calls)));
        }
    }
    cpus.leave()?;
    Ok(rows.finish("pps"))
}

fn config_text(folder: &Path) -> String {
    // TOML quotes the folder's name, which may have any character.
    let folder = toml::Value::from(folder.to_string_lossy().into_owned());
    let mut text = format!("[daemon]\ndirectory = {folder}\nworkers = 1\npoll_us = {POLL_US}\n");
    for (number, name) in NAMES.iter().enumerate() {
        text += &format!("[[guest]]\nname = \"{name}\"\nmac = \"02:70:76:6e:01:{number:02x}\"\n");
    }
    text
}

/// Millions of frames per second, measured until neither thread was disturbed.
fn sample(daemon: &Daemon, generator: &mut Generator, len: u16, duration: Duration) -> Result<f64> {
    let mut best = None::<(f64, f64)>;
    for _ in 0..TRIES {
        lab::Interrupt::check()?;
        let meter = CpuMeter::start(&[daemon.pid()], lab::Children::Ignored)?;
        let run = generator.run(len, duration).map_err(Error::Failed)?;
        let usage = meter.read()?;
        let daemon_cpu = usage.cpus(usage.of(daemon.pid()));
        let undisturbed = run.cpu.min(daemon_cpu);
        if best.is_none_or(|(share, _)| undisturbed > share) {
            best = Some((undisturbed, run.frames_per_second / 1e6));
        }
        if undisturbed >= CPU_MIN {
            break;
        }
    }
    Ok(best.map_or(0.0, |(_, mpps)| mpps))
}

/// Hypercalls per frame. They are counted in a separate run, since counting takes time.
fn hypercalls(daemon: &Daemon, generator: &mut Generator, len: u16) -> Result<f64> {
    let mut frames = 0;
    let calls = daemon.metered(Counted::Hypercalls, || {
        frames = generator.run(len, COUNTED).map_err(Error::Failed)?.frames;
        Ok(())
    })?;
    Ok(calls as f64 / frames.max(1) as f64)
}

/// Two of the CPUs that this thread may use, and all of them to restore.
struct Cpus {
    two: [usize; 2],
    all: CpuSet,
}

impl Cpus {
    fn take_two() -> Result<Self> {
        let all = sched_getaffinity(None::<Pid>).map_err(affinity)?;
        let mut allowed = (0..CpuSet::MAX_CPU).filter(|cpu| all.is_set(*cpu));
        match (allowed.next(), allowed.next()) {
            (Some(one), Some(two)) => Ok(Self { two: [one, two], all }),
            _ => {
                Err(Error::Failed("two CPUs are needed: one for pvnet, one for the guests".into()))
            }
        }
    }

    /// Binds the calling thread and the processes that it starts.
    fn enter(&self, n: usize) -> Result<()> {
        let mut one = CpuSet::new();
        one.set(self.two[n]);
        sched_setaffinity(None::<Pid>, &one).map_err(affinity)
    }

    fn leave(&self) -> Result<()> {
        sched_setaffinity(None::<Pid>, &self.all).map_err(affinity)
    }
}

fn affinity(errno: rustix::io::Errno) -> Error {
    Error::Failed(format!("binding to a CPU: {errno}"))
}
