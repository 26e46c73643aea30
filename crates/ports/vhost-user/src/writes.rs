//! Whether anything is written to eventfds: whoever watches the writes sleeps while there are none.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::thread::{self, Thread};

use poller::{AwakeFlag, must_wake};

/// The thread that watches, and whether it is awake.
#[derive(Debug)]
pub(crate) struct Watcher {
    is_awake: AtomicBool,
    thread: OnceLock<Thread>,
}

/// The watcher of all writes of this process.
pub(crate) static WATCHER: Watcher =
    Watcher { is_awake: AtomicBool::new(false), thread: OnceLock::new() };

impl Watcher {
    /// Starts the thread if there is none.
    ///
    /// # Errors
    /// The process is out of threads.
    pub(crate) fn start(&self, run: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
        if self.thread.get().is_none() {
            let started = thread::Builder::new().name("eventfd-watch".into()).spawn(run)?;
            // The caller has a lock, so nobody else starts one.
            let _ = self.thread.set(started.thread().clone());
        }
        Ok(())
    }

    /// A write has been noted and begins now. It costs a system call where the watcher sleeps, which is at the first write
    /// after a pause.
    #[inline]
    pub(crate) fn wake(&self) {
        if must_wake(self)
            && let Some(thread) = self.thread.get()
        {
            thread.unpark();
        }
    }

    /// Called by the thread: sleeps until it is woken up, if it dozes.
    pub(crate) fn sleep(&self) {
        while !self.is_awake() {
            thread::park();
        }
    }
}

impl AwakeFlag for Watcher {
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
