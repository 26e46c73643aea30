//! Frames from the backend to the tap.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;

use hypervisor::{GrantRef, Guest as _, PAGE_SIZE};
use ring::netif::Rx;
use rustix::io::Errno;
use wire::netif::RxRequest;
use wire::netif::rx_flags::{CSUM_BLANK, EXTRA_INFO, MORE_DATA};
use wire::virtio_net::VirtioNetHdr;
use xen::SharedPages;
use xenlab::netif::device::{Outcome, Vif};
use xenlab::netif::ring::Ring;
use xenlab::scenario::ClientReport;

const HEADER: usize = size_of::<VirtioNetHdr>();
const HALF: usize = PAGE_SIZE / 2;
/// The content of a page's second half, which the backend must not change.
const CANARY: [u8; HALF] = [0xa5; HALF];

/// The RX ring and its buffers, which are pages.
pub struct Receiver {
    ring: Ring<Rx>,
    pages: SharedPages,
    grefs: Vec<GrantRef>,
    /// The pages that are posted, in order; `free` has the others.
    posted: VecDeque<u16>,
    free: VecDeque<u16>,
    prod: u32,
    cons: u32,
    half_pages: bool,
}

impl Receiver {
    pub fn new(device: &Vif, buffers: u16, half_pages: bool) -> Outcome<Self> {
        let ring = Ring::new(&device.guest, device.domain)?;
        let (pages, grefs) = device.guest.share(device.domain, buffers.into())?;
        let (posted, free) = (VecDeque::new(), (0..buffers).collect());
        let mut new = Self { ring, pages, grefs, posted, free, prod: 0, cons: 0, half_pages };
        new.post_all()?;
        Ok(new)
    }

    pub fn gref(&self) -> GrantRef {
        self.ring.gref()
    }

    /// Whether there are responses. If not, asks for an event at the next one.
    pub fn has_responses(&self) -> bool {
        self.ring.has_responses(self.cons)
    }

    /// Posts all buffers that are free.
    pub fn post_all(&mut self) -> Outcome {
        while let Some(id) = self.free.pop_front() {
            if self.half_pages {
                self.pages.copy_in(usize::from(id) * PAGE_SIZE + HALF, &CANARY)?;
            }
            let gref = self.grefs[usize::from(id)].0;
            self.ring.request(self.prod, RxRequest { id, pad: 0, gref });
            self.prod = self.prod.wrapping_add(1);
            self.posted.push_back(id);
        }
        self.ring.publish(self.prod);
        Ok(())
    }

    /// Writes the received frames to the tap.
    pub fn take_responses(&mut self, tap: BorrowedFd<'_>, report: &mut ClientReport) -> Outcome {
        let mut bytes = [0; HEADER + PAGE_SIZE];
        while self.cons != self.ring.rsp_prod() {
            let response = self.ring.response(self.cons);
            self.cons = self.cons.wrapping_add(1);
            let id = self.posted.pop_front().ok_or("more responses than requests")?;
            self.free.push_back(id);
            let page = usize::from(id) * PAGE_SIZE;
            if self.half_pages {
                let mut half = [0; HALF];
                self.pages.copy_out(page + HALF, &mut half)?;
                report.overwritten += u64::from(half != CANARY);
            }
            // This frontend offers neither scatter/gather nor checksum completion.
            if response.id != id || response.flags & (MORE_DATA | EXTRA_INFO | CSUM_BLANK) != 0 {
                return Err(format!("{response:?} to the request {id}").into());
            }
            let Ok(len) = usize::try_from(response.status) else {
                report.rx_errors += 1;
                continue;
            };
            report.received += 1;
            let frame = bytes.get_mut(HEADER..HEADER + len).ok_or("a frame beyond its page")?;
            self.pages.copy_out(page + usize::from(response.offset), frame)?;
            match rustix::io::write(tap, &bytes[..HEADER + len]) {
                // EIO: the tap is not up yet.
                Ok(_) | Err(Errno::IO) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}
