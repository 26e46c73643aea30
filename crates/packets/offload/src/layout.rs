//! Where a frame's parts lie, checked once so that no later access fails.

use wire::checksum::{Sum, pseudo_v4, pseudo_v6};
use wire::headers::{Headers, Network, Transport};
use wire::ip::Protocol;
use wire::{ipv4, ipv6, tcp, udp};

use crate::Error;

/// IP versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ip {
    V4,
    V6,
}

/// The parts of a TCP or UDP frame, as offsets that increase and end within the frame.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    pub(crate) ip: Ip,
    pub(crate) protocol: Protocol,
    /// The IP header.
    pub(crate) l3: usize,
    /// The TCP or UDP header.
    pub(crate) l4: usize,
    /// The transport's payload.
    pub(crate) payload: usize,
    /// The end of the IP packet. Ethernet padding may follow.
    pub(crate) end: usize,
}

impl Layout {
    /// The layout of a frame of `frame_len` bytes that starts with `header`, which holds all of its headers.
    pub(crate) fn of(header: &[u8], frame_len: usize, headers: &Headers) -> Result<Self, Error> {
        let (ip, ip_len) = match headers.network {
            Network::Ipv4 => (Ip::V4, ipv4::HEADER_LEN),
            Network::Ipv6 => (Ip::V6, ipv6::HEADER_LEN),
            Network::Arp | Network::Other => return Err(Error::Transport),
        };
        let (protocol, transport_len) = match headers.transport {
            Transport::Tcp => (Protocol::TCP, tcp::HEADER_LEN),
            Transport::Udp => (Protocol::UDP, udp::HEADER_LEN),
            _ => return Err(Error::Transport),
        };
        let l3 = usize::from(headers.l3_offset);
        let l4 = usize::from(headers.l4_offset);
        let payload = usize::from(headers.payload_offset);
        if l3 + ip_len > l4 || l4 + transport_len > payload || payload > header.len() {
            return Err(Error::Headers);
        }
        let mut layout = Self { ip, protocol, l3, l4, payload, end: frame_len };
        layout.check_header_lengths(header)?;
        layout.end = layout.packet_end(header)?;
        Ok(layout)
    }

    /// Checks that the lengths in the variable-length headers agree with the offsets.
    fn check_header_lengths(&self, header: &[u8]) -> Result<(), Error> {
        let network = &header[self.l3..self.l4];
        let ip_agrees = match self.ip {
            Ip::V4 => ipv4::Packet::new_unchecked(network).header_len() == network.len(),
            Ip::V6 => true,
        };
        let transport = &header[self.l4..self.payload];
        let transport_agrees = match self.protocol {
            Protocol::TCP => tcp::Packet::new_unchecked(transport).header_len() == transport.len(),
            _ => transport.len() == udp::HEADER_LEN,
        };
        (ip_agrees && transport_agrees).then_some(()).ok_or(Error::Headers)
    }

    /// Where IP's length field ends the packet. Zero stands for "the whole frame": hosts write it into packets to
    /// be segmented that are too long for the field. `self.end` is the frame's end until now.
    fn packet_end(&self, header: &[u8]) -> Result<usize, Error> {
        let network = &header[self.l3..self.l4];
        let (start, len) = match self.ip {
            Ip::V4 => (self.l3, ipv4::Packet::new_unchecked(network).total_len()),
            Ip::V6 => {
                let packet = ipv6::Packet::new_unchecked(network);
                (self.l3 + ipv6::HEADER_LEN, packet.payload_len())
            }
        };
        let end = if len == 0 { self.end } else { start + usize::from(len) };
        (self.payload..=self.end).contains(&end).then_some(end).ok_or(Error::Length)
    }

    /// The pseudo-header's sum for `len` bytes of transport header and payload.
    pub(crate) fn pseudo(&self, header: &[u8], len: usize) -> Result<Sum, Error> {
        let network = &header[self.l3..self.l4];
        let protocol = self.protocol.0;
        match self.ip {
            Ip::V4 => {
                let packet = ipv4::Packet::new_unchecked(network);
                let len = u16::try_from(len).map_err(|_| Error::TooLong)?;
                Ok(pseudo_v4(packet.src(), packet.dst(), protocol, len))
            }
            Ip::V6 => {
                let packet = ipv6::Packet::new_unchecked(network);
                let len = u32::try_from(len).map_err(|_| Error::TooLong)?;
                Ok(pseudo_v6(packet.src(), packet.dst(), protocol, len))
            }
        }
    }
}
