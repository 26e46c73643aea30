//! Whole messages of the other side, in however many parts they come, within a time.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, recv, sendmsg};
use shm::{Received, Sender};

/// Bytes of a message's header: request, flags, length of the payload.
pub(crate) const HEADER_LEN: usize = 12;
/// The longest payload, as crate `vhost` has it.
pub(crate) const PAYLOAD_MAX: usize = 4096;
/// The most descriptors of a message, likewise.
pub(crate) const DESCRIPTORS_MAX: usize = 32;

// One too many is noticed.
const _: () = assert!(shm::DESCRIPTORS_MAX > DESCRIPTORS_MAX);

/// How long after its first byte a message must be whole, and how long the front-end may take to read a reply.
pub(crate) const MESSAGE_LIMIT: Duration = Duration::from_secs(2);
/// How long after it connected a front-end must send its first message. Later ones may come at any time.
pub(crate) const FIRST_LIMIT: Duration = Duration::from_secs(10);

/// Why there are no more messages.
#[derive(Debug, thiserror::Error)]
pub enum ChannelError {
    /// It has closed its socket.
    #[error("the front-end is gone")]
    Gone,
    /// It has, before its message was whole.
    #[error("the front-end went in the middle of a message")]
    Partial,
    /// The rest of a message is late.
    #[error("a message that was not whole after {} s", MESSAGE_LIMIT.as_secs())]
    Slow,
    /// The first message is late.
    #[error("no message in {} s", FIRST_LIMIT.as_secs())]
    Silent,
    /// A message longer than vhost-user has any.
    #[error("a message of {0} bytes")]
    TooLong(usize),
    /// Likewise.
    #[error("a message with more than {DESCRIPTORS_MAX} descriptors")]
    TooManyDescriptors,
    /// Whoever closes such a file may wait for its server (FUSE, a network), for ever.
    #[error(
        "a descriptor of a file that is no memory (memfd, tmpfs, hugetlbfs) and on no block device: to close it may take for ever"
    )]
    NeverCloses,
    /// It takes too long to read what was sent.
    #[error("the front-end does not read its replies")]
    Unread,
    /// An event of the caller.
    #[error("the session was ended")]
    Stopped,
    /// The system's error.
    #[error(transparent)]
    System(#[from] io::Error),
}

impl From<Errno> for ChannelError {
    fn from(error: Errno) -> Self {
        Self::System(error.into())
    }
}

/// A message with its descriptors.
#[derive(Debug, Default)]
pub struct Message {
    /// Header and payload.
    pub(crate) bytes: Vec<u8>,
    /// Descriptors that belong to it.
    pub(crate) descriptors: Vec<OwnedFd>,
    /// Who sent its end, if the socket says it.
    pub(crate) sender: Option<Sender>,
    /// Whether nothing was there at some time after the message before it: it was sent after that one was received.
    pub(crate) was_waited_for: bool,
}

impl Message {
    /// A message of at most 4096 bytes of payload.
    #[must_use]
    pub fn new(request: u32, flags: u32, payload: &[u8], descriptors: Vec<OwnedFd>) -> Self {
        let len = u32::try_from(payload.len()).unwrap_or(u32::MAX);
        let header = [request, flags, len].map(u32::to_le_bytes).concat();
        Self { bytes: [&header, payload].concat(), descriptors, ..Self::default() }
    }

    fn word(&self, at: usize) -> u32 {
        let bytes = self.bytes.get(at..at + 4).and_then(|word| word.try_into().ok());
        bytes.map_or(0, u32::from_le_bytes)
    }

    /// Which message it is.
    #[must_use]
    pub fn request(&self) -> u32 {
        self.word(0)
    }

    /// Its version, and what is asked of the receiver.
    #[must_use]
    pub fn flags(&self) -> u32 {
        self.word(4)
    }

    /// What it says, without its header.
    #[must_use]
    pub fn payload(&self) -> &[u8] {
        self.bytes.get(HEADER_LEN..).unwrap_or_default()
    }

    /// Takes the descriptors that came with it.
    #[must_use]
    pub fn take_descriptors(&mut self) -> Vec<OwnedFd> {
        std::mem::take(&mut self.descriptors)
    }

    /// Bytes of the whole message, as far as it is known.
    fn len(&self) -> Result<usize, ChannelError> {
        if self.bytes.len() < HEADER_LEN {
            return Ok(HEADER_LEN);
        }
        match self.word(8) as usize {
            len if len > PAYLOAD_MAX => Err(ChannelError::TooLong(len)),
            len => Ok(HEADER_LEN + len),
        }
    }
}

/// The socket of the other side.
#[derive(Debug)]
pub struct Channel {
    socket: UnixStream,
    /// In which time the first message must come, until it has come.
    first_limit: Option<Duration>,
    /// What has come of a message whose rest an event was waited for together with.
    begun: Option<(Message, Option<Instant>)>,
    /// Whether nothing was there at some time since the last message came.
    was_empty: bool,
    /// Whether descriptors come with messages; otherwise the kernel drops them.
    takes_descriptors: bool,
}

impl Channel {
    /// A channel whose first message must come within 10 s.
    ///
    /// # Errors
    /// The system's.
    pub fn new(socket: UnixStream) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        let first_limit = Some(FIRST_LIMIT);
        Ok(Self { socket, first_limit, begun: None, was_empty: false, takes_descriptors: true })
    }

    /// The same of a side from which no descriptors are wanted.
    ///
    /// # Errors
    /// The system's.
    pub fn without_descriptors(socket: UnixStream) -> io::Result<Self> {
        Ok(Self { takes_descriptors: false, ..Self::new(socket)? })
    }

    /// Waits for the next message. An event of `stop` ends the wait; what has come of the message is kept for the next one.
    ///
    /// # Errors
    /// See [`ChannelError`].
    pub fn receive(&mut self, stop: BorrowedFd<'_>) -> Result<Message, ChannelError> {
        let fresh = || (Message::default(), self.first_limit.map(|limit| Instant::now() + limit));
        let (mut message, mut until) = self.begun.take().unwrap_or_else(fresh);
        loop {
            let wanted = message.len()?;
            let got = message.bytes.len();
            if got == wanted {
                self.first_limit = None;
                message.was_waited_for = std::mem::take(&mut self.was_empty);
                return Ok(message);
            }
            let some = match self.takes_descriptors {
                true => receive_some(&self.socket, &mut message, wanted - got),
                false => receive_bytes(&self.socket, &mut message, wanted - got),
            };
            match some {
                Ok(0) if got == 0 => return Err(ChannelError::Gone),
                Ok(0) => return Err(ChannelError::Partial),
                Ok(_) if got == 0 => until = Some(Instant::now() + MESSAGE_LIMIT),
                Ok(_) => {}
                Err(ChannelError::System(error)) if is_retry(&error) => {
                    self.was_empty |= got == 0 && error.kind() == io::ErrorKind::WouldBlock;
                    let waited = wait(&self.socket, PollFlags::IN, stop, until);
                    if matches!(waited, Err(ChannelError::Stopped)) {
                        self.begun = Some((message, until));
                        return Err(ChannelError::Stopped);
                    }
                    if !waited? {
                        return Err(match got {
                            0 => ChannelError::Silent,
                            _ => ChannelError::Slow,
                        });
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Waits for the next message, which must begin within a time.
    ///
    /// # Errors
    /// See [`ChannelError`].
    pub fn receive_within(
        &mut self,
        limit: Duration,
        stop: BorrowedFd<'_>,
    ) -> Result<Message, ChannelError> {
        self.first_limit = Some(limit);
        self.receive(stop)
    }

    /// Notes whether nothing is there.
    pub(crate) fn note_if_empty(&mut self) {
        let mut fds = [PollFd::new(&self.socket, PollFlags::IN)];
        self.was_empty |= matches!(poll(&mut fds, Some(&Timespec::default())), Ok(0));
    }

    /// Waits for `time`, unless there is an event of `stop` or the other side goes. Returns whether it waited.
    pub(crate) fn pause(&self, time: Duration, stop: BorrowedFd<'_>) -> bool {
        let until = Some(Instant::now() + time);
        time.is_zero() || matches!(wait(&self.socket, PollFlags::empty(), stop, until), Ok(false))
    }

    /// Sends a message. An event of `stop` ends the wait for room.
    ///
    /// # Errors
    /// See [`ChannelError`].
    pub fn send(&self, message: &Message, stop: BorrowedFd<'_>) -> Result<(), ChannelError> {
        let until = Some(Instant::now() + MESSAGE_LIMIT);
        let mut sent = 0;
        while sent < message.bytes.len() {
            let descriptors = if sent == 0 { &message.descriptors[..] } else { &[] };
            match send_some(&self.socket, &message.bytes[sent..], descriptors) {
                Ok(len) => sent += len,
                Err(error) if is_retry(&error.into()) => {
                    if !wait(&self.socket, PollFlags::OUT, stop, until)? {
                        return Err(ChannelError::Unread);
                    }
                }
                Err(Errno::PIPE | Errno::CONNRESET) => return Err(ChannelError::Gone),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Whether a message has come.
    pub(crate) fn has_begun(&self) -> bool {
        self.first_limit.is_none()
    }

    /// Whether the front-end sends nothing for a while, in which there is no event of `stop`.
    pub(crate) fn is_quiet(&self, pause: Duration, stop: BorrowedFd<'_>) -> bool {
        matches!(wait(&self.socket, PollFlags::IN, stop, Some(Instant::now() + pause)), Ok(false))
    }
}

impl AsFd for Channel {
    /// For those who wait for messages and for something else.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Waits until the socket is ready. Returns whether it is before `until`.
fn wait(
    socket: &UnixStream,
    flags: PollFlags,
    stop: BorrowedFd<'_>,
    until: Option<Instant>,
) -> Result<bool, ChannelError> {
    let mut fds = [PollFd::new(socket, flags), PollFd::from_borrowed_fd(stop, PollFlags::IN)];
    let left = until.map(|until| until.saturating_duration_since(Instant::now()));
    if left.is_some_and(|left| left.is_zero()) {
        return Ok(false);
    }
    let timeout = left.and_then(|left| Timespec::try_from(left).ok());
    match poll(&mut fds, timeout.as_ref()) {
        Ok(0) => Ok(false),
        Ok(_) if !fds[1].revents().is_empty() => Err(ChannelError::Stopped),
        Ok(_) | Err(Errno::INTR) => Ok(true),
        Err(error) => Err(error.into()),
    }
}

fn is_retry(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

/// Appends at most `most` bytes that are there. Returns how many.
fn receive_bytes(
    socket: &UnixStream,
    message: &mut Message,
    most: usize,
) -> Result<usize, ChannelError> {
    let start = message.bytes.len();
    message.bytes.resize(start + most, 0);
    let received = recv(socket, &mut message.bytes[start..], RecvFlags::DONTWAIT);
    let bytes = received.as_ref().map_or(0, |(bytes, _)| *bytes);
    message.bytes.truncate(start + bytes);
    match received {
        Ok(_) => Ok(bytes),
        Err(Errno::CONNRESET) => Err(ChannelError::Gone),
        Err(error) => Err(error.into()),
    }
}

/// Appends at most `most` bytes that are there, and the descriptors that came with them. Returns how many bytes.
pub(crate) fn receive_some(
    socket: impl AsFd,
    message: &mut Message,
    most: usize,
) -> Result<usize, ChannelError> {
    let start = message.bytes.len();
    message.bytes.resize(start + most, 0);
    let received = shm::receive(socket, &mut message.bytes[start..]);
    message.bytes.truncate(start + received.as_ref().map_or(0, |received| received.bytes));
    let Received { bytes, descriptors, sender } = match received {
        Ok(received) => received,
        Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {
            return Err(ChannelError::Gone);
        }
        Err(error) => return Err(error.into()),
    };
    let (descriptors, others): (Vec<_>, Vec<_>) =
        descriptors.into_iter().partition(|fd| shm::closes_at_once(fd));
    message.descriptors.extend(descriptors);
    message.sender = sender.or(message.sender);
    if !others.is_empty() {
        // They stay open, until the process ends: a thread that waits for their server could not be killed. There are not many, because the port is
        // closed until it is added again.
        std::mem::forget(others);
        return Err(ChannelError::NeverCloses);
    }
    if message.descriptors.len() > DESCRIPTORS_MAX {
        return Err(ChannelError::TooManyDescriptors);
    }
    Ok(bytes)
}

/// Sends bytes and descriptors, as many as there is room for. Returns how many bytes.
pub(crate) fn send_some(
    socket: impl AsFd,
    bytes: &[u8],
    descriptors: &[OwnedFd],
) -> Result<usize, Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let borrowed: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
    if !borrowed.is_empty() {
        // At most as many as there is space for.
        ancillary.push(SendAncillaryMessage::ScmRights(&borrowed));
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    sendmsg(socket, &[IoSlice::new(bytes)], &mut ancillary, flags)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use port::Doorbell;

    use super::*;

    /// A front-end, and the end of the session whose front-end has `first_limit` for its first message.
    fn channel(first_limit: Duration) -> (UnixStream, Channel) {
        let (theirs, ours) = UnixStream::pair().unwrap();
        let mut channel = Channel::new(ours).unwrap();
        assert_eq!(channel.first_limit, Some(FIRST_LIMIT));
        channel.first_limit = Some(first_limit);
        (theirs, channel)
    }

    #[test]
    fn a_front_end_that_says_nothing_is_given_up() {
        let stop = Doorbell::new().unwrap();
        let (_theirs, mut channel) = channel(Duration::from_millis(20));
        let silent = channel.receive(stop.as_fd()).unwrap_err();
        assert!(matches!(silent, ChannelError::Silent), "{silent}");
        assert_eq!(silent.to_string(), "no message in 10 s");
    }

    #[test]
    fn a_front_end_that_has_said_something_may_be_silent() {
        let stop = Doorbell::new().unwrap();
        let (mut theirs, mut channel) = channel(Duration::from_millis(20));
        let message = [1, 1, 0].map(u32::to_le_bytes).concat();
        theirs.write_all(&message).unwrap();
        assert_eq!(channel.receive(stop.as_fd()).unwrap().request(), 1);
        let later = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(100));
            theirs.write_all(&message).unwrap();
            theirs
        });
        assert_eq!(channel.receive(stop.as_fd()).unwrap().request(), 1);
        drop(later.join().unwrap());
        let gone = channel.receive(stop.as_fd()).unwrap_err();
        assert!(matches!(gone, ChannelError::Gone), "{gone}");
    }
}
