//! Streamed output, and the terminal.

use std::io::{self, IsTerminal as _, Read as _, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use lab::Interrupt;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};

use super::qemu::STREAM_PORT;
use super::shell::Shell;
use crate::{Error, Result};

/// How often a wait checks for Ctrl-C.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// How long a script may take to end after its last output. It is also the limit of commands that end at once.
const END_TIMEOUT: Duration = Duration::from_secs(20);
/// `Ctrl-]`, as in telnet.
const ESCAPE: u8 = 0x1d;

/// Runs a script, copies its output to `out` at once, and returns its exit status.
pub(super) fn run(
    dom0: &Shell,
    line: &mut UnixStream,
    script: &str,
    out: &mut dyn Write,
    limit: Duration,
) -> Result<i32> {
    let mark = format!("\n~printed {:016x}\n", nonce());
    let command = format!(
        "cat >/run/script <<'~script'\n{script}\n~script\n\
         exec 3<>/dev/vport0p{STREAM_PORT}\n\
         sh /run/script </dev/null >&3 2>&1\n\
         status=$?; printf '\\n%s\\n' '{}' >&3; exit $status",
        mark.trim()
    );
    line.set_read_timeout(Some(POLL_INTERVAL)).map_err(Error::path("the stream from dom0"))?;
    let job = dom0.spawn(&command)?;
    let end = Instant::now() + limit;
    let mut output = Marked { mark: mark.into_bytes(), held: Vec::new() };
    let mut bytes = [0; 16 * 1024];
    loop {
        Interrupt::check()?;
        match line.read(&mut bytes) {
            // dom0 is gone. Waiting for the job returns that error, with the end of the console.
            Ok(0) => break,
            Ok(count) => {
                let (text, whole) = output.push(&bytes[..count]);
                let written = out.write_all(&text).and_then(|()| out.flush());
                written.map_err(Error::path("standard output"))?;
                if whole {
                    break;
                }
            }
            Err(cause)
                if matches!(
                    cause.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
                ) => {}
            Err(cause) => return Err(Error::path("the stream from dom0")(cause)),
        }
        if Instant::now() > end {
            return job.wait(Duration::ZERO).map(|output| output.status);
        }
    }
    job.wait(END_TIMEOUT).map(|output| output.status)
}

/// A random number, so that no output contains the mark by accident.
fn nonce() -> u64 {
    use std::hash::{BuildHasher as _, RandomState};
    RandomState::new().hash_one("xenlab")
}

/// Output up to a mark.
struct Marked {
    mark: Vec<u8>,
    /// Bytes that may be the beginning of the mark.
    held: Vec<u8>,
}

impl Marked {
    /// Takes more output. Returns the bytes that are not part of the mark, and whether the mark has come.
    fn push(&mut self, bytes: &[u8]) -> (Vec<u8>, bool) {
        self.held.extend_from_slice(bytes);
        let found = self.held.windows(self.mark.len()).position(|window| window == self.mark);
        let certain = found.unwrap_or_else(|| {
            let most = self.held.len().min(self.mark.len() - 1);
            let partial =
                (0..=most).rev().find(|length| self.held.ends_with(&self.mark[..*length]));
            self.held.len() - partial.unwrap_or(0)
        });
        (self.held.drain(..certain).collect(), found.is_some())
    }
}

/// Connects this process's terminal to a shell in dom0.
pub(super) fn interact(dom0: &Shell, line: &mut UnixStream) -> Result<()> {
    let failed = |cause: io::Error| Error::path("the terminal")(cause);
    if !io::stdin().is_terminal() {
        return Err(failed(io::Error::other(
            "standard input is not a terminal; use `pvnet-lab xen run`",
        )));
    }
    let size = tcgetwinsize(io::stdin()).map_err(|errno| failed(errno.into()))?;
    let (rows, columns) = (size.ws_row.max(24), size.ws_col.max(80));
    dom0.run(&format!("stty -F /dev/ttyS1 rows {rows} cols {columns}"), END_TIMEOUT)?;
    let raw = Raw::enter()?;
    let copied = relay(line);
    drop(raw);
    copied.map_err(failed)
}

/// Copies both ways until either side sends the escape character.
fn relay(line: &UnixStream) -> io::Result<()> {
    let ended = AtomicBool::new(false);
    line.set_read_timeout(Some(POLL_INTERVAL))?;
    thread::scope(|scope| {
        let down = scope.spawn(|| {
            let result = copy(line, &mut io::stdout(), &ended);
            ended.store(true, Ordering::Relaxed);
            result
        });
        let up = copy_keys(line, &ended);
        ended.store(true, Ordering::Relaxed);
        down.join().unwrap_or(Ok(())).and(up)
    })
}

fn copy(mut from: &UnixStream, to: &mut impl Write, ended: &AtomicBool) -> io::Result<()> {
    let mut bytes = [0; 4096];
    while !ended.load(Ordering::Relaxed) && !Interrupt::requested() {
        let count = match from.read(&mut bytes) {
            Ok(0) => return Ok(()),
            Ok(count) => count,
            Err(cause) if cause.kind() == io::ErrorKind::WouldBlock => continue,
            Err(cause) => return Err(cause),
        };
        let end = bytes[..count].iter().position(|byte| *byte == ESCAPE);
        to.write_all(&bytes[..end.unwrap_or(count)])?;
        to.flush()?;
        if end.is_some() {
            return Ok(());
        }
    }
    Ok(())
}

fn copy_keys(mut to: &UnixStream, ended: &AtomicBool) -> io::Result<()> {
    let stdin = io::stdin();
    let slice = rustix::time::Timespec::try_from(POLL_INTERVAL).map_err(io::Error::other)?;
    let mut bytes = [0; 256];
    while !ended.load(Ordering::Relaxed) && !Interrupt::requested() {
        match poll(&mut [PollFd::new(&stdin, PollFlags::IN)], Some(&slice)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => continue,
            Ok(_) => {}
            Err(errno) => return Err(errno.into()),
        }
        let count = rustix::io::read(&stdin, &mut bytes)?;
        if count == 0 || bytes[..count].contains(&ESCAPE) {
            return Ok(());
        }
        to.write_all(&bytes[..count])?;
    }
    Ok(())
}

/// The terminal in raw mode. Its settings are restored when this is dropped.
struct Raw(Termios);

impl Raw {
    fn enter() -> Result<Self> {
        let failed = |errno: rustix::io::Errno| Error::path("the terminal")(errno);
        let before = tcgetattr(io::stdin()).map_err(failed)?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(io::stdin(), OptionalActions::Flush, &raw).map_err(failed)?;
        Ok(Self(before))
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        // Errors are ignored: a terminal that is gone needs no restoring.
        let _ = tcsetattr(io::stdin(), OptionalActions::Flush, &self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn output_ends_at_the_mark_in_any_parts(
            text in "[ab\n~]{0,60}",
            after in "[ab\n~]{0,9}",
            size in 1_usize..9,
        ) {
            let mark = "\n~ab!\n";
            let mut output = Marked { mark: mark.into(), held: Vec::new() };
            let bytes = [&text, mark, &after].concat().into_bytes();
            let mut seen = Vec::new();
            let mut whole = false;
            for part in bytes.chunks(size) {
                let (text, now) = output.push(part);
                seen.extend(text);
                whole = now;
                if whole { break; }
            }
            prop_assert!(whole);
            prop_assert_eq!(String::from_utf8(seen).expect("text"), text);
        }
    }

    #[test]
    fn output_without_a_mark_is_not_held_back() {
        let mut output = Marked { mark: b"\n~x\n".to_vec(), held: Vec::new() };
        assert_eq!(output.push(b"prompt: "), (b"prompt: ".to_vec(), false));
        assert_eq!(output.push(b"line\n"), (b"line".to_vec(), false));
        assert_eq!(output.push(b"next"), (b"\nnext".to_vec(), false));
    }
}
