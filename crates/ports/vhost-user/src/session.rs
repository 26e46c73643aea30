//! A connection of a front-end.

use std::fmt;
use std::io;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hypervisor::Meter;
use port::Queue;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use shm::Region;
use vhost::vhost_user::{BackendReqHandler, Error};
use virtqueue::{GuestMemory, Range};

use crate::early::Enable;
use crate::features::{DeviceOptions, Negotiated};
use crate::guest_rx::GuestRx;
use crate::guest_tx::GuestTx;
use crate::vring::Vring;

/// Rings are served once the front-end has sent nothing for so long: it describes them in many messages.
const PAUSE: Duration = Duration::from_millis(1);

/// The network device that a session serves.
pub trait Device: Send + Sync {
    /// These queues can be used from now on: the rings that the guest's driver uses, in order.
    fn start(&self, queues: Vec<Queue>);

    /// They must not be used any more. When this returns, nobody does, and all of them are dropped.
    fn stop(&self, why: &str);
}

/// What the front-end has said so far.
pub struct Session {
    pub(crate) options: DeviceOptions,
    pub(crate) negotiated: Option<Negotiated>,
    /// The guest's memory, part by part.
    pub(crate) parts: Vec<(Range, Region)>,
    pub(crate) rings: Vec<Vring>,
    device: Arc<dyn Device>,
    meter: Arc<Meter>,
    /// The pairs of rings that are served.
    served: Vec<usize>,
    /// Why the session must end, in more words than a message handler's error has.
    pub(crate) error: Option<String>,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { options, negotiated, rings, served, .. } = self;
        f.debug_struct("Session")
            .field("options", options)
            .field("negotiated", negotiated)
            .field("rings", rings)
            .field("served", served)
            .finish_non_exhaustive()
    }
}

impl Session {
    /// A session that has heard nothing yet.
    ///
    /// # Errors
    /// The process is out of descriptors.
    pub fn new(
        options: DeviceOptions,
        device: Arc<dyn Device>,
        meter: Arc<Meter>,
    ) -> io::Result<Self> {
        let rings = (0..2 * options.queues).map(|_| Vring::new()).collect::<io::Result<_>>()?;
        Ok(Self {
            options,
            negotiated: None,
            parts: Vec::new(),
            rings,
            device,
            meter,
            served: Vec::new(),
            error: None,
        })
    }

    /// Serves a front-end until it goes, or sends what cannot be. Returns why it ended.
    pub fn run(self, stream: UnixStream) -> String {
        let watched = match stream.try_clone() {
            Ok(watched) => watched,
            Err(error) => return error.to_string(),
        };
        let session = Arc::new(Mutex::new(self));
        let mut requests = BackendReqHandler::from_stream(stream, session.clone());
        let why = loop {
            let pending = lock(&session).is_pending();
            let step = if pending && is_quiet(&watched) {
                lock(&session).serve_ready()
            } else {
                let early = lock(&session).take_early(&watched);
                match early {
                    Ok(false) => requests.handle_request().map_err(|error| describe(&error)),
                    taken => taken.map(drop),
                }
            };
            if let Err(why) = step {
                break lock(&session).error.take().unwrap_or(why);
            }
        };
        lock(&session).stop(&why);
        why
    }

    /// Takes the next message if it switches a ring before features were accepted. Returns whether it did.
    fn take_early(&mut self, stream: &UnixStream) -> Result<bool, String> {
        if self.negotiated.is_some() {
            return Ok(false);
        }
        let Some(enable) = Enable::take(stream).map_err(|error| error.to_string())? else {
            return Ok(false);
        };
        let count = self.rings.len();
        let Some(ring) = self.rings.get_mut(enable.ring as usize) else {
            return Err(format!("ring {} of {count}", enable.ring));
        };
        ring.is_enabled = enable.is_on;
        enable.answer(stream).map(|()| true).map_err(|error| error.to_string())
    }

    /// The pairs of rings that could be served: the numbers of those whose both rings are ready.
    fn ready(&self) -> Vec<usize> {
        if self.negotiated.is_none() || self.parts.is_empty() {
            return Vec::new();
        }
        let pairs = self.rings.chunks(2).enumerate();
        pairs.filter(|(_, pair)| pair.iter().all(Vring::is_ready)).map(|(n, _)| n).collect()
    }

    /// Whether other rings must be served than are.
    fn is_pending(&self) -> bool {
        self.ready() != self.served
    }

    /// Serves all rings that are ready, and no others.
    fn serve_ready(&mut self) -> Result<(), String> {
        self.stop("the front-end changed its rings");
        let ready = self.ready();
        let Some(negotiated) = self.negotiated.filter(|_| !ready.is_empty()) else { return Ok(()) };
        let memory = Arc::new(self.memory().map_err(|error| error.to_string())?);
        let queues = ready.iter().map(|pair| self.open(*pair, &memory, negotiated));
        let queues = queues.collect::<Result<_, _>>()?;
        self.served = ready;
        self.device.start(queues);
        Ok(())
    }

    /// Both directions of a pair of rings.
    fn open(
        &self,
        pair: usize,
        memory: &Arc<GuestMemory>,
        negotiated: Negotiated,
    ) -> Result<Queue, String> {
        let [rx, tx] = [2 * pair, 2 * pair + 1].map(|index| {
            let ring = &self.rings[index];
            let queue = ring.open(memory, negotiated.rings());
            queue.map(|queue| (ring, queue)).map_err(|error| format!("ring {index}: {error}"))
        });
        let ((rx, rx_queue), (tx, tx_queue)) = (rx?, tx?);
        let egress = GuestRx::new(
            self.meter.clone(),
            (rx_queue, rx.size),
            negotiated,
            rx.kick.clone(),
            rx.call.clone(),
            rx.position.clone(),
        );
        let ingress = GuestTx::new(
            tx_queue,
            negotiated,
            tx.kick.clone(),
            tx.call.clone(),
            tx.position.clone(),
        );
        Ok(Queue { ingress: Box::new(ingress), egress: Box::new(egress) })
    }

    /// The table of the guest's memory as it is now.
    pub(crate) fn memory(&self) -> Result<GuestMemory, virtqueue::MemoryError> {
        let shared = self.parts.iter().map(|(range, region)| Some((*range, region.share()?)));
        GuestMemory::new(shared.collect::<Option<_>>().unwrap_or_default())
    }

    /// Stops serving all rings, before something changes that they use.
    pub(crate) fn stop(&mut self, why: &str) {
        if !std::mem::take(&mut self.served).is_empty() {
            self.device.stop(why);
        }
    }

    /// Stops serving all rings if ring `index` is among those served.
    pub(crate) fn stop_ring(&mut self, index: usize, why: &str) {
        if self.served.contains(&(index / 2)) {
            self.stop(why);
        }
    }
}

/// Whether the front-end sends nothing for a while.
fn is_quiet(stream: &UnixStream) -> bool {
    let mut fds = [PollFd::new(stream, PollFlags::IN)];
    let timeout = Timespec::try_from(PAUSE).unwrap_or_default();
    matches!(poll(&mut fds, Some(&timeout)), Ok(0))
}

fn describe(error: &Error) -> String {
    match error {
        Error::Disconnected => "the front-end is gone".into(),
        error => error.to_string(),
    }
}

fn lock(session: &Mutex<Session>) -> MutexGuard<'_, Session> {
    session.lock().unwrap_or_else(PoisonError::into_inner)
}
