//! Commands in a domain.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::channel::{Channel, WaitError};
use super::console_tail;
use crate::{Error, Result};

/// How long a stopped command may take to return its output.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// Runs commands in a domain. Clones run them in the same domain.
#[derive(Clone, Debug)]
pub struct Shell {
    domain: Arc<Domain>,
}

#[derive(Debug)]
struct Domain {
    name: String,
    channel: Arc<Channel>,
    /// The console's log, if the channel does not run over the console.
    log: Option<PathBuf>,
}

/// The result of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    /// Its exit status; 128 and the signal's number after a signal.
    pub status: i32,
    /// Its standard output and standard error, in one.
    pub text: String,
}

/// A command that runs in the background.
#[derive(Debug)]
pub struct Job {
    shell: Shell,
    command: String,
    id: u64,
}

impl Shell {
    pub(super) fn new(name: &str, channel: Arc<Channel>, log: Option<PathBuf>) -> Self {
        Self { domain: Arc::new(Domain { name: name.to_owned(), channel, log }) }
    }

    /// The domain's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.domain.name
    }

    /// Runs a command or a script and waits for its end. A status other than zero is not an error.
    /// Several threads may call this at once.
    pub fn sh(&self, command: &str, limit: Duration) -> Result<Output> {
        self.spawn(command)?.wait(limit)
    }

    /// Runs a command that must succeed. Returns its output.
    pub fn run(&self, command: &str, limit: Duration) -> Result<String> {
        let Output { status, text } = self.sh(command, limit)?;
        if status == 0 {
            return Ok(text);
        }
        let domain = self.name().to_owned();
        Err(Error::Failed { domain, command: command.to_owned(), status, text })
    }

    /// Runs a command ten times per second until it succeeds. Returns its last output.
    pub fn until(&self, what: &str, condition: &str, limit: Duration) -> Result<String> {
        let seconds = limit.as_secs_f64();
        // The script measures the time too, so that the last try's output comes back.
        let script = format!(
            "read -r start _ </proc/uptime\n\
             until words=$( ( {condition} ) 2>&1 ); do\n\
             sleep 0.1; read -r now _ </proc/uptime\n\
             [ \"${{now%.*}}\" -gt \"$((${{start%.*}} + {seconds:.0}))\" ] && echo \"$words\" && exit 1\n\
             done; echo \"$words\""
        );
        let Output { status, text } = self.sh(&script, limit + STOP_TIMEOUT)?;
        if status == 0 {
            return Ok(text);
        }
        Err(Error::Late { domain: self.name().to_owned(), what: what.to_owned(), limit, text })
    }

    /// Starts a command in the background.
    pub fn spawn(&self, command: &str) -> Result<Job> {
        let id = self.domain.channel.start(command)?;
        Ok(Job { shell: self.clone(), command: command.to_owned(), id })
    }

    /// The last lines of the domain's console.
    #[must_use]
    pub fn console(&self) -> String {
        match &self.domain.log {
            Some(log) => console_tail(log),
            None => self.domain.channel.noise(),
        }
    }

    pub(super) fn channel(&self) -> &Arc<Channel> {
        &self.domain.channel
    }
}

impl Job {
    /// Waits for its end.
    pub fn wait(self, limit: Duration) -> Result<Output> {
        let channel = self.shell.channel();
        let (cause, text) = match channel.wait(self.id, limit)? {
            Ok((status, output)) => return Ok(Output { status, text: text(&output) }),
            Err(WaitError::Closed) => ("lost its domain".to_owned(), String::new()),
            Err(WaitError::TimedOut) => {
                channel.stop(self.id)?;
                let last = channel.wait(self.id, STOP_TIMEOUT)?;
                let text = last.map_or_else(|_| String::new(), |(_, output)| text(&output));
                (format!("took more than {} s and was stopped", limit.as_secs()), text)
            }
        };
        let (domain, console) = (self.shell.name().to_owned(), self.shell.console());
        Err(Error::Lost { domain, command: self.command, cause, text, console })
    }

    /// Its output so far, and its exit status if it has ended.
    pub fn printed(&self, limit: Duration) -> Result<String> {
        // The output's file is removed when the command ends.
        let so_far = self.shell.sh(&format!("cat {}", self.file()), limit)?;
        Ok(match self.shell.channel().ended(self.id) {
            Some((status, output)) => format!("{}\nit ended with status {status}\n", text(&output)),
            None => so_far.text,
        })
    }

    /// The file in the domain that holds its output while it runs.
    #[must_use]
    pub fn file(&self) -> String {
        format!("/run/agent/{}.out", self.id)
    }

    /// Kills it and its children. [`wait`](Self::wait) then returns at once.
    pub fn stop(&self) -> Result<()> {
        self.shell.channel().stop(self.id)
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
