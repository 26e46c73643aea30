//! The thread of one queue, which forwards frames between the tap and the frontend in both directions.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;

use hypervisor::{EventChannel, Guest};
use netfront::{Fault, Queue, Received, TxBuffer};
use offload::vnet;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use shm::Piece;
use uplink::tap::{TapQueue, VNET_HEADER_LEN};
use wire::headers::Headers;
use wire::netif::MAX_TX_SIZE;
use wire::virtio_net::VirtioNetHdr;
use zerocopy::{FromBytes, IntoBytes};

/// Bytes of a frame that are parsed for its headers.
const HEADER_MAX: usize = 128;
/// The most frames read from the tap before the other direction has its turn.
const BURST: usize = 32;
/// Bytes per publication: the backend processes them while the next are read.
const PUBLISH_BYTES: usize = 16 * 1024;

/// A running thread.
pub struct QueueThread {
    thread: JoinHandle<Result<(), Error>>,
    stop: Arc<OwnedFd>,
    ended: Arc<OwnedFd>,
}

/// Why the thread ended early.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("the backend broke the protocol: {0}")]
    Fault(#[from] Fault),
    #[error("tap: {0}")]
    Tap(#[from] io::Error),
    #[error("the daemon is gone")]
    Gone(#[from] hypervisor::Error),
}

impl QueueThread {
    /// Starts it.
    pub fn start<G: Guest>(number: usize, queue: Queue<G>, tap: TapQueue) -> io::Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let stop = Arc::new(eventfd(0, flags)?);
        let ended = Arc::new(eventfd(0, flags)?);
        let forwarder = Forwarder {
            queue,
            tap,
            frame: Received::default(),
            tap_empty: false,
            stop: stop.clone(),
        };
        let end = ended.clone();
        let builder = std::thread::Builder::new().name(format!("queue-{number}"));
        let thread = builder.spawn(move || {
            let result = forwarder.run();
            signal(&end);
            result
        })?;
        Ok(Self { thread, stop, ended })
    }

    /// Asks the thread to end.
    pub fn stop(&self) {
        signal(&self.stop);
    }

    /// Readable once the thread has ended.
    pub fn ended(&self) -> BorrowedFd<'_> {
        self.ended.as_fd()
    }

    /// Waits for the end. The error is why it ended early.
    pub fn join(self) -> Option<String> {
        match self.thread.join() {
            Ok(Ok(()) | Err(Error::Gone(_))) => None,
            Ok(Err(error)) => Some(error.to_string()),
            Err(_) => Some("a queue's thread panicked".to_owned()),
        }
    }
}

/// Makes an eventfd readable from now on.
fn signal(event: &OwnedFd) {
    // The counter cannot be full: it is written once or twice.
    let _ = rustix::io::write(event, &1u64.to_ne_bytes());
}

/// The thread's state.
struct Forwarder<G: Guest> {
    queue: Queue<G>,
    tap: TapQueue,
    /// The frame being received.
    frame: Received,
    /// The last read found nothing: wait before reading again.
    tap_empty: bool,
    stop: Arc<OwnedFd>,
}

impl<G: Guest> Forwarder<G> {
    fn run(mut self) -> Result<(), Error> {
        loop {
            let received = self.receive()?;
            self.queue.tx.reclaim()?;
            let sent = self.send()?;
            if (received || sent) && !self.is_stopped() {
                continue;
            }
            let waiting_for_room = !self.queue.tx.has_room();
            if self.queue.rx.arm()? || (waiting_for_room && self.queue.tx.arm()?) {
                continue;
            }
            if self.sleep(waiting_for_room)? {
                return Ok(());
            }
        }
    }

    fn is_stopped(&self) -> bool {
        rustix::io::read(&*self.stop, &mut [0; 8]).is_ok_and(|_| {
            signal(&self.stop);
            true
        })
    }

    /// Waits for either end. Returns whether to stop.
    fn sleep(&mut self, waiting_for_room: bool) -> Result<bool, Error> {
        let (rx, tx) = (self.queue.rx.event().clone(), self.queue.tx.event().clone());
        // Without room in the ring, a readable tap must not wake this thread repeatedly.
        let tap = if waiting_for_room { PollFlags::empty() } else { PollFlags::IN };
        let mut fds = [
            PollFd::new(&*self.stop, PollFlags::IN),
            PollFd::new(&*rx, PollFlags::IN),
            PollFd::new(&*tx, PollFlags::IN),
            PollFd::new(&self.tap, tap),
        ];
        rustix::io::retry_on_intr(|| poll(&mut fds, None)).map_err(io::Error::from)?;
        let [stop, rx_rung, tx_rung, tap] = fds.map(|fd| fd.revents());
        if !rx_rung.is_empty() {
            rx.take()?;
        }
        if !tx_rung.is_empty() {
            tx.take()?;
        }
        self.tap_empty &= tap.is_empty();
        Ok(!stop.is_empty())
    }

    /// Forwards a frame from the ring to the stack. Returns whether there was one.
    fn receive(&mut self) -> Result<bool, Error> {
        let mut any = false;
        for _ in 0..BURST {
            if !self.queue.rx.receive(&mut self.frame)? {
                break;
            }
            any = true;
            self.write(&self.frame);
        }
        if any {
            self.queue.rx.publish();
        }
        Ok(any)
    }

    /// Writes one frame to the stack: one system call, one copy. A frame that the stack refuses is
    /// lost, as on any wire.
    fn write(&self, frame: &Received) {
        let body = self.queue.rx.pieces(frame);
        let mut head = [0; HEADER_MAX];
        let Some(head) = copy_head(self.queue.rx.pieces(frame), &mut head) else { return };
        let Ok(headers) = Headers::parse_start(head, frame.len) else { return };
        let metadata = vnet::encode(&headers, frame.checksum, frame.gso);
        let pieces = std::iter::once(Piece::Private(metadata.as_bytes())).chain(body);
        let _ = shm::write_pieces(&self.tap, pieces);
    }

    /// Forwards a frame from the stack to the ring. Returns whether there was one.
    fn send(&mut self) -> Result<bool, Error> {
        let mut any = false;
        let mut pending = 0;
        for _ in 0..BURST {
            if self.tap_empty || !self.queue.tx.has_room() {
                break;
            }
            match self.read() {
                Ok(len) => {
                    any = true;
                    pending += len;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.tap_empty = true,
                Err(error) => return Err(error.into()),
            }
            if pending >= PUBLISH_BYTES {
                self.queue.tx.publish();
                pending = 0;
            }
        }
        self.queue.tx.publish();
        Ok(any)
    }

    /// Reads one frame from the stack straight into shared pages: one system call, one copy.
    /// Returns its length. A frame that netif cannot carry is dropped.
    fn read(&mut self) -> io::Result<usize> {
        let mut metadata = [0; VNET_HEADER_LEN];
        let places = self.queue.tx.buffers();
        let places = places.map(|TxBuffer { region, offset, len }| (region, offset, len));
        let bytes = shm::read_pieces(&self.tap, &mut metadata, places)?;
        let len = bytes.saturating_sub(VNET_HEADER_LEN);
        let Some(first) = self.queue.tx.buffers().next() else { return Ok(0) };
        let mut head = [0; HEADER_MAX];
        let head = &mut head[..HEADER_MAX.min(len)];
        first.region.copy_out(first.offset, head).map_err(io::Error::other)?;
        let metadata = VirtioNetHdr::read_from_bytes(&metadata).unwrap_or_default();
        let Ok(headers) = Headers::parse_start(head, len) else { return Ok(0) };
        let Ok((checksum, gso)) = vnet::decode(&metadata, &headers) else { return Ok(0) };
        match u16::try_from(len) {
            Ok(frame_len) if len <= MAX_TX_SIZE => {
                // There is room: it was checked before reading.
                let _ = self.queue.tx.send(frame_len, checksum, gso);
                Ok(len)
            }
            _ => Ok(0),
        }
    }
}

/// Copies the first bytes, as far as they lie in the first piece.
fn copy_head<'a, 'b>(
    mut pieces: impl Iterator<Item = Piece<'a>>,
    head: &'b mut [u8; HEADER_MAX],
) -> Option<&'b [u8]> {
    let Some(Piece::Shared { region, offset, len }) = pieces.next() else { return None };
    let head = &mut head[..HEADER_MAX.min(len)];
    region.copy_out(offset, head).ok()?;
    Some(head)
}
