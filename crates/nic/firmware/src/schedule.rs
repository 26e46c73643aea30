//! Whose frame is sent next: deficit round robin (Shreedhar and Varghese 1995).

use std::collections::VecDeque;

use cdna::ContextId;
use cdna::context::CONTEXTS_MAX;

/// Bytes that a context may send per turn: a full-sized frame and some more, so that the frames of different contexts
/// are interleaved.
pub(crate) const QUANTUM: i64 = 2048;

/// The contexts that have frames to send, in the order of their turns.
///
/// Every turn adds a quantum to a context's deficit, and every frame takes its cost. A frame is sent if the deficit
/// covers it; a longer one waits for more turns. A context without frames loses its deficit.
#[derive(Debug)]
pub(crate) struct Schedule {
    /// The first one has its turn.
    turns: VecDeque<ContextId>,
    is_active: [bool; CONTEXTS_MAX],
    deficits: [i64; CONTEXTS_MAX],
    /// Whether the first one got its quantum.
    has_quantum: bool,
}

impl Schedule {
    pub(crate) fn new() -> Self {
        Self {
            turns: VecDeque::with_capacity(CONTEXTS_MAX),
            is_active: [false; CONTEXTS_MAX],
            deficits: [0; CONTEXTS_MAX],
            has_quantum: false,
        }
    }

    /// A context may have frames to send.
    pub(crate) fn activate(&mut self, context: ContextId) {
        if !self.is_active[context.index()] {
            self.is_active[context.index()] = true;
            self.turns.push_back(context);
        }
    }

    #[inline]
    pub(crate) fn turn(&mut self) -> Option<ContextId> {
        let context = *self.turns.front()?;
        if !self.has_quantum {
            self.deficits[context.index()] += QUANTUM;
            self.has_quantum = true;
        }
        Some(context)
    }

    /// Whether the context that has its turn may send a frame of this cost. One that is alone need not
    /// wait for more turns.
    #[inline]
    pub(crate) fn admits(&mut self, context: ContextId, cost: i64) -> bool {
        let deficit = &mut self.deficits[context.index()];
        if *deficit < cost && self.turns.len() == 1 {
            *deficit = cost;
        }
        *deficit >= cost
    }

    /// A frame was sent.
    #[inline]
    pub(crate) fn charge(&mut self, context: ContextId, cost: i64) {
        self.deficits[context.index()] -= cost;
    }

    /// The turn ends, and the context has another one after all others.
    pub(crate) fn end_turn(&mut self) {
        self.has_quantum = false;
        if self.turns.len() > 1 {
            self.turns.rotate_left(1);
        }
    }

    /// A context has no frame to send, or is not served any more.
    pub(crate) fn deactivate(&mut self, context: ContextId) {
        let index = context.index();
        if !self.is_active[index] {
            return;
        }
        self.is_active[index] = false;
        // A debt that the copies of a broadcast made is kept.
        self.deficits[index] = self.deficits[index].min(0);
        match self.turns.iter().position(|other| *other == context) {
            Some(0) => {
                self.turns.pop_front();
                self.has_quantum = false;
            }
            Some(place) => {
                self.turns.remove(place);
            }
            None => {}
        }
    }

    /// A context has another owner.
    pub(crate) fn reset(&mut self, context: ContextId) {
        self.deactivate(context);
        self.deficits[context.index()] = 0;
    }

    /// Whether no context has frames to send.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.turns.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Jain's index of fairness: 1 if all shares are equal, 1/n if one has all.
    #[expect(clippy::cast_precision_loss, reason = "a test's numbers")]
    fn jain(shares: &[i64]) -> f64 {
        let sum: f64 = shares.iter().map(|share| *share as f64).sum();
        let squares: f64 = shares.iter().map(|share| (*share as f64).powi(2)).sum();
        sum * sum / (shares.len() as f64 * squares)
    }

    proptest! {
        #[test]
        fn always_backlogged_contexts_send_equal_bytes(
            costs in prop::collection::vec(prop_oneof![64i64..1600, 1400i64..66_000], 2..40),
        ) {
            let mut schedule = Schedule::new();
            let mut sent = vec![0; costs.len()];
            (0..).take(costs.len()).for_each(|n| schedule.activate(ContextId::new(n)));
            let all = i64::try_from(costs.len()).unwrap() * 4_000_000;
            while sent.iter().sum::<i64>() < all {
                let context = schedule.turn().unwrap();
                let cost = costs[context.index()];
                while schedule.admits(context, cost) {
                    schedule.charge(context, cost);
                    sent[context.index()] += cost;
                }
                schedule.end_turn();
            }
            prop_assert!(jain(&sent) > 0.999, "{:?}", sent);
            // No context is ever further ahead than by its largest frame and a quantum.
            let (least, most) = (sent.iter().min().unwrap(), sent.iter().max().unwrap());
            prop_assert!(most - least <= 66_000 + 2 * QUANTUM, "{:?}", sent);
        }

        #[test]
        fn contexts_come_and_go(steps in prop::collection::vec((0u8..8, 0u8..4), 0..500)) {
            let mut schedule = Schedule::new();
            let mut naive = VecDeque::new();
            for (context, step) in steps {
                match step {
                    0 => {
                        schedule.activate(ContextId::new(context));
                        if !naive.contains(&context) {
                            naive.push_back(context);
                        }
                    }
                    1 => {
                        schedule.deactivate(ContextId::new(context));
                        naive.retain(|other| *other != context);
                    }
                    2 => {
                        schedule.reset(ContextId::new(context));
                        naive.retain(|other| *other != context);
                        prop_assert_eq!(schedule.deficits[usize::from(context)], 0);
                    }
                    _ => {
                        prop_assert_eq!(schedule.turn(), naive.front().copied().map(ContextId::new));
                        if !naive.is_empty() {
                            schedule.end_turn();
                            naive.rotate_left(1);
                        }
                    }
                }
                prop_assert_eq!(schedule.is_empty(), naive.is_empty());
            }
        }
    }

    #[test]
    fn a_quantum_is_given_once_per_turn() {
        let mut schedule = Schedule::new();
        let [one, two] = [1, 2].map(ContextId::new);
        schedule.activate(one);
        schedule.activate(two);
        for _ in 0..10 {
            assert_eq!(schedule.turn(), Some(one));
        }
        assert!(schedule.admits(one, QUANTUM) && !schedule.admits(one, QUANTUM + 1));
        schedule.deactivate(one);
        assert_eq!(schedule.turn(), Some(two));
        assert!(schedule.admits(two, 65_000), "it is alone");
    }
}
