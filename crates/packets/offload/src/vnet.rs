//! Translation between `virtio_net_hdr`, the offload metadata of virtio-net and taps, and a frame's.

use wire::headers::{ChecksumLocation, Headers, Network, Transport};
use wire::virtio_net::{VirtioNetHdr, flags, gso};

use crate::{Checksum, Gso, GsoKind};

/// The header asks for an offload that the frame's headers do not bear out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unsupported {
    /// A checksum that is neither TCP's nor UDP's outermost, in a frame that is not to be segmented. Software may
    /// [complete](Self::checksum_elsewhere) it.
    #[error("a checksum at byte {start}+{offset} that is not the transport's")]
    Checksum {
        /// `csum_start`.
        start: u16,
        /// `csum_offset`.
        offset: u16,
    },
    /// UDP fragmentation, UDP over neither IP version, segments of no size, or a checksum that is not the segments'.
    #[error("gso type {0}")]
    Gso(u8),
}

impl Unsupported {
    /// Where [`complete_checksum_at`](crate::complete_checksum_at) may complete the checksum of a frame whose first `private` bytes were
    /// copied. None for another fault, or out of these bounds:
    /// - The checksum covers nothing before the network header: VLAN tags come and go on a frame's way.
    /// - Its field lies in the private bytes: the body is neither read twice nor written.
    /// - The field lies behind all headers that were parsed, so completing it changes nothing that was checked, the sender's addresses
    ///   among it. What a guard reads behind them has none: ARP, neighbour discovery, and fragments and opaque headers of IPv6.
    #[cold]
    #[must_use]
    pub fn checksum_elsewhere(self, headers: &Headers, private: usize) -> Option<ChecksumLocation> {
        let Self::Checksum { start, offset } = self else { return None };
        let is_read_no_further = match (headers.network, headers.transport) {
            (Network::Other | Network::Ipv4, _) => true,
            (Network::Ipv6, Transport::Tcp | Transport::Udp | Transport::Other) => true,
            (Network::Ipv6 | Network::Arp, _) => false,
        };
        let field = usize::from(start) + usize::from(offset);
        let is_in_bounds = start >= headers.l3_offset.into()
            && field >= headers.payload_offset.into()
            && field + 2 <= private;
        (is_read_no_further && is_in_bounds).then_some(ChecksumLocation { start, offset })
    }
}

/// Reads a header that came with a frame.
#[inline]
pub fn decode(
    header: &VirtioNetHdr,
    headers: &Headers,
) -> Result<(Checksum, Option<Gso>), Unsupported> {
    let gso = match header.gso_type & !gso::ECN {
        gso::NONE => None,
        // Segments without payload would never end.
        kind if header.gso_size.get() == 0 => return Err(Unsupported::Gso(kind)),
        gso::TCPV4 => Some(Gso { kind: GsoKind::TcpV4, size: header.gso_size.get() }),
        gso::TCPV6 => Some(Gso { kind: GsoKind::TcpV6, size: header.gso_size.get() }),
        gso::UDP_L4 if headers.network == Network::Ipv4 => {
            Some(Gso { kind: GsoKind::UdpV4, size: header.gso_size.get() })
        }
        gso::UDP_L4 if headers.network == Network::Ipv6 => {
            Some(Gso { kind: GsoKind::UdpV6, size: header.gso_size.get() })
        }
        other => return Err(Unsupported::Gso(other)),
    };
    let is_set = |flag| header.flags & flag != 0;
    let checksum = Checksum::from_flags(is_set(flags::NEEDS_CSUM), is_set(flags::DATA_VALID));
    if checksum != Checksum::Partial {
        return Ok((checksum, gso));
    }
    // netif has no field for the checksum's location: the receiver finds it from the headers.
    let (start, offset) = (header.csum_start.get(), header.csum_offset.get());
    match headers.checksum_location() {
        Some(at) if at.start == start && at.offset == offset => Ok((checksum, gso)),
        _ if gso.is_some() => Err(Unsupported::Gso(header.gso_type)),
        _ => Err(Unsupported::Checksum { start, offset }),
    }
}

/// The header for a frame. A partial checksum is left out if the headers have no checksum field, and so is one that is
/// [elsewhere](Checksum::Elsewhere) and has not been completed; the receiving stack then finds the checksum wrong.
#[inline]
#[must_use]
pub fn encode(headers: &Headers, checksum: Checksum, gso: Option<Gso>) -> VirtioNetHdr {
    let mut header = VirtioNetHdr::default();
    if checksum == Checksum::Partial {
        if let Some(at) = headers.checksum_location() {
            // Without DATA_VALID, which virtio has for checksums that are complete.
            header.flags = flags::NEEDS_CSUM;
            header.csum_start = at.start.into();
            header.csum_offset = at.offset.into();
        }
    } else if checksum == Checksum::Validated {
        header.flags = flags::DATA_VALID;
    }
    if let Some(gso) = gso {
        header.gso_type = match gso.kind {
            GsoKind::TcpV4 => gso::TCPV4,
            GsoKind::TcpV6 => gso::TCPV6,
            GsoKind::UdpV4 | GsoKind::UdpV6 => gso::UDP_L4,
        };
        header.gso_size = gso.size.into();
        header.hdr_len = u16::from(headers.payload_offset).into();
    }
    header
}

#[cfg(test)]
mod tests {
    use wire::headers::{Network, Transport};

    use super::*;

    const TCP: Headers = Headers {
        network: Network::Ipv4,
        transport: Transport::Tcp,
        vlan: None,
        l3_offset: 14,
        l4_offset: 34,
        payload_offset: 66,
    };

    #[test]
    fn what_is_encoded_decodes() {
        let gso = Some(Gso { kind: GsoKind::TcpV4, size: 1448 });
        for (checksum, gso) in [
            (Checksum::Partial, gso),
            (Checksum::Partial, None),
            (Checksum::Validated, None),
            (Checksum::Unknown, None),
        ] {
            let header = encode(&TCP, checksum, gso);
            assert_eq!(decode(&header, &TCP), Ok((checksum, gso)));
        }
        let header = encode(&TCP, Checksum::Partial, gso);
        assert_eq!((header.csum_start.get(), header.csum_offset.get()), (34, 16));
        assert_eq!((header.gso_type, header.hdr_len.get()), (gso::TCPV4, 66));
    }

    #[test]
    fn udp_is_of_the_ip_version_that_its_headers_name() {
        for (network, kind) in [(Network::Ipv4, GsoKind::UdpV4), (Network::Ipv6, GsoKind::UdpV6)] {
            let headers = Headers { network, transport: Transport::Udp, ..TCP };
            let wanted = Some(Gso { kind, size: 1200 });
            let header = encode(&headers, Checksum::Partial, wanted);
            assert_eq!((header.gso_type, header.csum_offset.get()), (gso::UDP_L4, 6));
            assert_eq!(decode(&header, &headers), Ok((Checksum::Partial, wanted)));
        }
        let arp = Headers { network: Network::Arp, transport: Transport::None, ..TCP };
        let header =
            VirtioNetHdr { gso_type: gso::UDP_L4, gso_size: 9.into(), ..VirtioNetHdr::default() };
        assert_eq!(decode(&header, &arp), Err(Unsupported::Gso(gso::UDP_L4)));
    }

    #[test]
    fn what_a_frame_cannot_say_is_refused() {
        let mut header = encode(&TCP, Checksum::Partial, None);
        header.csum_start = 54.into();
        assert_eq!(decode(&header, &TCP), Err(Unsupported::Checksum { start: 54, offset: 16 }));
        for kind in [gso::UDP_L4, gso::TCPV4] {
            let header = VirtioNetHdr { gso_type: kind, ..VirtioNetHdr::default() };
            assert_eq!(decode(&header, &TCP), Err(Unsupported::Gso(kind)));
        }
        // Segments have their transport's.
        let mut header =
            encode(&TCP, Checksum::Partial, Some(Gso { kind: GsoKind::TcpV4, size: 9 }));
        header.csum_start = 70.into();
        assert_eq!(decode(&header, &TCP), Err(Unsupported::Gso(gso::TCPV4)));
        assert_eq!(Unsupported::Gso(gso::TCPV4).checksum_elsewhere(&TCP, 128), None);
    }

    #[test]
    fn a_checksum_lies_within_the_private_header_and_behind_what_was_parsed() {
        let place = |start, offset, headers: &Headers, private| {
            let asked = Unsupported::Checksum { start, offset };
            asked.checksum_elsewhere(headers, private)
        };
        let takes = |start, offset, private| place(start, offset, &TCP, private).is_some();
        assert_eq!(place(66, 16, &TCP, 128), Some(ChecksumLocation { start: 66, offset: 16 }));
        // The last bytes of the private header, or of the frame.
        assert!(takes(66, 60, 128) && !takes(66, 61, 128) && !takes(66, 62, 128));
        assert!(takes(126, 0, 128) && !takes(127, 0, 128) && !takes(128, 0, 128));
        assert!(takes(66, 0, 68) && !takes(66, 0, 67) && !takes(66, 0, 66));
        for (start, offset) in [(u16::MAX, u16::MAX), (66, u16::MAX), (u16::MAX, 0), (u16::MAX, 2)]
        {
            assert!(!takes(start, offset, 128));
        }
        // Addresses, ports, and the network header.
        assert!(takes(14, 52, 128) && !takes(14, 51, 128) && !takes(13, 53, 128));
        assert!(!takes(0, 6, 128) && !takes(26, 0, 128) && !takes(34, 16, 128));
        let other = |network, transport| {
            let headers = Headers { network, transport, l4_offset: 14, payload_offset: 14, ..TCP };
            place(14, 40, &headers, 128).is_some()
        };
        assert!(other(Network::Other, Transport::None) && other(Network::Ipv6, Transport::Other));
        assert!(!other(Network::Arp, Transport::None));
        for transport in [Transport::Icmpv6, Transport::Fragment, Transport::Opaque] {
            assert!(!other(Network::Ipv6, transport), "{transport:?}");
        }
    }
}
