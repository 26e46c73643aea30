//! A thread that works on what it is sent.

use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread::{Builder, JoinHandle};

/// A stage of a pipeline: messages go in, their empty buffers come back, and its state at the end. What it comes to
/// depends on the messages' order alone.
#[derive(Debug)]
pub struct Stage<Message, Buffer, State> {
    messages: SyncSender<Message>,
    empty: Receiver<Buffer>,
    thread: JoinHandle<State>,
}

impl<Message, Buffer, State> Stage<Message, Buffer, State>
where
    Message: Send + 'static,
    Buffer: Send + 'static,
    State: Send + 'static,
{
    /// Starts a thread that has `take` work on messages, with so many buffers.
    ///
    /// # Errors
    /// In words, if there is no thread to be had.
    pub fn new(
        name: &str,
        buffers: Vec<Buffer>,
        state: State,
        take: impl Fn(&mut State, Message) -> Option<Buffer> + Send + 'static,
    ) -> Result<Self, String> {
        let (messages, inbox) = sync_channel(buffers.len());
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
        Ok(Self { messages, empty, thread })
    }

    /// Sends a message, when there is room for it. If the stage has failed, [`finish`](Self::finish) says so.
    pub fn send(&self, message: Message) {
        let _ = self.messages.send(message);
    }

    /// An empty buffer, when there is one; none if the stage has failed.
    pub fn buffer(&self) -> Option<Buffer> {
        self.empty.recv().ok()
    }

    /// Its state, when all messages are worked on.
    ///
    /// # Errors
    /// In words, if it has failed.
    pub fn finish(self) -> Result<State, String> {
        drop(self.messages);
        self.thread.join().map_err(|_| "a thread of the models failed".to_owned())
    }
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

    #[test]
    fn messages_are_worked_on_in_their_order_and_buffers_come_back() {
        let stage = Stage::new("adds", vec![Vec::new(), Vec::new()], Vec::new(), adds).unwrap();
        for number in 20..40 {
            let mut buffer = stage.buffer().unwrap();
            assert!(buffer.is_empty());
            buffer.push(number);
            stage.send(buffer);
        }
        assert_eq!(stage.finish(), Ok((20..40).collect()));
    }

    #[test]
    fn a_stage_that_fails_stops_nobody_and_is_told_of() {
        let stage = Stage::new("fails", vec![Vec::new(), Vec::new()], Vec::new(), adds).unwrap();
        for number in 10..20 {
            stage.send(vec![number]);
            stage.buffer();
        }
        assert!(stage.finish().is_err());
    }
}
