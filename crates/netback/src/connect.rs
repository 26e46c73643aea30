//! Connecting to a frontend: reading what it wrote, mapping its rings, binding its events.

use std::sync::Arc;

use hypervisor::{GrantRef, Hypervisor, Port, Store, StoreError};
use offload::Features;
use ring::netif::Ctrl;
use ring::{BackRing, RegionPage, Slots};
use wire::netif::{header_channel, keys};

use crate::channel::Channel;
use crate::persistent::{Destination, InHand};
use crate::{
    ControlRing, Fault, Offered, PersistentGrants, RxChannel, RxQueue, TxChannel, TxQueue,
};

/// Why a frontend could not be connected. The reason is for an operator.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// A key is not there or is not a number.
    #[error("the frontend's {0} is missing or not a number")]
    Key(String),
    /// More queues than offered, or none (CVE-2026-45890).
    #[error("the frontend asks for {asked} queues; 1 to {offered} are offered")]
    Queues {
        /// What it asks.
        asked: u32,
        /// What the backend wrote.
        offered: u32,
    },
    /// The frontend wants frames in another way than is offered.
    #[error(
        "the frontend's {} does not ask for rx = \"{offered}\", which is all that is offered",
        keys::REQUEST_RX_COPY
    )]
    RxChannel {
        /// What is.
        offered: RxChannel,
    },
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A grant or an event channel was refused.
    #[error(transparent)]
    Hypervisor(#[from] hypervisor::Error),
    /// A ring is broken from the start.
    #[error(transparent)]
    Ring(#[from] Fault),
}

/// What a frontend has set up.
pub struct Connection<H: Hypervisor> {
    /// What its frames go through.
    pub queues: Vec<Queue<H>>,
    /// What it asks of us besides; not every frontend has one.
    pub control: Option<ControlRing<H>>,
}

/// One queue: a ring each way.
pub struct Queue<H: Hypervisor> {
    /// From the guest.
    pub tx: TxQueue<H>,
    /// To the guest.
    pub rx: RxQueue<H>,
}

/// A frontend's keys.
struct Keys<'a> {
    store: &'a dyn Store,
    path: &'a str,
}

impl Keys<'_> {
    fn text(&self, key: &str) -> Result<Option<String>, StoreError> {
        match self.store.read(None, &format!("{}/{key}", self.path)) {
            Ok(text) => Ok(Some(text)),
            Err(StoreError::NotFound(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn number(&self, key: &str) -> Result<Option<u32>, StoreError> {
        Ok(self.text(key)?.and_then(|text| text.trim().parse().ok()))
    }

    fn need(&self, key: &str) -> Result<u32, ConnectError> {
        self.number(key)?.ok_or_else(|| ConnectError::Key(key.to_owned()))
    }

    fn flag(&self, key: &str) -> Result<bool, StoreError> {
        Ok(self.number(key)?.is_some_and(|value| value != 0))
    }

    /// Absent keys mean what they meant before the keys were invented: IPv4 checksums are
    /// offloaded unless refused, IPv6 ones only if asked for.
    fn features(&self) -> Result<Features, StoreError> {
        Ok(Features {
            sg: self.flag(keys::FEATURE_SG)?,
            csum_v4: !self.flag(keys::FEATURE_NO_CSUM_OFFLOAD)?,
            csum_v6: self.flag(keys::FEATURE_IPV6_CSUM_OFFLOAD)?,
            tso_v4: self.flag(keys::FEATURE_GSO_TCPV4)?,
            tso_v6: self.flag(keys::FEATURE_GSO_TCPV6)?,
        })
    }
}

/// Connects all that a frontend has, or nothing.
pub(crate) fn connect<H: Hypervisor>(
    hypervisor: &H,
    store: &dyn Store,
    peer: &H::Peer,
    frontend: &str,
    offered: &Offered,
) -> Result<Connection<H>, ConnectError> {
    let keys = Keys { store, path: frontend };
    let &Offered { max_queues, rx, .. } = offered;
    if keys.flag(keys::REQUEST_RX_COPY)? != (rx == RxChannel::Copy) {
        return Err(ConnectError::RxChannel { offered: rx });
    }
    let asked = keys.number(keys::MULTI_QUEUE_NUM_QUEUES)?.unwrap_or(1);
    if asked == 0 || asked > max_queues {
        return Err(ConnectError::Queues { asked, offered: max_queues });
    }
    let features = keys.features()?;
    let bound = offered.persistent_pages();
    let control = if bound > 0 { control_keys(&keys)? } else { None };
    let mut all_grants = Vec::new();
    let queues = (0..asked)
        .map(|n| {
            // A single queue has its keys where they were before there were queues.
            let prefix = match asked {
                1 => String::new(),
                _ => format!("{}{n}/", keys::QUEUE_PREFIX),
            };
            let grants = control.map(|_| PersistentGrants::new(hypervisor, peer, bound));
            let grants = grants.transpose()?.map(Arc::new);
            all_grants.extend(grants.clone());
            connect_queue(hypervisor, &keys, peer, &prefix, features, offered, grants)
        })
        .collect::<Result<_, ConnectError>>()?;
    let control = control
        .map(|(gref, port)| -> Result<_, ConnectError> {
            let ring = attach::<H, Ctrl>(hypervisor, peer, gref)?;
            let event = hypervisor.bind_interdomain(peer, port)?;
            Ok(ControlRing::new(hypervisor.clone(), peer.clone(), ring, event, all_grants))
        })
        .transpose()?;
    Ok(Connection { queues, control })
}

/// Where the control ring of a frontend is that has one.
fn control_keys(keys: &Keys<'_>) -> Result<Option<(GrantRef, Port)>, ConnectError> {
    let Some(gref) = keys.number(keys::CTRL_RING_REF)? else { return Ok(None) };
    Ok(Some((GrantRef(gref), Port(keys.need(keys::EVENT_CHANNEL_CTRL)?))))
}

fn connect_queue<H: Hypervisor>(
    hypervisor: &H,
    keys: &Keys<'_>,
    peer: &H::Peer,
    prefix: &str,
    features: Features,
    offered: &Offered,
    grants: Option<Arc<PersistentGrants<H>>>,
) -> Result<Queue<H>, ConnectError> {
    let need = |key: &str| keys.need(&format!("{prefix}{key}"));
    let bind = |port| hypervisor.bind_interdomain(peer, Port(port)).map(Arc::new);
    let tx = attach(hypervisor, peer, GrantRef(need(keys::TX_RING_REF)?))?;
    let rx = attach(hypervisor, peer, GrantRef(need(keys::RX_RING_REF)?))?;
    let number = |key: &str| keys.number(&format!("{prefix}{key}"));
    // One each first, as Linux does: a driver that was here before may have left the key of the
    // channel for both.
    let split = number(keys::EVENT_CHANNEL_TX)?.zip(number(keys::EVENT_CHANNEL_RX)?);
    let (tx_event, rx_event) = match split {
        Some((tx, rx)) => (bind(tx)?, bind(rx)?),
        None => {
            let event = bind(need(keys::EVENT_CHANNEL)?)?;
            (event.clone(), event)
        }
    };
    let channel = match offered.tx {
        TxChannel::Remap => Channel::mapping(hypervisor, peer)?,
        TxChannel::Header => {
            let pages = header_pages(keys, prefix)?.map(|grefs| hypervisor.map(peer, &grefs));
            Channel::copying(pages.transpose()?, grants.clone().map(InHand::new))
        }
    };
    let (hypervisor, peer) = (hypervisor.clone(), peer.clone());
    let tx = TxQueue::new(hypervisor.clone(), peer.clone(), tx, tx_event, channel);
    let to = Destination::new(peer, grants);
    Ok(Queue { tx, rx: RxQueue::new(hypervisor, to, rx, rx_event, features, offered.rx) })
}

/// The header pages of a frontend that has some: all of them, or it is an error.
fn header_pages(keys: &Keys<'_>, prefix: &str) -> Result<Option<Vec<GrantRef>>, ConnectError> {
    let key = format!("{prefix}{}", keys::TX_HEADER_REFS);
    let Some(text) = keys.text(&key)? else { return Ok(None) };
    let grefs: Result<Vec<_>, _> =
        text.split_whitespace().map(|gref| gref.parse().map(GrantRef)).collect();
    match grefs {
        Ok(grefs) if grefs.len() == header_channel::PAGES => Ok(Some(grefs)),
        _ => Err(ConnectError::Key(key)),
    }
}

fn attach<H: Hypervisor, S: Slots>(
    hypervisor: &H,
    peer: &H::Peer,
    gref: GrantRef,
) -> Result<BackRing<S, RegionPage<H::Mapping>>, ConnectError> {
    let mapping = hypervisor.map(peer, &[gref])?;
    let page = RegionPage::new(mapping, 0).map_err(|_| hypervisor::Error::Exhausted("pages"))?;
    Ok(BackRing::attach(page).map_err(Fault::from)?)
}
