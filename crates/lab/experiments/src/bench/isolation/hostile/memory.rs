//! A guest that changes its memory and its grant table while the backend uses them.

use std::sync::atomic::Ordering;

use hypervisor::{GrantRef, PAGE_SIZE};
use rustix::fs::{FallocateFlags, fallocate};
use shm::Region;

use super::attacker::Attacker;
use super::frames;
use crate::bench::guest::{Guest, text};

/// Bytes of an entry of the grant table, whose first two are flags (Xen's v1 table).
const ENTRY: usize = 8;
/// The flags of a page that the backend may read and write.
const PERMIT_ACCESS: u16 = 1;
/// Pages that [`balloon`] gives up and takes back: a block of 2 MiB, then single pages, which break one.
const STEPS: [usize; 2] = [512, 8];

/// Clears the grants of all its pages while frames in them are on their way, and restores them. A
/// frame whose grant is gone is answered with an error, or its buffer is not written.
pub fn revocation(attacker: &mut Attacker) -> Result<u64, String> {
    let sent = frames::bodies(attacker)?;
    let guest = attacker.guest()?;
    let grefs = [guest.queue.tx.grefs(), guest.queue.rx.grefs()].concat();
    let table = Region::map(guest.machine.memory(), 0, table_len(&grefs)).map_err(text)?;
    let permit = |flags| {
        grefs.iter().try_for_each(|gref| {
            let entry = table.atomic_u16(gref.0 as usize * ENTRY).map_err(text)?;
            entry.store(flags, Ordering::Release);
            Ok::<_, String>(())
        })
    };
    permit(0)?;
    permit(PERMIT_ACCESS)?;
    Ok(sent + grefs.len() as u64)
}

fn table_len(grefs: &[GrantRef]) -> usize {
    let entries = grefs.iter().map(|gref| gref.0 as usize + 1).max().unwrap_or(0);
    (entries * ENTRY).next_multiple_of(PAGE_SIZE)
}

/// Gives up memory and takes it back.
pub fn balloon(attacker: &mut Attacker) -> Result<u64, String> {
    attacker.receive()?;
    let machine = &attacker.guest()?.machine;
    let full = machine.reservation();
    for pages in STEPS {
        machine.set_reservation(full.saturating_sub(pages)).map_err(text)?;
        machine.set_reservation(full).map_err(text)?;
    }
    Ok(2 * STEPS.len() as u64)
}

/// Sends frames and punches a hole where they lie: a worker's next access is a page fault. The
/// memory's seals do not forbid it.
pub fn holes(attacker: &mut Attacker) -> Result<u64, String> {
    let sent = frames::bodies(attacker)?;
    let guest = attacker.guest()?;
    let start = first_data_page(guest)?;
    let len = (netfront::RING_LEN * PAGE_SIZE) as u64;
    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    fallocate(guest.machine.memory(), hole, start, len).map_err(text)?;
    Ok(sent + 1)
}

/// Where the pages to send from begin. They follow each other. A hole in a ring would only disable the
/// interface.
fn first_data_page(guest: &Guest) -> Result<u64, String> {
    let gref = guest.queue.tx.grefs().first().ok_or("no pages to send from")?;
    let table = Region::map(guest.machine.memory(), 0, table_len(&[*gref])).map_err(text)?;
    let frame: u32 = table.read(gref.0 as usize * ENTRY + 4).map_err(text)?;
    Ok(u64::from(frame) * PAGE_SIZE as u64)
}
