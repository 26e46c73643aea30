//! Page flipping: frames in pages of the driver domain that are transferred to the guest.
//!
//! The original receive path (Menon et al. 2006, §4.2). The driver domain takes a zeroed page,
//! fills it, and transfers it; the guest maps it, and gives another page back. A page cannot hold
//! bytes of another guest or of an earlier frame: each guest has a separate pool, and every page is
//! zeroed when it is taken (XSA-403).

use arrayvec::ArrayVec;
use hypervisor::flip::{FlipPage, GrantTransfer, PageTransfer, TransferStatus};
use hypervisor::{COPIES_MAX, Copies as _, Dest, GrantRef, Hypervisor, PAGE_SIZE, Source};
use port::{DropReason, FRAGMENTS_MAX, Outcome};
use wire::netif::{RxResponse, rx_flags, status};

use super::plan::PacketShape;
use super::slots::Slots;

/// Most pages of a packet: 64 KiB of frame.
const PAGES: usize = 16;
// A packet has one copy for each page, and one more for each fragment that ends within one.
const _: () = assert!(2 * PAGES + FRAGMENTS_MAX < COPIES_MAX);

type Pages = ArrayVec<Box<dyn FlipPage>, PAGES>;

impl<H: Hypervisor> Slots<H> {
    /// Delivers one packet by page flipping. `next` returns its runs, each of at most as many bytes as its argument
    /// says. The caller has checked that the guest has posted slots for all of it.
    pub(super) fn flip<'a>(
        &mut self,
        packet: PacketShape,
        next: impl FnMut(u16) -> Option<(Source<'a, H::Peer>, u16)>,
    ) -> Outcome
    where
        H::Peer: 'a,
    {
        let Some(flips) = self.mode.flips().cloned() else {
            return Outcome::Dropped(DropReason::NoRoom);
        };
        let len = packet.len;
        let pages = (0..len.div_ceil(PAGE_LEN)).map(|_| flips.take_page(self.to.peer()));
        let Ok(pages) = pages.collect::<Result<Pages, _>>() else {
            // The guest holds all pages of its pool and gives none back. No event announces the
            // end of this, so the frame does not wait.
            return Outcome::Dropped(DropReason::NoRoom);
        };
        // Nothing has been taken off the ring yet, so a fault of the sender does not affect the
        // receiver.
        match self.fill(&pages, len, next) {
            Some(fault) => fault,
            None => self.hand_over(&*flips, pages, packet),
        }
    }

    /// Copies a packet into pages, from the start of the first page on.
    fn fill<'p, 'a: 'p>(
        &self,
        pages: &'p Pages,
        len: u32,
        mut next: impl FnMut(u16) -> Option<(Source<'a, H::Peer>, u16)>,
    ) -> Option<Outcome>
    where
        H::Peer: 'a,
    {
        let mut copies = H::Copies::<'p>::default();
        for (n, page) in (0..).zip(pages) {
            let size = size_of_page(len, n);
            let mut filled = 0;
            while filled < size {
                let Some((source, run)) = next(size - filled) else { break };
                let dest = Dest::Mapped { region: page, offset: filled.into() };
                copies.push(source, dest, run);
                filled += run;
            }
        }
        let readable = self.hypervisor.perform(&mut copies);
        (!readable).then_some(Outcome::SourceFault)
    }

    /// Transfers pages to the slots that the guest has posted, and writes the responses.
    fn hand_over(
        &mut self,
        flips: &dyn PageTransfer<H::Peer>,
        pages: Pages,
        packet: PacketShape,
    ) -> Outcome {
        let PacketShape { len, flags, .. } = packet;
        let count = u32::try_from(pages.len()).unwrap_or(u32::MAX);
        let mut extras = packet.extras(0);
        let mut outcome = Outcome::Delivered;
        for (n, page) in (0..).zip(pages) {
            let request = self.ring.next();
            self.ring.consume();
            let mut ops = [GrantTransfer::new(self.to.peer(), GrantRef(request.gref), page)];
            flips.transfer(&mut ops);
            let came = ops[0].status == TransferStatus::Okay;
            if !came {
                outcome = Outcome::Dropped(DropReason::MemoryFault);
            }
            let more = if n + 1 < count { rx_flags::MORE_DATA } else { 0 };
            let announced = if extras.is_empty() { 0 } else { rx_flags::EXTRA_INFO };
            self.ring.respond(RxResponse {
                id: request.id,
                offset: 0,
                flags: if n == 0 { flags } else { 0 } | more | announced,
                // A page's length fits.
                status: if came { size_of_page(len, n).cast_signed() } else { status::ERROR },
            });
            for info in std::mem::take(&mut extras) {
                self.ring.consume();
                self.ring.respond(zerocopy::transmute!(info));
            }
        }
        outcome
    }
}

const PAGE_LEN: u32 = PAGE_SIZE as u32;

/// Bytes of a packet of `len` that lie in its page `n`.
fn size_of_page(len: u32, n: u32) -> u16 {
    len.saturating_sub(n * PAGE_LEN).min(PAGE_LEN) as u16
}
