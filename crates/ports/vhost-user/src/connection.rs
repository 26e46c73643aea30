//! The connection of a front-end.

use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use port::Doorbell;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::channel::ChannelError;
use crate::requests::Requests;
use crate::session::{Session, lock};

/// Rings are served once the front-end has sent nothing for so long: it describes them in many messages.
const PAUSE: Duration = Duration::from_millis(1);

/// Why a session ends whose front-end blocked a worker, or was about to.
const BLOCKED: &str = "the front-end filled an eventfd, which blocks whoever writes to it";

/// Why a front-end has gone that had agreed on nothing.
fn turned_down(queues: u16) -> String {
    format!(
        "the front-end left before it had agreed on anything: QEMU does if its netdev has more queues than the port ({queues}), or its \
         guest uses a feature that the port does not offer now; QEMU's own output says which"
    )
}

/// How a session ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Why, in words.
    pub why: String,
    /// Whether the front-end filled an eventfd to block a worker, which none does by mistake: it must not come again.
    pub is_hostile: bool,
}

impl Session {
    /// Serves a front-end until it goes, or sends what cannot be.
    pub fn run(self, stream: UnixStream) -> Ended {
        let alarm = self.alarm.clone();
        let session = Arc::new(Mutex::new(self));
        let why = match Requests::new(stream, &session) {
            Ok(requests) => serve(&session, requests, &alarm),
            Err(error) => error.to_string(),
        };
        let is_hostile = has_rung(&alarm);
        let mut session = lock(&session);
        let why = match why {
            _ if is_hostile => BLOCKED.into(),
            why if why == ChannelError::Gone.to_string() && session.was_turned_down() => {
                turned_down(session.options.queues)
            }
            why => why,
        };
        session.stop(&why);
        session.link.report_to(None);
        drop(session);
        Ended { why, is_hostile }
    }
}

/// Answers messages, and serves rings when they can be. Returns why the session ended.
fn serve(session: &Mutex<Session>, mut requests: Requests, alarm: &Doorbell) -> String {
    loop {
        let (pending, pause) = {
            let session = lock(session);
            (session.is_pending(), session.pause().filter(|_| requests.has_begun()))
        };
        let is_settled = |pause| requests.is_quiet(pause, alarm);
        let step = if pending && is_settled(PAUSE) {
            lock(session).serve_ready()
        } else if !pending && pause.is_some_and(is_settled) {
            lock(session).look();
            Ok(())
        } else {
            requests.handle_next(alarm)
        };
        if let Err(why) = step {
            return lock(session).error.take().unwrap_or(why);
        }
    }
}

/// Whether a doorbell has rung.
fn has_rung(doorbell: &Doorbell) -> bool {
    let mut fds = [PollFd::new(doorbell, PollFlags::IN)];
    matches!(poll(&mut fds, Some(&Timespec::default())), Ok(1))
}
