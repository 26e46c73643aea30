//! Frees workers from eventfds whose owners made them block.
//!
//! A descriptor for notifications is shared with the front-end, and so are its flags: the front-end can make it blocking
//! after it was checked, and fill its counter. The next write of a worker would then wait for ever, and with it every port that
//! the worker serves. No system call writes to an eventfd without regard to that flag, so eventfds that are written are watched.
//!
//! At the first proof, all descriptors of that front-end's process are refused, in all its sessions: if each had to be found full by a check of
//! its own, one with many rings or ports would hold its neighbours up once for each of them.
//!
//! A full counter under a write is proof: it takes 2⁶⁴ - 2 notifications that nobody read, or somebody who blocks writers. The moments of the
//! checks are random, because a front-end that knew them could empty the counter before each of them, and block a worker most of the time.

use std::hash::{BuildHasher as _, RandomState};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::doorbells::{Call, WATCHER};
use crate::processes::Alarm;

/// The longest time between two checks while anything is written. Half of it is the average.
pub(crate) const PERIOD: Duration = Duration::from_millis(3);

/// The calls of all sessions of this process.
static WATCHED: Mutex<Vec<Watched>> = Mutex::new(Vec::new());
/// The thread that checks them.
static THREAD: OnceLock<JoinHandle<()>> = OnceLock::new();

/// A descriptor under watch.
#[derive(Debug)]
struct Watched {
    call: Weak<Call>,
    /// Rung when the counter was full. The calls of one front-end have the same alarm, and no others have it.
    alarm: Weak<Alarm>,
    /// Writes that had begun at the last check.
    writes: u64,
}

/// What a check of a descriptor found.
#[derive(PartialEq, Eq)]
enum Found {
    /// Nothing was written since the last one.
    Quiet,
    /// Something was, or still is being written.
    Written,
    /// Somebody writes to it, and its counter is full.
    Full,
    /// It needs no more checks.
    Gone,
}

impl Watched {
    fn check(&mut self) -> Found {
        let Some(call) = self.call.upgrade() else { return Found::Gone };
        let before = std::mem::replace(&mut self.writes, call.writes());
        match call.write_under_way() {
            // Only now is it worth a system call.
            Some(_) if call.is_full() => Found::Full,
            None if before == self.writes => Found::Quiet,
            _ => Found::Written,
        }
    }

    /// Whether a write has begun since the last check.
    fn is_written(&self) -> bool {
        self.call.upgrade().is_some_and(|call| call.writes() != self.writes)
    }
}

/// Why a session ends whose front-end blocked a worker, or was about to.
pub(crate) const BLOCKED: &str =
    "the front-end filled an eventfd, which blocks whoever writes to it";

/// Refuses all calls of the front-end that has this alarm, which has proven hostile, and of the other sessions of its process; and frees whoever
/// writes to one of them.
fn refuse_all(watched: &mut Vec<Watched>, culprit: &Weak<Alarm>, free: Free) {
    let alarm = culprit.upgrade();
    let is_its = |one: &Watched| match (&alarm, one.alarm.upgrade()) {
        (Some(culprit), Some(own)) => own.shares_blame(culprit),
        _ => one.alarm.ptr_eq(culprit),
    };
    let calls = watched.extract_if(.., |one| is_its(one));
    let calls: Vec<_> = calls.filter_map(|one| one.call.upgrade()).collect();
    // All of them first: a worker that is freed goes on to the next ring at once.
    calls.iter().for_each(|call| call.refuse());
    if let Some(alarm) = &alarm {
        alarm.prove(BLOCKED);
    }
    // A counter that had room a moment ago may be filled under its write, and nobody checks any more.
    for call in calls.into_iter().filter(|call| call.write_under_way().is_some()) {
        if free(call.clone()).is_err() {
            // The process has no thread for it now. The worker must not stay blocked for ever, so the next check finds the call again.
            let call = Arc::downgrade(&call);
            watched.push(Watched { call, alarm: culprit.clone(), writes: 0 });
        }
    }
}

/// What frees a worker that writes to a call.
type Free = fn(Arc<Call>) -> io::Result<()>;

/// Reading may block in turn, so another thread reads: at most one for each worker that writes to a session that ends now.
fn drain_beside(call: Arc<Call>) -> io::Result<()> {
    thread::Builder::new().name("eventfd".into()).spawn(move || call.drain()).map(drop)
}

fn lock() -> MutexGuard<'static, Vec<Watched>> {
    WATCHED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Watches the writes to a call until it is dropped. When its counter was full, `alarm` is rung, no call with this alarm or with one of the same
/// process takes any more notifications, and workers that are blocked by one of them are freed. Each session has an alarm of its own.
///
/// # Errors
/// The process is out of threads.
pub fn watch(call: &Arc<Call>, alarm: &Arc<Alarm>) -> io::Result<()> {
    let mut watched = lock();
    if THREAD.get().is_none() {
        let thread = thread::Builder::new().name("eventfd-watch".into()).spawn(run)?;
        // The lock is held, so nobody else starts one.
        let _ = THREAD.set(thread);
    }
    if watched.len() == watched.capacity() {
        // Those of sessions that ended while nobody checked.
        watched.retain(|one| one.call.strong_count() > 0);
    }
    let (call, alarm) = (Arc::downgrade(call), Arc::downgrade(alarm));
    watched.push(Watched { call, alarm, writes: 0 });
    drop(watched);
    Ok(())
}

/// A random time of at most [`PERIOD`].
fn pause(random: &RandomState, check: u64) -> Duration {
    let range = u64::try_from(PERIOD.as_micros()).unwrap_or(u64::MAX);
    Duration::from_micros(random.hash_one(check) % range)
}

/// Checks all of them once, and refuses the calls of front-ends that have proven hostile. Returns whether nothing was written.
fn check_all(watched: &mut Vec<Watched>, free: Free) -> bool {
    let mut is_quiet = true;
    let mut hostile = Vec::new();
    watched.retain_mut(|one| {
        let found = one.check();
        is_quiet &= matches!(found, Found::Quiet | Found::Gone);
        if found == Found::Full {
            hostile.push(one.alarm.clone());
        }
        found != Found::Gone
    });
    hostile.iter().for_each(|alarm| refuse_all(watched, alarm, free));
    is_quiet
}

/// Checks again and again, and sleeps while nothing is written.
fn run() {
    let random = RandomState::new();
    for check in 0.. {
        thread::sleep(pause(&random, check));
        let is_quiet = check_all(&mut lock(), drain_beside);
        if is_quiet {
            WATCHER.doze_until(|| lock().iter().any(Watched::is_written));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
    use rustix::fs::OFlags;
    use shm::Sender;

    use super::*;
    use crate::processes::Processes;

    /// A worker may lose its CPU within a write. Its front-end did nothing.
    #[test]
    fn a_write_that_lasts_while_there_is_room_is_left_alone() {
        let (call, alarm) = (Arc::<Call>::default(), Alarm::new().unwrap());
        let fd = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
        call.set(Some(fd.try_clone().unwrap().into())).unwrap();
        watch(&call, &alarm).unwrap();
        let write = call.begin();
        assert!(write.is_some());
        for _ in 0..25 {
            check_all(&mut lock(), drain_beside);
        }
        let mut fds = [PollFd::new(&*alarm, PollFlags::IN)];
        assert_eq!(poll(&mut fds, Some(&Timespec::default())), Ok(0), "the session is ended");
        assert!(call.begin().is_some(), "notifications are refused");
    }

    /// Calls that are watched, each with its eventfd.
    fn watched(alarm: &Arc<Alarm>) -> (Arc<Call>, File) {
        let call = Arc::<Call>::default();
        let fd = File::from(eventfd(0, EventfdFlags::NONBLOCK).unwrap());
        call.set(Some(fd.try_clone().unwrap())).unwrap();
        watch(&call, alarm).unwrap();
        (call, fd)
    }

    /// A session of this process at a port, in which it has answered.
    fn own_session(processes: &Arc<Processes>) -> Arc<Alarm> {
        let alarm = Alarm::of(Some((processes.clone(), "vm"))).unwrap();
        let process = i32::try_from(std::process::id()).unwrap();
        for was_waited_for in [false, true] {
            let user = rustix::process::geteuid().as_raw();
            alarm.hear(Some(Sender { process, user }), was_waited_for).unwrap();
        }
        alarm
    }

    /// Were each refused for its own full counter only, a front-end would hold its neighbours up once for each ring, and once for each port.
    #[test]
    fn the_first_full_counter_of_a_process_is_the_last_that_anybody_waits_for() {
        let processes = Arc::default();
        let [alarm, second] = [(); 2].map(|()| own_session(&processes));
        let neighbours = Alarm::new().unwrap();
        let rings: Vec<_> = (0..16).map(|_| watched(&alarm)).collect();
        let (of_second, _other) = watched(&second);
        let (neighbour, _fd) = watched(&neighbours);
        for (_, fd) in &rings {
            rustix::io::write(fd, &(u64::MAX - 1).to_ne_bytes()).unwrap();
            rustix::fs::fcntl_setfl(fd, OFlags::empty()).unwrap();
        }
        // Two workers at once.
        thread::scope(|scope| {
            for (call, _) in &rings[..2] {
                scope.spawn(|| call.notify());
            }
        });
        for (call, _) in &rings {
            assert!(call.begin().is_none(), "somebody would wait once more");
        }
        assert!(of_second.begin().is_none(), "by its next session somebody would wait once more");
        assert!(second.has_rung());
        assert!(neighbour.begin().is_some(), "a neighbour is taken for hostile");
    }

    #[test]
    fn a_worker_that_no_thread_could_free_is_freed_later() {
        let (call, alarm) = (Arc::<Call>::default(), Alarm::new().unwrap());
        let fd = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
        call.set(Some(fd.try_clone().unwrap().into())).unwrap();
        rustix::io::write(&fd, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        rustix::fs::fcntl_setfl(&fd, OFlags::empty()).unwrap();
        let mut own =
            vec![Watched { call: Arc::downgrade(&call), alarm: Arc::downgrade(&alarm), writes: 0 }];
        let notified = call.clone();
        let worker = thread::spawn(move || notified.notify());
        while call.write_under_way().is_none() {
            thread::yield_now();
        }
        for _ in 0..2 {
            assert!(!check_all(&mut own, |_| Err(io::ErrorKind::WouldBlock.into())));
            assert!(call.begin().is_none() && !worker.is_finished());
        }
        check_all(&mut own, drain_beside);
        worker.join().unwrap();
        assert!(own.is_empty(), "it is checked for ever");
    }
}
