//! Frames built by etherparse, which knows nothing of our code, from a description that proptest can shrink.
use etherparse::{DoubleVlanHeader, IpHeaders, SingleVlanHeader};
use etherparse::{
    Ethernet2Header, IpNumber, Ipv4Extensions, Ipv4Header, Ipv6Extensions, Ipv6FlowLabel,
    Ipv6Header, Ipv6RawExtHeader, PacketBuilder, PacketBuilderStep, TcpHeader, VlanHeader, VlanId,
};
use proptest::prelude::*;

/// An IP header, and what lies around it.
#[derive(Clone, Debug)]
pub struct Network {
    pub vlan_tags: usize,
    pub v6: bool,
    /// IPv4: options of four times as many bytes. IPv6: destination options headers of eight times as many, none for
    /// zero.
    pub options: u8,
    pub ident: u16,
    pub addresses: u16,
}

/// A TCP header.
#[derive(Clone, Debug)]
pub struct Tcp {
    pub seq: u32,
    pub flags: u8,
    /// Options of four times as many bytes.
    pub options: u8,
}

pub fn network() -> impl Strategy<Value = Network> {
    (0usize..=2, any::<bool>(), 0u8..=4, any::<u16>(), any::<u16>()).prop_map(
        |(vlan_tags, v6, options, ident, addresses)| Network {
            vlan_tags,
            v6,
            options,
            ident,
            addresses,
        },
    )
}

pub fn tcp() -> impl Strategy<Value = Tcp> {
    (any::<u32>(), any::<u8>(), 0u8..=10).prop_map(|(seq, flags, options)| Tcp {
        seq,
        flags,
        options,
    })
}

/// Bytes of which no two runs are alike, so that a misplaced payload shows.
pub fn payload(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 251).to_le_bytes()[0]).collect()
}

impl Network {
    pub fn tcp_frame(&self, tcp: &Tcp, payload: &[u8]) -> Vec<u8> {
        let mut frame = Vec::new();
        let step = self.ip_step(IpNumber::TCP).tcp_header(tcp.header());
        step.write(&mut frame, payload).expect("a frame that fits IP's length field");
        frame
    }

    pub fn udp_frame(&self, ports: (u16, u16), payload: &[u8]) -> Vec<u8> {
        let mut frame = Vec::new();
        let step = self.ip_step(IpNumber::UDP).udp(ports.0, ports.1);
        step.write(&mut frame, payload).expect("a frame that fits IP's length field");
        frame
    }

    fn ip_step(&self, protocol: IpNumber) -> PacketBuilderStep<IpHeaders> {
        let ethernet = PacketBuilder::ethernet2([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]);
        let ip = if self.v6 { self.ipv6(protocol) } else { self.ipv4(protocol) };
        match self.vlan_tags {
            0 => ethernet.ip(ip),
            1 => ethernet.vlan(VlanHeader::Single(tag(100))).ip(ip),
            _ => ethernet
                .vlan(VlanHeader::Double(DoubleVlanHeader { outer: tag(100), inner: tag(200) }))
                .ip(ip),
        }
    }

    fn ipv4(&self, protocol: IpNumber) -> IpHeaders {
        let [high, low] = self.addresses.to_be_bytes();
        let (source, destination) = ([10, 0, high, 1], [10, 0, low, 2]);
        let mut header =
            Ipv4Header::new(0, 64, protocol, source, destination).expect("a short payload");
        header.identification = self.ident;
        header.dont_fragment = self.ident.is_multiple_of(2);
        let options = vec![1; 4 * usize::from(self.options)];
        header.options = options.as_slice().try_into().expect("at most 40 bytes");
        IpHeaders::Ipv4(header, Ipv4Extensions::default())
    }

    fn ipv6(&self, protocol: IpNumber) -> IpHeaders {
        let [high, low] = self.addresses.to_be_bytes();
        let mut source = [0xfd; 16];
        source[15] = high;
        let mut destination = [0xfd; 16];
        destination[15] = low;
        let header = Ipv6Header {
            traffic_class: low,
            flow_label: Ipv6FlowLabel::try_new(self.ident.into()).expect("20 bits"),
            payload_length: 0,
            next_header: protocol,
            hop_limit: 64,
            source,
            destination,
        };
        let mut extensions = Ipv6Extensions::default();
        if self.options > 0 {
            // One PadN option that fills the header.
            let mut padding = vec![0; 8 * usize::from(self.options) - 2];
            padding[0] = 1;
            padding[1] = 8 * self.options - 4;
            extensions.destination_options =
                Some(Ipv6RawExtHeader::new_raw(protocol, &padding).expect("a multiple of 8"));
        }
        IpHeaders::Ipv6(header, extensions)
    }
}

impl Tcp {
    fn header(&self) -> TcpHeader {
        let flag = |bit: u8| self.flags & bit != 0;
        let mut header = TcpHeader::new(1234, 80, self.seq, 4096);
        header.fin = flag(0x01);
        header.syn = flag(0x02);
        header.rst = flag(0x04);
        header.psh = flag(0x08);
        header.ack = flag(0x10);
        header.urg = flag(0x20);
        header.ece = flag(0x40);
        header.cwr = flag(0x80);
        header.acknowledgment_number = 0x0102_0304;
        // No-operations.
        header.set_options_raw(&vec![1; 4 * usize::from(self.options)]).expect("at most 40 bytes");
        header
    }
}

fn tag(vlan: u16) -> SingleVlanHeader {
    SingleVlanHeader {
        pcp: 5.try_into().expect("3 bits"),
        drop_eligible_indicator: false,
        vlan_id: VlanId::try_new(vlan).expect("12 bits"),
        // The builder fills it in.
        ether_type: 0.into(),
    }
}

/// The frame's headers as etherparse reads them.
pub fn parse(frame: &[u8]) -> etherparse::PacketHeaders<'_> {
    etherparse::PacketHeaders::from_ethernet_slice(frame).expect("a whole frame")
}

/// The checksum that etherparse computes for the frame's TCP or UDP, and the one that it holds.
pub fn transport_checksums(headers: &etherparse::PacketHeaders<'_>) -> (u16, u16) {
    use etherparse::{NetHeaders, TransportHeader};
    let payload = headers.payload.slice();
    let computed = match (&headers.net, &headers.transport) {
        (Some(NetHeaders::Ipv4(ip, _)), Some(TransportHeader::Tcp(tcp))) => {
            tcp.calc_checksum_ipv4(ip, payload)
        }
        (Some(NetHeaders::Ipv6(ip, _)), Some(TransportHeader::Tcp(tcp))) => {
            tcp.calc_checksum_ipv6(ip, payload)
        }
        (Some(NetHeaders::Ipv4(ip, _)), Some(TransportHeader::Udp(udp))) => {
            udp.calc_checksum_ipv4(ip, payload)
        }
        (Some(NetHeaders::Ipv6(ip, _)), Some(TransportHeader::Udp(udp))) => {
            udp.calc_checksum_ipv6(ip, payload)
        }
        other => panic!("neither TCP nor UDP: {other:?}"),
    };
    let held = match &headers.transport {
        Some(TransportHeader::Tcp(tcp)) => tcp.checksum,
        Some(TransportHeader::Udp(udp)) => udp.checksum,
        other => panic!("neither TCP nor UDP: {other:?}"),
    };
    (computed.expect("a packet of IP's lengths"), held)
}

/// The Ethernet header's length, for those who patch frames.
pub fn l3_offset(network: &Network) -> usize {
    Ethernet2Header::LEN + SingleVlanHeader::LEN * network.vlan_tags
}
