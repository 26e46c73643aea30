//! Frees workers from eventfds whose owners made them block.
//!
//! A descriptor for notifications is shared with the front-end, and so are its flags: the front-end can make it blocking
//! after it was checked, and fill its counter. The next write of a worker would then wait for ever, and with it every port that
//! the worker serves. No system call writes to an eventfd without regard to that flag, so writes are watched.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::Duration;

use port::Doorbell;

use crate::doorbells::Call;

/// How often writes are looked at. One that is under way at two looks, with a full counter, is blocked.
pub(crate) const PERIOD: Duration = Duration::from_millis(20);

/// The calls of all sessions of this process. A thread looks at them while there are any.
static WATCHED: Mutex<Vec<Watched>> = Mutex::new(Vec::new());

/// A descriptor under watch.
#[derive(Debug)]
struct Watched {
    call: Weak<Call>,
    /// Rung when a worker had to be freed.
    alarm: Arc<Doorbell>,
    /// The write that was under way at the last look.
    seen: Option<u64>,
}

impl Watched {
    /// Looks at it. Returns whether it is still there.
    fn look(&mut self) -> bool {
        let Some(call) = self.call.upgrade() else { return false };
        let write = call.write_under_way();
        if write.is_some() && write == self.seen && call.is_full() {
            call.refuse();
            self.alarm.ring();
            // Reading may block in turn, so another thread reads: at most one for each ring of a session that ends now.
            let _ = thread::Builder::new().name("eventfd".into()).spawn(move || call.drain());
            return false;
        }
        self.seen = write;
        true
    }
}

fn lock() -> MutexGuard<'static, Vec<Watched>> {
    WATCHED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Watches the writes to a call until it is dropped. When a worker had to be freed, `alarm` is rung, and the call takes no more
/// notifications.
pub(crate) fn watch(call: &Arc<Call>, alarm: &Arc<Doorbell>) -> std::io::Result<()> {
    let mut watched = lock();
    if watched.is_empty() {
        thread::Builder::new().name("eventfd-watch".into()).spawn(run)?;
    }
    watched.push(Watched { call: Arc::downgrade(call), alarm: alarm.clone(), seen: None });
    drop(watched);
    Ok(())
}

fn run() {
    loop {
        thread::sleep(PERIOD);
        let mut watched = lock();
        watched.retain_mut(Watched::look);
        if watched.is_empty() {
            return;
        }
    }
}
