//! What a frame needs before a port can take it.

use wire::headers::{Headers, Network};

use crate::{Checksum, Gso, GsoKind};

/// What a port can take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Features {
    /// Frames in more than one fragment, and so longer than one page.
    pub sg: bool,
    /// Partial checksums over IPv4.
    pub csum_v4: bool,
    /// Partial checksums over IPv6.
    pub csum_v6: bool,
    /// Unsegmented TCP over IPv4. It has no effect without `sg` and `csum_v4`.
    pub tso_v4: bool,
    /// Unsegmented TCP over IPv6. It has no effect without `sg` and `csum_v6`.
    pub tso_v6: bool,
    /// Unsegmented UDP over IPv4. It has no effect without `sg` and `csum_v4`.
    pub uso_v4: bool,
    /// Unsegmented UDP over IPv6. It has no effect without `sg` and `csum_v6`.
    pub uso_v6: bool,
    /// The above for frames with a VLAN tag too: the port is given the place of the checksum, or looks for it behind tags.
    pub tagged: bool,
}

impl Features {
    /// Whole frames with complete checksums only.
    pub const NONE: Self = Self {
        sg: false,
        csum_v4: false,
        csum_v6: false,
        tso_v4: false,
        tso_v6: false,
        uso_v4: false,
        uso_v6: false,
        tagged: false,
    };
    /// Everything named here.
    pub const ALL: Self = Self { uso_v4: true, uso_v6: true, tagged: true, ..Self::NETIF };
    /// Everything that netif can say: no unsegmented UDP. Linux' netfront looks for a checksum in frames without a tag only.
    pub const NETIF: Self =
        Self { sg: true, csum_v4: true, csum_v6: true, tso_v4: true, tso_v6: true, ..Self::NONE };

    /// These features without `other`, and without segmentation if a feature that it needs is gone.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        let sg = self.sg && !other.sg;
        let csum_v4 = self.csum_v4 && !other.csum_v4;
        let csum_v6 = self.csum_v6 && !other.csum_v6;
        Self {
            sg,
            csum_v4,
            csum_v6,
            tso_v4: self.tso_v4 && sg && csum_v4 && !other.tso_v4,
            tso_v6: self.tso_v6 && sg && csum_v6 && !other.tso_v6,
            uso_v4: self.uso_v4 && sg && csum_v4 && !other.uso_v4,
            uso_v6: self.uso_v6 && sg && csum_v6 && !other.uso_v6,
            tagged: self.tagged && !other.tagged,
        }
    }

    /// Whether offloads are for such a frame at all.
    const fn reach(self, headers: &Headers) -> bool {
        self.tagged || headers.vlan.is_none()
    }

    /// A segmenter must write checksums and gather fragments, so Linux too drops TSO and USO where either is missing.
    const fn segments(self, kind: GsoKind) -> bool {
        match kind {
            GsoKind::TcpV4 => self.sg && self.csum_v4 && self.tso_v4,
            GsoKind::TcpV6 => self.sg && self.csum_v6 && self.tso_v6,
            GsoKind::UdpV4 => self.sg && self.csum_v4 && self.uso_v4,
            GsoKind::UdpV6 => self.sg && self.csum_v6 && self.uso_v6,
        }
    }

    fn completes(self, headers: &Headers) -> bool {
        let has_checksum = headers.checksum_location().is_some();
        match headers.network {
            Network::Ipv4 => self.csum_v4 && has_checksum,
            Network::Ipv6 => self.csum_v6 && has_checksum,
            Network::Arp | Network::Other => false,
        }
    }
}

/// What must be done to a frame before a port takes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Need {
    /// The port takes it as it is.
    Nothing,
    /// [`complete_checksum`](crate::complete_checksum), or [`complete_checksum_at`](crate::complete_checksum_at).
    Checksum,
    /// A [`Segmenter`](crate::Segmenter), which completes the checksums too.
    Segment,
}

/// What a frame needs for a port with these features.
///
/// A frame whose metadata contradicts its headers (a GSO type of another protocol, a partial checksum where there is
/// none) gets the treatment that refuses it: it is never passed on to another guest.
#[inline]
pub fn need(headers: &Headers, checksum: Checksum, gso: Option<Gso>, features: Features) -> Need {
    match gso {
        // Comparisons, since of a `match` the compiler makes a table of jumps.
        None if !checksum.is_incomplete() => Need::Nothing,
        None if checksum == Checksum::Partial
            && features.completes(headers)
            && features.reach(headers) =>
        {
            Need::Nothing
        }
        None => Need::Checksum,
        Some(gso)
            if gso.fits(headers) && features.segments(gso.kind) && features.reach(headers) =>
        {
            Need::Nothing
        }
        Some(_) => Need::Segment,
    }
}

#[cfg(test)]
mod tests {
    use wire::headers::Transport;

    use super::*;

    fn headers(network: Network, transport: Transport) -> Headers {
        Headers { network, transport, vlan: None, l3_offset: 14, l4_offset: 34, payload_offset: 54 }
    }

    fn need_of_gso(
        network: Network,
        transport: Transport,
        kind: GsoKind,
        features: Features,
    ) -> Need {
        let gso = Gso { kind, size: 1448 };
        need(&headers(network, transport), Checksum::Partial, Some(gso), features)
    }

    #[test]
    fn checksums() {
        let need = |network, transport, checksum, features| {
            need(&headers(network, transport), checksum, None, features)
        };
        let v4_only = Features { csum_v4: true, ..Features::NONE };
        let v6_only = Features { csum_v6: true, ..Features::NONE };
        for transport in [Transport::Tcp, Transport::Udp] {
            let v4 = |features| need(Network::Ipv4, transport, Checksum::Partial, features);
            let v6 = |features| need(Network::Ipv6, transport, Checksum::Partial, features);
            assert_eq!((v4(v4_only), v6(v4_only)), (Need::Nothing, Need::Checksum));
            assert_eq!((v4(v6_only), v6(v6_only)), (Need::Checksum, Need::Nothing));
            for known in [Checksum::Unknown, Checksum::Validated] {
                assert_eq!(need(Network::Ipv4, transport, known, Features::NONE), Need::Nothing);
            }
        }
    }

    #[test]
    fn a_partial_checksum_where_there_is_none_is_never_passed_on() {
        for (network, transport) in [
            (Network::Arp, Transport::None),
            (Network::Ipv4, Transport::Fragment),
            (Network::Ipv6, Transport::Icmpv6),
        ] {
            let headers = headers(network, transport);
            let needed = need(&headers, Checksum::Partial, None, Features::ALL);
            assert_eq!(needed, Need::Checksum, "{network:?} {transport:?}");
        }
    }

    #[test]
    fn a_checksum_elsewhere_is_completed_for_every_port() {
        for (network, transport) in [
            (Network::Other, Transport::None),
            (Network::Ipv4, Transport::Other),
            (Network::Ipv6, Transport::Udp),
        ] {
            let headers = headers(network, transport);
            let needed = need(&headers, Checksum::Elsewhere, None, Features::ALL);
            assert_eq!(needed, Need::Checksum, "{network:?} {transport:?}");
        }
    }

    #[test]
    fn segmentation_needs_every_part_of_it() {
        let tcp = (Transport::Tcp, GsoKind::TcpV4, GsoKind::TcpV6);
        let udp = (Transport::Udp, GsoKind::UdpV4, GsoKind::UdpV6);
        for (transport, kind_v4, kind_v6) in [tcp, udp] {
            let v4 = |features| need_of_gso(Network::Ipv4, transport, kind_v4, features);
            let v6 = |features| need_of_gso(Network::Ipv6, transport, kind_v6, features);
            assert_eq!((v4(Features::ALL), v6(Features::ALL)), (Need::Nothing, Need::Nothing));
            assert_eq!((v4(Features::NONE), v6(Features::NONE)), (Need::Segment, Need::Segment));
            let without_sg = Features { sg: false, ..Features::ALL };
            assert_eq!((v4(without_sg), v6(without_sg)), (Need::Segment, Need::Segment));
            let without_v4_csum = Features { csum_v4: false, ..Features::ALL };
            assert_eq!((v4(without_v4_csum), v6(without_v4_csum)), (Need::Segment, Need::Nothing));
            let without_v6 = Features { tso_v6: false, uso_v6: false, ..Features::ALL };
            assert_eq!((v4(without_v6), v6(without_v6)), (Need::Nothing, Need::Segment));
        }
    }

    #[test]
    fn netif_takes_tcp_and_no_udp() {
        for (network, transport, kind) in [
            (Network::Ipv4, Transport::Tcp, GsoKind::TcpV4),
            (Network::Ipv6, Transport::Tcp, GsoKind::TcpV6),
            (Network::Ipv4, Transport::Udp, GsoKind::UdpV4),
            (Network::Ipv6, Transport::Udp, GsoKind::UdpV6),
        ] {
            let needed = need_of_gso(network, transport, kind, Features::NETIF);
            assert_eq!(needed == Need::Nothing, kind.netif().is_some(), "{kind:?}");
        }
    }

    #[test]
    fn a_tagged_frame_is_finished_for_a_port_that_looks_behind_no_tag() {
        let untagged = headers(Network::Ipv4, Transport::Tcp);
        let tagged = Headers { vlan: Some(10), ..untagged };
        let gso = Some(Gso { kind: GsoKind::TcpV4, size: 1448 });
        let needs = |headers: &Headers, features| {
            [(Checksum::Validated, None), (Checksum::Partial, None), (Checksum::Partial, gso)]
                .map(|(checksum, gso)| need(headers, checksum, gso, features))
        };
        let nothing = [Need::Nothing; 3];
        assert_eq!(
            (needs(&untagged, Features::NETIF), needs(&tagged, Features::ALL)),
            (nothing, nothing)
        );
        assert_eq!(needs(&tagged, Features::NETIF), [Need::Nothing, Need::Checksum, Need::Segment]);
    }

    #[test]
    fn a_gso_type_of_another_protocol_is_never_passed_on() {
        for (network, transport, kind) in [
            (Network::Ipv6, Transport::Tcp, GsoKind::TcpV4),
            (Network::Ipv4, Transport::Tcp, GsoKind::TcpV6),
            (Network::Ipv4, Transport::Udp, GsoKind::TcpV4),
            (Network::Ipv4, Transport::Tcp, GsoKind::UdpV4),
            (Network::Ipv6, Transport::Udp, GsoKind::UdpV4),
            (Network::Ipv4, Transport::Udp, GsoKind::UdpV6),
        ] {
            let needed = need_of_gso(network, transport, kind, Features::ALL);
            assert_eq!(needed, Need::Segment, "{network:?} {transport:?} {kind:?}");
        }
    }
}
