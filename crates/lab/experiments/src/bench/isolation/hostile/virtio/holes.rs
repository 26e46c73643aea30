//! Memory that is taken away while a worker uses it.

use std::ops::Range;
use std::time::{Duration, Instant};

use wire::ethernet::MacAddr;

use super::attacker::Attacker;
use crate::bench::guest::{addressed, text};
use crate::bench::isolation::class::Class;
use crate::bench::virtio::{HEADER, LEN, Machine, PAGE, TX, TX_DATA, buffer};

/// The memory that becomes a hole: the kernel needs some 200 ms for each gigabyte.
const HOLE: Range<usize> = LEN..LEN + (2 << 30);
/// How long a front-end may go on before it is cut off. Nobody cuts off one that no worker has slept for.
const END: Duration = Duration::from_secs(20);
const PAUSE: Duration = Duration::from_millis(300);
/// Bytes of a frame that lie outside of the hole: the private header of a frame has them.
const BEGIN: usize = 64;
const BODY: usize = 1400;

/// Broadcasts frames whose bodies are in the hole, and has buffers there, until it is cut off. Each time by another port: that of the last one
/// is closed.
pub fn punch(attacker: &mut Attacker) -> Result<u64, String> {
    let port = usize::try_from(attacker.next()).map_err(text)?;
    if port >= Class::VirtioHoles.ports() {
        // All are closed.
        std::thread::sleep(PAUSE);
        return Ok(0);
    }
    let stream = attacker.connect_to(port)?;
    let mut machine = Machine::boot_sparse(stream, attacker.mac(), HOLE.end)?;
    let frame = addressed(attacker.mac(), MacAddr::BROADCAST, BEGIN);
    let begin = [&[0; HEADER][..], &frame].concat();
    machine.memory.copy_in(TX_DATA, &begin).map_err(text)?;
    let start = Instant::now();
    let mut holes = 0;
    while start.elapsed() < END {
        machine.fill(HOLE)?;
        let (file, mut place) = (machine.file()?, HOLE.start);
        let served = std::thread::scope(|scope| {
            let puncher = scope.spawn(move || Machine::hole(&file, HOLE));
            while !puncher.is_finished() {
                machine.take_all();
                machine.post_apart(HOLE, PAGE)?;
                machine.reclaim();
                let body = |at| buffer(at, BODY, false);
                let chain = |at| [buffer(TX_DATA, begin.len(), false), body(at)];
                while machine.tx.offer(&chain(place), None).is_some() {
                    place = HOLE.start + (place + PAGE - HOLE.start) % HOLE.len();
                }
                machine.kick(TX)?;
                machine.wait(Duration::from_millis(1))?;
            }
            puncher.join().map_err(|_| "a thread panicked".to_owned())?
        });
        holes += 1;
        if served.is_err() {
            std::thread::sleep(PAUSE);
            return Ok(holes);
        }
    }
    Err("a front-end that makes holes under a worker keeps its session".into())
}
