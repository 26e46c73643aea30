//! Where the daemon's threads run.

use std::time::Duration;

use control_socket::CpuStatus;
use cpus::{Available, CpuList};
use host::{Children, CpuMeter};
use rustix::process::{getpriority_process, setpriority_process};
use rustix::time::{ClockId, clock_gettime};
use tracing::info;

use crate::config::Config;
use crate::daemon::error::Error;

/// The CPUs of the workers, by number; none if the scheduler places them. Binds the calling thread, and all that it starts, to the CPUs beside
/// these, and to none that are isolated: workers bind themselves.
///
/// # Errors
/// The configuration names CPUs that this process may not use.
pub(super) fn take(config: &Config) -> Result<Vec<usize>, Error> {
    let available = Available::read().map_err(Error::system("ask for the CPUs of this process"))?;
    let named = config.daemon.cpus.clone().unwrap_or_default();
    let beside = available.beside(&named)?;
    let bound = cpus::bound().map_err(Error::system("ask for the CPUs of this process"))?;
    if beside != bound {
        cpus::bind(&beside).map_err(Error::system("leave the workers' CPUs to them"))?;
    }
    if !named.is_empty() {
        let isolated: CpuList = named.iter().filter(|cpu| available.is_isolated(*cpu)).collect();
        info!(workers = %named, isolated = %isolated, others = %beside, "CPUs");
    }
    Ok(named.iter().collect())
}

// The priority of the daemon's threads on a Xen host.
//
// The kernel's netback works in interrupts, which no program of dom0 interrupts. A worker is a thread: each frame that it writes to a tap wakes the program
// that receives it, which the scheduler would run at once, before the next frame. Then each frame has two context switches, a read and an acknowledgement of
// its own.

/// The nice value: three times as much of a busy CPU as a program of no special priority gets. With -10 (nine times) a frame costs less still, but a guest
/// that floods would leave dom0's toolstack a tenth of one CPU.
const NICE: i32 = -5;

/// Raises the priority of the calling thread, and of all that it starts, unless somebody has set one.
pub(super) fn raise() {
    if getpriority_process(None) != Ok(0) {
        return;
    }
    if let Err(error) = setpriority_process(None, NICE) {
        info!(
            %error,
            "no priority above other programs: frames for programs of this domain cost more (Nice={NICE} in the unit)"
        );
    }
}

/// Measures processor time since the daemon's start.
#[derive(Debug)]
pub(super) struct Stopwatch(Option<CpuMeter>);

impl Stopwatch {
    /// Starts it. If the machine does not report processor time, it measures nothing.
    pub(super) fn start() -> Self {
        Self(CpuMeter::start(&[], Children::Ignored).ok())
    }

    /// The time since the start.
    pub(super) fn read(&self) -> Option<CpuStatus> {
        let usage = self.0.as_ref()?.read().ok()?;
        // Unlike `/proc`, it includes threads that have ended.
        let own = clock_gettime(ClockId::ProcessCPUTime);
        let own = Duration::try_from(own).ok()?;
        Some(CpuStatus {
            processors: usage.processors,
            wall_nanoseconds: nanoseconds(usage.wall),
            busy_nanoseconds: nanoseconds(usage.busy),
            idle_nanoseconds: nanoseconds(usage.idle),
            steal_nanoseconds: nanoseconds(usage.steal),
            daemon_nanoseconds: nanoseconds(own),
        })
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use rustix::io::Errno;

    use super::*;

    fn config(cpus: &str) -> Config {
        Config::parse(&format!("[daemon]\ncpus = \"{cpus}\"\n")).unwrap()
    }

    /// What the calling thread is bound to after it.
    fn taken(config: Config) -> Result<(Vec<usize>, CpuList), Error> {
        let take = move || Ok((take(&config)?, cpus::bound().unwrap()));
        std::thread::spawn(take).join().unwrap()
    }

    #[test]
    fn other_threads_leave_the_workers_cpus_to_them() {
        let all = cpus::bound().unwrap();
        if all.len() < 2 {
            return;
        }
        let last = all.iter().last().unwrap();
        let (workers, others) = taken(config(&last.to_string())).unwrap();
        assert_eq!((workers, others), (vec![last], all.without(&CpuList::from_iter([last]))));
        let (workers, others) = taken(config(&all.to_string())).unwrap();
        assert_eq!((workers, others), (all.iter().collect(), all.clone()), "there is no room");
        assert_eq!(taken(Config::parse("").unwrap()).unwrap(), (Vec::new(), all));
    }

    #[test]
    fn the_error_for_a_cpu_that_is_not_there_names_those_that_are() {
        let error = taken(config("1022")).unwrap_err().to_string();
        assert!(error.starts_with("daemon.cpus: CPU 1022 is not there or not allowed"), "{error}");
        assert!(error.contains(&format!("may use {} ", cpus::bound().unwrap())), "{error}");
    }

    /// What a thread with this nice value has after it, and what a thread that it starts has.
    fn raised(from: i32) -> (i32, i32) {
        let thread = std::thread::spawn(move || {
            setpriority_process(None, from).unwrap();
            raise();
            let child = std::thread::spawn(|| getpriority_process(None).unwrap());
            (getpriority_process(None).unwrap(), child.join().unwrap())
        });
        thread.join().unwrap()
    }

    fn may_raise() -> bool {
        let thread = std::thread::spawn(|| setpriority_process(None, NICE));
        match thread.join().unwrap() {
            Ok(()) => true,
            Err(Errno::ACCESS | Errno::PERM) => false,
            Err(error) => panic!("{error}"),
        }
    }

    #[test]
    fn a_daemon_and_its_threads_come_before_programs_where_that_is_permitted() {
        let expected = if may_raise() { NICE } else { 0 };
        assert_eq!(raised(0), (expected, expected));
    }

    #[test]
    fn a_priority_that_was_set_stays() {
        assert_eq!(raised(5), (5, 5));
    }

    #[test]
    fn two_readings_differ_by_the_time_used_between_them() {
        let stopwatch = Stopwatch::start();
        let before = stopwatch.read().unwrap();
        let work = || (0..30_000_000u64).fold(1u64, |sum, n| std::hint::black_box(sum ^ n));
        std::thread::spawn(work).join().unwrap();
        let after = stopwatch.read().unwrap();
        let machine =
            |cpu: &CpuStatus| cpu.busy_nanoseconds + cpu.idle_nanoseconds + cpu.steal_nanoseconds;
        assert!(after.daemon_nanoseconds > before.daemon_nanoseconds, "{after:?}");
        assert!(after.wall_nanoseconds > before.wall_nanoseconds, "{after:?}");
        assert!(machine(&after) > machine(&before) && after.processors > 0, "{after:?}");
    }
}
