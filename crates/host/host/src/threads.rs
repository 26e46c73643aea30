//! Processor time of a process's threads, by their names.

use crate::{Error, Result};
use std::fs;
use std::path::Path;
use std::time::Duration;

/// The processor time of a thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThreadTime {
    /// The thread's name, at most 15 bytes.
    pub name: String,
    /// How long it ran.
    pub ran: Duration,
    /// How long it could have run, but others did.
    pub waited: Duration,
}

/// The times of each living thread of a process, to the nanosecond.
///
/// # Errors
/// [`Error::Gone`] if there is no such process; [`Error::Parse`] if the kernel does not count this time.
pub fn thread_times(pid: u32) -> Result<Vec<ThreadTime>> {
    let tasks = format!("/proc/{pid}/task");
    let mut times = Vec::new();
    for task in fs::read_dir(&tasks).map_err(|_| Error::Gone { pid })? {
        let path = task.map_err(|_| Error::Gone { pid })?.path();
        let read = |file: &str| fs::read_to_string(path.join(file));
        // A thread that has just ended has no files.
        let (Ok(name), Ok(text)) = (read("comm"), read("schedstat")) else { continue };
        let [ran, waited] =
            parse_schedstat(&text).ok_or_else(|| Error::parse(&tasks, "no schedstat"))?;
        times.push(ThreadTime { name: name.trim_end().to_owned(), ran, waited });
    }
    Ok(times)
}

/// The time of a process outside of the kernel, to the kernel's tick.
///
/// # Errors
/// [`Error::Gone`] if there is no such process; [`Error::Parse`] for an unknown format.
pub fn user_time(pid: u32) -> Result<Duration> {
    let file = Path::new("/proc").join(pid.to_string()).join("stat");
    let text = fs::read_to_string(&file).map_err(|_| Error::Gone { pid })?;
    let ticks = parse_user(&text);
    let ticks = ticks.ok_or_else(|| Error::parse(file.display().to_string(), "too few fields"))?;
    let hz = rustix::param::clock_ticks_per_second().max(1);
    Ok(Duration::from_nanos(ticks.saturating_mul(1_000_000_000) / hz))
}

/// `on_cpu_ns waiting_ns timeslices`.
fn parse_schedstat(text: &str) -> Option<[Duration; 2]> {
    let mut fields = text.split_whitespace().map(|field| field.parse().ok());
    let mut next = || fields.next().flatten().map(Duration::from_nanos);
    Some([next()?, next()?])
}

/// Field 14 of proc_pid_stat(5). The second field may hold any characters.
fn parse_user(text: &str) -> Option<u64> {
    text.rsplit_once(')')?.1.split_whitespace().nth(11)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_user_time_is_found_behind_any_name() {
        let text = "4264 (a) R (b c) S 4245 4264 4264 0 -1 4194560 2184 66825 0 21 7 3 83 31 20 0";
        assert_eq!(parse_user(text), Some(7));
        assert_eq!(parse_user("4264 (bash) S 1 2"), None);
    }

    #[test]
    fn a_thread_ran_or_waited() {
        let ns = Duration::from_nanos;
        assert_eq!(
            parse_schedstat("31092411 12120857 64\n"),
            Some([ns(31_092_411), ns(12_120_857)])
        );
        assert_eq!(parse_schedstat("31092411"), None);
    }

    #[test]
    fn threads_have_names_and_times() {
        let waiting = std::thread::Builder::new().name("a lazy thread".to_owned());
        let (stop, stopped) = std::sync::mpsc::channel::<()>();
        let (start, started) = std::sync::mpsc::channel();
        let wait = move || start.send(()).is_ok() && stopped.recv().is_ok();
        let waiting = waiting.spawn(wait).expect("a thread");
        // It names itself before it runs.
        started.recv().expect("it runs");
        let times = thread_times(std::process::id()).expect("times");
        assert!(times.iter().any(|thread| thread.name == "a lazy thread"), "{times:?}");
        stop.send(()).expect("it waits");
        assert!(waiting.join().expect("no panic"));
        assert!(user_time(std::process::id()).is_ok() && thread_times(0).is_err());
    }
}
