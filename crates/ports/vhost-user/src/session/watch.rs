//! What a session has come to, for an operator whose machine has no network.
//!
//! A front-end describes memory and rings in many messages, so a session is checked when there has been none for a moment.
//!
//! Memory that a front-end maps for itself alone (QEMU without `share=on`) can be mapped here too, and stays as it was when it was
//! made: the guest announces chains, and the rings are blank. Such a session looks like one whose guest sends nothing. So rings
//! that are blank are checked again and again, until the guest has used one.

use std::time::Duration;

use crate::session::Session;
use crate::vring::Vring;

/// How long a front-end has said nothing when its session is checked.
const SETTLED: Duration = Duration::from_millis(100);
/// The time before the first check of rings that are served. Each further one is later by twice the time before.
const CHECK_FIRST: Duration = Duration::from_millis(250);
/// The longest time between two checks.
const CHECK_MAX: Duration = Duration::from_secs(16);

/// What a session has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// No driver has started the device since the front-end connected.
    NoDriver,
    /// The guest's driver has stopped the device.
    Stopped,
    /// Rings are served.
    Served,
    /// The front-end has described no memory, or one in which nothing arrives that the guest writes. Rings may be served.
    NoMemory,
}

/// What is known of a session, beside what its front-end has described.
#[derive(Debug)]
pub(crate) struct Watch {
    /// The condition last reported to the device.
    reported: Option<Condition>,
    /// Whether a front-end has asked how many queues there are, as those do that then decide whether they go on.
    pub(crate) has_asked_for_queues: bool,
    /// Whether rings were served.
    has_served: bool,
    /// Whether the guest has used one of those that are served.
    is_in_use: bool,
    /// The time before the next check of rings that are served.
    pause: Duration,
}

impl Default for Watch {
    fn default() -> Self {
        let [has_asked_for_queues, has_served, is_in_use] = [false; 3];
        Self { reported: None, has_asked_for_queues, has_served, is_in_use, pause: CHECK_FIRST }
    }
}

impl Watch {
    /// Rings are served from now on.
    pub(crate) fn begin(&mut self) {
        let reported = Some(Condition::Served);
        *self = Self { reported, has_served: true, is_in_use: false, pause: CHECK_FIRST, ..*self };
    }

    /// Rings were checked, of which the guest has used one or not.
    fn note(&mut self, is_in_use: bool) {
        self.is_in_use = is_in_use;
        self.pause = (2 * self.pause).min(CHECK_MAX);
    }
}

impl Session {
    /// For how long the front-end must say nothing before the session is checked; none if there is nothing to be found out.
    pub(crate) fn pause(&self) -> Option<Duration> {
        match self.served.is_empty() {
            true => (self.watch.reported != Some(self.idle())).then_some(SETTLED),
            false => (!self.watch.is_in_use).then_some(self.watch.pause),
        }
    }

    /// Reports to the device what the session has come to.
    pub(crate) fn check(&mut self) {
        let condition = match self.served.is_empty() {
            true => self.idle(),
            false => self.check_rings(),
        };
        if self.watch.reported.replace(condition) != Some(condition) {
            self.device.settle(condition);
        }
    }

    /// Why nothing is served.
    fn idle(&self) -> Condition {
        match &self.watch {
            _ if self.negotiated.is_none() => Condition::NoDriver,
            _ if self.parts.is_empty() => Condition::NoMemory,
            watch if watch.has_served => Condition::Stopped,
            _ => Condition::NoDriver,
        }
    }

    fn check_rings(&mut self) -> Condition {
        let layout = self.negotiated.unwrap_or_default().rings().layout;
        let served = self.served.iter().flat_map(|pair| &self.rings[2 * pair..][..2]);
        // Announced first, and then still blank: a driver writes to the ring before it announces that.
        let is_kicked = served.clone().any(Vring::was_kicked);
        // Such a table was made when the rings began to be served.
        let is_blank = self.memory().is_ok_and(|memory| {
            let mut rings = served.filter_map(|ring| ring.at);
            rings.all(|at| at.is_blank(&memory, layout))
        });
        self.watch.note(!is_blank);
        if is_blank && is_kicked { Condition::NoMemory } else { Condition::Served }
    }

    /// Whether the front-end has gone without a device: it went on with nothing after it had asked how many queues there are.
    pub(crate) fn was_turned_down(&self) -> bool {
        let is_begun = self.rings.iter().any(|ring| ring.is_enabled || ring.is_started);
        self.watch.has_asked_for_queues && self.negotiated.is_none() && !is_begun
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rings_that_stay_blank_are_checked_ever_more_rarely() {
        let mut watch = Watch::default();
        watch.begin();
        let pauses: Vec<_> = (0..8)
            .map(|_| {
                let pause = watch.pause;
                watch.note(false);
                pause
            })
            .collect();
        assert!(
            pauses.is_sorted() && pauses[0] == CHECK_FIRST && pauses[7] == CHECK_MAX,
            "{pauses:?}"
        );
        watch.begin();
        assert_eq!(watch.pause, CHECK_FIRST, "rings that are served anew");
    }
}
