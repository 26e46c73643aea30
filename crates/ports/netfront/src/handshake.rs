//! The handshake with the backend, over the store.

mod rings;

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hypervisor::guest_copy::GuestCopier;
use hypervisor::{CopyForm, DomId, Guest};
use netdev::{Device, NotFreed};
use offload::Features;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use wire::ethernet::MacAddr;
use wire::netif::{GrefMapping, keys};
use xenstore::{Store, StoreError, XenbusState};

use crate::queue::{TxPages, wanted};
use crate::{ControlError, ControlRing, CopyPool, FrontendQueue};

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
    /// Have a control ring for a [hash](crate::HashConfig), if the backend offers one.
    pub hash: bool,
    /// Copy received frames in this guest, if the backend offers it.
    pub guest_copy: bool,
    /// Get only the multicast groups that are [listed](crate::TxQueue::list_group), if the backend offers it.
    pub multicast_control: bool,
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
            hash: false,
            guest_copy: true,
            multicast_control: false,
            timeout: Duration::from_secs(10),
        }
    }
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
    /// The backend does not confirm that it keeps no pages mapped.
    #[error("invalidating mapped pages: {0}")]
    Invalidation(#[from] ControlError),
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
    pub(crate) guest: G,
    store: Arc<dyn Store>,
    device: String,
    backend: String,
    mac: MacAddr,
    features: Features,
    pub(crate) control: Option<ControlRing<G>>,
    /// By queue.
    pub(crate) tx_pages: Vec<TxPages<G>>,
    /// By queue: the pages that the backend has not been asked yet to keep mapped.
    pub(crate) wanted: Vec<Vec<GrefMapping>>,
}

impl<G: Guest> Frontend<G> {
    /// Connects the device at `device` (`device/vif/0`), and [asks](Self::keep_mapped) for pages to be kept mapped. Returns the
    /// interface and its queues.
    pub fn connect(
        guest: &G,
        store: Arc<dyn Store>,
        device: &str,
        config: &Config,
    ) -> Result<(Self, Vec<FrontendQueue<G>>), ConnectError> {
        let (mut frontend, queues) = Self::connect_with(guest, store, device, config, None)?;
        // Frames pass all the same.
        let _ = frontend.keep_mapped();
        Ok((frontend, queues))
    }

    /// As [`connect`](Self::connect), but asks for no pages to be kept mapped. The receive buffers come from `pool` while it has
    /// some; each further queue has its own.
    pub fn connect_with(
        guest: &G,
        store: Arc<dyn Store>,
        device: &str,
        config: &Config,
        pool: Option<&CopyPool<G>>,
    ) -> Result<(Self, Vec<FrontendQueue<G>>), ConnectError> {
        let read = |key: &str| {
            let path = format!("{device}/{key}");
            store.read(None, &path).map_err(|_| ConnectError::Key(path))
        };
        let backend = read("backend")?;
        let backend_id = read("backend-id")?.parse();
        let backend_id = backend_id.map_err(|_| ConnectError::Key("backend-id".into()))?;
        let mac = read(keys::MAC)?.parse().map_err(|_| ConnectError::Key(keys::MAC.into()))?;
        let mut frontend = Self {
            guest: guest.clone(),
            store,
            device: device.to_owned(),
            backend,
            mac,
            features: Features::NONE,
            control: None,
            tx_pages: Vec::new(),
            wanted: Vec::new(),
        };
        frontend.store.watch(&format!("{}/state", frontend.backend), WATCH)?;
        // A device that was used before must start over: otherwise the backend keeps its last
        // state.
        frontend.enter(XenbusState::Initialising)?;
        frontend.wait(XenbusState::InitWait, config.timeout)?;
        frontend.features = frontend.offered()?;
        let backend_id = DomId(backend_id);
        // Read once: a backend that says otherwise later is held to what was agreed.
        let copies = frontend.copies(guest, config)?;
        let mut queues = frontend.make_queues(backend_id, config, copies, pool)?;
        frontend.tx_pages = queues.iter().map(TxPages::of).collect();
        frontend.control = frontend.make_control_ring(backend_id, config)?;
        if config.multicast_control && frontend.number(keys::FEATURE_MULTICAST_CONTROL)? != 0 {
            frontend.write(keys::REQUEST_MULTICAST_CONTROL, 1)?;
        } else {
            frontend.remove(keys::REQUEST_MULTICAST_CONTROL)?;
        }
        frontend.enter(XenbusState::Connected)?;
        frontend.wait(XenbusState::Connected, config.timeout)?;
        let supplies = queues.iter().any(|queue| queue.tx.headers().is_some());
        if supplies && frontend.number(keys::HEADER_CHANNEL)? == 0 {
            return Err(ConnectError::HeaderChannel);
        }
        if copies {
            frontend.open_copies(guest, backend_id, &mut queues)?;
        }
        if frontend.is_control_ring_taken() && config.persistent_grants {
            frontend.wanted = queues.iter().map(wanted).collect();
        }
        Ok((frontend, queues))
    }

    /// Opens what the queues copy from. The backend grants received frames.
    fn open_copies(
        &self,
        guest: &G,
        backend: DomId,
        queues: &mut [FrontendQueue<G>],
    ) -> Result<(), ConnectError> {
        let count = u32::try_from(queues.len()).unwrap_or(u32::MAX);
        for (n, queue) in (0..).zip(queues) {
            let key = format!("{}/{}{}", self.backend, prefix(n, count), keys::RX_GUEST_COPIES);
            // A backend that was closing an earlier connection has removed the request: it copies.
            let Some(copier) = open_copier(guest, backend, &*self.store, &key)? else { continue };
            let (guest, store) = (guest.clone(), self.store.clone());
            let open = move || open_copier(&guest, backend, &*store, &key).ok().flatten();
            queue.rx.copy_by(copier, Box::new(open));
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

    /// Closes the connection in an orderly way: pages that the backend keeps mapped are invalidated
    /// first. The backend then holds none of this guest's pages. It may take `timeout` for each of the
    /// two steps.
    ///
    /// Pages can be used again if their queues are dropped after this, and not if they are dropped
    /// before.
    pub fn close(&mut self, timeout: Duration) -> Result<(), ConnectError> {
        // A backend that is closing unmaps everything, and serves no control ring.
        let is_open = self.backend_state()? == Some(XenbusState::Connected);
        let invalidated = if is_open { self.invalidate_all(timeout) } else { Ok(()) };
        self.enter(XenbusState::Closing)?;
        let closed = self.wait(XenbusState::Closed, timeout);
        self.enter(XenbusState::Closed)?;
        closed.and(invalidated.map_err(ConnectError::from))
    }

    fn enter(&self, state: XenbusState) -> Result<(), StoreError> {
        self.store.write(None, &format!("{}/state", self.device), &state.to_string())
    }

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
            ..Features::NONE
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

impl<G: Guest> Device for Frontend<G> {
    fn mac(&self) -> MacAddr {
        self.mac()
    }

    fn features(&self) -> Features {
        self.features()
    }

    fn changes(&self) -> BorrowedFd<'_> {
        self.store().event_fd()
    }

    fn take_changes(&self) {
        // If the store is gone, the device is not open.
        while let Ok(Some(_)) = self.store().event() {}
    }

    fn is_open(&self) -> bool {
        self.backend_state().is_ok_and(|state| state == Some(XenbusState::Connected))
    }

    fn keep_mapped(&mut self) {
        // Without it frames cost more.
        let _ = Frontend::keep_mapped(self);
    }

    fn free_pages(
        &mut self,
        queue: usize,
        pages: &[u16],
        timeout: Duration,
    ) -> Result<(), NotFreed> {
        Frontend::free_pages(self, queue, pages, timeout)
    }

    fn close(mut self: Box<Self>, timeout: Duration) {
        // This times out if the backend has gone first.
        let _ = Frontend::close(&mut self, timeout);
    }
}

/// Opens what a queue copies from, as the backend's `key` says; none if there is no such key.
fn open_copier<G: Guest>(
    guest: &G,
    backend: DomId,
    store: &dyn Store,
    key: &str,
) -> Result<Option<Box<dyn GuestCopier<G::Pages>>>, ConnectError> {
    let text = match store.read(None, key) {
        Err(StoreError::NotFound(_)) => return Ok(None),
        other => other?,
    };
    let copies = text
        .split_once(' ')
        .and_then(|(form, id)| Some((form.parse::<CopyForm>().ok()?, id.parse().ok()?)));
    let (form, id) = copies.ok_or_else(|| ConnectError::Key(key.to_owned()))?;
    Ok(Some(guest.guest_copier(backend, id, form)?))
}

/// The directory of a queue's keys: a single queue has them in the device's own.
fn prefix(queue: u32, queues: u32) -> String {
    match queues {
        1 => String::new(),
        _ => format!("{}{queue}/", keys::QUEUE_PREFIX),
    }
}

impl<G: Guest> Drop for Frontend<G> {
    fn drop(&mut self) {
        // The next frontend may use the same store connection and set the same watch. If the
        // connection is gone, so is the watch.
        let _ = self.store.unwatch(&format!("{}/state", self.backend), WATCH);
    }
}
