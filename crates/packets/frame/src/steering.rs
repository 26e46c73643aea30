//! Receive-side scaling: how a receiver with several queues wants its flows spread over them.

use std::sync::Arc;

use wire::headers::{Network, Transport};
use wire::toeplitz::Table;

use crate::Frame;

/// What a hash covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum HashInput {
    /// IPv4 addresses.
    Ipv4,
    /// IPv4 addresses and TCP ports.
    Ipv4Tcp,
    /// IPv6 addresses.
    Ipv6,
    /// IPv6 addresses and TCP ports.
    Ipv6Tcp,
}

/// The hash of a frame, with a receiver's key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowHash {
    /// What it covers.
    pub input: HashInput,
    /// The hash.
    pub value: u32,
}

/// How a receiver wants its flows spread over its queues: a key, the hashes to calculate with it, and the
/// queue for each hash.
#[derive(Clone, Debug)]
pub struct Steering {
    key: Arc<Table>,
    /// A bit for each [`HashInput`].
    inputs: u8,
    queues: Box<[u16]>,
}

impl Steering {
    /// Hashes `inputs` with an expanded `key`. A hash modulo the length of `queues` is the place of its queue there; without
    /// places, a hash modulo the number of queues is the queue.
    #[must_use]
    pub fn new(
        key: Arc<Table>,
        inputs: impl IntoIterator<Item = HashInput>,
        queues: Box<[u16]>,
    ) -> Self {
        let inputs = inputs.into_iter().fold(0, |all, input| all | 1 << input as u8);
        Self { key, inputs, queues }
    }

    fn has(&self, input: HashInput) -> bool {
        self.inputs & 1 << input as u8 != 0
    }

    /// The hash of a frame: of its ports too, if the receiver wants that and they are TCP's. None if the
    /// receiver wants no hash of such a frame.
    #[must_use]
    pub fn hash(&self, frame: &Frame) -> Option<FlowHash> {
        let (headers, header) = (&frame.headers, frame.header());
        let (plain, tcp) = match headers.network {
            Network::Ipv4 => (HashInput::Ipv4, HashInput::Ipv4Tcp),
            Network::Ipv6 => (HashInput::Ipv6, HashInput::Ipv6Tcp),
            Network::Arp | Network::Other => return None,
        };
        let addresses = headers.addresses(header)?;
        if headers.transport == Transport::Tcp
            && self.has(tcp)
            && let Some(ports) = headers.ports(header)
        {
            let value = self.key.hash(addresses) ^ self.key.hash_at(addresses.len(), ports);
            return Some(FlowHash { input: tcp, value });
        }
        self.has(plain).then(|| FlowHash { input: plain, value: self.key.hash(addresses) })
    }

    /// The queue, of `queues`, for a frame with this [hash](Self::hash). A frame without a hash goes where
    /// hash 0 goes.
    #[must_use]
    pub fn queue_of(&self, hash: Option<FlowHash>, queues: usize) -> usize {
        let hash = hash.map_or(0, |hash| hash.value) as usize;
        let queue = match self.queues.len() {
            0 => hash.checked_rem(queues).unwrap_or(0),
            places => self.queues[hash % places].into(),
        };
        // A receiver may have fewer queues by now than when it wrote its table.
        if queue < queues { queue } else { 0 }
    }
}
