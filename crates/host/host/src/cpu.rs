//! Processor time of the machine and of processes.

use crate::{Error, Result};
use std::fs;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

/// Whether the time of a process includes that of children that it has waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Children {
    /// Its own threads only.
    Ignored,
    /// Its own and, to the resolution of the kernel's tick, its dead and reaped children's.
    Reaped,
}

/// Measures the processor time of the machine and of some processes.
#[derive(Clone, Debug)]
pub struct CpuMeter {
    children: Children,
    /// The CPU to measure; all of them if absent.
    cpu: Option<usize>,
    started: Instant,
    machine: Machine,
    processes: Vec<(u32, Duration)>,
}

/// Processor time between the start of a [`CpuMeter`] and its reading.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CpuUsage {
    /// Processors that are online.
    pub processors: u32,
    /// Wall-clock time.
    pub wall: Duration,
    /// Time of all processors in programs, kernel and interrupts.
    pub busy: Duration,
    /// Time of all processors with nothing to do.
    pub idle: Duration,
    /// Time that the hypervisor below gave to others.
    pub steal: Duration,
    /// Time of each process in the meter's order.
    pub processes: Vec<(u32, Duration)>,
}

/// The times in `/proc/stat`, of all processors or of one.
///
/// Busy time is computed as the rest: most kernels (`CONFIG_TICK_CPU_ACCOUNTING`) charge each tick of 1 to 10 ms to the
/// program that runs then, and miss programs that run only between ticks, such as a sender paced by timers. They
/// measure idle time exactly (`CONFIG_NO_HZ`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Machine {
    cpus: u32,
    idle: Duration,
    steal: Duration,
}

impl CpuMeter {
    /// Starts to measure the machine and the processes `pids`.
    ///
    /// # Errors
    /// [`Error::Gone`] if a process does not exist; [`Error::Io`], [`Error::Parse`] for `/proc`.
    pub fn start(pids: &[u32], children: Children) -> Result<Self> {
        Self::start_on(None, pids, children)
    }

    /// The same, but counts only `cpu` as the machine, if one is given.
    ///
    /// # Errors
    /// Those of [`start`](Self::start), and [`Error::Parse`] if there is no such CPU.
    pub fn start_on(cpu: Option<usize>, pids: &[u32], children: Children) -> Result<Self> {
        let processes =
            pids.iter().map(|&pid| Ok((pid, process(pid, children)?))).collect::<Result<_>>()?;
        Ok(Self { children, cpu, started: Instant::now(), machine: Machine::now(cpu)?, processes })
    }

    /// The time used since the start. The meter continues.
    pub fn read(&self) -> Result<CpuUsage> {
        let (wall, machine) = (self.started.elapsed(), Machine::now(self.cpu)?);
        // The kernel's counters sometimes go back by a tick.
        let idle = machine.idle.saturating_sub(self.machine.idle);
        let steal = machine.steal.saturating_sub(self.machine.steal);
        let since = |&(pid, before): &(u32, Duration)| {
            Ok((pid, process(pid, self.children)?.saturating_sub(before)))
        };
        Ok(CpuUsage {
            processors: machine.cpus,
            wall,
            busy: (wall * machine.cpus).saturating_sub(idle + steal),
            idle,
            steal,
            processes: self.processes.iter().map(since).collect::<Result<_>>()?,
        })
    }
}

impl CpuUsage {
    /// The time of one process; zero if it was not measured.
    #[must_use]
    pub fn of(&self, pid: u32) -> Duration {
        self.processes.iter().filter(|(measured, _)| *measured == pid).map(|(_, time)| *time).sum()
    }

    /// `time` in processors: 0.5 is half of one processor for the whole wall time.
    #[must_use]
    pub fn cpus(&self, time: Duration) -> f64 {
        if self.wall.is_zero() { 0.0 } else { time.as_secs_f64() / self.wall.as_secs_f64() }
    }
}

impl Machine {
    fn now(cpu: Option<usize>) -> Result<Self> {
        let text = fs::read_to_string("/proc/stat").map_err(Error::io("cannot read /proc/stat"))?;
        let absent = || match cpu {
            Some(cpu) => Error::parse("/proc/stat", &format!("no line of CPU {cpu}")),
            None => Error::parse("/proc/stat", "no line of all processors"),
        };
        Self::parse(&text, cpu, ticks_per_second()).ok_or_else(absent)
    }

    /// `cpu  user nice system idle iowait irq softirq steal …` in ticks, and a line for each processor that is online.
    /// Waiting for a disk counts as idle.
    fn parse(text: &str, cpu: Option<usize>, hz: u64) -> Option<Self> {
        let head = cpu.map_or("cpu ".to_owned(), |cpu| format!("cpu{cpu} "));
        let line = text.lines().find_map(|line| line.strip_prefix(&head))?;
        let fields: Vec<u64> =
            line.split_whitespace().map_while(|field| field.parse().ok()).collect();
        let &[_, _, _, idle, iowait, _, _, steal, ..] = fields.as_slice() else { return None };
        let is_processor = |line: &&str| {
            let number = line.strip_prefix("cpu");
            number.is_some_and(|rest| rest.starts_with(|first: char| first.is_ascii_digit()))
        };
        let cpus = if cpu.is_some() { 1 } else { text.lines().filter(is_processor).count() };
        Some(Self {
            cpus: u32::try_from(cpus).ok()?,
            idle: ticks(idle + iowait, hz),
            steal: ticks(steal, hz),
        })
    }
}

/// The time of a process since it began.
fn process(pid: u32, children: Children) -> Result<Duration> {
    let folder = Path::new("/proc").join(pid.to_string());
    let stat = fs::read_to_string(folder.join("stat")).map_err(|cause| lost(pid, cause))?;
    let parse = || Error::parse(format!("/proc/{pid}/stat"), "too few fields");
    let (own, reaped) = parse_stat(&stat, ticks_per_second()).ok_or_else(parse)?;
    // Ended threads are only in the coarse total; living ones have finer files of their own. The larger of
    // the two sums has missed less.
    let own = threads(&folder.join("task")).map_or(own, |threads| threads.max(own));
    Ok(if children == Children::Reaped { own + reaped } else { own })
}

fn lost(pid: u32, cause: io::Error) -> Error {
    match cause.kind() {
        io::ErrorKind::NotFound => Error::Gone { pid },
        // The process may also end between open and read: ESRCH, which has no `ErrorKind`.
        _ if cause.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error()) => {
            Error::Gone { pid }
        }
        _ => Error::io(format!("cannot read /proc/{pid}/stat"))(cause),
    }
}

/// The sum over living threads, to the nanosecond; `None` if this kernel does not count that.
fn threads(tasks: &Path) -> Option<Duration> {
    let mut sum = Duration::ZERO;
    for task in fs::read_dir(tasks).ok()? {
        let path = task.ok()?.path();
        match fs::read_to_string(path.join("schedstat")) {
            Ok(text) => sum += parse_schedstat(&text)?,
            // Either the thread has just ended, or the kernel has no schedstat and the thread still exists.
            Err(_) if path.exists() => return None,
            Err(_) => {}
        }
    }
    Some(sum)
}

/// `on_cpu_ns waiting_ns timeslices`.
fn parse_schedstat(text: &str) -> Option<Duration> {
    text.split_whitespace().next()?.parse().ok().map(Duration::from_nanos)
}

/// `utime + stime` and `cutime + cstime` of `/proc/PID/stat` (fields 14 to 17 of proc_pid_stat(5)). The second field
/// is the program's name in parentheses and may hold any characters, so fields are counted from the last one.
fn parse_stat(text: &str, hz: u64) -> Option<(Duration, Duration)> {
    let (_, fields) = text.rsplit_once(')')?;
    let times: Vec<u64> =
        fields.split_whitespace().skip(11).take(4).map_while(|field| field.parse().ok()).collect();
    let &[user, system, child_user, child_system] = times.as_slice() else { return None };
    Some((ticks(user + system, hz), ticks(child_user + child_system, hz)))
}

fn ticks_per_second() -> u64 {
    rustix::param::clock_ticks_per_second()
}

fn ticks(count: u64, hz: u64) -> Duration {
    let hz = hz.max(1);
    Duration::from_secs(count / hz) + Duration::from_nanos(count % hz * 1_000_000_000 / hz)
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAT: &str = "cpu  17837 0 2221 141160 711 0 84 572 0 0\ncpu0 9133 0 1078 70263 502 0 16 285 0 0\n\
        cpu1 8704 0 1143 70897 209 0 68 287 0 0\nintr 4035\n";
    const PROCESS: &str = "4264 (bash) S 4245 4264 4264 0 -1 4194560 2184 66825 0 21 0 3 83 31 20 0 1 0 79067 5124096 942";

    fn ms(milliseconds: u64) -> Duration {
        Duration::from_millis(milliseconds)
    }

    #[test]
    fn the_machines_line() {
        let expected = Machine { cpus: 2, idle: ms(1_418_710), steal: ms(5720) };
        assert_eq!(Machine::parse(STAT, None, 100), Some(expected));
        assert_eq!(Machine::parse("cpu0 1 2 3 4 5 6 7 8\n", None, 100), None);
        assert_eq!(Machine::parse("cpu  1 2 3\n", None, 100), None);
    }

    #[test]
    fn one_processors_line() {
        let expected = Machine { cpus: 1, idle: ms(711_060), steal: ms(2870) };
        assert_eq!(Machine::parse(STAT, Some(1), 100), Some(expected));
        assert_eq!(Machine::parse(STAT, Some(2), 100), None);
    }

    #[test]
    fn a_process_and_its_children() {
        assert_eq!(parse_stat(PROCESS, 100), Some((ms(30), ms(1140))));
        // Names may hold spaces and parentheses.
        assert_eq!(
            parse_stat(&PROCESS.replace("(bash)", "(a) R (b c)"), 100),
            Some((ms(30), ms(1140)))
        );
        assert_eq!(parse_stat("4264 (bash) S 1 2", 100), None);
    }

    #[test]
    fn a_threads_nanoseconds() {
        assert_eq!(
            parse_schedstat("31092411 12120857 64\n"),
            Some(Duration::from_nanos(31_092_411))
        );
        assert_eq!(parse_schedstat(""), None);
    }

    #[test]
    fn work_is_seen_in_the_process_and_the_machine() {
        let own = std::process::id();
        let meter = CpuMeter::start(&[own], Children::Ignored).expect("start");
        // A fixed amount of work, many ticks long. Its thread has ended by then, so its time is in the coarse total
        // only.
        let work = || {
            (0..60_000_000u64)
                .fold(1u64, |sum, step| std::hint::black_box(sum.wrapping_mul(31) ^ step))
        };
        std::thread::spawn(work).join().expect("worker");
        let usage = meter.read().expect("read");
        assert!(usage.of(own) > Duration::ZERO, "{usage:?}");
        assert!(usage.busy > Duration::ZERO, "{usage:?}");
        assert_eq!(usage.of(own + 1), Duration::ZERO);
        assert!(usage.cpus(usage.wall) > 0.999);
        assert!(usage.processors > 0, "{usage:?}");
    }

    #[test]
    fn a_process_that_is_not_there_is_gone() {
        let error = CpuMeter::start(&[u32::MAX], Children::Reaped).expect_err("no such process");
        assert!(matches!(error, Error::Gone { pid: u32::MAX }), "{error}");
    }
}
