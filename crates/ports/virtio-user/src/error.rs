//! Why there is no connection with a back-end, or none any more.

use std::io;

use vhost_user::shared::ChannelError;

/// Why there is no connection with a back-end, or none any more.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It closed its socket.
    #[error("the back-end is gone")]
    Gone,
    /// It does not read messages, or does not answer them.
    #[error("the back-end does not answer {0}")]
    Silent(&'static str),
    /// Its reply is malformed, or answers another message.
    #[error("the back-end's reply to {0} is malformed")]
    BadReply(&'static str),
    /// It says that it could not do what it was asked.
    #[error("the back-end refuses {what} (error {code})")]
    Refused {
        /// The message.
        what: &'static str,
        /// What it answered.
        code: u64,
    },
    /// It sent a message that nobody asked for.
    #[error("the back-end sends messages that nobody asked for")]
    Unasked,
    /// It made a worker wait, which none does by mistake: it must not be connected again.
    #[error("the back-end blocked a worker by an eventfd")]
    Blocked,
    /// The caller wanted it.
    #[error("the connection was ended")]
    Stopped,
    /// The system's error.
    #[error(transparent)]
    System(#[from] io::Error),
}

impl Error {
    /// What became of the message `what`.
    pub(crate) fn of(what: &'static str) -> impl Fn(ChannelError) -> Self {
        move |error| match error {
            ChannelError::Gone | ChannelError::Partial => Self::Gone,
            ChannelError::Slow | ChannelError::Silent | ChannelError::Unread => Self::Silent(what),
            ChannelError::TooLong(_)
            | ChannelError::TooManyDescriptors
            | ChannelError::NeverCloses => Self::BadReply(what),
            ChannelError::Stopped => Self::Stopped,
            ChannelError::System(error) => Self::System(error),
        }
    }
}
