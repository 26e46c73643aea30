//! How long a host has left queries unanswered.

/// Queries that must stay unanswered: one may be lost.
const QUERIES: u8 = 2;
/// Seconds after a leave in which another host behind the port can answer the querier's question (RFC 3376 §8.8: two seconds).
const LEAVE_SECONDS: u32 = 3;
/// Seconds that hosts have at least for an answer, whatever the query allows.
const ANSWER_SECONDS: u32 = 10;

/// The queries since the last report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Age {
    unanswered: u8,
    /// When an answer to the last one is overdue.
    until: u32,
}

impl Age {
    /// A query was sent, to be answered within `seconds`.
    pub(super) fn ask(&mut self, now: u32, seconds: u32) {
        self.unanswered = self.unanswered.saturating_add(1).min(QUERIES);
        self.until = now.saturating_add(seconds.max(ANSWER_SECONDS)).saturating_add(1);
    }

    /// A host has left: nobody else may answer for it.
    pub(super) fn leave(&mut self, now: u32) {
        *self = Self { unanswered: QUERIES, until: now.saturating_add(LEAVE_SECONDS) };
    }

    /// Whether enough queries have stayed unanswered.
    pub(super) fn is_over(self, now: u32) -> bool {
        self.unanswered >= QUERIES && now >= self.until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_queries_must_stay_unanswered() {
        let mut age = Age::default();
        assert!(!age.is_over(u32::MAX), "nobody has asked");
        age.ask(100, 10);
        assert!(!age.is_over(u32::MAX), "one may be lost");
        age.ask(200, 0);
        assert!(!age.is_over(210) && age.is_over(211));
        age.ask(300, 60);
        assert!(!age.is_over(360) && age.is_over(361));
        age.leave(400);
        assert!(!age.is_over(402) && age.is_over(403));
        age.ask(u32::MAX, u32::MAX);
        assert!(age.is_over(u32::MAX));
    }
}
