//! Wakes the thread that looks for workers that sleep ([`sleepers`](crate::sleepers)).

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::time::Duration;

use poller::{AwakeFlag, doze_until, must_wake};
use rustix::event::Timespec;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};

/// How often it looks while a worker does not wait for events. A look takes the CPU from whatever runs there, perhaps a worker: at 1 ms that was 2 % of
/// a worker that shares its CPU.
pub(crate) const TICK: Duration = Duration::from_millis(3);

/// Wakes the thread that looks at the workers.
///
/// A worker that wakes up for a lone frame has it look a [`TICK`] later, by a timer: by then the worker mostly sleeps again. To wake a thread takes
/// longer than to carry the frame, and the thread would take the CPU on which the frame's receiver must run.
#[derive(Debug)]
pub(crate) struct WatchBell {
    is_awake: AtomicBool,
    timer: OwnedFd,
}

impl WatchBell {
    /// Of a thread that is awake.
    ///
    /// # Errors
    /// The system gives no descriptor.
    pub(crate) fn new() -> std::io::Result<Self> {
        let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC)?;
        Ok(Self { is_awake: AtomicBool::new(true), timer })
    }

    /// Called by a worker that has just noted its round. It costs a system call if the thread sleeps.
    #[inline]
    pub(crate) fn wake(&self) {
        if must_wake(self) {
            self.ring_after(TICK);
        }
    }

    /// Another time that is set before this one has passed takes its place: the thread is late by no more than that.
    #[cold]
    pub(crate) fn ring_after(&self, time: Duration) {
        let it_value = Timespec::try_from(time).unwrap_or_default();
        let once = Itimerspec { it_interval: Timespec::default(), it_value };
        // It fails for a time that is none only.
        let _ = timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &once);
    }

    /// Called by the thread when it has seen nothing: it sleeps until the timer of a worker has run out, or a look (`sees`) finds something.
    pub(crate) fn doze_until(&self, sees: impl Fn() -> bool) {
        doze_until(self, sees, || {
            // A signal, or a time that was set for an earlier sleep, ends it early.
            let _ = rustix::io::read(&self.timer, &mut [0; 8]);
        });
    }
}

impl AwakeFlag for WatchBell {
    #[inline]
    fn is_awake(&self) -> bool {
        self.is_awake.load(Ordering::Acquire)
    }

    fn set_awake(&self) -> bool {
        self.is_awake.swap(true, Ordering::AcqRel)
    }

    fn set_dozing(&self) {
        self.is_awake.swap(false, Ordering::AcqRel);
    }

    #[inline]
    fn full_barrier(&self) {
        fence(Ordering::SeqCst);
    }
}
