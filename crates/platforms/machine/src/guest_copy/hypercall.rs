//! The hypercall by which a guest copies.

use std::time::Instant;

use arrayvec::ArrayVec;
use hypervisor::PAGE_SIZE;
use hypervisor::guest_copy::{GUEST_COPIES_PER_HYPERCALL, GrantedBuffer};
use shm::Region;

use super::{QueueCopies, Request};
use crate::domain::Domain;

/// Copies for `guest`, at most [`GUEST_COPIES_PER_HYPERCALL`] times. Returns a bit for each copy that
/// was done.
///
/// Each grant is used up, whether its copy succeeds or not. Nothing is copied under the lock: a
/// worker that grants more must not wait for a guest's copies.
pub(crate) fn copy(copies: &QueueCopies, guest: &Domain, requests: &[Request]) -> u64 {
    let began = Instant::now();
    let requests = &requests[..requests.len().min(GUEST_COPIES_PER_HYPERCALL)];
    let granted: ArrayVec<_, GUEST_COPIES_PER_HYPERCALL> = match copies.table() {
        Some(mut table) => {
            let take = |request: &Request| table.get_mut(usize::from(request.number))?.take();
            requests.iter().map(take).collect()
        }
        None => ArrayVec::new(),
    };
    let (mut done, mut bytes) = (0u64, 0);
    for (n, (request, granted)) in requests.iter().zip(granted).enumerate() {
        if granted.is_some_and(|granted| perform(guest, request, &granted.buffer)) {
            done |= 1 << n;
            bytes += u64::from(request.len);
        }
    }
    copies.note(requests.len(), done.count_ones().into(), bytes, began.elapsed());
    done
}

/// Copies within what is granted, to an ordinary page that the guest has.
fn perform(guest: &Domain, request: &Request, buffer: &GrantedBuffer) -> bool {
    let &Request { number: _, offset, len, page, page_offset } = request;
    let (page, page_offset) = (page as usize, usize::from(page_offset));
    let is_granted = usize::from(offset) + usize::from(len) <= usize::from(buffer.len);
    let within_page = page_offset + usize::from(len) <= PAGE_SIZE;
    if !(is_granted && within_page && guest.has_page(page)) {
        return false;
    }
    let from = buffer.offset + usize::from(offset);
    let to = page * PAGE_SIZE + page_offset;
    Region::copy_between(&buffer.memory, from, guest.memory(), to, len.into()).is_ok()
}
