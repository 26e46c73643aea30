//! The connection of a front-end.

use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::channel::ChannelError;
use crate::lock;
use crate::processes::Alarm;
use crate::requests::{Requests, SessionError};
use crate::session::Session;
use crate::session::renewal::{Events, Renewal};

/// Rings are served once the front-end has sent nothing for this time: it describes them in many messages.
const PAUSE: Duration = Duration::from_millis(1);

/// Why a front-end is not served that waits for no answer.
const UNKNOWN: &str = "the front-end waits for no answer, so nobody can say which process it is";

/// Why a front-end has gone that had agreed on nothing.
fn turned_down(queues: u16) -> String {
    format!(
        "the front-end left before it had agreed on anything: its machine was stopped, or QEMU refused the port because its netdev has more \
         queues than the port ({queues}), or its guest uses a feature that the port does not offer now; QEMU's own output says which"
    )
}

/// How a session ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Why, in words.
    pub why: String,
    /// Whether nobody may come again to this port: the front-end held up a worker in a way that no honest one does, or sent a descriptor that this
    /// process cannot let go of, by mistake or not.
    pub is_hostile: bool,
}

impl Session {
    /// Serves a front-end until it goes, or sends what cannot be.
    pub fn run(self, stream: UnixStream) -> Ended {
        let alarm = self.alarm.clone();
        let session = Arc::new(Mutex::new(self));
        let renewal = lock(&session).renewal.clone();
        let begun = Events::new(&*alarm, &renewal)
            .and_then(|events| Ok((events, Requests::new(stream, &session)?)));
        let error = match begun {
            Ok((events, requests)) => serve(&session, requests, &alarm, (&events, &renewal)),
            Err(error) => ChannelError::System(error).into(),
        };
        let never_closes = matches!(error, SessionError::Channel(ChannelError::NeverCloses));
        let is_gone = matches!(error, SessionError::Channel(ChannelError::Gone));
        let mut session = lock(&session);
        let (why, is_hostile) = match alarm.verdict() {
            Some((why, is_hostile)) => (why, is_hostile || never_closes),
            None if is_gone && session.was_turned_down() => {
                (turned_down(session.options.queues), false)
            }
            None => (error.to_string(), never_closes),
        };
        session.stop(&why);
        session.files.set(std::iter::empty());
        session.link.report_to(None);
        drop(session);
        Ended { why, is_hostile }
    }
}

/// Answers messages, and serves rings when they can be. Returns why the session ended.
fn serve(
    session: &Mutex<Session>,
    mut requests: Requests,
    alarm: &Arc<Alarm>,
    (events, renewal): (&Events, &Renewal),
) -> SessionError {
    let paces = lock(session).paces.clone();
    // Before each message, because messages that have come are taken without a wait: a front-end with ever more of them would go on, and
    // could reset its device to get calls that are not refused yet.
    while !alarm.has_rung() {
        if renewal.take()
            && let Err(why) = lock(session).renew()
        {
            return why.into();
        }
        let (pending, pause) = {
            let session = lock(session);
            (session.is_pending(), session.pause().filter(|_| requests.has_begun()))
        };
        let is_settled = |pause| requests.is_quiet(pause, events);
        // Messages are answered while a start waits. Rings that stop were started before, so stops need no pace of their own.
        let step = if pending && is_settled(PAUSE.max(paces.until_start())) {
            paces.count_start();
            match alarm.is_accountable() {
                true => lock(session).serve_ready().map_err(SessionError::from),
                false => Err(UNKNOWN.to_owned().into()),
            }
        } else if !pending && pause.is_some_and(is_settled) {
            lock(session).check();
            Ok(())
        } else {
            match requests.handle_next(events, alarm) {
                // The loop finds out which event it was.
                Err(SessionError::Channel(ChannelError::Stopped)) => Ok(()),
                other => other,
            }
        };
        if let Err(why) = step {
            return lock(session).error.take().map_or(why, SessionError::from);
        }
    }
    ChannelError::Stopped.into()
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};

    use offload::Features;
    use port::Queue;

    use super::*;
    use crate::features::DeviceOptions;
    use crate::session::Device;

    struct Nothing;

    impl Device for Nothing {
        fn start(&self, _: Vec<Queue>) {}

        fn stop(&self, _: &str) {}
    }

    /// What it has sent already would otherwise be answered first, and what it sends meanwhile too.
    #[test]
    fn no_message_of_a_front_end_that_has_proven_hostile_is_answered() {
        let options = DeviceOptions {
            queues: 1,
            packed: true,
            offloads: Features::ALL,
            guest_offloads: true,
        };
        let session = Session::new(options, Arc::new(Nothing), Arc::default()).unwrap();
        let (mut front, stream) = UnixStream::pair().unwrap();
        // VHOST_USER_GET_FEATURES, version 1, without a payload.
        let get_features = [1u32, 1, 0].map(u32::to_le_bytes).concat();
        front.write_all(&get_features).unwrap();
        session.alarm.prove("it is hostile");
        let Ended { why, is_hostile } = session.run(stream);
        assert!(is_hostile && why == "it is hostile", "{why}");
        let mut answer = Vec::new();
        front.read_to_end(&mut answer).unwrap_or_default();
        assert!(answer.is_empty(), "{answer:x?}");
    }
}
