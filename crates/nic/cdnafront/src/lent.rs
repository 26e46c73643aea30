//! Frames that the card puts into buffers of the guest that they are for.
//!
//! The context has the guest's address and may reach the guest's memory only, but the driver domain drives it. So the
//! guest keeps its netif interface, and frames from the wire reach its buffers without a copy by the driver domain (Santos et
//! al. 2008, §4.3).

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use cdna::ring::{self, SLOTS};
use hypervisor::PAGE_SIZE;
use port::{
    Armed, Body, Broken, Budget, Doorbell, Event, Ingress, Lender, Lent, LentBuffer, Outcomes,
    Wanted, Window,
};
use tracing::warn;

use crate::Fault;
use crate::ingress::fill;
use crate::rx::{ReceivedFrame, RxRing};

/// The most buffers that the card has. The guest posts twice as many, so half of them are left for frames that
/// others send to it.
const POSTED_MAX: u32 = SLOTS / 2;
/// The fewest buffers that are borrowed together while the card has enough.
const BORROWED_MIN: u32 = 32;
/// Buffers for the extras of unsegmented frames.
const SPARE: usize = 8;
/// How long a guest that posts no buffers is not asked again: at first, and at most.
const AGAIN: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(64)];

/// Who lends the buffers.
pub struct Loan {
    /// The queue.
    pub lender: Arc<dyn Lender>,
    /// Its number.
    pub id: u64,
    /// What came through the context.
    pub counts: Arc<LentCounts>,
    /// Rung when the hypervisor has refused a buffer; [`LentCounts::refusal`] says why.
    pub refused: Arc<Doorbell>,
}

/// What came through a context with lent buffers.
#[derive(Debug, Default)]
pub struct LentCounts {
    direct: AtomicU64,
    copied: AtomicU64,
    refusal: OnceLock<String>,
}

impl LentCounts {
    /// Why the hypervisor refused a buffer: the guest has lent a page that is not its own any more. After that the
    /// queue is not used.
    pub fn refusal(&self) -> Option<&str> {
        self.refusal.get().map(String::as_str)
    }

    /// Frames that stay where the card put them.
    pub fn direct(&self) -> u64 {
        self.direct.load(Ordering::Relaxed)
    }

    /// Frames that are copied on, because there was no buffer for their extra, or because a buffer before their last was not full.
    pub fn copied(&self) -> u64 {
        self.copied.load(Ordering::Relaxed)
    }
}

/// Loans that did not end before the ingress side was dropped.
#[derive(Debug, Default)]
pub struct Leftover(Mutex<Vec<u32>>);

impl Leftover {
    /// Takes them. The card must be quiet before their buffers are used again.
    pub fn take(&self) -> Vec<u32> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The receiving side of a context whose buffers are lent.
pub struct LentIngress {
    rx: RxRing,
    interrupt: Arc<dyn Event>,
    window: Window,
    loan: Loan,
    leftover: Arc<Leftover>,
    /// The token of each slot's buffer.
    token_of: Box<[u32]>,
    /// Buffers that the card does not have.
    spare: Vec<LentBuffer>,
    /// Loans that end with the turn.
    back: Vec<u32>,
    next: ReceivedFrame,
    again: Duration,
    /// The card has broken the protocol, or the hypervisor has refused a call.
    is_broken: bool,
}

impl LentIngress {
    pub(crate) fn new(
        rx: RxRing,
        interrupt: Arc<dyn Event>,
        loan: Loan,
        leftover: Arc<Leftover>,
    ) -> Self {
        Self {
            rx,
            interrupt,
            window: Window::new(),
            loan,
            leftover,
            token_of: vec![0; SLOTS as usize].into(),
            spare: Vec::new(),
            back: Vec::new(),
            next: ReceivedFrame::default(),
            again: AGAIN[0],
            is_broken: false,
        }
    }

    /// Borrows buffers and posts them.
    fn refill(&mut self) {
        let posted = self.rx.posted();
        let room = POSTED_MAX.saturating_sub(posted);
        if room == 0 || (room < BORROWED_MIN && posted >= POSTED_MAX / 2) || self.is_broken {
            return;
        }
        let wanted = room as usize + SPARE.saturating_sub(self.spare.len());
        // The context holds references to the pages of its descriptors.
        self.loan.lender.lend(Wanted { buffers: wanted, held: false }, &mut self.spare);
        let count = self.spare.len().saturating_sub(SPARE).min(room as usize);
        for LentBuffer { token, offset } in self.spare.drain(..count) {
            // Memory of a domain has fewer pages.
            let page = u32::try_from(offset / PAGE_SIZE as u64).unwrap_or(u32::MAX);
            let index = self.rx.post(page);
            self.token_of[ring::slot(index)] = token;
        }
        self.rx.announce();
        if let Err(fault) = self.rx.ring().check() {
            self.fail(&fault);
        }
    }

    /// Stops using the queue. If the guest is to blame, the queue's owner gives the context back, so that the guest's frames go the way of all
    /// others.
    #[cold]
    fn fail(&mut self, fault: &Fault) {
        warn!(%fault, "a guest's queue of the card is not used any more");
        self.is_broken = true;
        if let Fault::Call(refusal) = fault {
            // Only the first one counts.
            let _ = self.loan.counts.refusal.set(refusal.to_string());
            self.loan.refused.ring();
        }
    }

    /// Takes the next frame into the window. Returns whether there was one.
    fn receive_one(
        &mut self,
        budget: &mut Budget,
        received: &mut port::Received,
    ) -> Result<bool, Fault> {
        let Some((_, frame)) = self.window.push() else { return Ok(false) };
        if !self.rx.take(&mut self.next)? {
            self.window.undo_push();
            return Ok(false);
        }
        // The card has just written it, so it is in another CPU's cache.
        self.rx.prefetch_next();
        let parts = self.next.parts();
        // At most FRAGMENTS_MAX.
        let work = u32::try_from(parts.len()).unwrap_or(u32::MAX);
        let indices = (0..work).map(|n| self.next.first().wrapping_add(n));
        let tokens = indices.map(|index| self.token_of[ring::slot(index)]);
        if fill(frame, &self.rx, &self.next).is_none() {
            self.back.extend(tokens);
            self.window.undo_push();
            budget.charge(work, 0);
            received.malformed += 1;
            return Ok(true);
        }
        budget.charge_frame(work, frame);
        received.fresh += 1;
        let full = parts.iter().rev().skip(1).all(|part| usize::from(part.len) == PAGE_SIZE);
        let extra = if frame.gso.is_some() { self.spare.pop() } else { None };
        let is_direct = full && extra.is_some() == frame.gso.is_some();
        // A frame in other buffers than the lender expects is copied from them.
        let lender = if is_direct { self.loan.id } else { 0 };
        let tokens = tokens.chain(extra.map(|extra| extra.token));
        frame.lent = Lent { lender, tokens: tokens.collect(), has_header: true, offset: 0 };
        let count = if is_direct { &self.loan.counts.direct } else { &self.loan.counts.copied };
        count.fetch_add(1, Ordering::Relaxed);
        Ok(true)
    }
}

impl Ingress for LentIngress {
    fn event(&self) -> Arc<dyn Event> {
        self.interrupt.clone()
    }

    /// No sender behind the wire waits.
    fn has_back_pressure(&self) -> bool {
        false
    }

    fn window(&self) -> &Window {
        &self.window
    }

    /// It never fails: the uplink does not end with one guest's queue.
    fn receive(
        &mut self,
        budget: &mut Budget,
        received: &mut port::Received,
    ) -> Result<(), Broken> {
        while !budget.is_spent() && !self.is_broken {
            match self.receive_one(budget, received) {
                Ok(true) => {}
                Ok(false) => break,
                Err(fault) => {
                    self.window.undo_push();
                    self.fail(&fault);
                }
            }
        }
        Ok(())
    }

    fn with_body(&self, work: &mut dyn FnMut(Body<'_>)) {
        work(Body::Regions(self.rx.memory().regions()));
    }

    fn finish(&mut self, outcomes: &Outcomes) {
        let Self { window, back, loan, .. } = self;
        let done = window.order().iter().filter(|slot| outcomes[usize::from(**slot)].is_final());
        let done = done.fold(0, |done, slot| done | 1 << slot);
        for (_, frame) in window.in_slots(done) {
            // Loans of frames that were handed over have ended already.
            back.extend(frame.lent.tokens.drain(..));
        }
        window.retain(|slot, _| !outcomes[usize::from(slot)].is_final());
        if !back.is_empty() {
            loan.lender.take_back(back);
            back.clear();
        }
        self.refill();
    }

    fn arm(&mut self) -> Result<Armed, Broken> {
        if self.window.is_full() || self.is_broken {
            return Ok(Armed::Asleep);
        }
        self.refill();
        if self.rx.arm() {
            return Ok(Armed::Ready);
        }
        if self.rx.posted() >= BORROWED_MIN {
            self.again = AGAIN[0];
            return Ok(Armed::Asleep);
        }
        // No event says when the guest posts buffers, and without them no frame comes.
        let again = Instant::now() + self.again;
        self.again = (self.again * 2).min(AGAIN[1]);
        Ok(Armed::Until(again))
    }
}

impl Drop for LentIngress {
    fn drop(&mut self) {
        let Self { rx, window, token_of, spare, back, leftover, .. } = self;
        let posted = rx.outstanding().map(|index| token_of[ring::slot(index)]);
        let spare = spare.iter().map(|buffer| buffer.token);
        let held = window.order().iter().flat_map(|slot| window.frame(*slot).lent.tokens.clone());
        let all = back.iter().copied().chain(posted).chain(spare).chain(held);
        leftover.0.lock().unwrap_or_else(PoisonError::into_inner).extend(all);
    }
}
