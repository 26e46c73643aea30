//! The rings of an interface, which are made and written to the store before it connects.

use std::sync::Arc;

use hypervisor::{DomId, GrantRef, Guest};
use offload::Features;
use ring::netif::Ctrl;
use ring::{FrontRing, RegionPage, Slots};
use wire::netif::{header_channel, keys};
use xenstore::StoreError;

use super::{Config, ConnectError, Frontend, prefix};
use crate::buffers::Buffers;
use crate::{ControlRing, CopyPool, FrontendQueue, RING_LEN, RxQueue, TxQueue};

/// The features in use, the same for each queue.
#[derive(Clone, Copy, Debug)]
struct Negotiated {
    backend: DomId,
    split: bool,
    headers: bool,
    flip: bool,
    copies: bool,
    any_order: bool,
}

impl<G: Guest> Frontend<G> {
    /// Makes the rings of all queues, and writes what the frontend wants.
    pub(super) fn make_queues(
        &self,
        backend: DomId,
        config: &Config,
        copies: bool,
        pool: Option<&CopyPool<G>>,
    ) -> Result<Vec<FrontendQueue<G>>, ConnectError> {
        let offered = self.number(keys::MULTI_QUEUE_MAX_QUEUES)?.max(1);
        let count = config.queues.clamp(1, offered);
        let flag = |key| Ok::<_, StoreError>(self.number(key)? != 0);
        let agreed = Negotiated {
            backend,
            split: config.split_event_channels && flag(keys::FEATURE_SPLIT_EVENT_CHANNELS)?,
            headers: config.header_channel && flag(keys::FEATURE_HEADER_CHANNEL)?,
            flip: flag(keys::FEATURE_RX_FLIP)? && !flag(keys::FEATURE_RX_COPY)?,
            copies,
            // A response has one field for the request and for what is copied.
            any_order: flag(keys::FEATURE_RX_ANY_ORDER)? && !copies,
        };
        // Written even if it is 1: another driver may have left another number.
        self.write(keys::MULTI_QUEUE_NUM_QUEUES, count)?;
        let Features { sg, csum_v4, csum_v6, tso_v4, tso_v6, .. } = config.features;
        self.write(keys::REQUEST_RX_COPY, u32::from(!agreed.flip))?;
        self.write(keys::REQUEST_RX_GUEST_COPY, u32::from(agreed.copies))?;
        self.write(keys::REQUEST_RX_ANY_ORDER, u32::from(agreed.any_order))?;
        self.write(keys::FEATURE_RX_NOTIFY, 1)?;
        self.write(keys::FEATURE_RX_OFFSET, 1)?;
        self.write(keys::FEATURE_SG, u32::from(sg))?;
        self.write(keys::FEATURE_GSO_TCPV4, u32::from(tso_v4))?;
        self.write(keys::FEATURE_GSO_TCPV6, u32::from(tso_v6))?;
        self.write(keys::FEATURE_NO_CSUM_OFFLOAD, u32::from(!csum_v4))?;
        self.write(keys::FEATURE_IPV6_CSUM_OFFLOAD, u32::from(csum_v6))?;
        (0..count).map(|n| self.make_queue(&prefix(n, count), agreed, pool)).collect()
    }

    fn make_queue(
        &self,
        prefix: &str,
        agreed: Negotiated,
        pool: Option<&CopyPool<G>>,
    ) -> Result<FrontendQueue<G>, ConnectError> {
        let Negotiated { backend, split, headers, flip, copies, any_order } = agreed;
        let guest = &self.guest;
        // A part of the pool is not a page for each slot.
        let pool = pool.filter(|_| !(flip || copies || any_order));
        let write = |key: &str, value| self.write(&format!("{prefix}{key}"), value);
        let tx_ring = self.make_ring(backend, &format!("{prefix}{}", keys::TX_RING_REF))?;
        let rx_ring = self.make_ring(backend, &format!("{prefix}{}", keys::RX_RING_REF))?;
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
        let headers = self.make_header_channel(prefix, backend, headers)?;
        let tx = TxQueue::new(tx_ring, tx_event, headers, guest.share(backend, RING_LEN)?);
        let buffers = match (flip, pool.and_then(|pool| pool.take(backend))) {
            (true, _) => Buffers::flipped(guest, backend)?,
            (false, Some(part)) => Buffers::Pooled(part),
            (false, None) => Buffers::shared(guest, backend)?,
        };
        let mut rx = RxQueue::new(rx_ring, rx_event, buffers, any_order);
        // The backend has not attached yet, and needs no event for what it then finds.
        rx.publish();
        Ok(FrontendQueue { tx, rx })
    }

    /// Makes a control ring, if the configuration uses it and the backend offers it.
    pub(super) fn make_control_ring(
        &self,
        backend: DomId,
        config: &Config,
    ) -> Result<Option<ControlRing<G>>, ConnectError> {
        let is_wanted = config.persistent_grants || config.hash;
        if !is_wanted || self.number(keys::FEATURE_CTRL_RING)? == 0 {
            self.remove(keys::CTRL_RING_REF)?;
            self.remove(keys::EVENT_CHANNEL_CTRL)?;
            return Ok(None);
        }
        let ring: FrontRing<Ctrl, _> = self.make_ring(backend, keys::CTRL_RING_REF)?;
        let (event, port) = self.guest.alloc_unbound(backend)?;
        self.write(keys::EVENT_CHANNEL_CTRL, port.0)?;
        Ok(Some(ControlRing::new(&self.guest, backend, ring, event, config.timeout)?))
    }

    /// Grants the pages of the header channel, if it is `wanted`.
    fn make_header_channel(
        &self,
        prefix: &str,
        backend: DomId,
        wanted: bool,
    ) -> Result<Option<G::Pages>, ConnectError> {
        let key = format!("{prefix}{}", keys::TX_HEADER_REFS);
        if !wanted {
            self.remove(&key)?;
            return Ok(None);
        }
        let (pages, grefs) = self.guest.share(backend, header_channel::PAGES)?;
        let grefs: Vec<_> = grefs.iter().map(GrantRef::to_string).collect();
        self.store.write(None, &format!("{}/{key}", self.device), &grefs.join(" "))?;
        Ok(Some(pages))
    }

    fn make_ring<S: Slots>(
        &self,
        backend: DomId,
        key: &str,
    ) -> Result<FrontRing<S, RegionPage<G::Pages>>, ConnectError> {
        let (page, grefs) = self.guest.share(backend, 1)?;
        let page = RegionPage::new(page).map_err(|_| hypervisor::Error::Exhausted("pages"))?;
        self.write(key, grefs[0].0)?;
        Ok(FrontRing::init(page))
    }
}
