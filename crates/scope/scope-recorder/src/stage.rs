//! A stage of a pipeline, in its own thread or run by threads that wait.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use crate::access_groups::Member;
use crate::block_flow::BlockFlow;
use crate::blocks::{BlockCode, BlockId};
use crate::trace::LONGEST;

/// How long a thread waits for an empty buffer before it checks again for other work.
const PAUSE: Duration = Duration::from_micros(50);

/// A stage of a pipeline: messages go in, their empty buffers come back, and finally its state. The state depends on the
/// order of the messages only, not on the threads.
pub struct Stage<Message, Buffer, State> {
    runs: Runs<Message, Buffer, State>,
}

/// Processes a message. Returns its empty buffer.
type Process<Message, Buffer, State> = fn(&mut State, Message) -> Option<Buffer>;

/// Where a stage runs.
enum Runs<Message, Buffer, State> {
    Thread {
        to: Sender<Message>,
        empty: Receiver<Buffer>,
        /// Empty buffers; the last was used last, so that the caches of the host may still have it.
        spare: Vec<Buffer>,
        thread: JoinHandle<State>,
    },
    Shared {
        work: Arc<SharedWork<Message, Buffer, State>>,
        queue_limit: usize,
    },
}

/// Messages that any thread may process, one at a time and in their order.
pub struct SharedWork<Message, Buffer, State> {
    /// None once the stage has finished. The thread that holds this lock takes the next message.
    state: Mutex<Option<State>>,
    queue: Mutex<VecDeque<Message>>,
    empty: Mutex<Vec<Buffer>>,
    process: Process<Message, Buffer, State>,
}

impl<Message, Buffer, State> SharedWork<Message, Buffer, State> {
    /// Waits until no other thread processes a message, and processes the next one, if there is one. Returns whether it did.
    pub fn help(&self) -> bool {
        let is_queued = !lock(&self.queue).is_empty();
        let work = || self.state.lock().is_ok_and(|mut state| self.next(&mut state));
        // A panic must not end the helping thread. `finish` reports it.
        is_queued && catch_unwind(AssertUnwindSafe(work)).unwrap_or(false)
    }

    fn next(&self, state: &mut Option<State>) -> bool {
        let (Some(state), Some(message)) = (state, lock(&self.queue).pop_front()) else {
            return false;
        };
        let buffer = (self.process)(state, message);
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
    /// A stage whose messages are processed by threads that [help](SharedWork::help). The sender helps when all buffers but
    /// one are in use.
    pub fn shared(
        buffers: Vec<Buffer>,
        state: State,
        process: Process<Message, Buffer, State>,
    ) -> Self {
        let queue_limit = buffers.len().saturating_sub(1);
        let work = SharedWork {
            state: Mutex::new(Some(state)),
            queue: Mutex::default(),
            empty: Mutex::new(buffers),
            process,
        };
        Self { runs: Runs::Shared { work: Arc::new(work), queue_limit } }
    }

    /// A stage that processes messages in its own thread.
    ///
    /// # Errors
    /// In words, if the system gives no thread.
    pub fn thread(
        name: &str,
        buffers: Vec<Buffer>,
        state: State,
        process: Process<Message, Buffer, State>,
    ) -> Result<Self, String> {
        let (to, messages) = channel();
        let (give_back, empty) = channel();
        let work = move || {
            let mut state = state;
            for message in messages {
                if let Some(buffer) = process(&mut state, message) {
                    give(&give_back, buffer);
                }
            }
            state
        };
        let thread = Builder::new().name(name.to_owned()).spawn(work);
        let thread = thread.map_err(|error| format!("no thread for the models: {error}"))?;
        Ok(Self { runs: Runs::Thread { to, empty, spare: buffers, thread } })
    }

    /// Sends a message. If the stage has failed, [`finish`](Self::finish) says so.
    pub fn send(&mut self, message: Message) {
        match &mut self.runs {
            Runs::Thread { to, .. } => drop(to.send(message)),
            Runs::Shared { work, queue_limit } => {
                lock(&work.queue).push_back(message);
                while lock(&work.queue).len() > *queue_limit {
                    match work.state.try_lock() {
                        Ok(mut state) => work.next(&mut state),
                        // Another thread processes one. Waiting for the lock could take until the queue is empty.
                        Err(TryLockError::WouldBlock) => break,
                        Err(TryLockError::Poisoned(_)) => lock(&work.queue).pop_front().is_some(),
                    };
                }
            }
        }
    }

    /// Waits for an empty buffer. Returns none if the stage has failed, or if its work is shared and all buffers are in use.
    pub fn buffer(&mut self) -> Option<Buffer> {
        match &mut self.runs {
            Runs::Shared { work, .. } => lock(&work.empty).pop(),
            Runs::Thread { empty, spare, .. } => last(empty, spare).or_else(|| empty.recv().ok()),
        }
    }

    /// As [`buffer`](Self::buffer), and calls `help` while it waits. `help` returns whether it found work.
    pub fn buffer_after(&mut self, mut help: impl FnMut() -> bool) -> Option<Buffer> {
        let Runs::Thread { empty, spare, .. } = &mut self.runs else { return self.buffer() };
        if let Some(buffer) = last(empty, spare) {
            return Some(buffer);
        }
        loop {
            let wait = if help() { Duration::ZERO } else { PAUSE };
            match empty.recv_timeout(wait) {
                Ok(buffer) => return Some(buffer),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return None,
            }
        }
    }

    /// The work that other threads can help with, if it is shared.
    pub fn shared_work(&self) -> Option<Arc<SharedWork<Message, Buffer, State>>> {
        match &self.runs {
            Runs::Thread { .. } => None,
            Runs::Shared { work, .. } => Some(Arc::clone(work)),
        }
    }

    /// Returns the state once all messages are processed.
    ///
    /// # Errors
    /// In words, if the stage has panicked.
    pub fn finish(self) -> Result<State, String> {
        let state = match self.runs {
            Runs::Thread { to, thread, .. } => {
                drop(to);
                thread.join().ok()
            }
            Runs::Shared { work, .. } => {
                let finish = || {
                    let mut state = work.state.lock().ok()?;
                    while work.next(&mut state) {}
                    state.take()
                };
                catch_unwind(AssertUnwindSafe(finish)).ok().flatten()
            }
        };
        state.ok_or_else(|| "a thread of the models failed".to_owned())
    }
}

/// Locks a mutex, even one whose holder has panicked: `finish` reports that.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The empty buffer that came back last, if there is one.
fn last<Buffer>(empty: &Receiver<Buffer>, spare: &mut Vec<Buffer>) -> Option<Buffer> {
    spare.extend(empty.try_iter());
    spare.pop()
}

/// Returns a buffer to the sender, unless that has ended.
fn give<Buffer>(to: &Sender<Buffer>, buffer: Buffer) {
    let _ = to.send(buffer);
}

/// Words of a message: with this many, handing it over costs next to nothing.
const WORDS: usize = 1 << 16;

/// A message to the recorder. Waking its thread takes longer than all work for a block, so new blocks wait until the words
/// are full.
#[derive(Debug)]
pub struct Message {
    /// New blocks, numbered consecutively.
    pub blocks: Vec<BlockCode>,
    /// The flow of each new block, if the call graph is recorded.
    pub flows: Vec<BlockFlow>,
    /// The members of new indexed groups with their blocks, numbered consecutively.
    pub members: Vec<(BlockId, Box<[Member]>)>,
    /// The words of events.
    words: Box<[u64; WORDS]>,
    /// How many of the words are used.
    used: usize,
}

impl Message {
    /// An empty message.
    pub fn new() -> Self {
        // Allocated on the heap: it is too large for the stack.
        let words = vec![0; WORDS].into_boxed_slice().try_into();
        let words = words.unwrap_or_else(|_| Box::new([0; WORDS]));
        Self { blocks: Vec::new(), flows: Vec::new(), members: Vec::new(), words, used: 0 }
    }

    pub fn words(&self) -> &[u64] {
        self.words.get(..self.used).unwrap_or_default()
    }

    /// Empties the message.
    pub fn clear(&mut self) {
        self.blocks.clear();
        self.flows.clear();
        self.members.clear();
        self.used = 0;
    }

    /// Adds a word. Returns whether there was space.
    #[inline]
    pub fn add(&mut self, word: u64) -> bool {
        let Some(place) = self.words.get_mut(self.used) else { return false };
        *place = word;
        self.used += 1;
        true
    }

    /// Whether there is space for any event.
    pub fn has_space(&self) -> bool {
        self.used + LONGEST <= WORDS
    }
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
    fn messages_are_processed_in_their_order_and_buffers_come_back() {
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
    fn shared_work_keeps_its_order() {
        let mut stage = Stage::shared(buffers(), Vec::new(), adds);
        let work = stage.shared_work().unwrap();
        let (done, over) = channel::<()>();
        let helper = std::thread::spawn(move || {
            let mut helped = 0;
            loop {
                // Either a message is left after the last one was sent, or this thread has helped before.
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
    fn a_stage_that_panics_blocks_no_sender_and_is_reported() {
        let mut stage = Stage::thread("fails", buffers(), Vec::new(), adds).unwrap();
        for number in 10..20 {
            stage.send(vec![number]);
            stage.buffer();
        }
        assert!(stage.finish().is_err());
    }

    #[test]
    fn shared_work_that_panics_is_reported() {
        let mut stage = Stage::shared(buffers(), Vec::new(), adds);
        stage.send(vec![13]);
        let work = stage.shared_work().unwrap();
        assert!(!work.help());
        stage.send(vec![14]);
        assert!(stage.finish().is_err());
    }
}
