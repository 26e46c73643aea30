//! A guest that changes its memory and its grant table while the backend uses them.

use std::sync::atomic::Ordering;

use hypervisor::PAGE_SIZE;
use rustix::fs::{FallocateFlags, fallocate};

use super::attacker::Attacker;
use super::frames;
use crate::bench::guest::{Guest, text};

/// Bytes of an entry of the grant table (Xen's v1 table): flags, domain, and the page's number.
const ENTRY: usize = 8;
const PAGE_NUMBER: usize = 4;
/// The flags of a page that the backend may read and write.
const PERMIT_ACCESS: u16 = 1;
/// Pages that [`balloon`] gives up and takes back: a block of 2 MiB, then single pages, which break up another block.
const STEPS: [usize; 2] = [512, 8];

/// Clears the grants of all its pages while frames in them are in flight, and restores them. A frame whose grant is
/// gone gets an error, and a buffer whose grant is gone is not written.
pub fn revocation(attacker: &mut Attacker) -> Result<u64, String> {
    let sent = frames::bodies(attacker)?;
    let guest = attacker.guest()?;
    let grefs = [guest.queue.tx.grefs(), guest.queue.rx.grefs()].concat();
    for flags in [0, PERMIT_ACCESS] {
        for gref in &grefs {
            let entry = guest.machine.region().atomic_u16(gref.0 as usize * ENTRY).map_err(text)?;
            entry.store(flags, Ordering::Release);
        }
    }
    Ok(sent + grefs.len() as u64)
}

/// Gives up memory and takes it back. A machine that allows no balloon has to refuse each request.
pub fn balloon(attacker: &mut Attacker) -> Result<u64, String> {
    attacker.receive()?;
    let machine = &attacker.guest()?.machine;
    let full = machine.reservation();
    for pages in STEPS {
        let _ = machine.set_reservation(full.saturating_sub(pages));
        let _ = machine.set_reservation(full);
    }
    Ok(2 * STEPS.len() as u64)
}

/// Sends frames and punches a hole where they lie: a worker's next access is a page fault. If the memory's seals
/// forbid it, the frames remain.
pub fn holes(attacker: &mut Attacker) -> Result<u64, String> {
    let sent = frames::bodies(attacker)?;
    let guest = attacker.guest()?;
    let start = first_data_page(guest)?;
    let len = (netfront::RING_LEN * PAGE_SIZE) as u64;
    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    let _ = fallocate(guest.machine.memory(), hole, start, len);
    Ok(sent + 1)
}

/// The offset of the consecutive pages to send from. A hole in a ring would only disable the interface.
fn first_data_page(guest: &Guest) -> Result<u64, String> {
    let gref = guest.queue.tx.grefs().first().ok_or("no pages to send from")?;
    let entry = gref.0 as usize * ENTRY;
    let page: u32 = guest.machine.region().read(entry + PAGE_NUMBER).map_err(text)?;
    Ok(u64::from(page) * PAGE_SIZE as u64)
}
