//! Work on messages, in a thread of its own or by whoever has time.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

/// How long there is waited for an empty buffer before it is looked again whether there is something else to do.
const PAUSE: Duration = Duration::from_micros(50);

/// A stage of a pipeline: messages go in, their empty buffers come back, and its state at the end. What it comes to
/// depends on the messages' order alone, and not on where it works.
pub struct Stage<Message, Buffer, State> {
    place: Place<Message, Buffer, State>,
}

/// What a stage does with a message. Answers its empty buffer.
type Take<Message, Buffer, State> = fn(&mut State, Message) -> Option<Buffer>;

enum Place<Message, Buffer, State> {
    Thread { to: Sender<Message>, empty: Receiver<Buffer>, thread: JoinHandle<State> },
    Shared { work: Arc<Shared<Message, Buffer, State>>, room: usize },
}

/// Work that is done by whoever has time: one message after the other, in their order.
pub struct Shared<Message, Buffer, State> {
    /// None when it is over. Whoever has it locked takes the next message.
    state: Mutex<Option<State>>,
    inbox: Mutex<VecDeque<Message>>,
    empty: Mutex<Vec<Buffer>>,
    take: Take<Message, Buffer, State>,
}

impl<Message, Buffer, State> Shared<Message, Buffer, State> {
    /// Works on a message, if there is one, as soon as nobody else does. Answers whether it did.
    pub fn help(&self) -> bool {
        let waits = !lock(&self.inbox).is_empty();
        let work = || self.state.lock().is_ok_and(|mut state| self.work(&mut state));
        // Who helps has other things to do, whatever becomes of this; who wants the state finds that it failed.
        waits && catch_unwind(AssertUnwindSafe(work)).unwrap_or(false)
    }

    fn work(&self, state: &mut Option<State>) -> bool {
        let (Some(state), Some(message)) = (state, lock(&self.inbox).pop_front()) else {
            return false;
        };
        let buffer = (self.take)(state, message);
        lock(&self.empty).extend(buffer);
        true
    }
}

impl<Message, Buffer, State> Stage<Message, Buffer, State>
where
    Message: Send + 'static,
    Buffer: Send + 'static,
    State: Send + 'static,
{
    /// Has whoever [helps](Shared::help) work on messages; who sends one helps when all buffers but one are on their way.
    pub fn shared(buffers: Vec<Buffer>, state: State, take: Take<Message, Buffer, State>) -> Self {
        let room = buffers.len().saturating_sub(1);
        let work = Shared {
            state: Mutex::new(Some(state)),
            inbox: Mutex::default(),
            empty: Mutex::new(buffers),
            take,
        };
        Self { place: Place::Shared { work: Arc::new(work), room } }
    }

    /// Has `take` work on messages in a thread, with so many buffers.
    ///
    /// # Errors
    /// In words, if there is no thread to be had.
    pub fn thread(
        name: &str,
        buffers: Vec<Buffer>,
        state: State,
        take: Take<Message, Buffer, State>,
    ) -> Result<Self, String> {
        let (to, inbox) = channel();
        let (give_back, empty) = channel();
        for buffer in buffers {
            give(&give_back, buffer);
        }
        let work = move || {
            let mut state = state;
            for message in inbox {
                if let Some(buffer) = take(&mut state, message) {
                    give(&give_back, buffer);
                }
            }
            state
        };
        let thread = Builder::new().name(name.to_owned()).spawn(work);
        let thread = thread.map_err(|error| format!("no thread for the models: {error}"))?;
        Ok(Self { place: Place::Thread { to, empty, thread } })
    }

    /// Sends a message. If the stage has failed, [`finish`](Self::finish) says so.
    pub fn send(&mut self, message: Message) {
        match &mut self.place {
            Place::Thread { to, .. } => drop(to.send(message)),
            Place::Shared { work, room } => {
                lock(&work.inbox).push_back(message);
                while lock(&work.inbox).len() > *room {
                    match work.state.try_lock() {
                        Ok(mut state) => work.work(&mut state),
                        // Who has it is at work; to wait for the lock could take until there is nothing left to do.
                        Err(TryLockError::WouldBlock) => break,
                        Err(TryLockError::Poisoned(_)) => lock(&work.inbox).pop_front().is_some(),
                    };
                }
            }
        }
    }

    /// An empty buffer, when there is one; none if the stage has failed, or if its work is shared and all are on their way.
    pub fn buffer(&mut self) -> Option<Buffer> {
        match &mut self.place {
            Place::Shared { work, .. } => lock(&work.empty).pop(),
            Place::Thread { empty, .. } => empty.recv().ok(),
        }
    }

    /// The same for who has something else to do until then: `help` does some of it, if there is some, and answers whether
    /// there was.
    pub fn buffer_after(&mut self, mut help: impl FnMut() -> bool) -> Option<Buffer> {
        let Place::Thread { empty, .. } = &mut self.place else { return self.buffer() };
        loop {
            let wait = if help() { Duration::ZERO } else { PAUSE };
            match empty.recv_timeout(wait) {
                Ok(buffer) => return Some(buffer),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return None,
            }
        }
    }

    /// For those who have time: the work, if it is shared.
    pub fn work(&self) -> Option<Arc<Shared<Message, Buffer, State>>> {
        match &self.place {
            Place::Thread { .. } => None,
            Place::Shared { work, .. } => Some(Arc::clone(work)),
        }
    }

    /// Its state, when all messages are worked on.
    ///
    /// # Errors
    /// In words, if it has failed.
    pub fn finish(self) -> Result<State, String> {
        let state = match self.place {
            Place::Thread { to, thread, .. } => {
                drop(to);
                thread.join().ok()
            }
            Place::Shared { work, .. } => {
                let finish = || {
                    let mut state = work.state.lock().ok()?;
                    while work.work(&mut state) {}
                    state.take()
                };
                catch_unwind(AssertUnwindSafe(finish)).ok().flatten()
            }
        };
        state.ok_or_else(|| "a thread of the models failed".to_owned())
    }
}

/// What a lock is for; also after who had it has failed, which others find out by themselves.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Gives a buffer back to whoever fills it; who has ended needs none.
fn give<Buffer>(to: &Sender<Buffer>, buffer: Buffer) {
    let _ = to.send(buffer);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn adds(state: &mut Vec<u32>, mut numbers: Vec<u32>) -> Option<Vec<u32>> {
        assert!(!numbers.contains(&13), "as this test wants it");
        state.append(&mut numbers);
        Some(numbers)
    }

    fn buffers() -> Vec<Vec<u32>> {
        vec![Vec::new(), Vec::new()]
    }

    #[test]
    fn messages_are_worked_on_in_their_order_and_buffers_come_back() {
        let thread = Stage::thread("adds", buffers(), Vec::new(), adds).unwrap();
        for mut stage in [thread, Stage::shared(buffers(), Vec::new(), adds)] {
            for number in 20..40 {
                let mut buffer = stage.buffer().unwrap();
                assert!(buffer.is_empty());
                buffer.push(number);
                stage.send(buffer);
            }
            assert_eq!(stage.finish(), Ok((20..40).collect()));
        }
    }

    #[test]
    fn work_is_done_in_its_order_whoever_does_it() {
        let mut stage = Stage::shared(buffers(), Vec::new(), adds);
        let work = stage.work().unwrap();
        let (done, over) = channel::<()>();
        let helper = std::thread::spawn(move || {
            let mut helped = 0;
            loop {
                // After the last message there is one left, or there was help before.
                let is_last = over.try_recv().is_ok();
                helped += u32::from(work.help());
                if is_last {
                    return helped;
                }
            }
        });
        for number in 100..10_000 {
            stage.send(vec![number]);
        }
        done.send(()).unwrap();
        assert!(helper.join().unwrap() > 0);
        assert_eq!(stage.finish(), Ok((100..10_000).collect()));
    }

    #[test]
    fn a_stage_that_fails_stops_nobody_and_is_told_of() {
        let mut stage = Stage::thread("fails", buffers(), Vec::new(), adds).unwrap();
        for number in 10..20 {
            stage.send(vec![number]);
            stage.buffer();
        }
        assert!(stage.finish().is_err());
    }

    #[test]
    fn shared_work_that_fails_is_told_of() {
        let mut stage = Stage::shared(buffers(), Vec::new(), adds);
        stage.send(vec![13]);
        let work = stage.work().unwrap();
        assert!(!work.help());
        stage.send(vec![14]);
        assert!(stage.finish().is_err());
    }
}
