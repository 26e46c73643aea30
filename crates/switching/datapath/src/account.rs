//! What the turns of a queue cost, so that each queue gets its share of a worker.

use std::time::Duration;

/// What a queue may take per round.
const QUANTUM: Duration = Duration::from_micros(50);
/// Largest debt. A worker may lose its CPU in the middle of a turn, which is not the queue's fault.
const DEBT_MAX: Duration = Duration::from_millis(20);

/// The time that a queue has taken beyond its share.
#[derive(Debug, Default)]
pub(crate) struct Account {
    debt: Duration,
}

impl Account {
    pub(crate) fn debt(&self) -> Duration {
        self.debt
    }

    /// A round begins. Returns whether the queue has a turn in it: whether it owes less than a
    /// round gives. `least` is the least debt of all queues, which none has to pay, so that in each
    /// round somebody has a turn.
    pub(crate) fn has_turn(&mut self, least: Duration) -> bool {
        self.debt = self.debt.saturating_sub(least);
        let has_turn = self.debt < QUANTUM;
        if !has_turn {
            self.debt -= QUANTUM;
        }
        has_turn
    }

    /// A turn took this long.
    pub(crate) fn charge(&mut self, took: Duration) {
        self.debt = (self.debt + took).saturating_sub(QUANTUM).min(DEBT_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The time that each queue gets, if its turns take this many microseconds.
    fn shares<const N: usize>(turns: [u64; N]) -> [u64; N] {
        let mut accounts: [Account; N] = std::array::from_fn(|_| Account::default());
        let mut taken = [0; N];
        for _ in 0..10_000 {
            let least = accounts.iter().map(Account::debt).min().unwrap();
            for ((account, turn), taken) in accounts.iter_mut().zip(turns).zip(&mut taken) {
                if account.has_turn(least) {
                    account.charge(Duration::from_micros(turn));
                    *taken += turn;
                }
            }
        }
        taken
    }

    #[test]
    fn long_turns_gain_nothing() {
        for turns in [[50, 1000], [100, 5000], [50, 51], [200, 200]] {
            let [short, long] = shares(turns);
            assert!(long.abs_diff(short) <= short / 20, "{turns:?}: {short} {long}");
        }
    }

    #[test]
    fn a_queue_with_little_to_do_has_a_turn_in_each_round() {
        let [light, _, _] = shares([5, 1000, 20_000]);
        assert_eq!(light, 5 * 10_000);
    }

    #[test]
    fn a_worker_with_work_never_pauses() {
        let mut account = Account::default();
        account.charge(Duration::from_secs(1));
        assert_eq!(account.debt(), DEBT_MAX);
        assert!(account.has_turn(account.debt()));
    }
}
