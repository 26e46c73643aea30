//! The connection to one domain's agent.

use std::collections::{BTreeMap, VecDeque};
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use lab::Interrupt;

use super::frame::{self, Frame, Lines};
use crate::{Error, Result};

/// How often a wait checks for Ctrl-C.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// How long a write may block.
const WRITE_TIMEOUT: Duration = Duration::from_secs(20);
/// How many bytes of other output are kept.
const NOISE: usize = 16 * 1024;

/// The connection to an agent. Several threads may run commands over it at once.
#[derive(Debug)]
pub(super) struct Channel {
    writer: Mutex<UnixStream>,
    shared: Arc<Shared>,
    next: AtomicU64,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// How often an agent has reported that it is up; `uptime` is of the last report, in seconds since its domain's boot.
    boots: u64,
    uptime: f64,
    /// Answers that were not fetched yet.
    ended: BTreeMap<u64, (i32, Vec<u8>)>,
    /// The last lines that are not frames.
    noise: VecDeque<u8>,
    closed: bool,
}

/// Why a wait failed, other than by Ctrl-C.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum WaitError {
    /// The time limit passed.
    TimedOut,
    /// The connection is closed.
    Closed,
}

impl Channel {
    pub(super) fn new(stream: UnixStream) -> Result<Self> {
        Self::counting_from(1, stream)
    }

    /// The same with script numbers from `first`: an agent that comes from another QEMU may still answer the scripts that it got
    /// there.
    pub(super) fn counting_from(first: u64, stream: UnixStream) -> Result<Self> {
        let failed = |cause| Error::path("the connection to an agent")(cause);
        stream.set_write_timeout(Some(WRITE_TIMEOUT)).map_err(failed)?;
        let reader = stream.try_clone().map_err(failed)?;
        let shared = Arc::new(Shared::default());
        let reading = Arc::clone(&shared);
        // The thread ends when the connection closes, at the latest when QEMU ends.
        thread::Builder::new().spawn(move || reading.read(reader)).map_err(failed)?;
        Ok(Self { writer: Mutex::new(stream), shared, next: AtomicU64::new(first) })
    }

    pub(super) fn start(&self, script: &str) -> Result<u64> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        self.send(&frame::run(id, script))?;
        Ok(id)
    }

    /// Kills a script. Its answer still comes.
    pub(super) fn stop(&self, id: u64) -> Result<()> {
        self.send(&frame::stop(id))
    }

    /// Waits for a script's exit status and output.
    pub(super) fn wait(
        &self,
        id: u64,
        limit: Duration,
    ) -> Result<std::result::Result<(i32, Vec<u8>), WaitError>> {
        self.shared.wait(limit, |state| state.ended.remove(&id))
    }

    /// A script's exit status and output if it has ended. [`wait`](Self::wait) still returns them.
    pub(super) fn ended(&self, id: u64) -> Option<(i32, Vec<u8>)> {
        self.shared.lock().ended.get(&id).cloned()
    }

    /// How often an agent has come up on this connection.
    pub(super) fn boots(&self) -> u64 {
        self.shared.lock().boots
    }

    /// Waits until an agent has come up more than `before` times. Returns its domain's uptime in seconds.
    pub(super) fn wait_up(
        &self,
        before: u64,
        limit: Duration,
    ) -> Result<std::result::Result<f64, WaitError>> {
        self.shared.wait(limit, |state| (state.boots > before).then_some(state.uptime))
    }

    /// The last lines that are not frames: what a kernel printed on the console.
    pub(super) fn noise(&self) -> String {
        String::from_utf8_lossy(self.shared.lock().noise.make_contiguous()).into_owned()
    }

    fn send(&self, line: &str) -> Result<()> {
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        writer.write_all(line.as_bytes()).map_err(Error::path("the connection to an agent"))
    }
}

impl Shared {
    /// A panic in one thread must not block the others.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<T>(
        &self,
        limit: Duration,
        mut find: impl FnMut(&mut State) -> Option<T>,
    ) -> Result<std::result::Result<T, WaitError>> {
        let end = Instant::now() + limit;
        let mut state = self.lock();
        loop {
            if let Some(found) = find(&mut state) {
                return Ok(Ok(found));
            }
            Interrupt::check()?;
            let left = end.saturating_duration_since(Instant::now());
            if state.closed {
                return Ok(Err(WaitError::Closed));
            }
            if left.is_zero() {
                return Ok(Err(WaitError::TimedOut));
            }
            let slept = self.changed.wait_timeout(state, left.min(POLL_INTERVAL));
            state = slept.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn read(&self, mut stream: UnixStream) {
        let mut lines = Lines::default();
        let mut bytes = [0; 16 * 1024];
        while let Ok(count @ 1..) = stream.read(&mut bytes) {
            let (mut frames, mut noise) = (Vec::new(), Vec::<u8>::new());
            lines.push(
                &bytes[..count],
                |frame| frames.push(frame),
                |line| noise.extend(line.iter().chain(b"\n")),
            );
            let mut state = self.lock();
            frames.into_iter().for_each(|frame| state.take(frame));
            state.noise.extend(noise);
            let excess = state.noise.len().saturating_sub(NOISE);
            state.noise.drain(..excess);
            drop(state);
            self.changed.notify_all();
        }
        self.lock().closed = true;
        self.changed.notify_all();
    }
}

impl State {
    fn take(&mut self, frame: Frame) {
        match frame {
            Frame::Up { uptime } => {
                self.boots += 1;
                self.uptime = uptime;
            }
            Frame::End { id, status, output } => {
                self.ended.insert(id, (status, output));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lab::TempDir;
    use std::process::{Command, Stdio};

    const LIMIT: Duration = Duration::from_secs(20);

    /// The agent's script, run on this machine in a temporary folder.
    struct Agent {
        channel: Channel,
        process: std::process::Child,
        _folder: TempDir,
    }

    impl Agent {
        fn start() -> Self {
            let folder = TempDir::new().expect("folder");
            let place = folder.path().to_str().expect("text");
            let script = include_str!("../guest/agent.sh")
                .replace("/run/agent", &format!("{place}/jobs"))
                .replace("cd /lab", &format!("cd {place}"));
            let (ours, theirs) = UnixStream::pair().expect("pair");
            let end = || Stdio::from(std::os::fd::OwnedFd::from(theirs.try_clone().expect("dup")));
            let mut shell = Command::new("sh");
            let shell = shell.args(["-c", &script]).stdin(end()).stdout(end());
            let process = shell.spawn().expect("sh");
            let channel = Channel::new(ours).expect("channel");
            channel.wait_up(0, LIMIT).expect("no Ctrl-C").expect("up");
            Self { channel, process, _folder: folder }
        }

        fn sh(&self, script: &str) -> (i32, String) {
            let id = self.channel.start(script).expect("start");
            self.end(id)
        }

        fn end(&self, id: u64) -> (i32, String) {
            let (status, output) =
                self.channel.wait(id, LIMIT).expect("no Ctrl-C").expect("an answer");
            (status, String::from_utf8(output).expect("text"))
        }
    }

    impl Drop for Agent {
        fn drop(&mut self) {
            // The agent's process that answers ends only when the connection closes.
            let _ = self.channel.writer.lock().expect("lock").shutdown(std::net::Shutdown::Both);
            let _ = self.process.wait();
        }
    }

    #[test]
    fn output_and_status_come_back_exactly() {
        let agent = Agent::start();
        assert_eq!(agent.sh("echo one; echo two >&2; exit 3"), (3, "one\ntwo\n".to_owned()));
        assert_eq!(agent.sh("printf '~end 1 0 0 \\n'"), (0, "~end 1 0 0 \n".to_owned()));
        assert_eq!(agent.sh("true"), (0, String::new()));
        let (status, text) = agent.sh("seq 20000");
        assert_eq!((status, text.lines().count()), (0, 20000));
    }

    #[test]
    fn commands_run_side_by_side() {
        let agent = Agent::start();
        let first = agent.channel.start("until [ -e flag ]; do sleep 0.01; done; echo seen");
        assert_eq!(agent.sh("touch flag"), (0, String::new()));
        assert_eq!(agent.end(first.expect("start")), (0, "seen\n".to_owned()));
    }

    #[test]
    fn a_stopped_command_ends_with_its_children() {
        let agent = Agent::start();
        let id = agent.channel.start("sleep 60 & echo $!; echo $! >child; wait").expect("start");
        assert_eq!(agent.sh("until [ -s child ]; do sleep 0.01; done").0, 0);
        agent.channel.stop(id).expect("stop");
        let (status, child) = agent.end(id);
        assert_eq!(status, 128 + 9);
        // It stays a zombie where no process reaps orphans.
        let alive = format!("grep '^State:.*[RSD] ' /proc/{}/status", child.trim());
        assert_ne!(agent.sh(&alive).0, 0);
    }

    #[test]
    fn a_failed_wait_says_why() {
        let (ours, theirs) = UnixStream::pair().expect("pair");
        let channel = Channel::new(ours).expect("channel");
        let wait = |limit| channel.wait(1, limit).expect("no Ctrl-C").expect_err("no answer");
        assert_eq!(wait(Duration::from_millis(1)), WaitError::TimedOut);
        (&theirs).write_all(b"kernel panic\n").expect("write");
        drop(theirs);
        assert_eq!(wait(LIMIT), WaitError::Closed);
        assert_eq!(channel.noise(), "kernel panic\n");
    }
}
