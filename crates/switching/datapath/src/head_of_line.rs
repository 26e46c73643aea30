//! How much frames may wait for room, so that a slow destination costs a sender's other traffic
//! little.
//!
//! A sender's window is finite and its responses go out in order, so frames that wait hold back
//! what comes behind them (head-of-line blocking). Back-pressure needs the wait: TCP between two
//! guests loses nothing by it. But the pace is the receiver's choice, and the receiver may be
//! hostile.
//!
//! - A queue whose frames all go to one port has nothing to hold back: its frames may wait for
//!   [`WAIT_ALONE`].
//! - Otherwise a port may hold as much of the window, and of [`WAIT`], as its share of the bytes
//!   that this queue delivered; with half of them, the whole window. Frames beyond that are dropped.
//! - A port for which a frame has waited for longer is *late*: for a while, frames for it do not
//!   wait at all. That period doubles each time, so the sum of all waits stays small.
//! - The window of a queue without back-pressure, such as an uplink's, is everybody's: nobody behind a wire slows down when it is
//!   full. All frames that wait in it together hold [`SHARED`] of its slots, for [`WAIT_SHARED`] each, and the others pass them. That is
//!   what a guest with few buffers needs for a burst; a virtual interface of Linux' netback has a queue of its own for it.

use std::time::Duration;

use arrayvec::ArrayVec;
use port::{WINDOW, Window};

/// How long a frame may wait for the only port that its queue sends to. What comes behind it may
/// be for another one.
const WAIT_ALONE: Duration = Duration::from_millis(500);
/// How long a frame may wait for a port that takes nearly all that its queue delivers; for others,
/// their share of it.
const WAIT: Duration = Duration::from_millis(20);
/// How many frames of a queue without back-pressure may wait: half of its window, so that as many are free for everybody at any time.
const SHARED: usize = WINDOW / 2;
/// How long each of them may wait.
const WAIT_SHARED: Duration = Duration::from_millis(200);
/// For how long frames for a late port do not wait, the first time: so waits are at most a tenth
/// of the time.
const LATE: Duration = Duration::from_millis(180);
/// The same, at most.
const LATE_MAX: Duration = Duration::from_secs(6);
/// Interval at which the bytes that count are halved.
const HALVING: Duration = Duration::from_millis(100);
/// A port that a queue has sent nothing to for this long is forgotten.
const FORGET: Duration = Duration::from_secs(5);
/// Ports that a queue remembers.
const PORTS_MAX: usize = 16;

/// The waits of one ingress queue.
pub(crate) struct Waits {
    /// Whether a full window slows the sender down.
    back_pressure: bool,
    /// The ports that it sends to.
    ports: ArrayVec<Destination, PORTS_MAX>,
    halved: Duration,
    /// A bit for each slot of the window whose frame waits.
    slots: u64,
    /// Since when.
    since: [Duration; WINDOW],
    /// When the next frame will have waited for too long.
    due: Option<Duration>,
}

/// A port that a queue sends to.
#[derive(Clone, Copy)]
struct Destination {
    /// Its [serial number](crate::Port::serial).
    serial: u64,
    /// Bytes delivered, halved again and again.
    bytes: u64,
    /// When the queue last sent to it.
    seen: Duration,
    late: Option<Late>,
}

/// Frames for a port do not wait.
#[derive(Clone, Copy)]
struct Late {
    /// Until when.
    until: Duration,
    /// For how long.
    period: Duration,
}

impl Waits {
    pub(crate) fn new(back_pressure: bool) -> Self {
        Self {
            back_pressure,
            ports: ArrayVec::new(),
            halved: Duration::ZERO,
            slots: 0,
            since: [Duration::ZERO; WINDOW],
            due: None,
        }
    }

    /// A turn begins.
    #[inline]
    pub(crate) fn begin(&mut self, now: Duration) {
        self.due = None;
        if now.saturating_sub(self.halved) >= HALVING {
            self.halve(now);
        }
    }

    /// Notes the bytes of the frames that a port has taken.
    #[inline]
    pub(crate) fn delivered(&mut self, serial: u64, bytes: u64, now: Duration) {
        let port = self.port(serial, now);
        port.bytes += bytes;
        port.seen = now;
    }

    /// Decides how many of the frames that wait for a port may go on waiting: the first ones of
    /// `waiting`, slots of the window in order of arrival. The others must be dropped.
    pub(crate) fn admit(&mut self, serial: u64, waiting: &[u8], now: Duration) -> usize {
        let waiting = if self.back_pressure { waiting } else { self.within_shared(waiting) };
        let Some(first) = waiting.first() else { return 0 };
        let port = self.port(serial, now);
        port.seen = now;
        if port.late.is_some_and(|late| now < late.until) {
            return 0;
        }
        for slot in waiting {
            if self.slots & (1 << slot) == 0 {
                self.slots |= 1 << slot;
                self.since[usize::from(*slot)] = now;
            }
        }
        let since = self.since[usize::from(*first)];
        let share = self.share(serial);
        let limit = match self.back_pressure {
            true if self.ports.len() == 1 => WAIT_ALONE,
            true => WAIT.mul_f64(share),
            false => WAIT_SHARED,
        };
        if now.saturating_sub(since) > limit {
            self.port(serial, now).mark_late(now);
            // They are dropped: others may hold their slots from now on.
            self.slots &= !waiting.iter().fold(0u64, |slots, slot| slots | 1 << slot);
            return 0;
        }
        let due = since + limit;
        self.due = Some(self.due.map_or(due, |other| other.min(due)));
        if !self.back_pressure || share >= 0.5 {
            // All that there is room for; or the sender's main destination: its ring may fill up, so that it slows down.
            return waiting.len();
        }
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a share is between 0 and 1"
        )]
        let slots = (WINDOW as f64 * share).ceil() as usize;
        waiting.len().min(slots)
    }

    /// The first of `waiting` for which the slots suffice that frames without back-pressure may hold.
    fn within_shared<'a>(&self, waiting: &'a [u8]) -> &'a [u8] {
        let these = waiting.iter().fold(0u64, |slots, slot| slots | 1 << slot);
        let others = (self.slots & !these).count_ones() as usize;
        &waiting[..waiting.len().min(SHARED.saturating_sub(others))]
    }

    /// The turn's frames have their outcomes; `window` has those that stay.
    #[inline]
    pub(crate) fn end(&mut self, window: &Window) {
        if self.slots != 0 {
            let staying = window.order().iter().fold(0u64, |slots, slot| slots | 1 << slot);
            self.slots &= staying;
        }
    }

    /// When the queue must have its next turn, even if no room is announced.
    pub(crate) fn due(&self) -> Option<Duration> {
        self.due
    }

    /// A port's share of the bytes that the queue delivered, from 0 to 1.
    fn share(&self, serial: u64) -> f64 {
        if self.ports.len() == 1 {
            return 1.0;
        }
        let (mut own, mut all) = (0, 0);
        for port in &self.ports {
            all += port.bytes;
            own += if port.serial == serial { port.bytes } else { 0 };
        }
        own as f64 / all.max(1) as f64
    }

    /// What is remembered of a port. Where there are too many, the least of them is forgotten.
    #[inline]
    fn port(&mut self, serial: u64, now: Duration) -> &mut Destination {
        let found = self.ports.iter().position(|port| port.serial == serial);
        let index = found.unwrap_or_else(|| {
            if self.ports.is_full() {
                let least = (0..self.ports.len()).min_by_key(|n| self.ports[*n].bytes);
                self.ports.swap_remove(least.unwrap_or(0));
            }
            self.ports.push(Destination { serial, bytes: 0, seen: now, late: None });
            self.ports.len() - 1
        });
        &mut self.ports[index]
    }

    /// Halves what counts, once per interval that has passed. Forgets ports.
    #[cold]
    fn halve(&mut self, now: Duration) {
        let times = now.saturating_sub(self.halved).as_millis() / HALVING.as_millis();
        self.halved = now;
        for port in &mut self.ports {
            port.bytes =
                port.bytes.checked_shr(u32::try_from(times).unwrap_or(u32::MAX)).unwrap_or(0);
        }
        self.ports.retain(|port| {
            let last = port.late.map_or(port.seen, |late| port.seen.max(late.until + late.period));
            now < last + FORGET
        });
    }
}

impl Destination {
    /// A frame for it has waited for too long.
    fn mark_late(&mut self, now: Duration) {
        // Again, before it has been in time for as long as it was late.
        let again = self.late.filter(|late| now < late.until + late.period);
        let period = again.map_or(LATE, |late| (late.period * 2).min(LATE_MAX));
        self.late = Some(Late { until: now + period, period });
    }
}

#[cfg(test)]
mod tests;
