//! A thread that checks something from time to time, and sleeps while there is nothing to check.

use std::os::fd::OwnedFd;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::thread::{self, Thread};
use std::time::Duration;

use rustix::event::Timespec;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};

/// The flag that says whether such a thread is awake.
pub trait AwakeFlag {
    /// Whether the thread is awake (acquire).
    fn is_awake(&self) -> bool;
    /// The thread is awake from here on. Returns whether it was before (acquire and release).
    fn set_awake(&self) -> bool;
    /// The thread is about to sleep (acquire and release). It is an exchange, not a store, so that it has its place among those of
    /// [`set_awake`](Self::set_awake) that read the value before it.
    fn set_dozing(&self);
    /// Orders what was written before with what is read after (sequentially consistent).
    fn full_barrier(&self);
}

/// Called by whoever has just written something that the thread must see. Returns whether the thread must be woken up.
#[inline]
pub fn must_wake(flag: &impl AwakeFlag) -> bool {
    // Either the thread's last check sees what was written before this, or this sees that the thread dozes.
    flag.full_barrier();
    !flag.is_awake() && !flag.set_awake()
}

/// Called by the thread when it has seen nothing: it sleeps until it is woken up, or until `sees` returns true. `sleep` may return early.
pub fn doze_until(flag: &impl AwakeFlag, sees: impl Fn() -> bool, sleep: impl Fn()) {
    flag.set_dozing();
    flag.full_barrier();
    while !flag.is_awake() && !sees() {
        sleep();
    }
    flag.set_awake();
}

/// The flag of a thread of this process.
#[derive(Debug)]
pub struct Awake(AtomicBool);

impl Awake {
    /// Of a thread that is awake.
    #[must_use]
    pub const fn new() -> Self {
        Self(AtomicBool::new(true))
    }
}

impl Default for Awake {
    fn default() -> Self {
        Self::new()
    }
}

impl AwakeFlag for Awake {
    #[inline]
    fn is_awake(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }

    fn set_awake(&self) -> bool {
        self.0.swap(true, Ordering::AcqRel)
    }

    fn set_dozing(&self) {
        self.0.swap(false, Ordering::AcqRel);
    }

    #[inline]
    fn full_barrier(&self) {
        fence(Ordering::SeqCst);
    }
}

/// Such a thread, for those who wake it.
#[derive(Debug, Default)]
pub struct Dozer {
    flag: Awake,
    /// Known from its first sleep on.
    thread: OnceLock<Thread>,
}

impl Dozer {
    /// A thread that is awake.
    pub const fn new() -> Self {
        Self { flag: Awake::new(), thread: OnceLock::new() }
    }

    /// Called by whoever has just written something that the thread must see. It costs a system call if the thread sleeps.
    #[inline]
    pub fn wake(&self) {
        if must_wake(&self.flag) {
            self.unpark();
        }
    }

    #[cold]
    fn unpark(&self) {
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }

    /// Called by the thread when it has seen nothing: it sleeps until it is woken up, or until `sees` returns true.
    pub fn doze_until(&self, sees: impl Fn() -> bool) {
        self.thread.get_or_init(thread::current);
        doze_until(&self.flag, sees, thread::park);
    }
}

/// Such a thread, if there is nothing to see before some time is over.
///
/// Whoever has something for it sets a timer. To wake the thread at once took a worker 28 µs of a lone frame's way (`perf trace`), and took the CPU from
/// the thread that the frame was for.
#[derive(Debug)]
pub struct Alarm {
    flag: Awake,
    timer: OwnedFd,
    after: Timespec,
}

impl Alarm {
    /// Of a thread that is awake, and later is woken `after` there is something to see.
    ///
    /// # Errors
    /// The system's: the process may have no more descriptors.
    pub fn new(after: Duration) -> std::io::Result<Self> {
        let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC)?;
        let after = Timespec::try_from(after).map_err(|_| std::io::ErrorKind::InvalidInput)?;
        Ok(Self { flag: Awake::new(), timer, after })
    }

    /// Called by whoever has just written something that the thread must see. It costs a system call if the thread sleeps.
    #[inline]
    pub fn set(&self) {
        if must_wake(&self.flag) {
            self.ring_after(self.after);
        }
    }

    /// Wakes the thread now.
    pub fn ring(&self) {
        self.ring_after(Timespec { tv_sec: 0, tv_nsec: 1 });
    }

    #[cold]
    fn ring_after(&self, it_value: Timespec) {
        let once = Itimerspec { it_interval: Timespec::default(), it_value };
        // The kernel refuses only what is no time.
        let _ = timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &once);
    }

    /// Called by the thread when it has seen nothing: it sleeps until it is woken, or until `sees` returns true.
    pub fn doze_until(&self, sees: impl Fn() -> bool) {
        doze_until(&self.flag, sees, || {
            let _ = rustix::io::read(&self.timer, &mut [0; 8]);
        });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Instant;

    use super::*;

    /// A thread that dozes until it is woken.
    fn dozing(alarm: &Arc<Alarm>) -> thread::JoinHandle<()> {
        let its = alarm.clone();
        let thread = thread::spawn(move || its.doze_until(|| false));
        while alarm.flag.is_awake() {
            thread::yield_now();
        }
        thread
    }

    #[test]
    fn an_alarm_wakes_its_thread_after_its_time_and_no_sooner() {
        let after = Duration::from_millis(30);
        let alarm = Arc::new(Alarm::new(after).unwrap());
        for _ in 0..3 {
            let thread = dozing(&alarm);
            let set = Instant::now();
            // The first of them counts.
            alarm.set();
            alarm.set();
            thread.join().unwrap();
            assert!(set.elapsed() >= after);
        }
    }

    #[test]
    fn an_alarm_that_rings_wakes_its_thread_now() {
        let alarm = Arc::new(Alarm::new(Duration::from_secs(3600)).unwrap());
        let is_over = Arc::new(AtomicBool::new(false));
        let thread = thread::spawn({
            let (alarm, is_over) = (alarm.clone(), is_over.clone());
            move || alarm.doze_until(|| is_over.load(Ordering::SeqCst))
        });
        is_over.store(true, Ordering::SeqCst);
        alarm.ring();
        thread.join().unwrap();
    }
}
