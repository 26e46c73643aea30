//! A connection with a back-end.

use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use hypervisor::Meter;
use port::{FRAME_MAX, Queue};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use vhost_user::shared::{Alarm, Channel, bit};
use virtqueue::burst::BurstDriver;

use crate::error::Error;
use crate::messages::{
    GET_FEATURES, GET_PROTOCOL_FEATURES, GET_QUEUE_NUM, Messages, Notifier, SET_FEATURES,
    SET_OWNER, SET_PROTOCOL_FEATURES, protocol,
};
use crate::options::{Agreed, Options};
use crate::receiver::Receiver;
use crate::sender::Sender;
use crate::shared_memory::{PART, Ring, RingShape, SharedMemory, WHOLE};

/// Entries of the ring of frames to the back-end. The segments of any frame have room in it.
const SENT: u16 = 256;
/// Entries of the ring of frames from it: a window of frames of 64 KiB in parts, or as many whole frames as go out.
const RECEIVED_IN_PARTS: u16 = 1024;
const RECEIVED_WHOLE: u16 = 256;

const _: () = assert!(WHOLE as usize >= FRAME_MAX + 12 && SENT as usize > port::SEGMENTS_MAX);

/// A connection whose rings are served. Its queues can be used as long as it lasts, and may be dropped before or after it.
#[derive(Debug)]
pub struct Session {
    channel: Channel,
    /// Rung when a worker had to be freed from a write to an eventfd.
    alarm: Arc<Alarm>,
    agreed: Agreed,
    /// Freed when the connection is over.
    _memory: SharedMemory,
}

/// Connects to the back-end behind `stream`: agrees on features, shares memory, and describes rings. Returns the session and its
/// queues. An event of `stop` ends every wait.
///
/// # Errors
/// See [`Error`].
pub fn connect(
    stream: UnixStream,
    options: &Options,
    meter: &Arc<Meter>,
    stop: BorrowedFd<'_>,
) -> Result<(Session, Vec<Queue>), Error> {
    let mut channel = Channel::without_descriptors(stream)?;
    let alarm = Alarm::new()?;
    let mut messages = Messages::new(&mut channel, stop);
    let agreed = agree(&mut messages, options)?;
    let parts = agreed.has(bit::MRG_RXBUF);
    let received = match parts {
        true => RingShape { size: RECEIVED_IN_PARTS, buffer: PART, are_writable: true },
        false => RingShape { size: RECEIVED_WHOLE, buffer: WHOLE, are_writable: true },
    };
    let sent = RingShape { size: SENT, buffer: WHOLE, are_writable: false };
    let memory = SharedMemory::new(&[received, sent].repeat(agreed.queues.into()))?;
    messages.share(&memory)?;
    let mut queues = Vec::new();
    let mut indices = 0u8..;
    for pair in memory.rings.chunks_exact(2) {
        let mut open = |ring: &Ring| -> Result<_, Error> {
            let (notifier, descriptors) = Notifier::new(&alarm)?;
            let driver =
                BurstDriver::new(&memory.region, ring.at, ring.size, agreed.layout(), ring.buffers);
            let driver = driver.in_order(agreed.has(bit::IN_ORDER));
            // At most 128 pairs of rings.
            let index = indices.next().unwrap_or(u8::MAX);
            messages.describe(index, ring, agreed.layout(), descriptors)?;
            Ok((driver, notifier))
        };
        let ((received, of_received), (sent, of_sent)) = (open(&pair[0])?, open(&pair[1])?);
        let share = || memory.region.share().ok_or_else(|| io::Error::other("no slice"));
        let ingress = Receiver::new(received, share()?, of_received, agreed);
        let egress = Sender::new(sent, share()?, of_sent, agreed, meter);
        queues.push(Queue { ingress: Box::new(ingress), egress: Box::new(egress) });
    }
    if agreed.has(bit::PROTOCOL_FEATURES) {
        (0u8..).zip(&memory.rings).try_for_each(|(index, _)| messages.enable(index))?;
    }
    // A back-end that answers this has taken all that was said before.
    messages.ask(GET_FEATURES)?;
    Ok((Session { channel, alarm, agreed, _memory: memory }, queues))
}

/// Agrees on features and on a number of queues.
fn agree(messages: &mut Messages<'_>, options: &Options) -> Result<Agreed, Error> {
    messages.say(SET_OWNER)?;
    let offered = messages.ask(GET_FEATURES)?;
    let mut agreed = options.accept(offered);
    if agreed.has(bit::PROTOCOL_FEATURES) {
        let wanted = protocol::MQ | protocol::REPLY_ACK;
        let accepted = messages.ask(GET_PROTOCOL_FEATURES)? & wanted;
        messages.tell(SET_PROTOCOL_FEATURES, accepted)?;
        messages.are_answered = accepted & protocol::REPLY_ACK != 0;
        if accepted & protocol::MQ != 0 && agreed.has(bit::MQ) {
            let most = u16::try_from(messages.ask(GET_QUEUE_NUM)?).unwrap_or(u16::MAX);
            agreed.queues = options.queues.min(most).clamp(1, Options::QUEUES_MAX);
        }
    }
    if agreed.queues == 1 {
        agreed.features &= !bit::MQ;
    }
    messages.tell(SET_FEATURES, agreed.features)?;
    Ok(agreed)
}

impl Session {
    /// What was agreed.
    #[must_use]
    pub fn agreed(&self) -> Agreed {
        self.agreed
    }

    /// Waits until the connection ends, or until an event of `stop`. Returns why it ended.
    pub fn wait(&mut self, stop: BorrowedFd<'_>) -> Error {
        loop {
            let mut fds = [
                PollFd::from_borrowed_fd(stop, PollFlags::IN),
                PollFd::new(&*self.alarm, PollFlags::IN),
                PollFd::new(&self.channel, PollFlags::IN),
            ];
            match poll(&mut fds, None) {
                Err(Errno::INTR) => continue,
                Err(error) => return Error::System(error.into()),
                Ok(_) => {}
            }
            let [stopped, blocked, said] = fds.map(|fd| !fd.revents().is_empty());
            if blocked {
                return Error::Blocked;
            }
            if stopped {
                return Error::Stopped;
            }
            if said {
                return match self.channel.receive(stop) {
                    Ok(_) => Error::Unasked,
                    Err(error) => Error::of("anything")(error),
                };
            }
        }
    }
}
