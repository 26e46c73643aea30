//! QEMU's monitor, over its machine protocol (QMP): JSON, line by line.

use std::io::{self, BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use lab::Interrupt;
use serde_json::{Value, json};

use crate::{Error, Result};

/// How long an answer may take.
const ANSWER: Duration = Duration::from_secs(60);
/// How often a wait checks for Ctrl-C.
const SLICE: Duration = Duration::from_millis(100);

/// A connection with QEMU's monitor.
#[derive(Debug)]
pub struct Monitor {
    stream: BufReader<UnixStream>,
    /// The beginning of a line.
    part: String,
    /// Events that nobody has waited for yet.
    events: Vec<Value>,
}

impl Monitor {
    /// Negotiates over a connection with QEMU.
    pub fn new(stream: UnixStream) -> Result<Self> {
        stream.set_read_timeout(Some(SLICE)).map_err(failed)?;
        let mut monitor =
            Self { stream: BufReader::new(stream), part: String::new(), events: Vec::new() };
        monitor.execute("qmp_capabilities", json!({}))?;
        Ok(monitor)
    }

    /// Executes a command. Returns what QEMU answers.
    pub fn execute(&mut self, command: &str, arguments: Value) -> Result<Value> {
        self.send(command, arguments)?;
        self.answer(command)
    }

    /// Sends a command without waiting for its answer.
    #[expect(clippy::needless_pass_by_value, reason = "it is made where it is passed")]
    pub fn send(&mut self, command: &str, arguments: Value) -> Result<()> {
        let line = json!({ "execute": command, "arguments": arguments }).to_string() + "\n";
        self.stream.get_mut().write_all(line.as_bytes()).map_err(failed)
    }

    /// Waits for the answer to a command that was [sent](Self::send).
    pub fn answer(&mut self, command: &str) -> Result<Value> {
        let end = Instant::now() + ANSWER;
        loop {
            let mut message = self.message(command, end, ANSWER)?;
            if let Some(answer) = message.get_mut("return") {
                return Ok(answer.take());
            }
            if let Some(error) = message.get("error") {
                let cause = error["desc"].as_str().unwrap_or("an error");
                let what = format!("QEMU's monitor on {command}");
                return Err(Error::parse(&what, cause, message.to_string()));
            }
            self.keep(message);
        }
    }

    /// Waits for an event of this name, or takes one that has come.
    pub fn event(&mut self, name: &str, limit: Duration) -> Result<Value> {
        let end = Instant::now() + limit;
        loop {
            if let Some(at) = self.events.iter().position(|event| event["event"] == name) {
                return Ok(self.events.remove(at));
            }
            let message = self.message(name, end, limit)?;
            self.keep(message);
        }
    }

    fn keep(&mut self, message: Value) {
        // The greeting is neither an event nor an answer.
        if message.get("event").is_some() {
            self.events.push(message);
        }
    }

    /// The next message, until `end`, which is `limit` after the caller began to wait.
    fn message(&mut self, what: &str, end: Instant, limit: Duration) -> Result<Value> {
        loop {
            Interrupt::check()?;
            match self.stream.read_line(&mut self.part) {
                Ok(0) => return Err(failed(io::ErrorKind::UnexpectedEof.into())),
                Ok(_) if self.part.ends_with('\n') => {
                    let text = std::mem::take(&mut self.part);
                    return Error::json("QEMU's monitor", &text);
                }
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(failed(error)),
            }
            if Instant::now() > end {
                let what = format!("QEMU's monitor on {what}");
                return Err(lab::Error::TimedOut { what, limit }.into());
            }
        }
    }
}

fn failed(cause: io::Error) -> Error {
    Error::path("QEMU's monitor")(cause)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_and_events_are_kept_apart() {
        let (ours, mut theirs) = UnixStream::pair().expect("pair");
        let lines = "{\"QMP\": {}}\r\n{\"return\": {}}\r\n{\"event\": \"STOP\"}\r\n\
                     {\"return\": {\"status\": \"running\"}}\r\n{\"error\": {\"desc\": \"no such device\"}}\r\n";
        theirs.write_all(lines.as_bytes()).expect("write");
        let mut monitor = Monitor::new(ours).expect("negotiated");
        let status = monitor.execute("query-status", json!({})).expect("an answer");
        assert_eq!(status["status"], "running");
        let refused = monitor.execute("device_del", json!({ "id": "x" })).expect_err("refused");
        assert!(refused.to_string().contains("no such device"), "{refused}");
        monitor.event("STOP", SLICE).expect("it came before");
        drop(theirs);
        assert!(monitor.event("STOP", SLICE).is_err());
    }
}
