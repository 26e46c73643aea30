//! Frames that cost others more than their sender, and receivers that take them slowly.

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use offload::{Checksum, Gso, GsoKind};
use wire::checksum::pseudo_v4;
use wire::ethernet::{self, EtherType, MacAddr};
use wire::ip::Protocol;
use wire::{ipv4, tcp};

use super::attacker::Attacker;
use crate::bench::guest::{addressed, text};
use crate::bench::isolation::hostile::Attacker as _;

/// Frames per publication.
const BATCH: u64 = 64;
/// Bytes of a storm's frame: the shortest, so that frames per second are many.
const LEN: usize = 60;
/// Bytes of a frame with a body.
const BODY_LEN: usize = 1400;
/// How long an attack waits for room on its full ring.
const FULL: Duration = Duration::from_millis(1);

/// Broadcasts: every guest receives a copy of each.
pub fn broadcast(attacker: &mut Attacker) -> Result<u64, String> {
    storm(attacker, |_| MacAddr::BROADCAST)
}

/// Long broadcasts, whose bodies lie in granted pages and not in the header channel.
pub fn bodies(attacker: &mut Attacker) -> Result<u64, String> {
    batch(attacker, |from, _| {
        (addressed(from, MacAddr::BROADCAST, BODY_LEN), Checksum::Unknown, None)
    })
}

/// Frames to addresses that nobody has, a new one each time: they are flooded.
pub fn unknown(attacker: &mut Attacker) -> Result<u64, String> {
    storm(attacker, |n| numbered(0x02, n))
}

/// Frames to multicast groups, a new one each time.
pub fn multicast(attacker: &mut Attacker) -> Result<u64, String> {
    storm(attacker, |n| numbered(0x03, n))
}

fn storm(attacker: &mut Attacker, to: fn(u64) -> MacAddr) -> Result<u64, String> {
    batch(attacker, |from, n| (addressed(from, to(n), LEN), Checksum::Unknown, None))
}

/// Packets that are refused one by one: runts, checksums to finish and segmentation where there is no
/// TCP. None of them disables the interface.
pub fn malformed(attacker: &mut Attacker) -> Result<u64, String> {
    let segments = Gso { kind: GsoKind::TcpV4, size: 8 };
    batch(attacker, move |from, n| match n % 3 {
        0 => (addressed(from, MacAddr::BROADCAST, 13), Checksum::Unknown, None),
        1 => (addressed(from, MacAddr::BROADCAST, LEN), Checksum::Partial, None),
        _ => (addressed(from, MacAddr::BROADCAST, 1000), Checksum::Partial, Some(segments)),
    })
}

/// The frames of a good guest with much to do. They are sent to the guest itself, so they burden only the worker.
pub fn ordinary(attacker: &mut Attacker) -> Result<u64, String> {
    batch(attacker, |own, _| (addressed(own, own, LEN), Checksum::Unknown, None))
}

/// Frames from the other guests' addresses and its own, in turn. They are sent to the guest itself, so they attack
/// only the switch's table: frames for the others must not come here.
pub fn flapping(attacker: &mut Attacker) -> Result<u64, String> {
    let targets = attacker.targets.clone();
    batch(attacker, move |own, n| {
        let among = usize::try_from(n).unwrap_or(0) % (targets.len() + 1);
        let from = targets.get(among).copied().unwrap_or(own);
        (addressed(from, own, LEN), Checksum::Unknown, None)
    })
}

/// Sends a batch of frames, or fewer if the ring is full. `frame` gets the guest's address and a number.
fn batch(
    attacker: &mut Attacker,
    frame: impl Fn(MacAddr, u64) -> (Vec<u8>, Checksum, Option<Gso>),
) -> Result<u64, String> {
    // A storm must not be a slow receiver too.
    attacker.receive()?;
    let first = attacker.next() * BATCH;
    let guest = attacker.guest()?;
    guest.queue.tx.reclaim().map_err(text)?;
    let mut sent = 0;
    while sent < BATCH {
        let (bytes, checksum, gso) = frame(guest.mac, first + sent);
        if !guest.send(&bytes, checksum, gso)? {
            break;
        }
        sent += 1;
    }
    guest.queue.tx.publish();
    if sent == 0 {
        // Spinning would take CPU from the others without adding frames.
        guest.wait(FULL)?;
    }
    Ok(sent)
}

/// An address made of a first byte and a number.
pub fn numbered(first: u8, n: u64) -> MacAddr {
    let [.., a, b, c] = n.to_be_bytes();
    MacAddr([first, 0x66, 0, a, b, c])
}

/// How long [`stops`] receives; [`STANDS`] is how long it then stands still.
const RUNS: Duration = Duration::from_millis(10);
const STANDS: Duration = Duration::from_millis(150);
/// The interval of [`drips`].
const DRIP: Duration = Duration::from_millis(1);
/// The interval of [`bursts`]: below the 200 ms after which a guest counts as stalled.
const BURST: Duration = Duration::from_millis(199);

/// Receives for 10 ms, then stands still for 150 ms.
pub fn stops(attacker: &mut Attacker) -> Result<u64, String> {
    attacker.rest(Instant::now() + RUNS)?;
    std::thread::sleep(STANDS);
    Ok(1)
}

/// Posts one buffer per millisecond.
pub fn drips(attacker: &mut Attacker) -> Result<u64, String> {
    attacker.receive_and_post(1)?;
    std::thread::sleep(DRIP);
    Ok(1)
}

/// Posts a full ring of buffers every 199 ms.
pub fn bursts(attacker: &mut Attacker) -> Result<u64, String> {
    attacker.receive()?;
    std::thread::sleep(BURST);
    Ok(1)
}

/// Posts nothing.
pub fn never(_attacker: &mut Attacker) -> Result<u64, String> {
    std::thread::sleep(DRIP);
    Ok(1)
}

/// The bytes of the smallest segment that a backend accepts, and the most segments that it makes of a frame.
const SEGMENT: u16 = 8;
const SEGMENTS: u16 = 192;
const ETHERNET: usize = 14;
const HEADERS: usize = ETHERNET + ipv4::HEADER_LEN + tcp::HEADER_LEN;
/// Frames per publication.
const SEGMENTS_BATCH: u64 = 16;
/// The frames' source and destination. The uplink's host has neither address.
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
    while sent < SEGMENTS_BATCH && guest.send(&frame, Checksum::Partial, gso)? {
        sent += 1;
    }
    guest.queue.tx.publish();
    if sent == 0 {
        guest.wait(Duration::from_millis(1))?;
    }
    Ok(sent)
}

/// A TCP frame with an unfinished checksum.
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
