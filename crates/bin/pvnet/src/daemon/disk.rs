//! The disk of a folder, which may hang.

use std::io::{self, ErrorKind};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use crate::daemon::thread::spawn_for_client;
use crate::program::text;

/// How long an answer may take: the whole daemon waits.
const LIMIT: Duration = Duration::from_secs(1);

/// A disk. Whoever asks it does so on a thread. One that gets no answer stays, so nothing else is asked until then.
#[derive(Default)]
pub(super) struct Disk(Arc<()>);

/// What a thread asks the disk. It is open until it is answered, or the thread has panicked.
pub(super) struct Question {
    // First: fields are dropped in this order, and who hears of a panic may ask again.
    open: Arc<()>,
    answer: mpsc::Sender<io::Result<()>>,
}

/// What the disk says.
pub(super) struct Answer(mpsc::Receiver<io::Result<()>>);

impl Disk {
    /// A question for a thread, and its answer.
    pub(super) fn question(&self) -> Result<(Question, Answer), String> {
        if Arc::strong_count(&self.0) > 1 {
            return Err("the disk still hangs: it has not answered an earlier request".into());
        }
        let (answer, answers) = mpsc::channel();
        Ok((Question { answer, open: self.0.clone() }, Answer(answers)))
    }

    /// Asks something, and waits for the answer.
    pub(super) fn ask(
        &self,
        what: impl FnOnce() -> io::Result<()> + Send + 'static,
    ) -> Result<(), String> {
        let (question, answer) = self.question()?;
        spawn_for_client("disk", move || question.answer(what())).map_err(text)?;
        answer.wait().map_err(text)
    }
}

impl Question {
    pub(super) fn answer(self, answer: io::Result<()>) {
        let Self { answer: answers, open } = self;
        // First: who has the answer may ask again.
        drop(open);
        // Who has waited in vain has said so.
        let _ = answers.send(answer);
    }
}

impl Answer {
    /// Waits for it, but no longer than [`LIMIT`].
    pub(super) fn wait(self) -> io::Result<()> {
        self.wait_for(LIMIT)
    }

    fn wait_for(self, limit: Duration) -> io::Result<()> {
        self.0.recv_timeout(limit).unwrap_or_else(|error| {
            Err(match error {
                mpsc::RecvTimeoutError::Timeout => {
                    let message = format!("the disk hangs: no answer within {limit:?}");
                    io::Error::new(ErrorKind::TimedOut, message)
                }
                mpsc::RecvTimeoutError::Disconnected => {
                    io::Error::other("the thread that asked the disk has panicked")
                }
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_that_hangs_is_asked_once() {
        let disk = Disk::default();
        let (question, answer) = disk.question().unwrap();
        let error = answer.wait_for(Duration::from_millis(10)).unwrap_err();
        assert!(error.to_string().contains("hangs: no answer within 10ms"), "{error}");
        for _ in 0..2 {
            let error = disk.ask(|| Ok(())).unwrap_err();
            assert!(error.contains("still hangs"), "{error}");
        }
        question.answer(Ok(()));
        assert_eq!(disk.ask(|| Ok(())), Ok(()));
        let error = disk.ask(|| Err(ErrorKind::NotFound.into())).unwrap_err();
        assert_eq!(error, text(io::Error::from(ErrorKind::NotFound)));
    }

    #[test]
    fn a_thread_that_panics_is_no_disk_that_hangs() {
        let disk = Disk::default();
        let (question, answer) = disk.question().unwrap();
        spawn_for_client("disk", move || {
            let _asked = question;
            panic!("a bug")
        })
        .unwrap();
        // A machine under load takes its time to print where the thread was.
        let error = answer.wait_for(Duration::from_secs(60)).unwrap_err();
        assert!(error.to_string().contains("panicked"), "{error}");
    }
}
