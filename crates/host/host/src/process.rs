//! Child processes that are always reaped and never outlive their value.

use crate::deadline::readable_within;
use crate::interrupt::SLICE;
use crate::{Error, Interrupt, Result};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use std::fs::File;
use std::io::{self, Write as _};
use std::os::unix::fs::FileExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// How long a process may take to end after SIGTERM, before SIGKILL: long, since a killed one cannot clean up, and machines are busy.
const GRACE: Duration = Duration::from_secs(15);
/// How often captured output is checked. Nothing can wait for a file to grow.
const LISTEN: Duration = Duration::from_millis(10);
/// The same for a report, which comes at once.
const REPORT: Duration = Duration::from_millis(1);

/// A running program. Dropping it stops it: SIGTERM, a grace period, SIGKILL. It is always reaped.
#[derive(Debug)]
pub struct Process {
    child: Child,
    name: String,
    captured: Option<Captured>,
}

/// A program's output, in memory. These are files and not pipes: no thread has to read them while the program runs, and
/// a forgotten grandchild that still holds one open blocks no reader.
#[derive(Debug)]
struct Captured {
    stdout: File,
    stderr: File,
}

impl Process {
    /// Starts a command. The command decides where its output goes.
    ///
    /// # Errors
    /// [`Error::Io`] if it does not start.
    pub fn spawn(command: Command) -> Result<Self> {
        Self::start(command, Stdio::null())
    }

    fn start(mut command: Command, stdin: Stdio) -> Result<Self> {
        let name = display(&command);
        // In a new process group, so that Ctrl-C reaches only this process, which then stops its children in order.
        let child = command.stdin(stdin).process_group(0).spawn();
        let child = child.map_err(Error::io(format!("cannot start `{name}`")))?;
        Ok(Self { child, name, captured: None })
    }

    /// Starts a command and captures its output.
    ///
    /// # Errors
    /// [`Error::Io`] if it does not start.
    pub fn capture(command: Command) -> Result<Self> {
        Self::start_captured(command, Stdio::null())
    }

    /// The same of a command that [reads lines](Self::write_line).
    ///
    /// # Errors
    /// [`Error::Io`] if it does not start.
    pub fn interactive(command: Command) -> Result<Self> {
        Self::start_captured(command, Stdio::piped())
    }

    fn start_captured(mut command: Command, stdin: Stdio) -> Result<Self> {
        let captured = Captured::new().map_err(Error::io("cannot make a file in memory"))?;
        captured.attach(&mut command).map_err(Error::io("cannot share a file in memory"))?;
        let mut process = Self::start(command, stdin)?;
        process.captured = Some(captured);
        Ok(process)
    }

    /// Writes a line to the standard input of a process that [reads lines](Self::interactive).
    ///
    /// # Errors
    /// [`Error::Io`] if it reads none any more.
    pub fn write_line(&mut self, line: &str) -> Result<()> {
        let written = match &mut self.child.stdin {
            Some(stdin) => writeln!(stdin, "{line}"),
            None => Err(io::Error::other("its standard input is closed")),
        };
        written.map_err(Error::io(format!("cannot write to `{}`", self.name)))
    }

    /// The process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The command line it was started with.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its exit status, if it has ended.
    ///
    /// # Errors
    /// [`Error::Io`] if the system does not say.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>> {
        self.child.try_wait().map_err(Error::io(format!("cannot wait for `{}`", self.name)))
    }

    /// Its standard output so far; empty unless [captured](Self::capture).
    #[must_use]
    pub fn stdout(&self) -> String {
        self.captured.as_ref().map_or(String::new(), |captured| text(&captured.stdout))
    }

    /// Its standard error so far; empty unless [captured](Self::capture).
    #[must_use]
    pub fn stderr(&self) -> String {
        self.captured.as_ref().map_or(String::new(), |captured| text(&captured.stderr))
    }

    /// Waits until its [captured](Self::capture) output has `words`.
    ///
    /// # Errors
    /// [`Error::TimedOut`] after `limit`, [`Error::Interrupted`], and [`Error::Failed`] if it ends without them.
    pub fn says(&mut self, words: &str, limit: Duration) -> Result<()> {
        let has_said = |process: &Self| {
            [process.stdout(), process.stderr()].iter().any(|output| output.contains(words))
        };
        let what = format!("`{}`, which has not said {words:?} yet,", self.name);
        self.until(|process| has_said(process).then_some(()), what, limit, LISTEN)
    }

    /// Waits until it has made a file.
    pub fn makes(&mut self, file: &Path, limit: Duration) -> Result<()> {
        let what = format!("`{}`, which has not made {} yet,", self.name, file.display());
        self.until(|_| file.exists().then_some(()), what, limit, LISTEN)
    }

    /// Waits until `done` returns something, with a pause after each check.
    fn until<T>(
        &mut self,
        done: impl Fn(&Self) -> Option<T>,
        what: String,
        limit: Duration,
        pause: Duration,
    ) -> Result<T> {
        let end = Instant::now() + limit;
        loop {
            // In this order: the process may do what is waited for and then end.
            let ended = self.ended()?;
            if let Some(done) = done(self) {
                return Ok(done);
            }
            if let Some(status) = ended {
                return Err(self.failed(status));
            }
            if Instant::now() > end {
                return Err(Error::TimedOut { what, limit });
            }
            Interrupt::sleep(pause)?;
        }
    }

    /// Sends it SIGUSR1, and returns the line that it then prints to its [captured](Self::capture) standard output.
    ///
    /// # Errors
    /// [`Error::TimedOut`] after `limit`, [`Error::Interrupted`], and [`Error::Failed`] if it ends without one.
    pub fn report(&mut self, limit: Duration) -> Result<String> {
        let before = self.stdout().len();
        if let Some(status) = self.ended()? {
            return Err(self.failed(status));
        }
        // It is not reaped yet, so its process id is not reused.
        kill_process(Pid::from_child(&self.child), Signal::USR1)
            .map_err(Error::io(format!("cannot signal `{}`", self.name)))?;
        let line = |process: &Self| {
            let stdout = process.stdout();
            let (line, _) = stdout.get(before..)?.split_once('\n')?;
            Some(line.to_owned())
        };
        let what = format!("the report of `{}`", self.name);
        self.until(line, what, limit, REPORT)
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// [`Error::TimedOut`] after `limit`, [`Error::Interrupted`]; the process then still runs.
    pub fn wait(&mut self, limit: Duration) -> Result<ExitStatus> {
        self.wait_while(limit, Interrupt::check)
    }

    /// Waits for its end and for success.
    ///
    /// # Errors
    /// Those of [`wait`](Self::wait), and [`Error::Failed`] with its output.
    pub fn succeed(&mut self, limit: Duration) -> Result<()> {
        let status = self.wait(limit)?;
        self.judge(status)
    }

    /// Stops it: SIGTERM, then SIGKILL if needed. Waits for it, and returns its exit status.
    ///
    /// # Errors
    /// [`Error::Io`] if the system refuses, [`Error::TimedOut`] if the kernel cannot end it.
    pub fn stop(&mut self) -> Result<ExitStatus> {
        self.stop_within(GRACE)
    }

    /// The same, with SIGKILL after `grace`.
    fn stop_within(&mut self, grace: Duration) -> Result<ExitStatus> {
        if let Some(status) = self.ended()? {
            return Ok(status);
        }
        // It is not reaped yet, so its process id is not reused.
        kill_process(Pid::from_child(&self.child), Signal::TERM)
            .map_err(Error::io(format!("cannot stop `{}`", self.name)))?;
        match self.wait_while(grace, || Ok(())) {
            Err(Error::TimedOut { .. }) => {
                self.child.kill().map_err(Error::io(format!("cannot kill `{}`", self.name)))?;
                self.wait_while(GRACE, || Ok(()))
            }
            ended => ended,
        }
    }

    /// Kills it, with no chance to clean up (SIGKILL), and waits for its end.
    ///
    /// # Errors
    /// [`Error::Io`] if the system refuses.
    pub fn kill(&mut self) -> Result<ExitStatus> {
        self.child.kill().map_err(Error::io(format!("cannot kill `{}`", self.name)))?;
        self.wait_while(GRACE, || Ok(()))
    }

    /// Waits while `keep_on` succeeds.
    fn wait_while(
        &mut self,
        limit: Duration,
        keep_on: impl Fn() -> Result<()>,
    ) -> Result<ExitStatus> {
        let end = Instant::now() + limit;
        if let Some(status) = self.ended()? {
            return Ok(status);
        }
        let waiting = || format!("cannot wait for `{}`", self.name);
        let pidfd = pidfd_open(Pid::from_child(&self.child), PidfdFlags::empty())
            .map_err(Error::io(waiting()))?;
        loop {
            keep_on()?;
            let left = end.saturating_duration_since(Instant::now());
            if readable_within(&pidfd, left.min(SLICE)).map_err(Error::io(waiting()))? {
                return self.child.wait().map_err(Error::io(waiting()));
            }
            if left.is_zero() {
                return Err(Error::TimedOut { what: format!("`{}`", self.name), limit });
            }
        }
    }

    fn judge(&self, status: ExitStatus) -> Result<()> {
        if status.success() { Ok(()) } else { Err(self.failed(status)) }
    }

    fn failed(&self, status: ExitStatus) -> Error {
        // Some programs print errors to standard output, others to standard error.
        let words = [self.stderr(), self.stdout()].map(|words| words.trim().to_owned());
        let words: Vec<String> = words.into_iter().filter(|words| !words.is_empty()).collect();
        let message =
            if words.is_empty() { "it said nothing".to_owned() } else { words.join("; ") };
        Error::Failed { command: self.name.clone(), status: status.to_string(), message }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Err(error) = self.stop() {
            eprintln!("clean-up: {error}");
        }
    }
}

impl Captured {
    fn new() -> io::Result<Self> {
        let file = |name: &str| memfd_create(name, MemfdFlags::CLOEXEC).map(File::from);
        Ok(Self { stdout: file("stdout")?, stderr: file("stderr")? })
    }

    fn attach(&self, command: &mut Command) -> io::Result<()> {
        command.stdout(self.stdout.try_clone()?).stderr(self.stderr.try_clone()?);
        Ok(())
    }
}

/// The content of a captured file as text. Positioned reads do not move the writer's offset, which the file
/// shares.
fn text(file: &File) -> String {
    let mut bytes = Vec::new();
    let mut chunk = [0; 16 * 1024];
    let mut offset = 0;
    while let Ok(count @ 1..) = file.read_at(&mut chunk, offset) {
        bytes.extend_from_slice(&chunk[..count]);
        offset += count as u64;
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// A command line as typed by a user, without the prefix that [`crate::command`] adds.
fn display(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let words: Vec<String> = words.map(|word| word.to_string_lossy().into_owned()).collect();
    let guard =
        words.iter().position(|word| word == "--").filter(|_| words[0].ends_with("setpriv"));
    words[guard.map_or(0, |guard| guard + 1)..].join(" ")
}

/// Runs a command to its end and returns its standard output.
///
/// # Errors
/// [`Error::Io`] if it does not start, [`Error::Failed`], [`Error::TimedOut`] after `limit`, [`Error::Interrupted`]; it
/// is stopped in the last two cases.
pub fn run(command: Command, limit: Duration) -> Result<String> {
    let mut process = Process::capture(command)?;
    process.succeed(limit)?;
    Ok(process.stdout())
}

/// [`run`] for clean-up, which a stop request must not interrupt.
pub(crate) fn run_to_the_end(command: Command, limit: Duration) -> Result<()> {
    let mut process = Process::capture(command)?;
    let status = process.wait_while(limit, || Ok(()))?;
    process.judge(status)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command;
    use std::os::unix::process::ExitStatusExt as _;

    const LIMIT: Duration = Duration::from_secs(20);

    fn shell(script: &str) -> Command {
        let mut shell = command("sh").expect("sh");
        shell.args(["-c", script]);
        shell
    }

    #[test]
    fn output_is_returned() {
        assert_eq!(run(shell("echo out; echo err >&2"), LIMIT).expect("success"), "out\n");
    }

    #[test]
    fn lines_are_read_until_the_process_has_ended() {
        let mut process = Process::interactive(shell("read a; read b; echo $b $a")).unwrap();
        process.write_line("one").unwrap();
        process.write_line("two").unwrap();
        assert!(process.wait(LIMIT).unwrap().success());
        assert_eq!(process.stdout(), "two one\n");
        let message = process.write_line("three").unwrap_err().to_string();
        assert!(message.starts_with("cannot write to `"), "{message}");
    }

    #[test]
    fn failure_names_the_command_the_status_and_its_words() {
        let message =
            run(shell("echo no disk >&2; exit 3"), LIMIT).expect_err("exit 3").to_string();
        assert!(
            message.ends_with("sh -c echo no disk >&2; exit 3` failed (exit status: 3): no disk"),
            "{message}"
        );
        assert!(!message.contains("setpriv"), "{message}");
    }

    #[test]
    fn a_silent_failure_says_so() {
        let message = run(shell("exit 1"), LIMIT).expect_err("exit 1").to_string();
        assert!(message.ends_with("it said nothing"), "{message}");
    }

    #[test]
    fn words_are_waited_for() {
        let mut process = Process::capture(shell("sleep 0.05; echo it begins >&2; exec sleep 60"))
            .expect("start");
        process.says("begins", LIMIT).expect("it says so");
        let late = process.says("ends", Duration::from_millis(20)).expect_err("it does not");
        assert!(late.to_string().contains("has not said \"ends\" yet"), "{late}");
        let mut process = Process::capture(shell("echo no disk >&2; exit 3")).expect("start");
        let failed = process.says("begins", LIMIT).expect_err("it ends");
        assert!(failed.to_string().ends_with("no disk"), "{failed}");
    }

    #[test]
    fn a_report_is_the_line_after_the_signal() {
        let script = "trap 'echo 2 frames' USR1; echo ready; while :; do sleep 0.01; done";
        let mut process = Process::capture(shell(script)).expect("start");
        while process.stdout().is_empty() {
            std::thread::yield_now();
        }
        for _ in 0..2 {
            assert_eq!(process.report(LIMIT).expect("a line"), "2 frames");
        }
        let mut process = Process::capture(shell("echo no disk >&2; exit 3")).expect("start");
        process.wait(LIMIT).expect("it ends");
        let failed = process.report(LIMIT).expect_err("it has ended");
        assert!(failed.to_string().ends_with("no disk"), "{failed}");
    }

    #[test]
    fn a_time_limit_stops_the_process() {
        let error = run(shell("exec sleep 60"), Duration::from_millis(20)).expect_err("too slow");
        assert!(matches!(error, Error::TimedOut { .. }), "{error}");
    }

    #[test]
    fn dropping_stops_and_reaps() {
        let process = Process::spawn(shell("exec sleep 60")).expect("start");
        let pid = process.pid();
        assert!(std::path::Path::new(&format!("/proc/{pid}")).exists());
        drop(process);
        assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists());
    }

    #[test]
    fn a_program_dies_with_the_thread_that_started_it() {
        if crate::needed(crate::tools::find("setpriv")).is_none() {
            return;
        }
        let start = || {
            let process = Process::capture(shell("echo ready; exec sleep 60")).expect("start");
            while process.stdout().is_empty() {
                std::thread::yield_now();
            }
            process
        };
        let mut process = std::thread::spawn(start).join().expect("no panic");
        assert_eq!(process.wait(LIMIT).expect("it ends").signal(), Some(9));
    }

    #[test]
    fn more_output_than_a_pipe_holds_blocks_nobody() {
        let output = run(
            shell(
                "i=0; while [ $i -lt 3000 ]; do echo 0123456789012345678901234567890123456789; i=$((i+1)); done",
            ),
            LIMIT,
        );
        assert_eq!(output.expect("success").len(), 3000 * 41);
    }

    #[test]
    fn a_process_that_ignores_terminate_is_killed() {
        let mut process =
            Process::capture(shell("trap '' TERM; echo ready; while :; do sleep 0.2; done"))
                .expect("start");
        while process.stdout().is_empty() {
            std::thread::yield_now();
        }
        let status = process.stop_within(Duration::from_millis(500)).expect("killed");
        assert_eq!(status.signal(), Some(9));
    }
}
