//! Memory that is nothing but a length, and memory with holes.

use std::ops::Range;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use shm::PageSize;
use wire::ethernet::MacAddr;

use super::attacker::Attacker;
use crate::bench::guest::{addressed, text, thread_cpu};
use crate::bench::isolation::class::Class;
use crate::bench::virtio::{HEADER, LEN, Machine, PAGE, TX, TX_DATA, buffer};

/// The memory that becomes a hole, for which the kernel needs some 200 ms.
const HOLE: Range<usize> = LEN..LEN + (1 << 30);
/// Small ones, for each of which it needs some milliseconds, how many a front-end makes, and how long it has none between them.
const SMALL: Range<usize> = LEN..LEN + (24 << 20);
const SMALL_HOLES: usize = 100;
const FULL: Duration = Duration::from_millis(10);
/// How long after it the back-end has to end the session.
const END: Duration = Duration::from_millis(100);
const PAUSE: Duration = Duration::from_millis(300);
/// Bytes of a frame that lie outside of the hole: the private header of a frame has them.
const BEGIN: usize = 64;
const BODY: usize = 1400;

/// Sends frames to itself from memory that becomes a hole meanwhile.
pub fn own(attacker: &mut Attacker) -> Result<u64, String> {
    let to = attacker.mac();
    punch(attacker, to, 0, &(HOLE, once))
}

/// The same from memory with small holes, each of which is filled before the next one is made.
pub fn filled(attacker: &mut Attacker) -> Result<u64, String> {
    let to = attacker.mac();
    punch(attacker, to, 0, &(SMALL, again_and_again))
}

/// Broadcasts frames whose bodies are in memory that becomes a hole meanwhile, and has buffers there.
pub fn shared(attacker: &mut Attacker) -> Result<u64, String> {
    punch(attacker, MacAddr::BROADCAST, BEGIN, &(HOLE, once))
}

/// Makes the same holes in memory that no other process has, with this share of a CPU: what they cost a machine without what they do to workers.
pub fn apart(share: f64) -> Result<(), String> {
    let file = shm::create_memfd("apart", HOLE.end / PAGE, PageSize::Small).map_err(text)?;
    let (start, before) = (Instant::now(), thread_cpu());
    Machine::fill(&file, HOLE)?;
    Machine::hole(&file, HOLE)?;
    let slot = (thread_cpu() - before).div_f64(share.clamp(0.01, 1.0));
    std::thread::sleep(slot.saturating_sub(start.elapsed()));
    Ok(())
}

/// A part of a memory, and what makes holes of it.
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

/// Makes holes, each time by another port: that of the last one is closed. The first `outside` bytes of a frame lie outside of them.
fn punch(
    attacker: &mut Attacker,
    to: MacAddr,
    outside: usize,
    (range, make): &Holes,
) -> Result<u64, String> {
    let port = attacker.next_port();
    if port >= Class::VirtioHoles.ports() {
        // All are closed.
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
    // Whether or not it ends because a worker slept.
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

/// Bytes of the memory, as the port's `memory_mib` ([`Class::guest`](super::super::super::class::Class::guest)).
const MEMORY: usize = 64 << 30;
/// Half of the addresses that a process has.
const TOO_MUCH: usize = 1 << 46;
/// Bytes from one buffer to the next: each page table has one page.
const APART: usize = 2 << 20;
/// Buffers until the memory is another one, which has no page.
const BUFFERS: usize = 8192;
const REST: Duration = Duration::from_millis(1);

/// Shares too much memory at first. Then it posts buffers, each in a page table of its own, in as much as it may share.
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
