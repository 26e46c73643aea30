//! Memory that has a length but no pages, and memory with holes.

use std::ops::Range;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use shm::PageSize;
use wire::ethernet::MacAddr;

use super::attacker::Attacker;
use crate::bench::guest::{addressed, text, thread_cpu};
use crate::bench::isolation::class::Class;
use crate::bench::virtio::{HEADER, LEN, Machine, PAGE, TX, TX_DATA, buffer};

/// The memory that becomes a hole. The kernel needs some 200 ms for it.
const HOLE: Range<usize> = LEN..LEN + (1 << 30);
/// The memory of a small hole, for which the kernel needs some milliseconds; the number of holes; and the time between two of them.
const SMALL: Range<usize> = LEN..LEN + (24 << 20);
const SMALL_HOLES: usize = 100;
const FULL: Duration = Duration::from_millis(10);
/// How long the back-end may take to end the session after a hole.
const END: Duration = Duration::from_millis(100);
const PAUSE: Duration = Duration::from_millis(300);
/// Bytes of a broadcast outside of the hole, which go into the frame's private header; the others are its `BODY`.
const BEGIN: usize = 64;
const BODY: usize = 1400;

/// Sends frames to itself from memory that becomes a hole meanwhile.
pub fn own(attacker: &mut Attacker) -> Result<u64, String> {
    let to = attacker.mac();
    punch(attacker, to, 0, &(HOLE, once))
}

/// The same from memory with small holes. Each is filled before the next one is made.
pub fn filled(attacker: &mut Attacker) -> Result<u64, String> {
    let to = attacker.mac();
    punch(attacker, to, 0, &(SMALL, again_and_again))
}

/// Broadcasts frames whose bodies are in memory that becomes a hole meanwhile, and posts buffers there.
pub fn shared(attacker: &mut Attacker) -> Result<u64, String> {
    punch(attacker, MacAddr::BROADCAST, BEGIN, &(HOLE, once))
}

/// Makes the same hole in memory of its own, with this share of a CPU. It costs the machine as much, and leaves workers alone.
pub fn apart(share: f64) -> Result<(), String> {
    let file = shm::create_memfd("apart", HOLE.end / PAGE, PageSize::Small).map_err(text)?;
    let (start, before) = (Instant::now(), thread_cpu());
    Machine::fill(&file, HOLE)?;
    Machine::hole(&file, HOLE)?;
    let slot = (thread_cpu() - before).div_f64(share.clamp(0.01, 1.0));
    std::thread::sleep(slot.saturating_sub(start.elapsed()));
    Ok(())
}

/// A part of a memory, and the function that makes holes of it.
type Holes = (Range<usize>, fn(&OwnedFd, Range<usize>) -> Result<(), String>);

fn once(file: &OwnedFd, range: Range<usize>) -> Result<(), String> {
    Machine::hole(file, range)
}

fn again_and_again(file: &OwnedFd, range: Range<usize>) -> Result<(), String> {
    for _ in 0..SMALL_HOLES {
        Machine::hole(file, range.clone())?;
        Machine::fill(file, range.clone())?;
        std::thread::sleep(FULL);
    }
    Ok(())
}

/// Makes holes while it sends. Each call uses another port, because the last one is closed. The first `outside` bytes of a frame lie
/// outside of the holes.
fn punch(
    attacker: &mut Attacker,
    to: MacAddr,
    outside: usize,
    (range, make): &Holes,
) -> Result<u64, String> {
    let port = attacker.next_port();
    if port >= Class::VirtioHoles.ports() {
        // All ports are closed.
        std::thread::sleep(PAUSE);
        return Ok(0);
    }
    let stream = attacker.connect_to(port)?;
    let mut machine = Machine::boot_sparse(stream, attacker.mac(), HOLE.end)?;
    let frame = addressed(attacker.mac(), to, outside.max(14));
    let begin = [&[0; HEADER][..], &frame[..outside]].concat();
    machine.memory.copy_in(TX_DATA, &begin).map_err(text)?;
    let file = machine.file()?;
    Machine::fill(&file, range.clone())?;
    let mut place = range.start;
    // An error only means that the back-end has ended the session.
    let _: Result<(), String> = std::thread::scope(|scope| {
        let puncher = scope.spawn(move || make(&file, range.clone()));
        while !puncher.is_finished() {
            machine.take_all();
            if outside > 0 {
                machine.post_apart(range.clone(), PAGE)?;
            }
            machine.reclaim();
            let chain = |at| [buffer(TX_DATA, begin.len(), false), buffer(at, BODY, false)];
            while machine.tx.offer(&chain(place), None).is_some() {
                place = range.start + (place + PAGE - range.start) % range.len();
            }
            machine.kick(TX)?;
            machine.wait(Duration::from_millis(1))?;
        }
        puncher.join().map_err(|_| "a thread panicked".to_owned())??;
        machine.wait(END)
    });
    Ok(1)
}

/// Bytes of the memory, which is the port's `memory_mib` ([`Class::guest`](super::super::super::class::Class::guest)).
const MEMORY: usize = 64 << 30;
/// Half of the addresses that a process has.
const TOO_MUCH: usize = 1 << 46;
/// Bytes from one buffer to the next: each needs a page table of its own.
const APART: usize = 2 << 20;
/// The number of buffers before it shares new memory, which has no pages yet.
const BUFFERS: usize = 8192;
const REST: Duration = Duration::from_millis(1);

/// Shares too much memory at first, then as much as it may. There it posts buffers, each in a page table of its own.
pub fn sparse(attacker: &mut Attacker) -> Result<u64, String> {
    let machine = attacker.machine()?;
    if machine.memory_len() != MEMORY || machine.posted_apart() > BUFFERS {
        let stream = attacker.connect_to(0)?;
        // The back-end ends this session.
        drop(Machine::boot_sparse(stream, attacker.mac(), TOO_MUCH));
        let stream = attacker.connect_to(0)?;
        let machine = Machine::boot_sparse(stream, attacker.mac(), MEMORY)?;
        attacker.become_machine(machine);
    }
    let machine = attacker.machine()?;
    machine.take_all();
    let posted = machine.post_apart(LEN..MEMORY, APART)?;
    std::thread::sleep(REST);
    Ok(posted)
}
