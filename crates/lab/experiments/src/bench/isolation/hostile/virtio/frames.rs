//! Frames that cost others more than their sender, invalid chains, and receivers that take frames slowly.

use std::time::Duration;

use virtqueue::driver::{Offered, Table};
use wire::ethernet::MacAddr;

use super::attacker::Attacker;
use crate::bench::guest::addressed;
use crate::bench::isolation::hostile::netif::frames::numbered;
use crate::bench::virtio::{GUEST, HEADER, LEN, PAGE, TX_DATA, buffer};

/// Frames per publication.
const BATCH: u64 = 64;
/// Bytes of a frame: the shortest, so that frames per second are many.
const LEN_MIN: usize = 60;
/// How long an attack waits for room on its full ring.
const FULL: Duration = Duration::from_millis(1);
/// Metadata of a frame without offloads.
const PLAIN: [u8; HEADER] = [0; HEADER];
/// Metadata that asks for TCP segments of 8 bytes, behind headers of 54.
const SEGMENTS: [u8; HEADER] = [1, 1, 54, 0, 8, 0, 34, 0, 16, 0, 0, 0];
/// The place of refused chains' indirect tables: behind the frames, a page for each kind.
const TABLES: usize = TX_DATA + (3 << 20);
/// Kinds of refused frames and chains.
const KINDS: u64 = 5;
/// The number of buffers of a chain that has too many.
const TOO_MANY: usize = 200;

/// Broadcasts: every guest receives a copy of each.
pub fn broadcast(attacker: &mut Attacker) -> Result<u64, String> {
    storm(attacker, |_, _| MacAddr::BROADCAST)
}

/// Frames to addresses that nobody has, a new one each time: they are flooded.
pub fn unknown(attacker: &mut Attacker) -> Result<u64, String> {
    storm(attacker, |_, n| numbered(0x02, n))
}

/// Frames of a good guest to itself, which burden only the worker.
pub fn ordinary(attacker: &mut Attacker) -> Result<u64, String> {
    storm(attacker, |own, _| own)
}

fn storm(attacker: &mut Attacker, to: fn(MacAddr, u64) -> MacAddr) -> Result<u64, String> {
    batch(attacker, |attacker, n| {
        let from = attacker.machine()?.mac;
        attacker.send(PLAIN, &addressed(from, to(from, n), LEN_MIN))
    })
}

/// Frames and chains that are refused one by one. None of them breaks the ring.
pub fn malformed(attacker: &mut Attacker) -> Result<u64, String> {
    batch(attacker, |attacker, n| {
        let frame = addressed(attacker.machine()?.mac, MacAddr::BROADCAST, 1000);
        match n % KINDS {
            0 => attacker.send(PLAIN, &[]),
            1 => attacker.send(SEGMENTS, &frame),
            _ => {
                let offset = table(n);
                let table = Table { offset, address: GUEST + offset };
                Ok(attacker.machine()?.tx.offer(&refused(n), Some(table)).is_some())
            }
        }
    })
}

/// The place of a chain's table. Only chains of the same kind share one. If a longer table overwrote one in flight, that chain would go on behind
/// its end, which breaks the ring.
fn table(n: u64) -> u64 {
    TABLES as u64 + n % KINDS * PAGE as u64
}

/// A chain that is refused: outside of the memory, of too many buffers, or in the wrong order.
fn refused(n: u64) -> Vec<Offered> {
    let small = buffer(TX_DATA, 16, false);
    match n % KINDS {
        2 => vec![small, buffer(LEN, 1000, false)],
        3 => vec![small; TOO_MANY],
        _ => vec![buffer(TX_DATA, 16, true), small],
    }
}

/// Sends a batch, or less if the ring is full. `send` gets a number, and returns whether there was room.
pub fn batch(
    attacker: &mut Attacker,
    mut send: impl FnMut(&mut Attacker, u64) -> Result<bool, String>,
) -> Result<u64, String> {
    // A storm must not be a slow receiver too.
    attacker.receive()?;
    let first = attacker.next() * BATCH;
    let mut sent = 0;
    while sent < BATCH && send(attacker, first + sent)? {
        sent += 1;
    }
    attacker.publish()?;
    if sent == 0 {
        // Spinning would take CPU from the others without adding frames.
        attacker.machine()?.wait(FULL)?;
    }
    Ok(sent)
}

/// The interval of [`drips`].
const DRIP: Duration = Duration::from_millis(1);

/// Posts one buffer per millisecond.
pub fn drips(attacker: &mut Attacker) -> Result<u64, String> {
    let machine = attacker.machine()?;
    machine.take_all();
    machine.post(1)?;
    std::thread::sleep(DRIP);
    Ok(1)
}

/// Takes the received frames, and posts their buffers again.
pub fn honest(attacker: &mut Attacker) -> Result<u64, String> {
    attacker.receive()?;
    std::thread::sleep(DRIP);
    Ok(1)
}

/// Posts nothing.
pub fn never(_attacker: &mut Attacker) -> Result<u64, String> {
    std::thread::sleep(DRIP);
    Ok(1)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    #[test]
    fn no_chain_writes_another_table_over_one_that_is_on_its_way() {
        let mut lengths = HashMap::new();
        for n in (0..2 * BATCH).filter(|n| n % KINDS > 1) {
            let (at, len) = (table(n), refused(n).len());
            assert_eq!(*lengths.entry(at).or_insert(len), len, "table {at:#x}");
            assert!(at + 16 * len as u64 <= LEN as u64);
        }
        let mut starts: Vec<_> = lengths.into_iter().collect();
        starts.sort_unstable();
        for pair in starts.windows(2) {
            assert!(pair[0].0 + 16 * pair[0].1 as u64 <= pair[1].0, "{pair:?}");
        }
    }
}
