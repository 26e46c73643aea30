//! Frames of one guest, which the kernel has put into buffers that the guest posted.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hypervisor::PAGE_SIZE;
use port::{
    Armed, Body, Broken, Budget, Event, Ingress, Lender, Lent, LentBuffer, LentMemory, Outcomes,
    Received, Wanted, Window,
};
use shm::Region;
use wire::ethernet::MacAddr;

use super::{DESCRIPTORS, XdpSocket};
use crate::xdp::ring::Descriptor;
use crate::xdp::socket::read;

/// The most buffers that the kernel has. The guest posts twice as many, so half of them are left for frames that
/// others send to it.
const POSTED_MAX: u32 = 128;
const _: () = assert!(POSTED_MAX == DESCRIPTORS / 2);
/// The fewest buffers that are borrowed together while the kernel has enough.
const BORROWED_MIN: u32 = 32;
/// The time until a guest that posts no buffers is asked again: at first, and at most.
const AGAIN: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(64)];

/// What came through a guest's socket.
#[derive(Debug, Default)]
pub struct XdpCounts {
    direct: AtomicU64,
    misdirected: AtomicU64,
}

impl XdpCounts {
    /// Frames that stay where the kernel put them.
    pub fn direct(&self) -> u64 {
        self.direct.load(Ordering::Relaxed)
    }

    /// Frames for another station, which were wiped out.
    pub fn misdirected(&self) -> u64 {
        self.misdirected.load(Ordering::Relaxed)
    }
}

/// The read side of an [`XdpSocket`].
///
/// When it is dropped, all buffers go back to the guest. [Forget](crate::Xdp::forget) the guest's address before.
pub struct XdpIngress {
    socket: Arc<XdpSocket>,
    mac: MacAddr,
    lender: Arc<dyn Lender>,
    /// The lender's number.
    id: u64,
    /// The guest's memory.
    regions: Arc<[Region]>,
    counts: Arc<XdpCounts>,
    window: Window,
    /// The token of each page that the kernel has.
    tokens: Box<[Option<u32>]>,
    /// How many pages the kernel has.
    posted: u32,
    /// Buffers on the way to the kernel.
    borrowed: Vec<LentBuffer>,
    /// Loans that end with the turn.
    back: Vec<u32>,
    again: Duration,
}

impl XdpIngress {
    /// Reads the frames of `socket`, whose memory is `memory`, for the guest with this address and lender.
    #[must_use]
    pub fn new(
        socket: Arc<XdpSocket>,
        mac: MacAddr,
        lender: Arc<dyn Lender>,
        memory: LentMemory,
        counts: Arc<XdpCounts>,
    ) -> Self {
        let LentMemory { lender: id, region, .. } = memory;
        let tokens = vec![None; region.len() / PAGE_SIZE].into();
        Self {
            socket,
            mac,
            lender,
            id,
            regions: [region].into(),
            counts,
            window: Window::new(),
            tokens,
            posted: 0,
            borrowed: Vec::new(),
            back: Vec::new(),
            again: AGAIN[0],
        }
    }

    /// Borrows buffers and gives them to the kernel.
    fn refill(&mut self) {
        let room = POSTED_MAX.saturating_sub(self.posted);
        if room == 0 || (room < BORROWED_MIN && self.posted >= POSTED_MAX / 2) {
            return;
        }
        // The kernel keeps all of the guest's memory in place.
        let wanted = Wanted { buffers: room as usize, held: false };
        self.lender.lend(wanted, &mut self.borrowed);
        if self.borrowed.is_empty() {
            return;
        }
        let mut rings = self.socket.rings();
        for LentBuffer { token, offset } in self.borrowed.drain(..) {
            match page(offset).and_then(|page| self.tokens.get_mut(page)) {
                Some(place @ None) => {
                    *place = Some(token);
                    rings.fill.push(offset);
                    self.posted += 1;
                }
                // A guest that has posted a page twice has it lent once.
                _ => self.back.push(token),
            }
        }
        rings.fill.publish();
        drop(rings);
        self.end_loans();
    }

    fn end_loans(&mut self) {
        if !self.back.is_empty() {
            self.lender.take_back(&self.back);
            self.back.clear();
        }
    }

    /// Takes the next frame into the window. Returns whether there was one.
    fn receive_one(&mut self, budget: &mut Budget, received: &mut Received) -> bool {
        let Some((_, frame)) = self.window.push() else { return false };
        let Some(descriptor) = self.socket.rings().rx.take() else {
            self.window.undo_push();
            return false;
        };
        let place = page(descriptor.address).and_then(|page| self.tokens.get_mut(page));
        let token = place.and_then(Option::take);
        self.posted -= u32::from(token.is_some());
        let memory = &self.regions[0];
        let (is_sound, is_its) = match token {
            Some(_) if read(memory, descriptor, frame) => (true, frame.destination() == self.mac),
            _ => (false, false),
        };
        let Some(token) = token.filter(|_| is_sound && is_its) else {
            if is_sound {
                wipe(memory, descriptor);
                self.counts.misdirected.fetch_add(1, Ordering::Relaxed);
                tracing::warn!(
                    guest = %self.mac,
                    "a frame of another station came in a guest's socket and was wiped out. Does another program change \
                     the maps of the XDP program?"
                );
            }
            self.back.extend(token);
            self.window.undo_push();
            budget.charge(1, 0);
            received.malformed += 1;
            return true;
        };
        // Less than a page.
        let offset = u16::try_from(descriptor.address % PAGE_SIZE as u64).unwrap_or(0);
        let tokens = std::iter::once(token).collect();
        frame.lent = Lent { lender: self.id, tokens, has_header: true, offset };
        budget.charge_frame(1, frame);
        received.fresh += 1;
        self.counts.direct.fetch_add(1, Ordering::Relaxed);
        true
    }
}

fn page(address: u64) -> Option<usize> {
    usize::try_from(address).ok().map(|address| address / PAGE_SIZE)
}

/// Leaves zeroes where a frame lies.
fn wipe(memory: &Region, Descriptor { address, len, .. }: Descriptor) {
    if let Ok(start) = usize::try_from(address) {
        // In the region, since it was read there.
        let _ = memory.zero(start, len as usize);
    }
}

impl Ingress for XdpIngress {
    fn event(&self) -> Arc<dyn Event> {
        self.socket.clone()
    }

    /// Nobody behind a wire waits.
    fn has_back_pressure(&self) -> bool {
        false
    }

    fn window(&self) -> &Window {
        &self.window
    }

    fn receive(&mut self, budget: &mut Budget, received: &mut Received) -> Result<(), Broken> {
        while !budget.is_spent() && self.receive_one(budget, received) {}
        Ok(())
    }

    fn with_body(&self, work: &mut dyn FnMut(Body<'_>)) {
        work(Body::Regions(&self.regions));
    }

    fn finish(&mut self, outcomes: &Outcomes) {
        let Self { window, back, .. } = self;
        let done = window.order().iter().filter(|slot| outcomes[usize::from(**slot)].is_final());
        let done = done.fold(0, |done, slot| done | 1 << slot);
        for (_, frame) in window.in_slots(done) {
            // Those of frames that were handed over have ended already.
            back.extend(frame.lent.tokens.drain(..));
        }
        window.retain(|slot, _| !outcomes[usize::from(slot)].is_final());
        self.end_loans();
        self.refill();
    }

    fn arm(&mut self) -> Result<Armed, Broken> {
        if self.window.is_full() {
            return Ok(Armed::Asleep);
        }
        self.refill();
        if !self.socket.rings().rx.is_empty() {
            return Ok(Armed::Ready);
        }
        if self.posted >= BORROWED_MIN {
            self.again = AGAIN[0];
            return Ok(Armed::Asleep);
        }
        // No event says when the guest posts buffers, and without them no frame comes.
        let again = Instant::now() + self.again;
        self.again = (self.again * 2).min(AGAIN[1]);
        Ok(Armed::Until(again))
    }
}

impl Drop for XdpIngress {
    fn drop(&mut self) {
        let held = self.window.order().iter();
        let held = held.flat_map(|slot| self.window.frame(*slot).lent.tokens.clone());
        let posted = self.tokens.iter().flatten().copied();
        self.back.extend(held.chain(posted));
        self.end_loans();
    }
}
