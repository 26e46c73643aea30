//! Delivers frames between ports that must not have each other's queues in one thread's hands ([`PortMemory`](crate::port::PortMemory)).

use std::sync::Arc;
use std::time::Duration;

use arrayvec::ArrayVec;
use port::{Body, DropReason, Offer, Outcome, WINDOW};

use crate::carrier::Carrier;
use crate::carry::Progress;
use crate::held::Held;
use crate::inbox::{Delivering, Inbox};
use crate::port::Port;
use crate::port::PortMemory;
use crate::probes;

impl Carrier {
    /// Delivers frames from memory in which the thread may sleep: it copies them before it locks the queue.
    #[cold]
    pub(crate) fn deliver_copies(
        &self,
        to: &Arc<Port>,
        queue: usize,
        body: Body<'_>,
        offers: &mut [Offer<'_>],
    ) -> Option<Duration> {
        let mut flush = None;
        self.copy_first(body, offers, |body, copied| {
            let hand_over = || flush = Some(self.hand_over(to, queue, body, copied));
            self.activity.with_copies(hand_over);
        });
        // Unless none of them came to the queue.
        flush.unwrap_or_else(|| to.egress(queue).flush(self.now, false))
    }

    /// Offers copies of frames in place of them.
    fn copy_first(
        &self,
        body: Body<'_>,
        offers: &mut [Offer<'_>],
        mut offer_all: impl FnMut(Body<'_>, &mut [Offer<'_>]),
    ) {
        let copies = &mut *self.copies.borrow_mut();
        let (mut rest, mut most) = (offers, WINDOW);
        while !rest.is_empty() {
            copies.clear();
            let count = copies.append(rest.iter().take(most).map(|offer| offer.frame), body);
            if count == 0 {
                // One of them cannot be read. Which one, only a copy of each alone can tell.
                if std::mem::replace(&mut most, 1) == 1 {
                    rest[0].outcome = Outcome::SourceFault;
                    rest = &mut rest[1..];
                }
                continue;
            }
            let (part, later) = rest.split_at_mut(count);
            let copied = copies.frames().iter().zip(&*part);
            let mut copied: ArrayVec<_, WINDOW> =
                copied.map(|(frame, offer)| Offer { frame, ..*offer }).collect();
            offer_all(copies.body(), &mut copied);
            for (offer, Offer { is_right, outcome, .. }) in part.iter_mut().zip(copied) {
                (offer.is_right, offer.outcome) = (is_right, outcome);
            }
            if part.iter().any(|offer| offer.outcome.is_offered_again()) {
                break;
            }
            rest = later;
        }
    }

    /// Puts frames into the inbox of a queue. The port counts them when its own turns deliver them.
    #[cold]
    pub(crate) fn put(
        &self,
        to: &Port,
        inbox: &Inbox,
        (body, memory): (Body<'_>, PortMemory),
        offers: &mut [Offer<'_>],
    ) {
        let put = |body: Body<'_>, offers: &mut [Offer<'_>]| {
            let sleeping = inbox.put(body, offers, self.worker);
            self.wake(sleeping.map_or(0, |worker| 1 << worker));
        };
        // The port's own buffers are such memory too.
        let is_lent = offers.iter().any(|offer| offer.frame.lent.is_any());
        match memory.can_sleep() || is_lent {
            false => put(body, offers),
            // Not while the inbox is locked.
            true => self.copy_first(body, offers, put),
        }
        let faults = offers.iter().filter(|offer| offer.outcome == Outcome::SourceFault).count();
        to.add_drops(DropReason::MemoryFault, faults as u64);
    }

    fn wake(&self, workers: u64) {
        let doorbells = self.shared.doorbells.iter().enumerate();
        let woken = doorbells.filter(|(number, _)| workers & (1 << number) != 0);
        woken.for_each(|(_, doorbell)| doorbell.ring());
    }

    /// Delivers frames from the inbox of a port's queue, in a turn of that queue.
    #[cold]
    pub(crate) fn empty_inbox(
        &self,
        port: &Arc<Port>,
        queue: usize,
        inbox: &Inbox,
        held: &mut Held,
    ) -> Progress {
        let Some((mut delivering, waiters)) = inbox.take() else { return Progress::Dry };
        self.wake(waiters);
        let places: ArrayVec<_, WINDOW> = delivering.places().collect();
        let Delivering { copies, left, sent, is_right } = &mut *delivering;
        let frames = copies.frames();
        let mut offers: ArrayVec<_, WINDOW> =
            places.iter().map(|place| Offer::new(&frames[*place])).collect();
        let Some(first) = offers.first_mut() else { return Progress::Dry };
        (first.sent, first.is_right) = (*sent, *is_right);
        let flush = self.hand_over(port, queue, copies.body(), &mut offers);
        held.note(port, queue, flush);
        (*sent, *is_right) = (0, None);
        let (mut frames, mut bytes, mut done, mut goes_on) = (0, 0, 0, false);
        for (place, offer) in places.iter().zip(&offers) {
            match offer.outcome {
                // Whoever sent them has been answered already.
                Outcome::Delivered | Outcome::InFlight(_) => {
                    frames += 1;
                    bytes += u64::from(offer.frame.len);
                }
                Outcome::Dropped(reason) => port.add_drops(reason, 1),
                Outcome::SourceFault => port.add_drops(DropReason::MemoryFault, 1),
                Outcome::Partial { segments } => (*sent, goes_on) = (segments, true),
                Outcome::Waiting => {}
            }
            if let Outcome::InFlight(ticket) = offer.outcome {
                port.cancel(queue, &[ticket]);
            }
            if offer.outcome.is_final() || matches!(offer.outcome, Outcome::InFlight(_)) {
                *left &= !(1 << place);
                done += 1;
            } else if done == 0 {
                *is_right = offer.is_right;
            }
        }
        inbox.done(done);
        if frames > 0 {
            port.counters().add_egress(self.worker, frames, bytes);
            if let Some(batches) = port.batches_of(self.worker) {
                batches.delivered(frames);
            }
        }
        probes::egress(port.name(), queue, offers.len(), done, bytes);
        match done > 0 || goes_on {
            true => Progress::Worked { frames: places.len(), bytes },
            false => Progress::Blocked,
        }
    }
}
