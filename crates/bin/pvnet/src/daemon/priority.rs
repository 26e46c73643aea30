//! The priority of the daemon's threads on a Xen host.
//!
//! The kernel's netback works in interrupts, which no program of dom0 interrupts. A worker is a thread: each frame that it writes to a tap wakes the program
//! that receives it, which the scheduler would run at once, before the next frame. Then each frame has two context switches, a read and an acknowledgement of
//! its own.

use rustix::process::{getpriority_process, setpriority_process};
use tracing::info;

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

#[cfg(test)]
mod tests {
    use rustix::io::Errno;

    use super::*;

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

    /// The memory of all guests is mapped in the daemon, so by its size it would be the first to be killed, and its guests would lose their network for
    /// nothing. The drop-ins change nothing of that.
    #[test]
    fn the_packaged_daemon_is_among_the_last_to_be_killed_when_memory_runs_out() {
        const KEY: &str = "OOMScoreAdjust=";
        let units = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../packaging/systemd");
        let set = |file: &std::path::Path| {
            let text = std::fs::read_to_string(file).unwrap();
            let values = text.lines().filter_map(|line| line.strip_prefix(KEY));
            values.map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(set(format!("{units}/pvnet.service").as_ref()), ["-900"]);
        let drop_ins = std::fs::read_dir(format!("{units}/drop-ins")).unwrap();
        let drop_ins: Vec<_> = drop_ins.map(|entry| entry.unwrap().path()).collect();
        assert!(!drop_ins.is_empty() && drop_ins.iter().all(|file| set(file).is_empty()));
    }
}
