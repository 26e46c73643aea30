//! Rings that cost the worker much time, or break.

use std::time::{Duration, Instant};

use virtqueue::DESCRIPTORS_MAX;
use wire::ethernet::MacAddr;

use super::attacker::Attacker;
use super::frames::batch;
use crate::bench::guest::{addressed, text};
use crate::bench::isolation::class::Class;
use crate::bench::virtio::{
    Crowd, GUEST, HEADER, Machine, PAIRS_MAX, RX, SIZE, TX, TX_DATA, parts,
};

/// Notifications per round.
const NOTIFICATIONS: u64 = 1024;
/// How long the device may take to find out that a ring is broken.
const BREAK: Duration = Duration::from_millis(2);
/// Flags of a descriptor: another one follows; it is a table.
const NEXT: u16 = 1;
const INDIRECT: u16 = 4;
/// Bytes of a descriptor.
const DESCRIPTOR: usize = 16;
/// The place of the long table: behind all frames.
const TABLE: usize = TX_DATA + (2 << 20);
/// The place of its frame.
const FRAME: usize = TABLE - 4096;
/// Bytes of its frame.
const FRAME_LEN: usize = 60;

/// Notifies both rings' eventfds without pause.
pub fn kicks(attacker: &mut Attacker) -> Result<u64, String> {
    attacker.receive()?;
    let machine = attacker.machine()?;
    for _ in 0..NOTIFICATIONS / 2 {
        machine.notify(RX)?;
        machine.notify(TX)?;
    }
    Ok(NOTIFICATIONS)
}

/// Sends frames to itself by one long table: its last descriptor is the frame, all others are empty.
pub fn long_tables(attacker: &mut Attacker) -> Result<u64, String> {
    write_table(attacker.machine()?)?;
    batch(attacker, |attacker, _| {
        let table = GUEST + TABLE as u64;
        Ok(attacker.machine()?.tx.offer_table(table, DESCRIPTORS_MAX).is_some())
    })
}

/// Writes the table, unless it is there.
fn write_table(machine: &Machine) -> Result<(), String> {
    let last = DESCRIPTORS_MAX - 1;
    let frame = [&[0; HEADER], &addressed(machine.mac, machine.mac, FRAME_LEN)[..]].concat();
    let len = u32::try_from(frame.len()).map_err(text)?;
    let is_there: u32 = machine.memory.read(at(TABLE, last) + 8).map_err(text)?;
    if is_there == len {
        return Ok(());
    }
    machine.memory.copy_in(FRAME, &frame).map_err(text)?;
    let start = GUEST + FRAME as u64;
    (0..last).try_for_each(|n| describe(machine, TABLE, n, (start, 0, NEXT, n + 1)))?;
    describe(machine, TABLE, last, (start, len, 0, 0))
}

/// Breaks the TX ring, in four ways in turn, and starts both rings anew.
pub fn broken(attacker: &mut Attacker) -> Result<u64, String> {
    let n = attacker.next();
    let machine = attacker.machine()?;
    let ring = usize::try_from(parts(TX).descriptors).map_err(text)?;
    let start = GUEST + TX_DATA as u64;
    let available = match n % 4 {
        // A loop.
        0 => {
            describe(machine, ring, 0, (start, 64, NEXT, 0))?;
            1
        }
        // A table within a table.
        1 => {
            describe(machine, ring, 0, (GUEST + TABLE as u64, 64, INDIRECT, 0))?;
            describe(machine, TABLE, 0, (start, 64, INDIRECT, 0))?;
            1
        }
        // A descriptor beyond the table.
        2 => {
            describe(machine, ring, 0, (start, 64, NEXT, SIZE))?;
            1
        }
        // More chains than the ring has entries.
        _ => SIZE + 1,
    };
    let index = usize::try_from(parts(TX).driver).map_err(text)? + 2;
    machine.memory.write(index, available).map_err(text)?;
    machine.notify(TX)?;
    std::thread::sleep(BREAK);
    machine.restart()?;
    machine.post(SIZE.into())?;
    Ok(1)
}

fn at(table: usize, n: u16) -> usize {
    table + usize::from(n) * DESCRIPTOR
}

/// Writes descriptor `n` of a table: address, length, flags and the next one.
fn describe(
    machine: &Machine,
    table: usize,
    n: u16,
    (address, len, flags, next): (u64, u32, u16, u16),
) -> Result<(), String> {
    let (memory, at) = (&machine.memory, at(table, n));
    memory.write(at, address).map_err(text)?;
    memory.write(at + 8, len).map_err(text)?;
    memory.write(at + 12, [flags, next]).map_err(text)
}

/// How long the back-end may take to end the session.
const END: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(300);
/// Frames of a front-end whose notifications are slow, before it connects again.
const SLOW_CALLS: u64 = 1000;

/// Fills the eventfds of all rings, sends a frame by each pair, and waits for the session's end. Each call uses another port, because
/// the last one is closed.
pub fn full_calls(attacker: &mut Attacker) -> Result<u64, String> {
    let port = attacker.next_port();
    if port >= Class::VirtioFullCalls.ports() {
        // All ports are closed.
        std::thread::sleep(PAUSE);
        return Ok(0);
    }
    let stream = attacker.connect_to(port)?;
    let mut crowd = Crowd::boot(stream, PAIRS_MAX)?;
    let mac = attacker.mac();
    crowd.fill_calls()?;
    crowd.send_by_all(&addressed(mac, MacAddr([2, 0, 0, 0, 0, 0x77]), FRAME_LEN))?;
    let start = Instant::now();
    while crowd.is_served() {
        if start.elapsed() > END {
            return Err("a front-end that blocks the worker keeps its session".into());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    std::thread::sleep(PAUSE);
    Ok(1)
}

/// Sends frames while a crowd of waiters makes each notification of a ring slow.
pub fn slow_calls(attacker: &mut Attacker) -> Result<u64, String> {
    let stream = attacker.connect_to(0)?;
    let mut crowd = Crowd::boot(stream, 1)?;
    let frame = addressed(attacker.mac(), MacAddr([2, 0, 0, 0, 0, 0x77]), FRAME_LEN);
    let _waiters = crowd.slow_calls()?;
    for _ in 0..SLOW_CALLS {
        crowd.send_by_all(&frame)?;
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(SLOW_CALLS)
}
