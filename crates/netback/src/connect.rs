//! Connecting to a frontend: reading what it wrote, mapping its rings, binding its events.

use std::io;
use std::sync::Arc;

use hypervisor::{EventChannel, GrantRef, Hypervisor, Port, Store, StoreError};
use offload::Features;
use ring::{BackRing, Ledger, RegionPage, Slots};
use wire::netif::{header_channel, keys};

use crate::channel::Channel;
use crate::{Fault, Ledgers, Offered, RingKind, RxChannel, RxQueue, TxChannel, TxQueue};

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
    /// There is no memory to keep a ring's answers in.
    #[error("ledger: {0}")]
    Ledger(#[source] io::Error),
}

/// One queue: a ring each way.
pub struct Queue<H: Hypervisor> {
    /// From the guest.
    pub tx: TxQueue<H>,
    /// To the guest.
    pub rx: RxQueue<H>,
}

impl<H: Hypervisor> Queue<H> {
    /// Makes the frontend look at both rings: whoever was here before may have died between a
    /// publication and its notification.
    pub(crate) fn wake(&self) {
        for event in [self.tx.event(), self.rx.event()] {
            // A frontend that is gone can not be told; its domain's end detaches the vif.
            let _ = event.notify();
        }
    }
}

/// What a queue's rings are begun with.
#[derive(Clone, Copy)]
pub(crate) struct Rings<'a> {
    pub(crate) ledgers: &'a dyn Ledgers,
    /// They are live, left by a backend that died, and gone on with.
    pub(crate) resumes: bool,
    /// The header pages of a frontend that has some are used.
    pub(crate) headers: bool,
}

impl Rings<'_> {
    /// Maps a ring.
    fn open<H: Hypervisor, S: Slots>(
        &self,
        hypervisor: &H,
        peer: &H::Peer,
        gref: GrantRef,
        event: &H::Event,
        (queue, kind): (u32, RingKind),
    ) -> Result<BackRing<S, RegionPage<H::Mapping>>, ConnectError> {
        let mapping = hypervisor.map(peer, &[gref])?;
        hypervisor.notify_on_unmap(&mapping, event);
        let page =
            RegionPage::new(mapping, 0).map_err(|_| hypervisor::Error::Exhausted("pages"))?;
        let ledger = self.ledgers.ledger(queue, kind);
        let ledger = ledger.and_then(|region| Ledger::new(region).map_err(io::Error::other));
        let ledger = ledger.map_err(ConnectError::Ledger)?;
        let ring = match self.resumes {
            true => BackRing::resume(page, ledger),
            false => BackRing::attach(page, ledger),
        };
        Ok(ring.map_err(Fault::from)?)
    }
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

/// Connects all of a frontend's queues, or none.
pub(crate) fn connect<H: Hypervisor>(
    hypervisor: &H,
    store: &dyn Store,
    peer: &H::Peer,
    frontend: &str,
    offered: &Offered,
    rings: Rings<'_>,
) -> Result<Vec<Queue<H>>, ConnectError> {
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
    let queues = 0..asked;
    queues
        .map(|n| {
            // A single queue has its keys where they were before there were queues.
            let prefix = match asked {
                1 => String::new(),
                _ => format!("{}{n}/", keys::QUEUE_PREFIX),
            };
            connect_queue(hypervisor, &keys, peer, (n, &prefix), features, offered, rings)
        })
        .collect()
}

fn connect_queue<H: Hypervisor>(
    hypervisor: &H,
    keys: &Keys<'_>,
    peer: &H::Peer,
    (queue, prefix): (u32, &str),
    features: Features,
    offered: &Offered,
    rings: Rings<'_>,
) -> Result<Queue<H>, ConnectError> {
    let need = |key: &str| keys.need(&format!("{prefix}{key}"));
    let bind = |port| hypervisor.bind_interdomain(peer, Port(port)).map(Arc::new);
    let (tx, rx) = (GrantRef(need(keys::TX_RING_REF)?), GrantRef(need(keys::RX_RING_REF)?));
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
    let tx = rings.open(hypervisor, peer, tx, &tx_event, (queue, RingKind::Tx))?;
    let rx = rings.open(hypervisor, peer, rx, &rx_event, (queue, RingKind::Rx))?;
    let headers = if rings.headers { header_pages(keys, prefix)? } else { None };
    let channel = match (headers, offered.tx) {
        (Some(grefs), _) => Channel::Supplied(hypervisor.map(peer, &grefs)?),
        (None, TxChannel::Header) => Channel::Granted,
        (None, TxChannel::Remap) => Channel::mapping(hypervisor, peer)?,
    };
    let rx_channel = offered.rx;
    Ok(Queue {
        tx: TxQueue::new(hypervisor.clone(), peer.clone(), tx, tx_event, channel),
        rx: RxQueue::new(hypervisor.clone(), peer.clone(), rx, rx_event, features, rx_channel),
    })
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
