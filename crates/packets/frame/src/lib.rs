//! One Ethernet frame on its way through the driver domain.
//!
//! An ingress port copies the first bytes of a frame once into private memory and parses that
//! copy ([`Frame::header`]). The rest of the body stays where the sender put it and is described
//! by [`Fragment`]s, which lie in a [`Body`]. An egress port sends the private header, and never reads
//! the sender's copy of it again, so nothing that was checked can change. The body is
//! copied once: by the egress port, or by the device behind it ([`ScatterList`]).
//!
//! Offloads that a port lacks are done in software, in the same way for every port ([`Finisher`]).

#![forbid(unsafe_code)]

mod body;
mod finish;
mod gather;
mod linear;
mod outcome;
mod scatter;
mod steering;
mod tail;
mod vlan;
mod window;

use arrayvec::ArrayVec;
use offload::vnet::Unsupported;
use offload::{Checksum, Features, Gso, Need};
use wire::ethernet::{MacAddr, VLAN_TAG_LEN};
use wire::headers::{ChecksumLocation, Headers, Network, Transport};
use wire::toeplitz;
use wire::{Layer, ParseError};

pub use body::{Body, Fragment, KeptFrame, Memory, Offset, Place, ReceiveBuffers};
pub use body::{LENT_MAX, Lent};
pub use finish::{ALL_SEGMENTS, Finisher, SEGMENTS_MAX, Segments};
pub use gather::{Gather, runs_in_places};
pub use linear::{Allocate, Bounce, Linear, linearise};
pub use outcome::{DropReason, Offer, Outcome, Ticket};
pub use scatter::{BodyHold, ScatterList};
pub use steering::{FlowHash, HashInput, Steering};
pub use tail::{Run, TAIL_MAX, Tail};
pub use window::{Outcomes, WINDOW, Window};

/// Most bytes copied as the header of a longer frame: Linux's `XEN_NETBACK_TX_COPY_LEN`.
pub const HEADER_MAX: usize = 128;
/// The longest frame that may be private as a whole: a TCP request of 100 bytes, or an answer. No second copy fetches a body then.
pub const SHORT_MAX: usize = 192;
/// Bytes of a private header: it may get a VLAN tag on its way.
pub const HEADER_ROOM: usize = SHORT_MAX + VLAN_TAG_LEN;
/// Most fragments a body may have: `XEN_NETIF_NR_SLOTS_MIN`.
pub const FRAGMENTS_MAX: usize = 18;
/// Largest frame in bytes: the protocol's size field has 16 bits.
pub const FRAME_MAX: usize = 65_535;

/// A frame. Its bytes are `header`, then the fragments in order, then the tail; `len` in all.
///
/// The order of the fields counts: a small frame, also with one fragment, uses two cache lines only.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
pub struct Frame {
    /// The private copy of the first bytes; the first `header_len` count.
    pub bytes: [u8; HEADER_ROOM],
    /// The frame's length in bytes.
    pub len: u32,
    /// Where the protocol headers lie.
    pub headers: Headers,
    /// Set if the frame must be cut into segments before it is sent on a wire.
    pub gso: Option<Gso>,
    /// What is known of the transport checksum.
    pub checksum: Checksum,
    /// How many bytes of the frame are in `bytes`: `min(HEADER_MAX, len)` or all of a short frame, unless a tag came or went on its way. Of a frame
    /// that is to be segmented at least its headers.
    pub header_len: u8,
    /// What follows the fragments, if the frame was [merged](Self::append) from several. None on its way through the switch.
    pub tail: Option<Box<Tail>>,
    /// The rest of the frame, in the sender's memory.
    pub fragments: ArrayVec<Fragment, FRAGMENTS_MAX>,
    /// The buffers of its receiver in which the body lies already, if it does.
    pub lent: Lent,
    /// Where a checksum that is [elsewhere](Checksum::Elsewhere) is to be completed. It means nothing for other frames.
    pub checksum_at: ChecksumLocation,
}

/// What is used of a frame with one fragment: its first bytes, and this line.
const _: () =
    assert!(std::mem::offset_of!(Frame, fragments) + 8 + size_of::<Fragment>() <= SHORT_MAX + 64);

impl Frame {
    /// A frame without bytes.
    #[must_use]
    pub fn empty() -> Self {
        Self {
            bytes: [0; HEADER_ROOM],
            header_len: 0,
            len: 0,
            headers: Headers {
                network: Network::Other,
                transport: Transport::None,
                vlan: None,
                l3_offset: 0,
                l4_offset: 0,
                payload_offset: 0,
            },
            checksum: Checksum::Unknown,
            gso: None,
            tail: None,
            fragments: ArrayVec::new_const(),
            lent: Lent::NONE,
            checksum_at: ChecksumLocation { start: 0, offset: 0 },
        }
    }

    /// Makes this a frame that consists of `bytes`: at most [`HEADER_MAX`] of them, so it has no
    /// body. Its checksum is [`Checksum::Unknown`].
    ///
    /// # Errors
    /// It is too long, or its headers are truncated or contradict themselves.
    pub fn set_header(&mut self, bytes: &[u8]) -> Result<(), ParseError> {
        let place = self.bytes[..HEADER_MAX]
            .get_mut(..bytes.len())
            .ok_or(ParseError::Length(Layer::Ethernet))?;
        place.copy_from_slice(bytes);
        self.headers = Headers::parse(bytes)?;
        // At most HEADER_MAX.
        self.header_len = u8::try_from(bytes.len()).unwrap_or(u8::MAX);
        self.len = self.header_len.into();
        self.checksum = Checksum::Unknown;
        self.gso = None;
        self.tail = None;
        self.fragments.clear();
        Ok(())
    }

    /// Parses the private copy of the first bytes.
    #[inline]
    pub fn parse_headers(&mut self) -> Result<(), ParseError> {
        let Headers { network, transport, vlan, l3_offset, l4_offset, payload_offset } =
            Headers::parse_start(self.header(), self.len as usize)?;
        // Field by field. The fields are stored one by one, and a wider load of several waits until all have left the
        // store buffer: 10 ns per frame.
        let headers = &mut self.headers;
        (headers.network, headers.transport, headers.vlan) = (network, transport, vlan);
        (headers.l3_offset, headers.l4_offset) = (l3_offset, l4_offset);
        headers.payload_offset = payload_offset;
        Ok(())
    }

    /// Takes over metadata that the parsed headers do not bear out: a checksum that software completes before the frame leaves. Returns
    /// false if it is something else, or [cannot be done](Unsupported::checksum_elsewhere): the frame is malformed.
    #[cold]
    pub fn set_checksum_elsewhere(&mut self, asked: Unsupported) -> bool {
        let Some(at) = asked.checksum_elsewhere(&self.headers, self.header_len.into()) else {
            return false;
        };
        (self.checksum, self.checksum_at, self.gso) = (Checksum::Elsewhere, at, None);
        true
    }

    /// The private copy of the first bytes.
    #[inline]
    #[must_use]
    pub fn header(&self) -> &[u8] {
        &self.bytes[..usize::from(self.header_len)]
    }

    /// Takes the header's bytes behind the first `known` off the fragments, which until now covered the frame from there on. Returns
    /// the fragments that this removes, which held header bytes only.
    #[inline]
    pub fn skip_header(&mut self, known: u8) -> arrayvec::Drain<'_, Fragment, FRAGMENTS_MAX> {
        if u32::from(self.header_len) == self.len {
            return self.fragments.drain(..);
        }
        let mut left = u16::from(self.header_len.saturating_sub(known));
        let mut whole = 0;
        for fragment in &mut self.fragments {
            let taken = left.min(fragment.len);
            fragment.advance(taken);
            left -= taken;
            if fragment.len > 0 {
                break;
            }
            whole += 1;
        }
        self.fragments.drain(..whole)
    }

    /// Destination and source as they lie in the frame.
    #[inline]
    #[must_use]
    pub fn addresses(&self) -> &[u8; 12] {
        // The array has HEADER_ROOM bytes.
        self.bytes.first_chunk().unwrap_or(&[0; 12])
    }

    /// Where the frame goes. Zero for a frame too short to say.
    #[inline]
    #[must_use]
    pub fn destination(&self) -> MacAddr {
        mac(&self.bytes, 0)
    }

    /// A hash of the frame's flow: the same for all frames of a connection (Toeplitz over the
    /// addresses and ports, as Windows and Linux do it). Of a frame that is not IP, it is the hash
    /// of both MAC addresses.
    #[inline]
    #[must_use]
    pub fn flow_hash(&self) -> u32 {
        match self.headers.network {
            Network::Ipv4 | Network::Ipv6 => self.headers.flow_hash(self.header(), &FLOWS),
            Network::Arp | Network::Other => self.mac_hash(),
        }
    }

    /// The same with both MAC addresses in the hash, as XenServer has it: flows between many stations
    /// with the same IP addresses and ports are spread too.
    #[inline]
    #[must_use]
    pub fn flow_hash_with_macs(&self) -> u32 {
        match self.headers.network {
            Network::Ipv4 | Network::Ipv6 => self.flow_hash() ^ self.mac_hash(),
            Network::Arp | Network::Other => self.mac_hash(),
        }
    }

    /// A number that tells IP flows apart, and is the same for both directions of one. None of other frames.
    #[inline]
    #[must_use]
    pub fn flow_key(&self) -> Option<u64> {
        let header = self.header();
        let addresses = match self.headers.addresses(header)?.as_chunks().0 {
            [pair] => {
                let pair = u64::from_ne_bytes(*pair);
                pair ^ pair >> 32
            }
            [a, b, c, d] => {
                let [a, b, c, d] = [a, b, c, d].map(|part| u64::from_ne_bytes(*part));
                let both = a ^ c ^ (b ^ d).rotate_left(17);
                both ^ both >> 32
            }
            _ => return None,
        };
        let ports = self.headers.ports(header).and_then(|ports| ports.first_chunk());
        let ports = ports.map_or(0, |ports| u32::from_ne_bytes(*ports));
        Some(addresses << 32 | u64::from(ports ^ ports.rotate_left(16)))
    }

    /// A hash of both MAC addresses. They are where an IPv4 flow has nothing, so that an address that is
    /// derived from the other kind cannot cancel it out.
    fn mac_hash(&self) -> u32 {
        FLOWS.hash_at(MACS_AT, self.addresses())
    }

    /// What the frame needs before a port with these features can take it.
    ///
    /// The checksum of a reply of a DHCP server is completed for every port. Clients read it from raw sockets, check it, and drop the
    /// reply if it is not finished; they do not learn what their kernel knows of it. QEMU does the same for such clients
    /// (`work_around_broken_dhclient`).
    // Several callers, in loops over frames: without a hint the compiler makes it a call, also for frames that need nothing.
    #[inline(always)]
    #[must_use]
    pub fn need(&self, features: Features) -> Need {
        match self.gso.is_none() && !self.checksum.is_incomplete() {
            true => Need::Nothing,
            false => self.need_of_unfinished(features),
        }
    }

    /// The same for a frame that leaves a checksum or its segments to us.
    fn need_of_unfinished(&self, features: Features) -> Need {
        match offload::need(&self.headers, self.checksum, self.gso, features) {
            Need::Nothing if self.headers.transport == Transport::Udp && self.is_dhcp_reply() => {
                Need::Checksum
            }
            need => need,
        }
    }

    /// Whether a datagram is from a DHCP server (IPv4).
    fn is_dhcp_reply(&self) -> bool {
        let ports = self.headers.ports(self.header());
        self.headers.network == Network::Ipv4
            && self.gso.is_none()
            && ports.is_some_and(|ports| ports.starts_with(&DHCP_SERVER))
    }

    /// How many packets the frame becomes on a wire: its segments, or one.
    #[inline]
    #[must_use]
    pub fn packets(&self) -> u32 {
        let Some(gso) = self.gso else { return 1 };
        let payload = self.len.saturating_sub(self.headers.payload_offset.into());
        payload.div_ceil(u32::from(gso.size).max(1)).max(1)
    }

    /// Where the frame says it comes from.
    #[inline]
    #[must_use]
    pub fn source(&self) -> MacAddr {
        mac(&self.bytes, 6)
    }
}

/// The port of a DHCP server (RFC 2131), 67.
const DHCP_SERVER: [u8; 2] = 67u16.to_be_bytes();

/// The place of the MAC addresses in the input of the hash.
const MACS_AT: usize = toeplitz::KEY_LEN - 4 - 12;
/// The hash that spreads flows over queues.
static FLOWS: toeplitz::Table = toeplitz::Table::new(&toeplitz::MICROSOFT_KEY);

/// The queue, of `queues`, that flows with this [hash](Frame::flow_hash) belong to; zero without queues.
#[inline]
#[must_use]
pub fn queue_of(hash: u32, queues: usize) -> usize {
    // The high bits of a product spread as well as a remainder, without a division.
    ((u64::from(hash) * queues as u64) >> 32) as usize
}

#[inline]
fn mac(bytes: &[u8; HEADER_ROOM], at: usize) -> MacAddr {
    let mut octets = [0; 6];
    octets.copy_from_slice(&bytes[at..at + 6]);
    MacAddr(octets)
}
