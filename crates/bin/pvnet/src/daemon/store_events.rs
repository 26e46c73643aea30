//! The thread that waits for the store.

use std::os::fd::AsFd;
use std::sync::{Arc, mpsc};

use rustix::event::{PollFd, PollFlags, poll};
use xenstore::Store;

use crate::daemon::error::Error;
use crate::daemon::event::Event;
use crate::daemon::thread::spawn;

/// Passes the store's watch events on to the control thread.
pub(super) fn forward(store: Arc<dyn Store>, events: mpsc::Sender<Event>) -> Result<(), Error> {
    spawn("store events", move || {
        loop {
            match store.event() {
                Ok(Some(event)) => {
                    let (done, taken) = mpsc::channel();
                    if events.send(Event::Store { event, done }).is_err() {
                        return;
                    }
                    // One at a time. A guest that writes its state endlessly then fills the store's
                    // bounded queue and not this channel, which has no bound (XSA-326).
                    let _ = taken.recv();
                }
                Ok(None) => {
                    let fd = store.event_fd();
                    let mut fds = [PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN)];
                    // An interrupted wait starts again.
                    let _ = poll(&mut fds, None);
                }
                Err(_) => return,
            }
        }
    })?;
    Ok(())
}
