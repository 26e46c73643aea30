//! Work on messages, in a thread of its own or where they come from.

use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread::{Builder, JoinHandle};

/// A stage of a pipeline: messages go in, their empty buffers come back, and its state at the end. What it comes to
/// depends on the messages' order alone, and not on where it works.
pub struct Stage<Message, Buffer, State> {
    place: Place<Message, Buffer, State>,
    take: fn(&mut State, Message) -> Option<Buffer>,
}

enum Place<Message, Buffer, State> {
    Here { state: State, buffers: Vec<Buffer> },
    Thread { to: SyncSender<Message>, empty: Receiver<Buffer>, thread: JoinHandle<State> },
}

impl<Message, Buffer, State> Stage<Message, Buffer, State>
where
    Message: Send + 'static,
    Buffer: Send + 'static,
    State: Send + 'static,
{
    /// Has `take` work on messages where they are sent.
    pub fn here(
        buffers: Vec<Buffer>,
        state: State,
        take: fn(&mut State, Message) -> Option<Buffer>,
    ) -> Self {
        Self { place: Place::Here { state, buffers }, take }
    }

    /// Has `take` work on messages in a thread, with so many buffers.
    ///
    /// # Errors
    /// In words, if there is no thread to be had.
    pub fn thread(
        name: &str,
        buffers: Vec<Buffer>,
        state: State,
        take: fn(&mut State, Message) -> Option<Buffer>,
    ) -> Result<Self, String> {
        let (to, inbox) = sync_channel(buffers.len());
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
        Ok(Self { place: Place::Thread { to, empty, thread }, take })
    }

    /// Sends a message, when there is room for it. If the stage has failed, [`finish`](Self::finish) says so.
    pub fn send(&mut self, message: Message) {
        match &mut self.place {
            Place::Here { state, buffers } => buffers.extend((self.take)(state, message)),
            Place::Thread { to, .. } => drop(to.send(message)),
        }
    }

    /// An empty buffer, when there is one; none if the stage has failed.
    pub fn buffer(&mut self) -> Option<Buffer> {
        match &mut self.place {
            Place::Here { buffers, .. } => buffers.pop(),
            Place::Thread { empty, .. } => empty.recv().ok(),
        }
    }

    /// Its state, when all messages are worked on.
    ///
    /// # Errors
    /// In words, if it has failed.
    pub fn finish(self) -> Result<State, String> {
        match self.place {
            Place::Here { state, .. } => Ok(state),
            Place::Thread { to, thread, .. } => {
                drop(to);
                thread.join().map_err(|_| "a thread of the models failed".to_owned())
            }
        }
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

    fn buffers() -> Vec<Vec<u32>> {
        vec![Vec::new(), Vec::new()]
    }

    #[test]
    fn messages_are_worked_on_in_their_order_and_buffers_come_back() {
        let thread = Stage::thread("adds", buffers(), Vec::new(), adds).unwrap();
        for mut stage in [thread, Stage::here(buffers(), Vec::new(), adds)] {
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
    fn a_stage_that_fails_stops_nobody_and_is_told_of() {
        let mut stage = Stage::thread("fails", buffers(), Vec::new(), adds).unwrap();
        for number in 10..20 {
            stage.send(vec![number]);
            stage.buffer();
        }
        assert!(stage.finish().is_err());
    }
}
