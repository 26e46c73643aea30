//! A connection of a front-end.

pub(crate) mod renewal;
pub(crate) mod watch;

use std::fmt;
use std::fs::File;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use hypervisor::Meter;
use port::Queue;
use shm::Region;
use virtqueue::{DirtyLog, GuestMemory, InflightLog, Range};
use wire::ethernet::MacAddr;

use crate::budget::MemoryBudget;
use crate::config_space::Link;
use crate::doorbells::HeldUp;
use crate::features::{DeviceOptions, Negotiated};
use crate::guest_rx::GuestRx;
use crate::guest_tx::{Announcement, GuestTx};
use crate::inflight::Inflight;
use crate::memory::MemoryFiles;
use crate::paces::Paces;
use crate::processes::{Alarm, Processes};
use crate::vring::Vring;
use crate::watchdog;
use renewal::Renewal;
use watch::{Condition, Watch};

/// The MTU of a device whose front-end says none.
const MTU: u16 = 1500;

/// The network device that a session serves.
pub trait Device: Send + Sync {
    /// These queues can be used from now on: the rings that the guest's driver uses, in order.
    fn start(&self, queues: Vec<Queue>);

    /// They must not be used any more. When this returns, nobody does, and all of them are dropped.
    fn stop(&self, why: &str);

    /// What the session has come to, each time that this is something else, and after a moment in which the front-end said nothing.
    fn settle(&self, _condition: Condition) {}

    /// Notifications of the guest have held up whoever sent them, for some such time. Called by workers: it must not block.
    fn held_up(&self, _time: Duration) {}
}

/// A part of a guest's memory.
pub(crate) struct Part {
    pub(crate) range: Range,
    pub(crate) region: Region,
    pub(crate) file: Arc<File>,
    /// Its first byte in the file.
    pub(crate) offset: u64,
}

/// What the front-end has said so far.
pub struct Session {
    pub(crate) options: DeviceOptions,
    pub(crate) negotiated: Option<Negotiated>,
    /// The guest's memory, part by part.
    pub(crate) parts: Vec<Part>,
    /// Its files, for others than this session.
    pub(crate) files: Arc<MemoryFiles>,
    /// Who asks that its rings are served anew.
    pub(crate) renewal: Arc<Renewal>,
    /// What may be mapped of them, and of the logs below.
    pub(crate) budget: Arc<MemoryBudget>,
    /// How often its front-end may have work done.
    pub(crate) paces: Arc<Paces>,
    /// Parts that were removed, the last one first: those that QEMU may remove again.
    pub(crate) removed: Vec<Range>,
    pub(crate) rings: Vec<Vring>,
    /// Where rings note what is in flight.
    pub(crate) inflight: Option<Inflight>,
    /// Where written pages are noted, if the driver's features say so.
    pub(crate) dirty_log: Option<DirtyLog>,
    /// Protocol features that the front-end accepted.
    pub(crate) protocol: u64,
    /// What the guest's driver wrote as the device's status.
    pub(crate) device_status: u8,
    pub(crate) mac: Option<MacAddr>,
    pub(crate) offers_config_space: bool,
    pub(crate) mtu: u16,
    pub(crate) link: Arc<Link>,
    pub(crate) announcement: Arc<Announcement>,
    /// Rung when the front-end, or another one of its process, has proven hostile.
    pub(crate) alarm: Arc<Alarm>,
    pub(crate) device: Arc<dyn Device>,
    meter: Arc<Meter>,
    /// The pairs of rings that are served.
    pub(crate) served: Vec<usize>,
    /// What the session has come to.
    pub(crate) watch: Watch,
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
        let alarm = Alarm::new()?;
        let rings = new_rings(options, &device, &alarm)?;
        Ok(Self {
            options,
            negotiated: None,
            parts: Vec::new(),
            files: Arc::default(),
            renewal: Renewal::new()?,
            budget: MemoryBudget::unlimited(),
            paces: Paces::new(),
            removed: Vec::new(),
            rings,
            inflight: None,
            dirty_log: None,
            protocol: 0,
            device_status: 0,
            mac: None,
            offers_config_space: false,
            mtu: MTU,
            link: Arc::default(),
            announcement: Arc::default(),
            alarm,
            device,
            meter,
            served: Vec::new(),
            watch: Watch::default(),
            error: None,
        })
    }

    /// The same of a device with this address and link, which the configuration space shows.
    #[must_use]
    pub fn of_device(self, mac: Option<MacAddr>, link: Arc<Link>) -> Self {
        Self { mac, link, ..self }
    }

    /// The same, which offers its configuration space.
    ///
    /// No front-end needs it of a network device, and QEMU before 7.2.3, and 8.0.0, ends with a segmentation fault when one is
    /// offered.
    #[must_use]
    pub fn offering_config_space(self, offers_config_space: bool) -> Self {
        Self { offers_config_space, ..self }
    }

    /// The same, with a bound for the memory that its front-end may have mapped. Without this there is none.
    #[must_use]
    pub fn within(self, budget: Arc<MemoryBudget>) -> Self {
        Self { budget, ..self }
    }

    /// The same at the pace of a port's sessions together. Without this it has one of its own.
    #[must_use]
    pub fn at_pace(self, paces: Arc<Paces>) -> Self {
        Self { paces, ..self }
    }

    /// The same, which says what the files of the guest's memory are.
    #[must_use]
    pub fn showing(self, files: Arc<MemoryFiles>) -> Self {
        Self { files, ..self }
    }

    /// The same, which serves its rings anew when it is asked to.
    #[must_use]
    pub fn renewed_by(self, renewal: Arc<Renewal>) -> Self {
        Self { renewal, ..self }
    }

    /// The same at a port of this name, whose front-end's process is cut off with all its sessions if it proves hostile.
    ///
    /// # Errors
    /// The process is out of descriptors.
    pub fn with_blame(self, processes: Arc<Processes>, port: &str) -> io::Result<Self> {
        let alarm = Alarm::of(Some((processes, port)))?;
        let rings = new_rings(self.options, &self.device, &alarm)?;
        Ok(Self { alarm, rings, ..self })
    }

    /// What ends the session when its front-end has proven hostile.
    #[must_use]
    pub fn alarm(&self) -> Arc<Alarm> {
        self.alarm.clone()
    }

    /// Forgets the rings.
    pub(crate) fn reset_rings(&mut self) -> io::Result<()> {
        self.rings = new_rings(self.options, &self.device, &self.alarm)?;
        Ok(())
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
    pub(crate) fn is_pending(&self) -> bool {
        self.ready() != self.served
    }

    /// Serves all rings that are ready, and no others.
    pub(crate) fn serve_ready(&mut self) -> Result<(), String> {
        self.stop("the front-end changed its rings");
        let ready = self.ready();
        let Some(negotiated) = self.negotiated.filter(|_| !ready.is_empty()) else { return Ok(()) };
        let memory = self.memory().and_then(|memory| match &self.dirty_log {
            Some(log) if negotiated.logs_pages() => memory.with_log(log.clone()),
            _ => Ok(memory),
        });
        let memory = Arc::new(memory.map_err(|error| error.to_string())?);
        let queues = ready.iter().map(|pair| self.open(*pair, &memory, negotiated));
        let queues = queues.collect::<Result<_, _>>()?;
        self.served = ready;
        self.watch.begin();
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
            let queue = ring.open(memory, negotiated.rings(), self.log(index));
            let queue = queue.map(|queue| queue.in_order(negotiated.is_in_order()));
            queue.map(|queue| (ring, queue)).map_err(|error| format!("ring {index}: {error}"))
        });
        let ((rx, rx_queue), (tx, tx_queue)) = (rx?, tx?);
        let egress = GuestRx::new(self.meter.clone(), rx, rx_queue, negotiated);
        let ingress = GuestTx::new(tx, tx_queue, negotiated);
        // A guest announces itself once, whichever queues it has.
        let ingress = match pair {
            0 => ingress.announcing(self.announcement.clone()),
            _ => ingress,
        };
        Ok(Queue { ingress: Box::new(ingress), egress: Box::new(egress) })
    }

    /// Where a ring notes what is in flight.
    fn log(&self, ring: usize) -> Option<InflightLog> {
        self.inflight.as_ref()?.log(ring)
    }

    /// A ring was stopped in good order: the front-end says where it starts again.
    pub(crate) fn forget_inflight(&self, ring: usize) {
        if let Some(log) = self.log(ring) {
            log.stop();
        }
    }

    /// The parts of the guest's memory have changed.
    pub(crate) fn show_files(&self) {
        self.files.set(self.parts.iter().map(|part| part.file.clone()));
    }

    /// The table of the guest's memory as it is now.
    pub(crate) fn memory(&self) -> Result<GuestMemory, virtqueue::MemoryError> {
        let shared = self.parts.iter().map(|part| Some((part.range, part.region.share()?)));
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

fn new_rings(
    options: DeviceOptions,
    device: &Arc<dyn Device>,
    alarm: &Arc<Alarm>,
) -> io::Result<Vec<Vring>> {
    let device = device.clone();
    let held_up: HeldUp = Arc::new(move |time| device.held_up(time));
    let rings = (0..2 * options.queues).map(|_| Vring::new(held_up.clone()));
    let rings = rings.collect::<io::Result<Vec<_>>>()?;
    rings.iter().try_for_each(|ring| watchdog::watch(&ring.call, alarm))?;
    Ok(rings)
}
