//! The handshake with the backend, over the store.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hypervisor::{CopyForm, DomId, GrantRef, Guest};
use offload::Features;
use ring::netif::Ctrl;
use ring::{FrontRing, RegionPage, Slots};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use wire::ethernet::MacAddr;
use wire::netif::{GrefMapping, header_channel, keys};
use xenstore::{Store, StoreError, XenbusState};

use crate::buffers::Buffers;
use crate::{ControlError, ControlRing, Queue, RING_LEN, RxQueue, TxQueue};

/// The token of the watch on the backend's state.
const WATCH: &str = "backend";

/// A frontend's options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// The most queues to use: the backend may offer fewer.
    pub queues: u32,
    /// The offloads that this end accepts on receive.
    pub features: Features,
    /// Use an event channel for each ring, if the backend offers it.
    pub split_event_channels: bool,
    /// Use the header channel, if the backend offers it.
    pub header_channel: bool,
    /// Ask the backend to keep as many pages mapped as it can.
    pub persistent_grants: bool,
    /// Copy received frames in this guest, if the backend offers it.
    pub guest_copy: bool,
    /// How long the backend may take for each step.
    pub timeout: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            queues: 1,
            features: Features::ALL,
            split_event_channels: true,
            header_channel: true,
            persistent_grants: true,
            guest_copy: true,
            timeout: Duration::from_secs(10),
        }
    }
}

/// The features in use, the same for each queue.
#[derive(Clone, Copy, Debug)]
struct Negotiated {
    backend: DomId,
    split: bool,
    headers: bool,
    flip: bool,
    copies: bool,
}

/// Why a connection failed.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The toolstack did not create the device, or not completely.
    #[error("{0} is missing or malformed")]
    Key(String),
    /// The backend did not enter the expected state.
    #[error("the backend is in state {now:?} and not in {wanted:?} after {timeout:?}")]
    Timeout {
        /// Its present state.
        now: Option<XenbusState>,
        /// The expected state.
        wanted: XenbusState,
        /// The time limit.
        timeout: Duration,
    },
    /// The backend refused; its reason is in the daemon's log and in `pvnet status`.
    #[error("the backend closed the connection; see `pvnet status` for its reason")]
    Closed,
    /// The backend offered the header channel and does not use it.
    #[error("the backend does not use the header channel that it offered; connect again")]
    HeaderChannel,
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The hypervisor refused.
    #[error(transparent)]
    Hypervisor(#[from] hypervisor::Error),
    /// Waiting failed.
    #[error("waiting for the store: {0}")]
    Wait(#[from] rustix::io::Errno),
}

/// The frontend's side of one interface.
pub struct Frontend<G: Guest> {
    store: Arc<dyn Store>,
    device: String,
    backend: String,
    mac: MacAddr,
    features: Features,
    control: Option<ControlRing<G>>,
}

impl<G: Guest> Frontend<G> {
    /// Connects the device at `device` (`device/vif/0`). Returns the interface and its queues.
    pub fn connect(
        guest: &G,
        store: Arc<dyn Store>,
        device: &str,
        config: &Config,
    ) -> Result<(Self, Vec<Queue<G>>), ConnectError> {
        let read = |key: &str| {
            let path = format!("{device}/{key}");
            store.read(None, &path).map_err(|_| ConnectError::Key(path))
        };
        let backend = read("backend")?;
        let backend_id = read("backend-id")?.parse();
        let backend_id = backend_id.map_err(|_| ConnectError::Key("backend-id".into()))?;
        let mac = read(keys::MAC)?.parse().map_err(|_| ConnectError::Key(keys::MAC.into()))?;
        let features = Features::NONE;
        let device = device.to_owned();
        let mut frontend = Self { store, device, backend, mac, features, control: None };
        frontend.store.watch(&format!("{}/state", frontend.backend), WATCH)?;
        // A device that was used before must start over: otherwise the backend keeps its last
        // state.
        frontend.enter(XenbusState::Initialising)?;
        frontend.wait(XenbusState::InitWait, config.timeout)?;
        frontend.features = frontend.offered()?;
        let backend_id = DomId(backend_id);
        let mut queues = frontend.make_queues(guest, backend_id, config)?;
        frontend.control = frontend.make_control_ring(guest, backend_id, config)?;
        frontend.enter(XenbusState::Connected)?;
        frontend.wait(XenbusState::Connected, config.timeout)?;
        let supplies = queues.iter().any(|queue| queue.tx.headers().is_some());
        if supplies && frontend.number(keys::HEADER_CHANNEL)? == 0 {
            return Err(ConnectError::HeaderChannel);
        }
        frontend.open_copies(guest, &mut queues, config)?;
        if frontend.is_control_ring_taken()
            && let Some(control) = &mut frontend.control
        {
            // If the backend refuses, it copies by grants instead.
            let _ = keep_mapped(control, &queues);
        }
        Ok((frontend, queues))
    }

    /// Opens what the queues copy from, if the backend grants received frames.
    fn open_copies(
        &self,
        guest: &G,
        queues: &mut [Queue<G>],
        config: &Config,
    ) -> Result<(), ConnectError> {
        if !self.copies(guest, config)? {
            return Ok(());
        }
        let count = u32::try_from(queues.len()).unwrap_or(u32::MAX);
        for (n, queue) in (0..).zip(queues) {
            let key = format!("{}/{}{}", self.backend, prefix(n, count), keys::RX_GUEST_COPIES);
            let text = match self.store.read(None, &key) {
                // A backend that was closing an earlier connection has removed the request: it
                // copies.
                Err(StoreError::NotFound(_)) => continue,
                other => other?,
            };
            let copies = text
                .split_once(' ')
                .and_then(|(form, id)| Some((form.parse::<CopyForm>().ok()?, id.parse().ok()?)));
            let (form, id) = copies.ok_or(ConnectError::Key(key))?;
            queue.rx.copy_by(guest.guest_copier(id, form)?);
        }
        Ok(())
    }

    /// Whether this guest copies received frames.
    fn copies(&self, guest: &G, config: &Config) -> Result<bool, StoreError> {
        let can = config.guest_copy && guest.has_guest_copies();
        Ok(can && self.number(keys::FEATURE_RX_GUEST_COPY)? != 0)
    }

    /// The control ring, if the backend offers one and the configuration asks for it.
    pub fn control(&mut self) -> Option<&mut ControlRing<G>> {
        self.control.as_mut()
    }

    /// Whether the control ring's keys are still in the store. A backend that was closing an
    /// earlier connection may have removed them with the old keys, and would never answer.
    fn is_control_ring_taken(&self) -> bool {
        let key = format!("{}/{}", self.device, keys::CTRL_RING_REF);
        self.store.read(None, &key).is_ok()
    }

    /// The interface's MAC address, set by the toolstack.
    pub fn mac(&self) -> MacAddr {
        self.mac
    }

    /// The offloads that the backend accepts on transmit.
    pub fn features(&self) -> Features {
        self.features
    }

    /// The store. It becomes readable when [`is_open`](Self::is_open) may have changed.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// Whether the backend still carries traffic. Takes pending watch events.
    pub fn is_open(&self) -> Result<bool, StoreError> {
        while self.store.event()?.is_some() {}
        Ok(self.backend_state()? == Some(XenbusState::Connected))
    }

    /// Closes the connection in an orderly way. The backend then holds none of this guest's pages.
    pub fn close(&self, timeout: Duration) -> Result<(), ConnectError> {
        self.enter(XenbusState::Closing)?;
        let closed = self.wait(XenbusState::Closed, timeout);
        self.enter(XenbusState::Closed)?;
        closed
    }

    fn enter(&self, state: XenbusState) -> Result<(), StoreError> {
        self.store.write(None, &format!("{}/state", self.device), &state.to_string())
    }

    /// The backend's state in the store.
    pub(crate) fn backend_state(&self) -> Result<Option<XenbusState>, StoreError> {
        match self.store.read(None, &format!("{}/state", self.backend)) {
            Ok(text) => Ok(XenbusState::parse(&text)),
            Err(StoreError::NotFound(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn number(&self, key: &str) -> Result<u32, StoreError> {
        match self.store.read(None, &format!("{}/{key}", self.backend)) {
            Ok(text) => Ok(text.trim().parse().unwrap_or(0)),
            Err(StoreError::NotFound(_)) => Ok(0),
            Err(error) => Err(error),
        }
    }

    fn offered(&self) -> Result<Features, StoreError> {
        let flag = |key| Ok::<_, StoreError>(self.number(key)? != 0);
        Ok(Features {
            sg: flag(keys::FEATURE_SG)?,
            csum_v4: true,
            csum_v6: flag(keys::FEATURE_IPV6_CSUM_OFFLOAD)?,
            tso_v4: flag(keys::FEATURE_GSO_TCPV4)?,
            tso_v6: flag(keys::FEATURE_GSO_TCPV6)?,
        })
    }

    /// Waits until the backend is in state `wanted`. Fails if it closes instead.
    fn wait(&self, wanted: XenbusState, timeout: Duration) -> Result<(), ConnectError> {
        let deadline = Instant::now() + timeout;
        loop {
            while self.store.event()?.is_some() {}
            let now = self.backend_state()?;
            if now == Some(wanted) {
                return Ok(());
            }
            let closing = matches!(now, Some(XenbusState::Closing | XenbusState::Closed));
            if closing && wanted == XenbusState::Connected {
                return Err(ConnectError::Closed);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(ConnectError::Timeout { now, wanted, timeout });
            }
            let timeout = Timespec::try_from(left).ok();
            let mut fds = [PollFd::from_borrowed_fd(self.store.event_fd(), PollFlags::IN)];
            rustix::io::retry_on_intr(|| poll(&mut fds, timeout.as_ref()))?;
        }
    }

    fn make_queues(
        &self,
        guest: &G,
        backend: DomId,
        config: &Config,
    ) -> Result<Vec<Queue<G>>, ConnectError> {
        let offered = self.number(keys::MULTI_QUEUE_MAX_QUEUES)?.max(1);
        let count = config.queues.clamp(1, offered);
        let flag = |key| Ok::<_, StoreError>(self.number(key)? != 0);
        let agreed = Negotiated {
            backend,
            split: config.split_event_channels && flag(keys::FEATURE_SPLIT_EVENT_CHANNELS)?,
            headers: config.header_channel && flag(keys::FEATURE_HEADER_CHANNEL)?,
            flip: flag(keys::FEATURE_RX_FLIP)? && !flag(keys::FEATURE_RX_COPY)?,
            copies: self.copies(guest, config)?,
        };
        // Written even if it is 1: another driver may have left another number.
        self.write(keys::MULTI_QUEUE_NUM_QUEUES, count)?;
        let Features { sg, csum_v4, csum_v6, tso_v4, tso_v6 } = config.features;
        self.write(keys::REQUEST_RX_COPY, u32::from(!agreed.flip))?;
        self.write(keys::REQUEST_RX_GUEST_COPY, u32::from(agreed.copies))?;
        self.write(keys::FEATURE_RX_NOTIFY, 1)?;
        self.write(keys::FEATURE_SG, u32::from(sg))?;
        self.write(keys::FEATURE_GSO_TCPV4, u32::from(tso_v4))?;
        self.write(keys::FEATURE_GSO_TCPV6, u32::from(tso_v6))?;
        self.write(keys::FEATURE_NO_CSUM_OFFLOAD, u32::from(!csum_v4))?;
        self.write(keys::FEATURE_IPV6_CSUM_OFFLOAD, u32::from(csum_v6))?;
        (0..count).map(|n| self.make_queue(guest, &prefix(n, count), agreed)).collect()
    }

    fn make_queue(
        &self,
        guest: &G,
        prefix: &str,
        agreed: Negotiated,
    ) -> Result<Queue<G>, ConnectError> {
        let Negotiated { backend, split, headers, flip, .. } = agreed;
        let write = |key: &str, value| self.write(&format!("{prefix}{key}"), value);
        let tx_ring = self.make_ring(guest, backend, &format!("{prefix}{}", keys::TX_RING_REF))?;
        let rx_ring = self.make_ring(guest, backend, &format!("{prefix}{}", keys::RX_RING_REF))?;
        for key in [keys::EVENT_CHANNEL, keys::EVENT_CHANNEL_TX, keys::EVENT_CHANNEL_RX] {
            self.remove(&format!("{prefix}{key}"))?;
        }
        let (tx_event, rx_event) = if split {
            let (tx_event, tx_port) = guest.alloc_unbound(backend)?;
            let (rx_event, rx_port) = guest.alloc_unbound(backend)?;
            write(keys::EVENT_CHANNEL_TX, tx_port.0)?;
            write(keys::EVENT_CHANNEL_RX, rx_port.0)?;
            (Arc::new(tx_event), Arc::new(rx_event))
        } else {
            let (event, port) = guest.alloc_unbound(backend)?;
            write(keys::EVENT_CHANNEL, port.0)?;
            let event = Arc::new(event);
            (event.clone(), event)
        };
        let headers = self.make_header_channel(guest, prefix, backend, headers)?;
        let tx = TxQueue::new(tx_ring, tx_event, headers, guest.share(backend, RING_LEN)?);
        let buffers = match flip {
            true => Buffers::flipped(guest, backend)?,
            false => Buffers::shared(guest, backend)?,
        };
        let mut rx = RxQueue::new(rx_ring, rx_event, buffers);
        // The backend has not attached yet, and needs no event for what it then finds.
        rx.publish();
        Ok(Queue { tx, rx })
    }

    /// Makes a control ring, if the configuration uses it and the backend offers it.
    fn make_control_ring(
        &self,
        guest: &G,
        backend: DomId,
        config: &Config,
    ) -> Result<Option<ControlRing<G>>, ConnectError> {
        if !config.persistent_grants || self.number(keys::FEATURE_CTRL_RING)? == 0 {
            self.remove(keys::CTRL_RING_REF)?;
            self.remove(keys::EVENT_CHANNEL_CTRL)?;
            return Ok(None);
        }
        let ring: FrontRing<Ctrl, _> = self.make_ring(guest, backend, keys::CTRL_RING_REF)?;
        let (event, port) = guest.alloc_unbound(backend)?;
        self.write(keys::EVENT_CHANNEL_CTRL, port.0)?;
        Ok(Some(ControlRing::new(guest, backend, ring, event, config.timeout)?))
    }

    /// Grants the pages of the header channel, if it is `wanted`.
    fn make_header_channel(
        &self,
        guest: &G,
        prefix: &str,
        backend: DomId,
        wanted: bool,
    ) -> Result<Option<G::Pages>, ConnectError> {
        let key = format!("{prefix}{}", keys::TX_HEADER_REFS);
        if !wanted {
            self.remove(&key)?;
            return Ok(None);
        }
        let (pages, grefs) = guest.share(backend, header_channel::PAGES)?;
        let grefs: Vec<_> = grefs.iter().map(GrantRef::to_string).collect();
        self.store.write(None, &format!("{}/{key}", self.device), &grefs.join(" "))?;
        Ok(Some(pages))
    }

    fn make_ring<S: Slots>(
        &self,
        guest: &G,
        backend: DomId,
        key: &str,
    ) -> Result<FrontRing<S, RegionPage<G::Pages>>, ConnectError> {
        let (page, grefs) = guest.share(backend, 1)?;
        let page = RegionPage::new(page).map_err(|_| hypervisor::Error::Exhausted("pages"))?;
        self.write(key, grefs[0].0)?;
        Ok(FrontRing::init(page))
    }

    fn write(&self, key: &str, value: u32) -> Result<(), StoreError> {
        self.store.write(None, &format!("{}/{key}", self.device), &value.to_string())
    }

    /// Removes a key that another driver may have left.
    fn remove(&self, key: &str) -> Result<(), StoreError> {
        match self.store.remove(None, &format!("{}/{key}", self.device)) {
            Err(StoreError::NotFound(_)) => Ok(()),
            other => other,
        }
    }
}

/// The directory of a queue's keys: a single queue has them in the device's own.
fn prefix(queue: u32, queues: u32) -> String {
    match queues {
        1 => String::new(),
        _ => format!("{}{queue}/", keys::QUEUE_PREFIX),
    }
}

/// Asks the backend to keep the pages of all queues mapped, as many as it can.
fn keep_mapped<G: Guest>(
    control: &mut ControlRing<G>,
    queues: &[Queue<G>],
) -> Result<(), ControlError> {
    for (number, queue) in (0..).zip(queues) {
        let size = control.size(number)?;
        // The backend only reads TX pages.
        let sent = queue.tx.grefs().iter().map(|gref| (gref, GrefMapping::READ_ONLY));
        let received = queue.rx.grefs().iter().map(|gref| (gref, 0));
        let entry = |(gref, flags): (&GrantRef, _)| GrefMapping { gref: gref.0, flags, status: 0 };
        let entries: Vec<_> = sent.chain(received).map(entry).take(size).collect();
        for list in entries.chunks(GrefMapping::PER_PAGE) {
            control.add(number, list)?;
        }
    }
    Ok(())
}

impl<G: Guest> Drop for Frontend<G> {
    fn drop(&mut self) {
        // The next frontend may use the same store connection and set the same watch. If the
        // connection is gone, so is the watch.
        let _ = self.store.unwatch(&format!("{}/state", self.backend), WATCH);
    }
}
