//! TCP segments in memory, a port that takes merged ones, and what arrives there.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use gro::{Counters, merge};
use offload::{Checksum, Features, Gso, MAX_HEADER, Segmenter, complete_checksum};
use port::{
    Body, Egress, FRAME_MAX, Fragment, Frame, HEADER_MAX, Merging, Offer, Outcome, WINDOW,
    linearise,
};
use port_testing::FakeEgress;
use shm::Region;
use wire::headers::Headers;
use wire::ip::Protocol;
use wire::tcp::Flags;
use wire::{ipv4, ipv6, tcp};

/// Bytes of memory for each frame.
const PLACE: usize = 1 << 16;

/// A TCP segment, as its sender describes it.
#[derive(Clone, Debug)]
pub struct Segment {
    pub v6: bool,
    /// A VLAN tag, if not 0.
    pub vlan: u16,
    /// The source port: which flow it is of.
    pub flow: u16,
    pub ttl: u8,
    pub class: u8,
    pub dont_frag: bool,
    pub ident: u16,
    pub seq: u32,
    pub ack: u32,
    pub flags: Flags,
    pub window: u16,
    /// The value of a timestamp.
    pub stamp: u32,
    pub payload: Vec<u8>,
    /// Bytes after the IP packet.
    pub padding: usize,
    /// What is known of its checksum.
    pub checksum: Checksum,
    /// A byte that is changed after all checksums were written, if any.
    pub damage: Option<usize>,
}

impl Segment {
    pub fn first(flow: u16, len: usize) -> Self {
        Self {
            v6: false,
            vlan: 0,
            flow,
            ttl: 64,
            class: 0,
            dont_frag: true,
            ident: 7,
            seq: u32::MAX - 4000,
            ack: 99,
            flags: Flags::ACK,
            window: 501,
            stamp: 1,
            payload: bytes(len, flow.into()),
            padding: 0,
            checksum: Checksum::Unknown,
            damage: None,
        }
    }

    /// The segment that follows.
    pub fn next(&self, len: usize) -> Self {
        let sent = u32::try_from(self.payload.len()).unwrap();
        let seq = self.seq.wrapping_add(sent);
        Self {
            ident: self.ident.wrapping_add(1),
            seq,
            payload: bytes(len, u64::from(seq)),
            ..self.clone()
        }
    }

    /// A row of segments with this many bytes each.
    pub fn row(first: Self, count: usize, len: usize) -> Vec<Self> {
        std::iter::successors(Some(first), |last| Some(last.next(len))).take(count).collect()
    }

    /// The bytes on the wire.
    pub fn bytes(&self) -> Vec<u8> {
        let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
        if self.vlan != 0 {
            frame.extend([0x81, 0x00]);
            frame.extend(self.vlan.to_be_bytes());
        }
        frame.extend(if self.v6 { [0x86, 0xdd] } else { [0x08, 0x00] });
        let transport = 32 + self.payload.len();
        let l3 = frame.len();
        let l4 = l3 + if self.v6 { ipv6::HEADER_LEN } else { ipv4::HEADER_LEN };
        frame.resize(l4 + 32, 0);
        frame.extend(&self.payload);
        self.write_network(&mut frame[l3..l4], transport);
        self.write_transport(&mut frame[l4..]);
        let headers = Headers::parse(&frame).unwrap();
        match self.checksum {
            Checksum::Partial => {
                let gso = Gso { kind: kind(self.v6), size: u16::MAX };
                let mut header = [0; MAX_HEADER];
                let made = Segmenter::of_header(&frame, frame.len(), &headers, gso)
                    .unwrap()
                    .next(&mut header);
                frame[..l4 + 32].copy_from_slice(&header[..made.unwrap().header_len]);
            }
            _ => complete_checksum(&mut frame, &headers).unwrap(),
        }
        frame.resize(frame.len() + self.padding, 0);
        if let Some(place) = self.damage {
            let place = place % frame.len();
            frame[place] ^= 0x40;
        }
        frame
    }

    fn write_network(&self, header: &mut [u8], len: usize) {
        let len = u16::try_from(len).unwrap();
        if self.v6 {
            let mut ip = ipv6::Packet::new_unchecked(header);
            ip.set_class_and_label(self.class, 5);
            ip.set_payload_len(len);
            ip.set_next_header(Protocol::TCP);
            ip.set_hop_limit(self.ttl);
            ip.set_src("fd00::1".parse().unwrap());
            ip.set_dst("fd00::2".parse().unwrap());
            return;
        }
        let mut ip = ipv4::Packet::new_unchecked(header);
        ip.set_header_len(20);
        ip.set_traffic_class(self.class);
        ip.set_total_len(20 + len);
        ip.set_ident(self.ident);
        ip.set_fragment(self.dont_frag, false, 0);
        ip.set_ttl(self.ttl);
        ip.set_protocol(Protocol::TCP);
        ip.set_src([10, 0, 0, 1].into());
        ip.set_dst([10, 0, 0, 2].into());
        ip.fill_checksum();
    }

    fn write_transport(&self, segment: &mut [u8]) {
        let mut tcp = tcp::Packet::new_unchecked(&mut *segment);
        tcp.set_src_port(self.flow);
        tcp.set_dst_port(80);
        tcp.set_seq(self.seq);
        tcp.set_ack(self.ack);
        tcp.set_header_len(32);
        tcp.set_flags(self.flags);
        tcp.set_window(self.window);
        segment[20..24].copy_from_slice(&[1, 1, 8, 10]);
        segment[24..28].copy_from_slice(&self.stamp.to_be_bytes());
    }
}

fn kind(v6: bool) -> offload::GsoKind {
    if v6 { offload::GsoKind::TcpV6 } else { offload::GsoKind::TcpV4 }
}

/// `len` bytes that look like nothing else.
pub fn bytes(len: usize, seed: u64) -> Vec<u8> {
    (0..len as u64).map(|n| (n * 7 + n / 251 + seed * 31).to_le_bytes()[0]).collect()
}

/// A batch of frames, their bodies in one region.
pub struct Batch {
    pub frames: Vec<Frame>,
    pub regions: Arc<[Region]>,
}

impl Batch {
    /// Frames of these bytes, with what is known of each checksum. None if the headers of one cannot be parsed.
    pub fn new(frames: &[(Vec<u8>, Checksum)]) -> Option<Self> {
        let region = Region::anonymous(WINDOW * PLACE).unwrap();
        let mut batch = Vec::new();
        for (n, (bytes, checksum)) in frames.iter().enumerate() {
            let (header, body) = bytes.split_at(bytes.len().min(HEADER_MAX));
            let mut frame = Frame::empty();
            frame.bytes[..header.len()].copy_from_slice(header);
            frame.header_len = u8::try_from(header.len()).unwrap();
            frame.len = u32::try_from(bytes.len()).unwrap();
            frame.parse_headers().ok()?;
            frame.checksum = *checksum;
            region.copy_in(n * PLACE, body).unwrap();
            if !body.is_empty() {
                let len = u16::try_from(body.len()).unwrap();
                frame.fragments.push(Fragment::in_region(0, (n * PLACE) as u64, len));
            }
            batch.push(frame);
        }
        Some(Self { frames: batch, regions: [region].into() })
    }

    /// Frames of these segments.
    pub fn of(segments: &[Segment]) -> Self {
        let frames: Vec<_> = segments.iter().map(|s| (s.bytes(), s.checksum)).collect();
        Self::new(&frames).unwrap()
    }
}

/// What a port got: its bytes as they are, and what was said of them.
#[derive(Clone, Debug, PartialEq)]
pub struct Arrived {
    pub bytes: Vec<u8>,
    pub checksum: Checksum,
    pub gso: Option<Gso>,
}

impl Arrived {
    /// The segments that a device makes of it. `partial`: without complete checksums.
    pub fn segments(&self, partial: bool) -> Vec<Vec<u8>> {
        let Some(gso) = self.gso else { return vec![self.bytes.clone()] };
        assert_eq!(self.checksum, Checksum::Partial);
        let headers = Headers::parse(&self.bytes).unwrap();
        let mut segmenter = match partial {
            false => Segmenter::new(&self.bytes, &headers, gso).unwrap(),
            true => Segmenter::of_header(&self.bytes, self.bytes.len(), &headers, gso).unwrap(),
        };
        let mut header = [0; MAX_HEADER];
        let mut segments = Vec::new();
        while let Some(segment) = segmenter.next(&mut header) {
            segments.push([&header[..segment.header_len], &self.bytes[segment.payload]].concat());
        }
        segments
    }
}

/// Everything that a port may take.
pub const ALL: Merging = Merging { features: Features::ALL, longest: FRAME_MAX };

/// A port that takes `merging`, with a wrapper that merges, and what arrives there.
pub struct Bed {
    pub egress: Box<dyn Egress>,
    pub arrived: Arc<Mutex<Vec<Arrived>>>,
    pub counters: Arc<Counters>,
}

impl Bed {
    /// A port that gives this answer to each frame, by its number.
    pub fn answering(
        merging: Merging,
        mut answer: impl FnMut(usize) -> Outcome + Send + 'static,
    ) -> Self {
        let arrived = Arc::<Mutex<Vec<Arrived>>>::default();
        let (seen, mut number) = (arrived.clone(), 0);
        let mut egress = FakeEgress::new(move |frame: &Frame, body: Body<'_>| {
            let outcome = answer(number);
            number += 1;
            if outcome == Outcome::Delivered {
                let mut bytes = vec![0; frame.len as usize];
                if let Err(fault) = linearise(frame, body, &mut bytes) {
                    return Ok(fault);
                }
                let arrived = Arrived { bytes, checksum: frame.checksum, gso: frame.gso };
                seen.lock().unwrap().push(arrived);
            }
            Ok(outcome)
        });
        egress.merging = Some(merging);
        let counters = Arc::default();
        Self { egress: merge(Box::new(egress), &counters), arrived, counters }
    }

    pub fn new(merging: Merging) -> Self {
        Self::answering(merging, |_| Outcome::Delivered)
    }

    /// Delivers a batch. Returns what became of each frame.
    pub fn deliver(&mut self, batch: &Batch) -> Vec<Outcome> {
        let mut offers: Vec<_> = batch.frames.iter().map(Offer::new).collect();
        self.egress.deliver(Body::Regions(&batch.regions), &mut offers, Duration::ZERO).unwrap();
        offers.iter().map(|offer| offer.outcome).collect()
    }

    /// What has arrived until now.
    pub fn take(&self) -> Vec<Arrived> {
        std::mem::take(&mut self.arrived.lock().unwrap())
    }
}
