//! Frames that cost a worker a system call for every few bytes.

use std::net::Ipv4Addr;
use std::time::Duration;

use offload::{Checksum, Gso, GsoKind};
use wire::checksum::pseudo_v4;
use wire::ethernet::{self, EtherType, MacAddr};
use wire::ip::Protocol;
use wire::{ipv4, tcp};

use super::attacker::Attacker;
use crate::bench::guest::text;

/// The smallest segment that a backend accepts, and the most segments of one frame that it makes.
const SEGMENT: u16 = 8;
const SEGMENTS: u16 = 192;
const ETHERNET: usize = 14;
const HEADERS: usize = ETHERNET + ipv4::HEADER_LEN + tcp::HEADER_LEN;
/// Frames per publication.
const BATCH: u64 = 16;
/// Where the frames come from, and where they go: the uplink's host has neither address.
const FROM: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 3);
const TO: Ipv4Addr = Ipv4Addr::new(10, 78, 0, 1);

/// Sends frames of 1.5 KiB to the uplink, each to be cut into 192 segments.
pub fn tiny(attacker: &mut Attacker) -> Result<u64, String> {
    attacker.receive()?;
    let uplink = *attacker.targets.first().ok_or("no uplink")?;
    let guest = attacker.guest()?;
    let frame = frame(guest.mac, uplink);
    let gso = Some(Gso { kind: GsoKind::TcpV4, size: SEGMENT });
    guest.queue.tx.reclaim().map_err(text)?;
    let mut sent = 0;
    while sent < BATCH && guest.send(&frame, Checksum::Partial, gso)? {
        sent += 1;
    }
    guest.queue.tx.publish();
    if sent == 0 {
        guest.wait(Duration::from_millis(1))?;
    }
    Ok(sent)
}

/// A TCP frame, its checksum to be finished.
fn frame(src: MacAddr, dst: MacAddr) -> Vec<u8> {
    let payload = SEGMENT * SEGMENTS;
    let mut frame = vec![0; HEADERS + usize::from(payload)];
    let header = ethernet::Repr { dst, src, ethertype: EtherType::IPV4 };
    header.emit(&mut ethernet::Frame::new_unchecked(&mut frame[..]));
    let payload_len = 20 + payload;
    let header =
        ipv4::Repr { src: FROM, dst: TO, protocol: Protocol::TCP, ttl: 64, ident: 0, payload_len };
    header.emit(&mut ipv4::Packet::new_unchecked(&mut frame[ETHERNET..]));
    let flags = tcp::Flags::ACK;
    let header = tcp::Repr { src_port: 9, dst_port: 9, seq: 0, ack: 0, flags, window: 1024 };
    let mut segment = tcp::Packet::new_unchecked(&mut frame[ETHERNET + ipv4::HEADER_LEN..]);
    header.emit(&mut segment);
    segment.set_checksum(pseudo_v4(FROM, TO, Protocol::TCP.0, payload_len).fold());
    frame
}
