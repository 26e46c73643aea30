//! Memory that is nothing but a length.

use std::time::Duration;

use super::attacker::Attacker;
use crate::bench::virtio::{LEN, Machine};

/// Bytes of the memory, as the port's `memory_mib` ([`Class::guest`](super::super::super::class::Class::guest)).
const MEMORY: usize = 64 << 30;
/// Half of the addresses that a process has.
const TOO_MUCH: usize = 1 << 46;
/// Bytes from one buffer to the next: each page table has one page.
const APART: usize = 2 << 20;
/// Buffers until the memory is another one, which has no page.
const BUFFERS: usize = 8192;
const PAUSE: Duration = Duration::from_millis(1);

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
    std::thread::sleep(PAUSE);
    Ok(posted)
}
