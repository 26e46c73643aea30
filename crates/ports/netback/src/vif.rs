//! One virtual interface in the store: its features and states.

use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use hypervisor::{DomId, Hypervisor};
use wire::ethernet::MacAddr;
use wire::netif::keys;
use xenstore::{Store, StoreError, XenbusState, in_transaction};

use crate::channel::TxChannel;
use crate::connect::{ConnectError, Connection, Keys, Rings, connect, queue_prefix};
use crate::ledger::Ledgers;
use crate::multicast::MulticastList;
use crate::offered::Offered;

/// Why a vif is not connected, or not any more.
#[derive(Debug, thiserror::Error)]
pub enum VifError {
    /// The toolstack's node lacks a key.
    #[error("{path}/{key} is missing or malformed")]
    Node {
        /// The backend's path.
        path: String,
        /// The key.
        key: &'static str,
    },
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The hypervisor refused.
    #[error(transparent)]
    Hypervisor(#[from] hypervisor::Error),
    /// The frontend wrote something that cannot be connected.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The ledgers of a vif that is gone could not be removed.
    #[error("ledgers: {0}")]
    Ledgers(#[source] std::io::Error),
}

/// What the owner of the queues must do after a change of the frontend's state.
#[expect(clippy::large_enum_variant, reason = "made once per connection")]
pub enum VifChange<H: Hypervisor> {
    /// Nothing.
    None,
    /// Carry the traffic of these queues and serve the control ring, then call
    /// [`Vif::connected`].
    Connect(Connection<H>),
    /// Drop all of the connection, then call [`Vif::disconnected`].
    Disconnect,
    /// Drop the queues, then call [`Vif::remove`]: the interface is gone.
    Remove,
}

/// The backend's side of one interface.
pub struct Vif<H: Hypervisor> {
    hypervisor: H,
    store: Arc<dyn Store>,
    ledgers: Arc<dyn Ledgers>,
    path: String,
    frontend: String,
    domain: DomId,
    mac: MacAddr,
    offered: Offered,
    state: XenbusState,
    /// Whether an earlier backend left a connection that is not taken over yet.
    orphaned: bool,
    /// The multicast groups of the connected frontend, if it may turn the list on and off.
    multicast: Option<Weak<MulticastList>>,
    /// Bytes that the connected frontend wants before each frame.
    headroom: Weak<AtomicU16>,
    /// The store says Reconfigured, though this end is connected.
    shows_reconfigured: bool,
}

impl<H: Hypervisor> Vif<H> {
    /// Reads the nodes that the toolstack, and perhaps an earlier backend, wrote at `path`.
    ///
    /// If the vif was connected, this writes nothing, and the first
    /// [`frontend_changed`](Self::frontend_changed) takes the connection over; the frontend does
    /// not notice. If it was closed, this end waits for a frontend that starts over. Otherwise
    /// this end writes its features and waits for the frontend in state `InitWait`.
    pub fn adopt(
        hypervisor: H,
        store: Arc<dyn Store>,
        path: &str,
        offered: Offered,
        ledgers: Arc<dyn Ledgers>,
    ) -> Result<Self, VifError> {
        let missing = |key| VifError::Node { path: path.to_owned(), key };
        let read = |key| store.read(None, &format!("{path}/{key}")).map_err(|_| missing(key));
        let frontend = read("frontend")?;
        let domain = read("frontend-id")?.parse().map_err(|_| missing("frontend-id"))?;
        let mac = read(keys::MAC)?.parse().map_err(|_| missing(keys::MAC))?;
        let mut vif = Self {
            hypervisor,
            store,
            ledgers,
            path: path.to_owned(),
            frontend,
            domain: DomId(domain),
            mac,
            offered,
            state: XenbusState::Initialising,
            orphaned: false,
            multicast: None,
            headroom: Weak::new(),
            shows_reconfigured: false,
        };
        match vif.state_at(&vif.path)? {
            Some(state @ (XenbusState::Connected | XenbusState::Reconfigured)) => {
                (vif.state, vif.orphaned) = (XenbusState::Connected, true);
                vif.shows_reconfigured = state == XenbusState::Reconfigured;
            }
            // It was closing, or the toolstack has asked it to close. It holds no pages any more.
            Some(XenbusState::Closing | XenbusState::Closed) => vif.enter(XenbusState::Closed)?,
            _ => vif.invite()?,
        }
        Ok(vif)
    }

    /// The path of the frontend's keys, which the owner must watch.
    pub fn frontend(&self) -> &str {
        &self.frontend
    }

    /// The domain of the frontend.
    pub fn domain(&self) -> DomId {
        self.domain
    }

    /// The address the toolstack gave it.
    pub fn mac(&self) -> MacAddr {
        self.mac
    }

    /// This end's state.
    pub fn state(&self) -> XenbusState {
        self.state
    }

    fn write_features(&self) -> Result<(), StoreError> {
        let offload::Features { sg, csum_v6, tso_v4, tso_v6, .. } = self.offered.features;
        let bit = |on| u32::from(on);
        let values = [
            (keys::FEATURE_SG, bit(sg)),
            (keys::FEATURE_GSO_TCPV4, bit(tso_v4)),
            (keys::FEATURE_GSO_TCPV6, bit(tso_v6)),
            (keys::FEATURE_IPV6_CSUM_OFFLOAD, bit(csum_v6)),
            (keys::FEATURE_RX_COPY, bit(self.offered.rx.is_copy())),
            (keys::FEATURE_RX_FLIP, bit(!self.offered.rx.is_copy())),
            (keys::FEATURE_RX_GUEST_COPY, bit(self.offered.rx.guest_copy().is_some())),
            (keys::FEATURE_RX_ANY_ORDER, bit(self.offered.rx.lends())),
            (keys::FEATURE_HEADER_CHANNEL, bit(self.offered.tx == TxChannel::Header)),
            (keys::FEATURE_XDP_HEADROOM, bit(self.offered.rx.is_copy())),
            (keys::FEATURE_CTRL_RING, 1),
            (keys::FEATURE_MULTICAST_CONTROL, bit(self.offered.multicast_control)),
            (keys::FEATURE_DYNAMIC_MULTICAST_CONTROL, bit(self.offered.multicast_control)),
            (keys::FEATURE_SPLIT_EVENT_CHANNELS, bit(self.offered.split_event_channels)),
            (keys::MULTI_QUEUE_MAX_QUEUES, self.offered.max_queues),
        ];
        for (key, value) in values {
            self.store.write(None, &format!("{}/{key}", self.path), &value.to_string())?;
        }
        Ok(())
    }

    /// Waits for a frontend. Writes the features first, since an earlier backend may have offered
    /// others.
    fn invite(&mut self) -> Result<(), StoreError> {
        self.write_features()?;
        self.enter(XenbusState::InitWait)
    }

    /// Enters a state. It is written after all other keys, because the frontend then reads them.
    fn enter(&mut self, state: XenbusState) -> Result<(), StoreError> {
        if self.state != state {
            self.write_state(state)?;
            (self.state, self.shows_reconfigured) = (state, false);
        }
        Ok(())
    }

    /// Writes a state, unless the toolstack has removed the node: writing would create it again.
    fn write_state(&self, state: XenbusState) -> Result<(), StoreError> {
        let (node, state) = (format!("{}/frontend", self.path), state.to_string());
        let path = format!("{}/state", self.path);
        gone_is_fine(in_transaction(&*self.store, |tx| {
            self.store.read(Some(tx), &node)?;
            self.store.write(Some(tx), &path, &state)
        }))
    }

    /// None if there is no frontend any more. An unprivileged driver domain then gets
    /// [`Denied`](StoreError::Denied), because the permissions of a missing node are those of its
    /// parent.
    fn frontend_state(&self) -> Result<Option<XenbusState>, StoreError> {
        match self.state_at(&self.frontend) {
            Err(StoreError::Denied(_)) => Ok(None),
            other => other,
        }
    }

    fn state_at(&self, path: &str) -> Result<Option<XenbusState>, StoreError> {
        match self.store.read(None, &format!("{path}/state")) {
            Ok(text) => Ok(XenbusState::parse(&text)),
            Err(StoreError::NotFound(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Whether the toolstack wants the interface; none if it does not say.
    fn is_online(&self) -> Option<bool> {
        let online = self.store.read(None, &format!("{}/online", self.path));
        online.ok().map(|text| text.trim() == "1")
    }

    /// Reads the frontend's state and returns what the owner must do. The frontend may change from
    /// any state to any other and write any value: nothing is assumed from its earlier states.
    pub fn frontend_changed(&mut self) -> Result<VifChange<H>, VifError> {
        use XenbusState::{
            Closed, Closing, Connected, InitWait, Initialised, Initialising, Reconfigured,
            Reconfiguring,
        };
        Ok(match self.frontend_state()? {
            Some(Connected | Reconfiguring) if std::mem::take(&mut self.orphaned) => {
                VifChange::Connect(self.take_over()?)
            }
            Some(Connected) if self.state == InitWait => VifChange::Connect(self.connect()?),
            Some(state @ (Connected | Reconfiguring)) => {
                if self.state == Connected {
                    self.multicast_changed();
                    self.headroom_changed(state)?;
                }
                VifChange::None
            }
            // Both ends have left the connection.
            Some(InitWait | Initialised | Reconfigured) if self.orphaned => VifChange::Disconnect,
            // Still writing its keys.
            Some(InitWait | Initialised | Reconfigured) => VifChange::None,
            // The frontend of a device that was never used does not close.
            Some(Initialising) if self.is_online() == Some(false) => VifChange::Remove,
            // A frontend that starts over: at first, or after it had closed, or crashed.
            Some(Initialising) => match self.state {
                InitWait => VifChange::None,
                Closed => {
                    self.invite()?;
                    VifChange::None
                }
                _ => VifChange::Disconnect,
            },
            Some(Closed) | None if self.is_online() != Some(true) => VifChange::Remove,
            // Also before it was connected: Linux's netfront waits until this end closes too.
            Some(Closing | Closed) | None => match self.state {
                Closed => VifChange::None,
                _ => VifChange::Disconnect,
            },
        })
    }

    /// Turns the list of multicast groups on or off, as the frontend says.
    fn multicast_changed(&self) {
        if let Some(list) = self.multicast.as_ref().and_then(Weak::upgrade) {
            let path = format!("{}/{}", self.frontend, keys::REQUEST_MULTICAST_CONTROL);
            list.set(self.store.read(None, &path).is_ok_and(|text| text.trim() == "1"));
        }
    }

    /// Reads how many bytes the frontend wants before each frame, and confirms it if the frontend waits for that.
    ///
    /// Linux' netfront enters Reconfiguring before it writes the key, and attaches its XDP program when this end is Reconfigured. The key is read
    /// again with each change of a key of the frontend, and when it is Connected again.
    fn headroom_changed(&mut self, frontend: XenbusState) -> Result<(), StoreError> {
        if let Some(headroom) = self.headroom.upgrade() {
            // A batch that is under way keeps to what was agreed before.
            headroom.store(self.frontend_keys().xdp_headroom()?, Ordering::Relaxed);
        }
        let reconfigures = frontend == XenbusState::Reconfiguring;
        if reconfigures != self.shows_reconfigured {
            let connected = [XenbusState::Connected, XenbusState::Reconfigured];
            self.write_state(connected[usize::from(reconfigures)])?;
            self.shows_reconfigured = reconfigures;
        }
        Ok(())
    }

    fn connect(&mut self) -> Result<Connection<H>, VifError> {
        let headers = self.offered.tx == TxChannel::Header;
        let rings = Rings { ledgers: &*self.ledgers, resumes: false, headers, copies: true };
        let connection = self.open(rings)?;
        self.headroom = Arc::downgrade(&connection.headroom);
        self.multicast = connection.multicast.as_ref().map(Arc::downgrade);
        let supplied = connection.queues.iter().all(|queue| queue.tx.has_header_pages());
        let key = self.header_channel();
        self.store.write(None, &key, if supplied { "1" } else { "0" })?;
        self.announce_copies(&connection)?;
        Ok(connection)
    }

    /// Writes how the guest copies, if it does.
    fn announce_copies(&self, connection: &Connection<H>) -> Result<(), StoreError> {
        if self.offered.rx.guest_copy().is_none() {
            return Ok(());
        }
        let queues = u32::try_from(connection.queues.len()).unwrap_or(u32::MAX);
        for (n, queue) in (0..).zip(&connection.queues) {
            let key = format!("{}{}", queue_prefix(n, queues), keys::RX_GUEST_COPIES);
            let path = format!("{}/{key}", self.path);
            match queue.rx.guest_copies() {
                Some(copies) => {
                    let text = format!("{} {}", copies.form(), copies.id());
                    self.store.write(None, &path, &text)?;
                }
                // An earlier frontend may have copied.
                None => gone_is_fine(self.store.remove(None, &path))?,
            }
        }
        Ok(())
    }

    /// Connects to live rings, with the header channel as negotiated before. Writes nothing but how the guest
    /// copies.
    fn take_over(&mut self) -> Result<Connection<H>, VifError> {
        let headers =
            self.store.read(None, &self.header_channel()).is_ok_and(|text| text.trim() == "1");
        // Without this key the frontend takes all responses for copies.
        let copies = format!("{}/{}", self.path, keys::RX_GUEST_COPIES);
        let copies = self.store.read(None, &copies).is_ok();
        let rings = Rings { ledgers: &*self.ledgers, resumes: true, headers, copies };
        let connection = self.open(rings)?;
        self.headroom = Arc::downgrade(&connection.headroom);
        self.announce_copies(&connection)?;
        connection.wake();
        Ok(connection)
    }

    fn open(&self, rings: Rings<'_>) -> Result<Connection<H>, VifError> {
        let peer = self.hypervisor.peer(self.domain)?;
        Ok(connect(&self.hypervisor, &peer, self.frontend_keys(), &self.offered, rings)?)
    }

    fn frontend_keys(&self) -> Keys<'_> {
        Keys { store: &*self.store, path: &self.frontend }
    }

    fn header_channel(&self) -> String {
        format!("{}/{}", self.path, keys::HEADER_CHANNEL)
    }

    /// The queues are attached to the datapath: the frontend may send.
    pub fn connected(&mut self) -> Result<(), VifError> {
        self.enter(XenbusState::Connected)?;
        match self.frontend_state()? {
            // It waits for an answer, of an earlier backend perhaps.
            Some(state @ (XenbusState::Connected | XenbusState::Reconfiguring)) => {
                Ok(self.headroom_changed(state)?)
            }
            _ => Ok(()),
        }
    }

    /// Removes the keys of a header channel, a control ring and guest copies, because the next driver of this
    /// device may not know them. This fails without effect if this domain may not write there. A
    /// driver that has already written new ones detects their removal: by
    /// [`keys::HEADER_CHANNEL`], and by reading its control ring's key.
    fn forget_channels(&self) {
        let queues = (0..self.offered.max_queues).map(|n| format!("{}{n}/", keys::QUEUE_PREFIX));
        let prefixes = std::iter::once(String::new()).chain(queues);
        let headers = prefixes.map(|prefix| format!("{prefix}{}", keys::TX_HEADER_REFS));
        let others = [
            keys::CTRL_RING_REF,
            keys::EVENT_CHANNEL_CTRL,
            keys::REQUEST_RX_GUEST_COPY,
            keys::FEATURE_RX_OFFSET,
            keys::REQUEST_MULTICAST_CONTROL,
            keys::XDP_HEADROOM,
        ];
        for key in headers.chain(others.map(str::to_owned)) {
            let _ = self.store.remove(None, &format!("{}/{key}", self.frontend));
        }
    }

    /// The queues are dropped, and no page of the frontend is mapped any more: enters `Closed`.
    ///
    /// If the frontend has started over, this end enters `InitWait` at once: Linux's netfront would
    /// follow this end into Closing, and stay closed.
    pub fn disconnected(&mut self) -> Result<(), VifError> {
        self.orphaned = false;
        self.forget_channels();
        if self.frontend_state()? == Some(XenbusState::Initialising) {
            return Ok(self.invite()?);
        }
        if self.state != XenbusState::Closed {
            self.enter(XenbusState::Closing)?;
        }
        Ok(self.enter(XenbusState::Closed)?)
    }

    /// The queues are dropped and the interface is gone: closes this end, and removes its nodes and
    /// ledgers.
    ///
    /// A `vif` backend's nodes stay, because libxl waits for `Closed`. In domain 0 it removes them then. In another domain it waits ten
    /// seconds for their removal, which is [`remove_closed`]'s after [`CLOSED_FOR`]. The nodes of a type that libxl does not know are
    /// removed at once.
    pub fn remove(self) -> Result<(), VifError> {
        // In any state of this end: the toolstack may have written Closing here.
        self.write_state(XenbusState::Closed)?;
        if !self.path.contains("/backend/vif/") {
            gone_is_fine(self.store.remove(None, &self.path))?;
        }
        self.ledgers.remove().map_err(VifError::Ledgers)
    }
}

/// How long a backend in a driver domain stays `Closed` before its nodes are removed. If they go before libxl has read the state,
/// `xl network-detach` and `xl destroy` fail; libxl waits for the removal for ten seconds after it has.
pub const CLOSED_FOR: Duration = Duration::from_secs(3);

/// Removes the nodes of a backend that is `Closed`. Nodes stay if they are wanted again, or if the toolstack or `xl devd` has changed them
/// meanwhile.
///
/// # Errors
/// The store's.
pub fn remove_closed(store: &dyn Store, path: &str) -> Result<(), StoreError> {
    let read = |tx, key: &str| match store.read(Some(tx), &format!("{path}/{key}")) {
        Ok(text) => Ok(Some(text)),
        Err(StoreError::NotFound(_)) => Ok(None),
        Err(error) => Err(error),
    };
    gone_is_fine(in_transaction(store, |tx| {
        let state = read(tx, "state")?.and_then(|text| XenbusState::parse(&text));
        let is_wanted = read(tx, "online")?.is_some_and(|text| text.trim() == "1");
        match state {
            Some(XenbusState::Closed) if !is_wanted => store.remove(Some(tx), path),
            _ => Ok(()),
        }
    }))
}

/// A node that the toolstack has removed is no error.
fn gone_is_fine(result: Result<(), StoreError>) -> Result<(), StoreError> {
    match result {
        Err(StoreError::NotFound(_) | StoreError::Denied(_)) => Ok(()),
        other => other,
    }
}
