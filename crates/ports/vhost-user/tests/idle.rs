//! What machines cost that are connected and do nothing: no thread wakes up for them. The one test has a process of its own, because it
//! counts all threads.

#[path = "hostile/bed.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod bed;
mod common;

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use bed::{Bed, block};
use common::LINUX;

/// How often each thread of this process but the caller has begun to wait, by its number.
fn waits() -> BTreeMap<String, u64> {
    let mut waits = BTreeMap::new();
    let own = rustix::thread::gettid().as_raw_nonzero().to_string();
    for task in fs::read_dir("/proc/self/task").unwrap() {
        let task = task.unwrap();
        let name = task.file_name().into_string().unwrap();
        // A thread may end meanwhile.
        let Ok(status) = fs::read_to_string(task.path().join("status")) else { continue };
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        let command = status.lines().next().unwrap_or_default().replace("Name:\t", "");
        if name != own {
            waits.insert(format!("{command} {name}"), line.unwrap().trim().parse().unwrap());
        }
    }
    waits
}

/// Wake-ups of all other threads in half a second. There are none as soon as all have gone to sleep: the test looks for such a half
/// second ten times.
fn wakeups_of_idle_machines() -> Vec<(String, u64)> {
    let mut more = Vec::new();
    for _ in 0..10 {
        let before = waits();
        std::thread::sleep(Duration::from_millis(500));
        let count = |name: &String| before.get(name).copied().unwrap_or(0);
        let after = waits().into_iter().map(|(name, now)| (now - count(&name), name));
        more = after.filter(|(n, _)| *n > 0).map(|(n, name)| (name, n)).collect();
        if more.is_empty() {
            break;
        }
    }
    more
}

#[test]
fn idle_machines_wake_up_nobody_and_are_watched_again_when_they_are_not_idle() {
    let mut bed = Bed::new();
    let mut green = bed.green(LINUX);
    green.post(32, 1526);
    bed.carries();
    assert_eq!(wakeups_of_idle_machines(), [], "threads that woke up, and how often");
    bed.carries();
    assert_eq!(wakeups_of_idle_machines(), []);
    // The watchdog sleeps now, and a write that blocks must wake it up.
    green.rx.arm();
    block(&green.calls[0]);
    bed.send_to_green(6);
    bed.carries();
    let how = green.front.ended_how();
    assert!(how.is_hostile, "{}", how.why);
}
