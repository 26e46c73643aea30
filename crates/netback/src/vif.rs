//! One virtual interface in the store: features, states, coming and going.

use std::sync::Arc;

use hypervisor::{DomId, Hypervisor, Store, StoreError, XenbusState};
use offload::Features;
use wire::ethernet::MacAddr;
use wire::netif::keys;

use crate::channel::{RxChannel, TxChannel};
use crate::connect::{ConnectError, Connection, connect};

/// What a backend offers to its frontend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offered {
    /// Most queues.
    pub max_queues: u32,
    /// Offloads the frontend may leave to the backend on transmit.
    pub features: Features,
    /// An event channel for each ring instead of one for both.
    pub split_event_channels: bool,
    /// How packets come from the guest.
    pub tx: TxChannel,
    /// How packets go to the guest.
    pub rx: RxChannel,
    /// Most pages of each queue that the frontend can have kept mapped; see
    /// [`persistent_pages`](Self::persistent_pages).
    pub persistent_grants: u16,
}

impl Offered {
    /// Most pages of each queue that the frontend can have kept mapped. None where packets are
    /// mapped or change hands anyway: there would be nothing to save.
    pub fn persistent_pages(&self) -> u16 {
        match (self.tx, self.rx) {
            (TxChannel::Header, RxChannel::Copy) => self.persistent_grants,
            _ => 0,
        }
    }
}

/// Why a vif is not, or no longer, connected.
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
    /// The frontend wrote something that can not be connected.
    #[error(transparent)]
    Connect(#[from] ConnectError),
}

/// What a change of the frontend's state asks of whoever owns the queues.
pub enum Change<H: Hypervisor> {
    /// Nothing.
    None,
    /// Carry the traffic of these queues and serve the control ring, then call
    /// [`Vif::connected`].
    Connect(Connection<H>),
    /// Drop all of the connection, then call [`Vif::disconnected`].
    Disconnect,
    /// As `Disconnect`, and forget the vif: nobody will come back.
    Remove,
}

/// The backend's side of one interface.
pub struct Vif<H: Hypervisor> {
    hypervisor: H,
    store: Arc<dyn Store>,
    path: String,
    frontend: String,
    domain: DomId,
    mac: MacAddr,
    offered: Offered,
    state: XenbusState,
}

impl<H: Hypervisor> Vif<H> {
    /// Reads what the toolstack wrote at `path`, writes the features beside it, and waits for
    /// the frontend in state `InitWait`.
    pub fn announce(
        hypervisor: H,
        store: Arc<dyn Store>,
        path: &str,
        offered: Offered,
    ) -> Result<Self, VifError> {
        let missing = |key| VifError::Node { path: path.to_owned(), key };
        let read = |key| store.read(None, &format!("{path}/{key}")).map_err(|_| missing(key));
        let frontend = read("frontend")?;
        let domain = read("frontend-id")?.parse().map_err(|_| missing("frontend-id"))?;
        let mac = read(keys::MAC)?.parse().map_err(|_| missing(keys::MAC))?;
        let mut vif = Self {
            hypervisor,
            store,
            path: path.to_owned(),
            frontend,
            domain: DomId(domain),
            mac,
            offered,
            state: XenbusState::Initialising,
        };
        vif.write_features()?;
        vif.enter(XenbusState::InitWait)?;
        Ok(vif)
    }

    /// Where the frontend's keys are: what to watch.
    pub fn frontend(&self) -> &str {
        &self.frontend
    }

    /// Whose interface it is.
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
        let Features { sg, csum_v6, tso_v4, tso_v6, .. } = self.offered.features;
        let bit = |on| u32::from(on);
        let values = [
            (keys::FEATURE_SG, bit(sg)),
            (keys::FEATURE_GSO_TCPV4, bit(tso_v4)),
            (keys::FEATURE_GSO_TCPV6, bit(tso_v6)),
            (keys::FEATURE_IPV6_CSUM_OFFLOAD, bit(csum_v6)),
            (keys::FEATURE_RX_COPY, bit(self.offered.rx == RxChannel::Copy)),
            (keys::FEATURE_RX_FLIP, bit(self.offered.rx == RxChannel::Flip)),
            (keys::FEATURE_HEADER_CHANNEL, bit(self.offered.tx == TxChannel::Header)),
            (keys::FEATURE_CTRL_RING, bit(self.offered.persistent_pages() > 0)),
            (keys::FEATURE_MULTICAST_CONTROL, 0),
            (keys::FEATURE_SPLIT_EVENT_CHANNELS, bit(self.offered.split_event_channels)),
            (keys::MULTI_QUEUE_MAX_QUEUES, self.offered.max_queues),
        ];
        for (key, value) in values {
            self.store.write(None, &format!("{}/{key}", self.path), &value.to_string())?;
        }
        Ok(())
    }

    /// The state is written last: it says that everything else is there.
    fn enter(&mut self, state: XenbusState) -> Result<(), StoreError> {
        if self.state != state {
            self.store.write(None, &format!("{}/state", self.path), &state.to_string())?;
            self.state = state;
        }
        Ok(())
    }

    fn frontend_state(&self) -> Result<Option<XenbusState>, StoreError> {
        match self.store.read(None, &format!("{}/state", self.frontend)) {
            Ok(text) => Ok(XenbusState::parse(&text)),
            Err(StoreError::NotFound(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn is_online(&self) -> bool {
        let online = self.store.read(None, &format!("{}/online", self.path));
        online.is_ok_and(|text| text.trim() == "1")
    }

    /// Looks at the frontend's state and says what follows. The frontend may go from any state
    /// to any other, and write nonsense: nothing is assumed from what it wrote before.
    pub fn frontend_changed(&mut self) -> Result<Change<H>, VifError> {
        use XenbusState::{
            Closed, Closing, Connected, InitWait, Initialised, Initialising, Reconfigured,
            Reconfiguring,
        };
        Ok(match self.frontend_state()? {
            // A frontend that starts over: at first, or after it had closed, or crashed.
            Some(Initialising) => match self.state {
                InitWait => Change::None,
                Closed => {
                    self.enter(InitWait)?;
                    Change::None
                }
                _ => Change::Disconnect,
            },
            // Still writing its keys.
            Some(InitWait | Initialised) => Change::None,
            // XDP headroom is not offered, so there is nothing to reconfigure.
            Some(Reconfiguring | Reconfigured) => Change::None,
            Some(Connected) if self.state == InitWait => Change::Connect(self.connect()?),
            Some(Connected) => Change::None,
            Some(Closing) if self.state == Connected => Change::Disconnect,
            Some(Closing) => Change::None,
            Some(Closed) if self.is_online() => match self.state {
                Closed => Change::None,
                _ => Change::Disconnect,
            },
            Some(Closed) | None => Change::Remove,
        })
    }

    fn connect(&self) -> Result<Connection<H>, VifError> {
        let peer = self.hypervisor.peer(self.domain)?;
        let store = &*self.store;
        let connection = connect(&self.hypervisor, store, &peer, &self.frontend, &self.offered)?;
        let supplied = connection.queues.iter().all(|queue| queue.tx.takes_headers());
        let key = format!("{}/{}", self.path, keys::HEADER_CHANNEL);
        store.write(None, &key, if supplied { "1" } else { "0" })?;
        Ok(connection)
    }

    /// The queues are carried: tells the frontend that it may send.
    pub fn connected(&mut self) -> Result<(), VifError> {
        Ok(self.enter(XenbusState::Connected)?)
    }

    /// Removes the keys of a header channel and of a control ring: the next driver of this device
    /// may not know of them, and so would not remove them. A backend that may not write there can
    /// not help it. A driver that has written new ones meanwhile learns that they are gone: from
    /// [`keys::HEADER_CHANNEL`], and from a look at its control ring's.
    fn forget_channels(&self) {
        let queues = (0..self.offered.max_queues).map(|n| format!("{}{n}/", keys::QUEUE_PREFIX));
        let prefixes = std::iter::once(String::new()).chain(queues);
        let headers = prefixes.map(|prefix| format!("{prefix}{}", keys::TX_HEADER_REFS));
        let control = [keys::CTRL_RING_REF, keys::EVENT_CHANNEL_CTRL].map(str::to_owned);
        for key in headers.chain(control) {
            let _ = self.store.remove(None, &format!("{}/{key}", self.frontend));
        }
    }

    /// The queues are dropped, nothing of the frontend is held any more: tells it so. A
    /// frontend that has started over meanwhile is waited for again.
    pub fn disconnected(&mut self) -> Result<(), VifError> {
        self.enter(XenbusState::Closing)?;
        self.forget_channels();
        self.enter(XenbusState::Closed)?;
        if self.frontend_state()? == Some(XenbusState::Initialising) {
            self.enter(XenbusState::InitWait)?;
        }
        Ok(())
    }
}
