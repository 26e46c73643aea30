//! What a session serves, seen by a test, which moves frames between its queues as a worker does.

use std::sync::{Condvar, Mutex};
use std::time::Duration;

use port::{Broken, Outcome, Queue, Received};
use vhost_user::{Condition, Device};

/// What a session serves, seen by a test.
#[derive(Default)]
pub struct Served {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    queues: Option<Vec<Queue>>,
    starts: usize,
    stops: Vec<String>,
    conditions: Vec<Condition>,
}

/// How long a test waits for what must come.
pub const LIMIT: Duration = Duration::from_secs(20);

impl Served {
    /// Waits until the rings have been started so many times, and takes them.
    pub fn started(&self, times: usize) -> Vec<Queue> {
        let state = self.state.lock().unwrap();
        let is_missing = |state: &mut State| state.starts < times || state.queues.is_none();
        let waited = self.changed.wait_timeout_while(state, LIMIT, is_missing);
        let (mut state, timeout) = waited.unwrap();
        assert!(!timeout.timed_out(), "the rings were not started {times} times");
        state.queues.take().unwrap()
    }

    /// Waits until the session has said so many times what it has come to, and returns all that it said.
    pub fn settled(&self, times: usize) -> Vec<Condition> {
        let state = self.state.lock().unwrap();
        let is_missing = |state: &mut State| state.conditions.len() < times;
        let (state, _) = self.changed.wait_timeout_while(state, LIMIT, is_missing).unwrap();
        state.conditions.clone()
    }

    pub fn put(&self, queues: Vec<Queue>) {
        self.state.lock().unwrap().queues = Some(queues);
    }

    pub fn starts(&self) -> usize {
        self.state.lock().unwrap().starts
    }

    pub fn stops(&self) -> Vec<String> {
        self.state.lock().unwrap().stops.clone()
    }
}

impl Device for Served {
    fn start(&self, queues: Vec<Queue>) {
        let mut state = self.state.lock().unwrap();
        state.queues = Some(queues);
        state.starts += 1;
        self.changed.notify_all();
    }

    fn stop(&self, why: &str) {
        let mut state = self.state.lock().unwrap();
        state.queues = None;
        state.stops.push(why.to_owned());
    }

    fn settle(&self, condition: Condition) {
        self.state.lock().unwrap().conditions.push(condition);
        self.changed.notify_all();
    }
}

/// Moves what one queue has to another one. Returns frames and malformed packets received, and the outcome of each frame.
pub fn pass(from: &mut Queue, to: &mut Queue) -> Result<(Received, Vec<Outcome>), Broken> {
    pass_at(from, to, Duration::ZERO)
}

pub fn pass_at(
    from: &mut Queue,
    to: &mut Queue,
    now: Duration,
) -> Result<(Received, Vec<Outcome>), Broken> {
    port_testing::pass(&mut *from.ingress, &mut *to.egress, now)
}
