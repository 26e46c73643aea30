//! How a worker waits for events, and what it does for each.

use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll;
use rustix::io::Errno;
use tracing::error;

use super::{DOORBELL, Worker};
use crate::inbox::Inbox;
use crate::slot::Slot;

/// Frames that wait for room are tried again after this, so that a stall is noticed even if
/// its guest sends no event.
const RETRY: Duration = Duration::from_millis(50);

impl Worker {
    /// How long to wait for an event; none for no limit.
    pub(super) fn timeout(&self, now: Instant) -> Option<Duration> {
        let slots = || self.slots.iter().flatten();
        let retry = slots().any(|slot| slot.blocked).then_some(RETRY);
        let due = slots().filter_map(Slot::due).min();
        let due = due.map(|due| due.saturating_duration_since(now));
        let held = self.held.due().map(|due| due.saturating_sub(self.carrier.now));
        retry.into_iter().chain(due).chain(held).min()
    }

    /// Waits for events and handles them. Returns false when the worker must end.
    pub(super) fn wait(
        &mut self,
        timeout: Option<Duration>,
        events: &mut Vec<epoll::Event>,
    ) -> bool {
        let waits = timeout != Some(Duration::ZERO);
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        events.clear();
        self.activity.serve_none();
        if waits {
            let past = self.slots.iter().flatten().filter_map(Slot::past).min();
            self.activity.rest(past.map(|past| past.duration_since(self.shared.started)));
            if past.is_some() {
                // It rings then, in place of a timer.
                self.shared.sleepers.set();
            }
            self.state.times.falls_asleep(self.carrier.now);
        }
        let waited = epoll::wait(&self.epoll, spare_capacity(events), timeout.as_ref());
        // Read once: each reading costs a lone frame a hundred instructions.
        let now = Instant::now();
        self.polled = now;
        if waits {
            self.activity.begin_round(self.rounds);
            if self.shared.watches() {
                self.shared.sleepers.set();
            }
            self.state.times.wakes(now.duration_since(self.shared.started));
        }
        match waited {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => {
                error!(%error, "epoll");
                return false;
            }
        }
        // Also while events come: otherwise a guest that sends events without end (XSA-332) would
        // keep the stall of another guest unnoticed, and the frames for it waiting.
        if events.is_empty() || now.duration_since(self.retried) >= RETRY {
            self.unblock();
        }
        self.wake_due(now);
        if self.last.is_some() || self.expected.is_some() {
            self.expect(events);
        }
        // What the queues do begins here.
        self.ended = Some(now);
        for event in events.drain(..) {
            match event.data.u64() {
                DOORBELL => {
                    self.unblock();
                    if !self.run_commands() {
                        return false;
                    }
                    self.ended = None;
                }
                token => self.event(token),
            }
        }
        true
    }

    /// Activates the queues whose frames wait for room, or for which there are frames in their port's inbox.
    fn unblock(&mut self) {
        self.retried = self.polled;
        for slot in self.slots.iter_mut().flatten() {
            slot.active |= slot.blocked || slot.inbox().is_some_and(Inbox::has_work);
        }
    }

    /// Activates the queues that are due.
    fn wake_due(&mut self, now: Instant) {
        for slot in self.slots.iter_mut().flatten() {
            slot.wake_if_due(&self.epoll, now);
        }
    }

    /// Handles an event of a queue: it has frames, or room for waiting frames, or (with one event
    /// channel for both rings) either.
    fn event(&mut self, token: u64) {
        let Some(Some(slot)) = self.slots.get_mut(Slot::of_token(token)) else { return };
        slot.hear(&self.epoll, token);
        let Some(queue) = slot.entry.room_of else { return };
        let waiters = slot.entry.port.take_waiters(queue);
        if waiters != 0 {
            slot.brought_room();
        }
        for worker in (0..self.shared.doorbells.len()).filter(|n| waiters & (1 << n) != 0) {
            if worker == self.number {
                self.unblock();
            } else {
                self.shared.doorbells[worker].ring();
            }
        }
    }
}
