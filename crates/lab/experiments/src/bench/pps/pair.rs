//! A daemon on one CPU and a pair of generator guests on another.

use std::path::Path;
use std::time::Duration;

use control_socket::join_socket;
use hypervisor::Counted;
use lab::CpuMeter;

use super::Cpus;
use super::generator::Generator;
use crate::error::{Error, Result};
use crate::testbed::{Daemon, table};

/// A sample counts as undisturbed if both threads had this share of their CPUs. On a shared machine, others get the
/// CPUs now and then.
const CPU_MIN: f64 = 0.97;
/// How often a disturbed sample is taken again. The least disturbed one is kept.
const TRIES: u32 = 5;
/// The length of the run that counts hypercalls.
const COUNTED: Duration = Duration::from_millis(200);
/// Microseconds of polling: the worker must not sleep between two batches of the generator.
const POLL_US: u64 = 1000;
/// The names of the guests.
const NAMES: [&str; 2] = ["generator-a", "generator-b"];

/// Lines of the configuration that are under test.
#[derive(Clone, Copy, Default)]
pub struct Extra<'a> {
    /// In `[daemon]`.
    pub daemon: &'a str,
    /// In each `[[guest]]`.
    pub guest: &'a str,
}

/// A running daemon and its guests.
pub struct Pair {
    daemon: Daemon,
    generator: Generator,
}

impl Pair {
    /// Starts them. The calling thread is the generator from now on.
    pub fn start(cpus: &Cpus, extra: Extra<'_>, config: &netfront::Config) -> Result<Self> {
        cpus.enter(0)?;
        let daemon = Daemon::start(|folder| config_text(folder, extra))?;
        cpus.enter(1)?;
        let socket = join_socket(daemon.folder());
        let generator = Generator::join(&socket, NAMES, config).map_err(Error::Failed)?;
        Ok(Self { daemon, generator })
    }

    /// Millions of frames per second, measured until neither thread was disturbed.
    pub fn sample(&mut self, len: u16, duration: Duration) -> Result<f64> {
        let mut best = None::<(f64, f64)>;
        for _ in 0..TRIES {
            lab::Interrupt::check()?;
            let meter = CpuMeter::start(&[self.daemon.pid()], lab::Children::Ignored)?;
            let run = self.generator.run(len, duration).map_err(Error::Failed)?;
            let usage = meter.read()?;
            let daemon_cpu = usage.cpus(usage.of(self.daemon.pid()));
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

    /// Millions of frames per second, however much others disturbed it.
    pub fn slice(&mut self, len: u16, duration: Duration) -> Result<f64> {
        lab::Interrupt::check()?;
        let run = self.generator.run(len, duration).map_err(Error::Failed)?;
        Ok(run.frames_per_second / 1e6)
    }

    /// The daemon's process.
    pub fn pid(&self) -> u32 {
        self.daemon.pid()
    }

    /// Hypercalls per frame. They are counted in a separate run, since counting takes time.
    pub fn hypercalls(&mut self, len: u16) -> Result<f64> {
        let Self { daemon, generator } = self;
        let mut frames = 0;
        let calls = daemon.metered(Counted::Hypercalls, || {
            frames = generator.run(len, COUNTED).map_err(Error::Failed)?.frames;
            Ok(())
        })?;
        Ok(calls as f64 / frames.max(1) as f64)
    }
}

fn config_text(folder: &Path, extra: Extra<'_>) -> String {
    let mut text = table(folder);
    text += &format!("workers = 1\npoll_us = {POLL_US}\n{}\n", extra.daemon);
    for (number, name) in NAMES.iter().enumerate() {
        let mac = format!("02:70:76:6e:01:{number:02x}");
        text += &format!("[[guest]]\nname = \"{name}\"\nmac = \"{mac}\"\n{}\n", extra.guest);
    }
    text
}
