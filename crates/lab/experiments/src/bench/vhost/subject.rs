//! A back-end under test and the front-end program that it serves.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::time::{Duration, Instant};

use clap::ValueEnum as _;

use super::back_end::BackEnd;
use super::front_end::{Reply, Request, RingLayout};
use super::table::{Polling, Sample};
use crate::bench::pps::Cpus;
use crate::error::{Error, Result};
use crate::testbed::this;

/// How long a back-end runs before it is measured, so that its caches are its own again, and its rings are polled.
const SETTLE: Duration = Duration::from_millis(10);

/// A back-end, paused while it is not measured, and its front-end.
pub struct Subject {
    /// Its name in rows.
    pub name: &'static str,
    back_end: BackEnd,
    front_end: FrontEnd,
}

impl Subject {
    /// Connects a front-end program on the second CPU to a back-end.
    pub fn start(
        name: &'static str,
        cpus: &Cpus,
        back_end: BackEnd,
        layout: RingLayout,
    ) -> Result<Self> {
        cpus.enter(1)?;
        let front_end = FrontEnd::start(&back_end, layout)
            .map_err(|error| Error::Failed(format!("{name}: {error}")))?;
        back_end.pause()?;
        Ok(Self { name, back_end, front_end })
    }

    /// Repeats a request until neither process was disturbed, or gives up.
    pub fn sample(&mut self, request: Request) -> Result<Sample<Reply>> {
        self.running(|subject| {
            let front_end = Polling { pid: subject.front_end.pid(), threads: "" };
            let processes = [subject.back_end.polling(), front_end];
            Sample::take(processes, || subject.front_end.ask(request))
        })
        .map_err(|error| match error {
            Error::Failed(why) => Error::Failed(format!("{}: {why}", self.name)),
            other => other,
        })
    }

    /// The back-end's share of a CPU while no frame is sent.
    pub fn idle(&mut self, duration: Duration) -> Result<f64> {
        self.running(|subject| {
            let before = subject.ran()?;
            let began = Instant::now();
            lab::Interrupt::sleep(duration)?;
            Ok((subject.ran()? - before).as_secs_f64() / began.elapsed().as_secs_f64())
        })
    }

    fn running<T>(&mut self, work: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        self.back_end.go_on()?;
        std::thread::sleep(SETTLE);
        let result = work(self);
        self.back_end.pause()?;
        result
    }

    fn ran(&self) -> Result<Duration> {
        Ok(lab::thread_times(self.back_end.pid())?.iter().map(|thread| thread.ran).sum())
    }
}

/// The front-end program. Dropping it ends it.
struct FrontEnd {
    child: Child,
    requests: Option<ChildStdin>,
    replies: BufReader<ChildStdout>,
}

impl FrontEnd {
    fn start(back_end: &BackEnd, layout: RingLayout) -> Result<Self> {
        let mut command = this(None)?;
        let layout = layout.to_possible_value().map_or(String::new(), |v| v.get_name().to_owned());
        command.args(["bench", "vhost-front-end", "--layout", &layout, "--sockets"]);
        command.args(back_end.sockets());
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        // The front-end has its own process group, so that Ctrl-C reaches only this process, which then ends it.
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let mut child = command.spawn().map_err(lost)?;
        let (Some(requests), Some(replies)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(Error::Failed("a front-end without pipes".into()));
        };
        let replies = BufReader::new(replies);
        let mut front_end = Self { child, requests: Some(requests), replies };
        match front_end.reply()? {
            Reply::Ready => Ok(front_end),
            reply => Err(Error::Failed(format!("the front-end answered {reply:?}"))),
        }
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }

    fn ask(&mut self, request: Request) -> Result<Reply> {
        let line = crate::output::json(&request)?;
        if let Some(requests) = &mut self.requests {
            requests.write_all(line.as_bytes()).map_err(lost)?;
        }
        self.reply()
    }

    fn reply(&mut self) -> Result<Reply> {
        let mut line = String::new();
        self.replies.read_line(&mut line).map_err(lost)?;
        if line.is_empty() {
            return Err(Error::Failed("the front-end has ended".into()));
        }
        match serde_json::from_str(&line).map_err(report::Error::from)? {
            Reply::Failed(why) => Err(Error::Failed(format!("the front-end: {why}"))),
            reply => Ok(reply),
        }
    }
}

#[expect(clippy::needless_pass_by_value, reason = "an error, as `map_err` passes it")]
fn lost(error: std::io::Error) -> Error {
    Error::Failed(format!("the front-end: {error}"))
}

impl Drop for FrontEnd {
    fn drop(&mut self) {
        // The end of its input ends it, unless it waits for a frame.
        drop(self.requests.take());
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
