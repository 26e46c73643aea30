//! A card's interrupt handler: a thread that decodes the vectors and sends virtual interrupts.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use cdna::vectors::PAGE_LEN;
use contexts::VectorConsumer;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use shm::{PageSize, Region, create_memfd};
use tracing::warn;

use super::card::{Attached, NicCard};
use crate::daemon::error::Error;
use crate::daemon::thread::spawn;

/// How often deferred unmappings are checked.
const TICK: Duration = Duration::from_millis(5);

/// The page and the interrupt, as the card gets them.
pub(super) struct Vectors {
    file: OwnedFd,
    page: Arc<Region>,
    interrupt: Arc<OwnedFd>,
}

/// The thread. Dropping it ends the thread.
pub(super) struct Handler {
    interrupt: Arc<OwnedFd>,
    is_stopped: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Vectors {
    pub(super) fn new() -> io::Result<Self> {
        let file =
            create_memfd("pvnet-vectors", PAGE_LEN / PageSize::Small.bytes(), PageSize::Small)?;
        let page = Arc::new(Region::map(&file, 0, PAGE_LEN)?);
        let interrupt = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { file, page, interrupt: Arc::new(interrupt) })
    }

    /// The descriptors for the card.
    pub(super) fn for_card(&self) -> [BorrowedFd<'_>; 2] {
        [self.file.as_fd(), self.interrupt.as_fd()]
    }

    /// Starts the thread.
    pub(super) fn start(
        self,
        card: Arc<NicCard>,
        attached: Arc<Attached>,
    ) -> Result<Handler, Error> {
        let Self { page, interrupt, .. } = self;
        let is_stopped = Arc::new(AtomicBool::new(false));
        let (theirs, stopped) = (interrupt.clone(), is_stopped.clone());
        let thread = spawn("nic vectors", move || {
            if let Err(error) = handle(&card, &attached, page, &theirs, &stopped) {
                warn!(card = card.name(), %error, "its interrupts failed: the card is ended");
                attached.connection.close();
            }
        })?;
        Ok(Handler { interrupt, is_stopped, thread: Some(thread) })
    }
}

impl Drop for Handler {
    fn drop(&mut self) {
        self.is_stopped.store(true, Ordering::Release);
        // It is full only if the thread has much to do, and then it checks.
        let _ = rustix::io::write(&*self.interrupt, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            // A panic has ended the daemon.
            let _ = thread.join();
        }
    }
}

fn handle(
    card: &NicCard,
    attached: &Attached,
    page: Arc<Region>,
    interrupt: &OwnedFd,
    is_stopped: &AtomicBool,
) -> Result<(), Box<dyn std::error::Error>> {
    let mut vectors = VectorConsumer::new(page)?;
    let has_deferred = card.has_deferred();
    let timeout = has_deferred.then(|| Timespec::try_from(TICK).unwrap_or_default());
    while !is_stopped.load(Ordering::Acquire) {
        let interrupted = vectors.deliver(|context| {
            let slot = card.slot_of(context).and_then(|slot| card.interrupts().get(slot));
            if let Some(interrupts) = slot {
                interrupts.send();
            }
        })?;
        attached.vectors.store(vectors.taken(), Ordering::Relaxed);
        if has_deferred {
            attached.contexts.tick(card.now());
        }
        if interrupted == 0 && vectors.arm() {
            let mut fds = [PollFd::new(interrupt, PollFlags::IN)];
            rustix::io::retry_on_intr(|| poll(&mut fds, timeout.as_ref()))?;
            vectors.disarm();
            // Empty after a timeout.
            let _ = rustix::io::read(interrupt, &mut [0; 8]);
        }
    }
    Ok(())
}
