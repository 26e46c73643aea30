//! Frames that cost others more than their sender.

use std::time::Duration;

use offload::{Checksum, Gso, GsoKind};
use wire::ethernet::MacAddr;

use super::attacker::Attacker;
use crate::bench::guest::{addressed, text};

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

/// Frames to another address each time, which nobody has: they are flooded.
pub fn unknown(attacker: &mut Attacker) -> Result<u64, String> {
    storm(attacker, |n| numbered(0x02, n))
}

/// Frames to another group each time.
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

/// What a good guest sends that has much to do. Its frames burden the worker only: they are sent to the guest itself.
pub fn ordinary(attacker: &mut Attacker) -> Result<u64, String> {
    batch(attacker, |own, _| (addressed(own, own, LEN), Checksum::Unknown, None))
}

/// Frames from the other guests' addresses and its own, in turn. They are sent to the guest itself, so
/// that only the switch's table is attacked: frames for the others must not come here.
pub fn flapping(attacker: &mut Attacker) -> Result<u64, String> {
    let targets = attacker.targets.clone();
    batch(attacker, move |own, n| {
        let among = usize::try_from(n).unwrap_or(0) % (targets.len() + 1);
        let from = targets.get(among).copied().unwrap_or(own);
        (addressed(from, own, LEN), Checksum::Unknown, None)
    })
}

/// Sends frames until the ring is full, or a batch. `frame` gets the guest's address and a number.
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
