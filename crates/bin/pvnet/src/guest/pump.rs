//! The thread of one queue: the pump between the stack's tap and a device, in both directions.

mod counters;
mod orders;

use std::any::Any;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Instant;

use netdev::{Buffer, Burst, Gone, HEADER_MAX, Metadata, Queue, SentFrame};
use offload::vnet;
use parking_lot::Mutex;
use poller::{Poller, Polling};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use shm::Iovec;
use uplink::tap::TapQueue;
use wire::headers::{ChecksumLocation, Headers};
use wire::virtio_net::VirtioNetHdr;
use zerocopy::{FromBytes, IntoBytes};

use counters::{QueueCounters, RingWatch};
use orders::{OrderSender, OrderTaker};

/// The most frames received before the other direction has its turn.
const RECEIVE_BURST: usize = 32;

/// Turns after a device's end in which frames may still be received: more than its ring has.
const LAST_TURNS: usize = 16;

/// The stack's end of a queue, which outlives a daemon: a queue of its tap, and the frames that come before those in the tap.
#[derive(Debug)]
pub(super) struct StackQueue {
    pub(super) tap: TapQueue,
    pub(super) unconfirmed: Unconfirmed,
}

impl StackQueue {
    pub(super) fn new(tap: TapQueue) -> Self {
        Self { tap, unconfirmed: Unconfirmed::default() }
    }

    /// Another handle of it.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn try_clone(&self) -> io::Result<Self> {
        Ok(Self { tap: self.tap.try_clone()?, unconfirmed: self.unconfirmed.clone() })
    }
}

/// The frames that an earlier device has taken and not confirmed: the next one sends them first.
#[derive(Clone, Debug, Default)]
pub(super) struct Unconfirmed(Arc<Mutex<Vec<SentFrame>>>);

impl Unconfirmed {
    /// Replaces them.
    pub(super) fn set(&self, frames: Vec<SentFrame>) {
        *self.0.lock() = frames;
    }

    /// Takes them.
    pub(super) fn take(&self) -> Vec<SentFrame> {
        std::mem::take(&mut *self.0.lock())
    }
}

/// A running thread.
pub struct QueueThread {
    thread: JoinHandle<Ended>,
    counters: Arc<QueueCounters>,
    stop: Arc<Notice>,
    ended: Arc<Notice>,
    orders: OrderSender,
}

/// What a thread leaves.
pub struct Ended {
    /// Why it ended early.
    pub fault: Option<String>,
    /// Its queue. A device frees the memory of queues that live until it is closed.
    _queue: Box<dyn Any + Send>,
}

/// Something that happens once. It is readable from then on.
struct Notice {
    event: OwnedFd,
    /// The same, for a check without a system call.
    is_given: AtomicBool,
}

impl Notice {
    fn new() -> io::Result<Arc<Self>> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Arc::new(Self { event, is_given: AtomicBool::new(false) }))
    }

    fn give(&self) {
        self.is_given.store(true, Ordering::Release);
        // The counter cannot be full: it is written once or twice.
        let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
    }

    fn is_given(&self) -> bool {
        self.is_given.load(Ordering::Acquire)
    }
}

/// Why the thread ended early.
#[derive(Debug, thiserror::Error)]
enum Error<F: std::error::Error> {
    #[error("the other end broke the protocol: {0}")]
    Fault(F),
    #[error("tap: {0}")]
    Tap(io::Error),
    #[error(transparent)]
    Gone(Gone),
}

impl QueueThread {
    /// Starts it. `name` is the thread's name. `tap` does not block. The frames in `unconfirmed` are sent first, and at the
    /// end it has those that must be sent again. It waits as `polling` says.
    pub fn start<Q: Queue>(
        name: String,
        queue: Q,
        tap: impl AsFd + Send + 'static,
        unconfirmed: Unconfirmed,
        polling: Polling,
    ) -> io::Result<Self> {
        let (stop, ended) = (Notice::new()?, Notice::new()?);
        let (orders, taker) = orders::channel()?;
        let mut forwarder = Forwarder::new(queue, tap, polling, stop.clone(), taker);
        let counters = forwarder.ring.counters().clone();
        let end = ended.clone();
        let thread = std::thread::Builder::new().name(name).spawn(move || {
            forwarder.send_again(unconfirmed.take());
            let result = forwarder.run();
            if let Ok(()) | Err(Error::Gone(_)) = result {
                unconfirmed.set(forwarder.finish());
            }
            end.give();
            let fault = match result {
                Ok(()) | Err(Error::Gone(_)) => None,
                Err(error) => Some(error.to_string()),
            };
            Ended { fault, _queue: Box::new(forwarder.queue) }
        })?;
        Ok(Self { thread, counters, stop, ended, orders })
    }

    /// Lets the thread take pages of its queue out of use; see [`Queue::set_aside`].
    pub fn set_aside(&self, count: usize) -> Vec<u16> {
        self.orders.set_aside(count)
    }

    /// Lets the thread use pages again; see [`Queue::put_back`].
    pub fn put_back(&self, pages: Vec<u16>) {
        self.orders.put_back(pages);
    }

    /// What it has sent.
    pub fn counters(&self) -> &QueueCounters {
        &self.counters
    }

    /// Asks the thread to end.
    pub fn stop(&self) {
        self.stop.give();
    }

    /// Readable once the thread has ended.
    pub fn ended(&self) -> BorrowedFd<'_> {
        self.ended.event.as_fd()
    }

    /// Whether the thread has ended.
    pub fn has_ended(&self) -> bool {
        self.ended.is_given()
    }

    /// Waits for the end.
    pub fn join(self) -> Ended {
        self.thread.join().unwrap_or_else(|_| Ended {
            fault: Some("a queue's thread panicked".to_owned()),
            _queue: Box::new(()),
        })
    }
}

/// The thread's state.
struct Forwarder<Q: Queue, T> {
    queue: Q,
    /// What the queue wants.
    burst: Burst,
    tap: T,
    /// The frame being received.
    frame: Q::Frame,
    /// For frames whose checksum is completed here. Allocated with the first of them.
    scratch: Vec<u8>,
    /// The last read found nothing: wait before reading again.
    tap_empty: bool,
    ring: RingWatch,
    poller: Poller,
    stop: Arc<Notice>,
    orders: OrderTaker,
}

impl<Q: Queue, T: AsFd> Forwarder<Q, T> {
    fn new(queue: Q, tap: T, polling: Polling, stop: Arc<Notice>, orders: OrderTaker) -> Self {
        let (burst, frame) = (queue.burst(), Q::Frame::default());
        let (ring, poller) = (RingWatch::default(), Poller::of(polling));
        let (scratch, tap_empty) = (Vec::new(), false);
        Self { queue, burst, tap, frame, scratch, tap_empty, ring, poller, stop, orders }
    }

    fn run(&mut self) -> Result<(), Error<Q::Fault>> {
        loop {
            self.orders.follow(&mut self.queue);
            let received = self.receive()?;
            self.queue.reclaim().map_err(Error::Fault)?;
            let sent = self.send()?;
            if self.stop.is_given() {
                return Ok(());
            }
            if received || sent {
                continue;
            }
            if self.poller.is_worth_polling(Instant::now()) {
                std::thread::yield_now();
                self.tap_empty = false;
                continue;
            }
            let waiting_for_room = !self.queue.has_room();
            if self.queue.arm(waiting_for_room).map_err(Error::Fault)? {
                continue;
            }
            self.sleep(waiting_for_room)?;
        }
    }

    /// Sends frames that another device did not confirm, as far as they fit. The other end may have had some of them.
    fn send_again(&mut self, frames: Vec<SentFrame>) {
        for SentFrame { metadata, bytes } in frames {
            let mut rest = &bytes[..];
            for Buffer { region, offset, len } in self.queue.buffers() {
                let (part, after) = rest.split_at(len.min(rest.len()));
                if part.is_empty() || region.copy_in(offset, part).is_err() {
                    break;
                }
                rest = after;
            }
            if !rest.is_empty() || self.queue.submit(metadata).is_err() {
                break;
            }
        }
        self.queue.kick();
    }

    /// Hands the stack what has arrived before the device's end. Returns the frames that are not confirmed.
    fn finish(&mut self) -> Vec<SentFrame> {
        // A device that has not ended may go on for ever.
        for _ in 0..LAST_TURNS {
            if !matches!(self.receive(), Ok(true)) {
                break;
            }
        }
        self.queue.unconfirmed()
    }

    /// Waits for either end, or to be asked to stop.
    fn sleep(&mut self, waiting_for_room: bool) -> Result<(), Error<Q::Fault>> {
        // Without room in the ring, a readable tap must not wake this thread repeatedly.
        let tap = if waiting_for_room { PollFlags::empty() } else { PollFlags::IN };
        let [rx, tx] = self.queue.events();
        let mut fds = [
            PollFd::new(&self.tap, tap),
            PollFd::from_borrowed_fd(rx, PollFlags::IN),
            PollFd::from_borrowed_fd(tx, PollFlags::IN),
            PollFd::new(&self.orders, PollFlags::IN),
            PollFd::new(&self.stop.event, PollFlags::IN),
        ];
        rustix::io::retry_on_intr(|| poll(&mut fds, None))
            .map_err(|errno| Error::Tap(errno.into()))?;
        // The orders are taken in the next turn.
        let [tap, rx, tx, ..] = fds.map(|fd| !fd.revents().is_empty());
        self.queue.clear([rx, tx]).map_err(Error::Gone)?;
        self.tap_empty &= !tap;
        Ok(())
    }

    /// Forwards frames from the ring to the stack. Returns whether there was one.
    fn receive(&mut self) -> Result<bool, Error<Q::Fault>> {
        let (mut frames, mut bytes) = (0, 0);
        for _ in 0..RECEIVE_BURST {
            let received = self.queue.receive(&mut self.frame).map_err(Error::Fault)?;
            let Some(metadata) = received else { break };
            frames += 1;
            bytes += metadata.len as u64;
            self.write(metadata);
        }
        if frames > 0 || self.queue.has_failed_frames() {
            self.queue.give_back();
        }
        if frames > 0 {
            self.ring.copied(self.queue.copied());
            self.poller.worked(frames, bytes, Instant::now);
        }
        Ok(frames > 0)
    }

    /// Writes the received frame to the stack: one system call, one copy. A frame that the stack
    /// refuses is lost, as on any wire.
    fn write(&self, Metadata { len, checksum, gso }: Metadata) {
        let mut head = [0; HEADER_MAX];
        let Some(head) = copy_head(self.queue.fragments(&self.frame), &mut head) else { return };
        let Ok(headers) = Headers::parse_start(head, len) else { return };
        let header = vnet::encode(&headers, checksum, gso);
        let body = self.queue.fragments(&self.frame);
        let iovecs = std::iter::once(Iovec::Private(header.as_bytes())).chain(body);
        let _ = shm::writev(&self.tap, iovecs);
    }

    /// Forwards frames from the stack to the ring. Returns whether there was one.
    fn send(&mut self) -> Result<bool, Error<Q::Fault>> {
        let (mut frames, mut bytes) = (0, 0);
        let mut pending = 0;
        for _ in 0..self.burst.frames {
            if !self.ring.note_room(self.queue.has_room()) || self.tap_empty {
                break;
            }
            match self.read() {
                Ok(len) => {
                    frames += 1;
                    bytes += len as u64;
                    pending += len;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.tap_empty = true,
                Err(error) => return Err(Error::Tap(error)),
            }
            if pending >= self.burst.bytes {
                self.queue.kick();
                pending = 0;
            }
        }
        self.queue.kick();
        if frames > 0 {
            self.ring.sent(frames as u64);
            self.poller.worked(frames, bytes, Instant::now);
        }
        Ok(frames > 0)
    }

    /// Reads one frame from the stack straight into the device's pages: one system call, one copy.
    /// Returns its length. A frame that the device cannot carry is dropped.
    fn read(&mut self) -> io::Result<usize> {
        let mut header = [0; VirtioNetHdr::LEN];
        let places = self.queue.buffers();
        let places = places.map(|Buffer { region, offset, len }| (region, offset, len));
        let bytes = shm::readv(&self.tap, &mut header, places)?;
        let len = bytes.saturating_sub(VirtioNetHdr::LEN);
        let Some(first) = self.queue.buffers().next() else { return Ok(0) };
        let mut head = [0; HEADER_MAX];
        let head = &mut head[..HEADER_MAX.min(len)];
        first.region.copy_out(first.offset, head).map_err(io::Error::other)?;
        let header = VirtioNetHdr::read_from_bytes(&header).unwrap_or_default();
        let Ok(headers) = Headers::parse_start(head, len) else { return Ok(0) };
        let (checksum, gso) = match vnet::decode(&header, &headers) {
            Ok(metadata) => metadata,
            Err(asked) => match asked.checksum_elsewhere(&headers, head.len()) {
                Some(at) if self.complete(len, at) => Default::default(),
                _ => return Ok(0),
            },
        };
        let sent = self.queue.submit(Metadata { len, checksum, gso });
        Ok(sent.map_or(0, |()| len))
    }

    /// Completes a checksum for which a device has no word, in the device's pages. Returns whether it could.
    #[cold]
    fn complete(&mut self, len: usize, at: ChecksumLocation) -> bool {
        self.scratch.resize(len, 0);
        let mut rest = &mut self.scratch[..];
        for Buffer { region, offset, len } in self.queue.buffers() {
            let (part, after) = rest.split_at_mut(len.min(rest.len()));
            if region.copy_out(offset, part).is_err() {
                return false;
            }
            rest = after;
        }
        if !rest.is_empty() || offload::complete_checksum_at(&mut self.scratch, at).is_err() {
            return false;
        }
        // The field lies in the first bytes, and so in the first buffer.
        let field = usize::from(at.start + at.offset);
        let sum = &self.scratch[field..field + 2];
        let first = self.queue.buffers().next();
        first.is_some_and(|first| first.region.copy_in(first.offset + field, sum).is_ok())
    }
}

/// Copies the first bytes, as far as they lie in the first fragment.
fn copy_head<'a, 'b>(
    mut fragments: impl Iterator<Item = Iovec<'a>>,
    head: &'b mut [u8; HEADER_MAX],
) -> Option<&'b [u8]> {
    let Some(Iovec::Shared { region, offset, len }) = fragments.next() else { return None };
    let head = &mut head[..HEADER_MAX.min(len)];
    region.copy_out(offset, head).ok()?;
    Some(head)
}

#[cfg(test)]
mod tests;
