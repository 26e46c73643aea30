//! Connecting to a frontend: reading what it wrote, mapping its rings, binding its events.

use std::sync::Arc;

use hypervisor::{GrantRef, Hypervisor, Port, Store, StoreError};
use offload::Features;
use ring::{BackRing, RegionPage, Slots};
use wire::netif::keys;

use crate::{Fault, RxQueue, TxQueue};

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
    /// The frontend wants pages flipped.
    #[error(
        "the frontend does not ask for {}; page flipping is not offered",
        keys::REQUEST_RX_COPY
    )]
    NoRxCopy,
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
    fn number(&self, key: &str) -> Result<Option<u32>, StoreError> {
        match self.store.read(None, &format!("{}/{key}", self.path)) {
            Ok(text) => Ok(text.trim().parse().ok()),
            Err(StoreError::NotFound(_)) => Ok(None),
            Err(error) => Err(error),
        }
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

/// Connects all of a frontend's queues, or none.
pub(crate) fn connect<H: Hypervisor>(
    hypervisor: &H,
    store: &dyn Store,
    peer: &H::Peer,
    frontend: &str,
    max_queues: u32,
) -> Result<Vec<Queue<H>>, ConnectError> {
    let keys = Keys { store, path: frontend };
    if !keys.flag(keys::REQUEST_RX_COPY)? {
        return Err(ConnectError::NoRxCopy);
    }
    let asked = keys.number(keys::MULTI_QUEUE_NUM_QUEUES)?.unwrap_or(1);
    if asked == 0 || asked > max_queues {
        return Err(ConnectError::Queues { asked, offered: max_queues });
    }
    let features = keys.features()?;
    let queues = 0..asked;
    queues
        .map(|n| {
            // A single queue has its keys where they were before there were queues.
            let prefix = match asked {
                1 => String::new(),
                _ => format!("{}{n}/", keys::QUEUE_PREFIX),
            };
            connect_queue(hypervisor, &keys, peer, &prefix, features)
        })
        .collect()
}

fn connect_queue<H: Hypervisor>(
    hypervisor: &H,
    keys: &Keys<'_>,
    peer: &H::Peer,
    prefix: &str,
    features: Features,
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
    Ok(Queue {
        tx: TxQueue::new(hypervisor.clone(), peer.clone(), tx, tx_event),
        rx: RxQueue::new(hypervisor.clone(), peer.clone(), rx, rx_event, features),
    })
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
