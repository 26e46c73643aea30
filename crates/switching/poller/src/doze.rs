//! A thread that checks something from time to time, and sleeps while there is nothing to check.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::thread::{self, Thread};

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

/// Such a thread, for those who wake it.
#[derive(Debug)]
pub struct Dozer {
    is_awake: AtomicBool,
    /// Known from its first sleep on.
    thread: OnceLock<Thread>,
}

impl Dozer {
    /// A thread that is awake.
    pub const fn new() -> Self {
        Self { is_awake: AtomicBool::new(true), thread: OnceLock::new() }
    }

    /// Called by whoever has just written something that the thread must see. It costs a system call if the thread sleeps.
    #[inline]
    pub fn wake(&self) {
        if must_wake(self) {
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
        doze_until(self, sees, thread::park);
    }
}

impl Default for Dozer {
    fn default() -> Self {
        Self::new()
    }
}

impl AwakeFlag for Dozer {
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
