//! Takes messages from a front-end's socket to whoever answers them.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use vhost::vhost_user::{BackendReqHandler, Error};

use crate::channel::{Channel, ChannelError, Message, PAYLOAD_MAX, receive_some, send_some};
use crate::extension;
use crate::lock;
use crate::paces::Paces;
use crate::session::Session;

/// Why a session ends.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SessionError {
    #[error(transparent)]
    Channel(#[from] ChannelError),
    #[error("{0}")]
    Refused(String),
}

impl From<String> for SessionError {
    fn from(why: String) -> Self {
        Self::Refused(why)
    }
}

/// The messages of one connection.
///
/// Crate `vhost` reads a message in two system calls, ends the session if a part of it is late, and has no limit of time.
/// So each message is gathered first, and given to it whole by a socket pair; its replies take the same way back.
pub(crate) struct Requests {
    channel: Channel,
    session: Arc<Mutex<Session>>,
    handler: BackendReqHandler<Mutex<Session>>,
    /// The other end of the handler's socket.
    inner: UnixStream,
    paces: Arc<Paces>,
}

impl Requests {
    pub(crate) fn new(stream: UnixStream, session: &Arc<Mutex<Session>>) -> io::Result<Self> {
        let (inner, handlers) = UnixStream::pair()?;
        Ok(Self {
            channel: Channel::new(stream)?,
            session: session.clone(),
            handler: BackendReqHandler::from_stream(handlers, session.clone()),
            inner,
            paces: lock(session).paces.clone(),
        })
    }

    /// Waits for a message and answers it. One of `events` ends the wait, and `stop` that for the front-end to read the answer.
    pub(crate) fn handle_next(
        &mut self,
        events: &impl AsFd,
        stop: &impl AsFd,
    ) -> Result<(), SessionError> {
        if self.is_stopped_within(self.paces.until_message(), events) {
            return Err(ChannelError::Stopped.into());
        }
        let mut message = self.channel.receive(events.as_fd())?;
        let descriptors = u32::try_from(message.descriptors.len()).unwrap_or(u32::MAX);
        self.paces.count_messages(1 + descriptors);
        let alarm = lock(&self.session).alarm();
        let wait = alarm.hear(message.sender, message.was_waited_for)?;
        if !self.channel.pause(wait, stop.as_fd()) {
            return Err(ChannelError::Gone.into());
        }
        // Before an answer: whoever waits for it has sent nothing else.
        self.channel.note_if_empty();
        let answer = extension::answer(&mut lock(&self.session), &mut message);
        let handled = match answer {
            Some(Ok(None)) => return Ok(()),
            Some(Ok(Some(reply))) => return Ok(self.channel.send(&reply, stop.as_fd())?),
            Some(Err(why)) => return Err(why.into()),
            None => self.handle(&message),
        };
        // The handler may have answered before it failed.
        while let Some(reply) = self.next_reply()? {
            self.channel.send(&reply, stop.as_fd())?;
        }
        handled
    }

    /// Waits, unless there is an event of `stop`. The thread is the front-end's: it alone waits.
    fn is_stopped_within(&self, wait: Duration, stop: &impl AsFd) -> bool {
        let limit = Timespec::try_from(wait).unwrap_or_default();
        let mut fds = [PollFd::new(stop, PollFlags::IN)];
        !wait.is_zero() && matches!(poll(&mut fds, Some(&limit)), Ok(1))
    }

    /// Gives a message to the handler.
    fn handle(&mut self, message: &Message) -> Result<(), SessionError> {
        let Message { bytes, descriptors, .. } = message;
        // Nothing else is in the socket, so there is room for one message.
        let sent = send_some(&self.inner, bytes, descriptors).map_err(ChannelError::from)?;
        debug_assert_eq!(sent, bytes.len());
        self.handler.handle_request().map_err(|error| match error {
            Error::Disconnected => ChannelError::Gone.into(),
            error => SessionError::Refused(error.to_string()),
        })
    }

    /// The next bytes that the handler answered.
    fn next_reply(&self) -> Result<Option<Message>, ChannelError> {
        let mut reply = Message::default();
        match receive_some(&self.inner, &mut reply, PAYLOAD_MAX) {
            Ok(0) => Ok(None),
            Ok(_) => Ok(Some(reply)),
            Err(ChannelError::System(error)) if error.raw_os_error() == Some(AGAIN) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Whether the front-end has sent a message.
    pub(crate) fn has_begun(&self) -> bool {
        self.channel.has_begun()
    }

    /// Whether the front-end sends nothing for a while, in which there is no event of `stop`.
    pub(crate) fn is_quiet(&self, pause: Duration, stop: &impl AsFd) -> bool {
        self.channel.is_quiet(pause, stop.as_fd())
    }
}

const AGAIN: i32 = Errno::AGAIN.raw_os_error();
