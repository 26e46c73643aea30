//! A host with a victim and an attacker, and what comes of an attack there.

use std::time::Duration;

use lab::{Ping, Progress};
use serde::Serialize;

use crate::host::{Domu, DomuConfig, Host, Job, Shell};
use crate::{Error, Result};

use super::super::backend::{self, Backend, RunningBackend};
use super::super::frontend::{Frontend, RunningFrontend};
use super::super::{BACKEND_ADDRESS, BOOT, GUEST_ADDRESS, SOON};
use super::class::{Class, Report};
use super::expected::Expected;
use super::holdings::Holdings;
use super::status::{Port, Status};

/// The attacker's address on the link, and the one above it.
const MAC: &str = "00:16:3e:00:00:66";
const ADDRESS: &str = "10.0.0.3";
const VICTIM: &str = "victim";
const HOSTILE: &str = "hostile";

/// How long an attack may take besides what it was told to.
const PATIENCE: Duration = Duration::from_secs(60);
/// Echoes of one call of `ping`, which ends with the last reply: none is on its way when they are counted.
const ECHOES: u32 = 10;
/// There once the victim was asked often enough.
const ENOUGH: &str = "/run/enough";
/// Words with which a kernel complains.
const COMPLAINTS: &str = "WARNING|BUG|Oops|segfault|Call Trace|general protection|blocked for";
/// Between the parts of an answer.
const CUT: &str = "~~~";

/// The host, with all that runs on it.
#[derive(Debug)]
pub struct Stage {
    dom0: Shell,
    backend: RunningBackend,
    victim: Domu,
    hostile: Domu,
    pid: u32,
    // What reaches the attacker whatever it does.
    _traffic: Job,
    _frontend: RunningFrontend,
}

/// An attack, and what was seen of it.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Which.
    pub class: Class,
    /// What it is named after.
    pub advisories: String,
    /// What was to become of it.
    pub expected: String,
    /// What the attacker did and saw.
    pub report: Report,
    /// Its interface, as the daemon tells of it.
    pub port: Port,
    /// Echoes of the victim's that came back, and those that were asked for.
    pub victim: [u64; 2],
    /// The longest that one took, in milliseconds.
    pub victim_ms: f64,
    /// All that is not as it should be.
    pub complaints: Vec<String>,
}

/// What is seen from dom0 after an attack.
struct Seen {
    status: Status,
    kernel: String,
    panics: String,
}

impl Stage {
    /// Sets it on a host that was just booted, with the programs `pvnet` and `hostile` there.
    ///
    /// # Errors
    /// Those of the steps, with the daemon's last words.
    pub fn new(host: &Host, progress: &Progress) -> Result<Self> {
        progress.step("start pvnet");
        let backend = Backend::Pvnet.start(host)?;
        match Self::guests(host, &backend, progress) {
            Ok((victim, frontend, hostile)) => {
                let dom0 = host.dom0().clone();
                let pid = status(&dom0)?.pid;
                let traffic = traffic(&dom0)?;
                // What was said until now is not about an attack.
                for shell in [&dom0, victim.shell()] {
                    shell.run("dmesg -c >/dev/null", SOON)?;
                }
                let (_traffic, _frontend) = (traffic, frontend);
                Ok(Self { dom0, backend, victim, hostile, pid, _traffic, _frontend })
            }
            Err(error) => Err(backend::explain(error, &backend)),
        }
    }

    fn guests(
        host: &Host,
        backend: &RunningBackend,
        progress: &Progress,
    ) -> Result<(Domu, RunningFrontend, Domu)> {
        progress.step("boot the victim");
        let victim = host.create(&DomuConfig::new(VICTIM).vif(backend.vif()), BOOT)?;
        let frontend = Frontend::Stock.start(&victim)?;
        progress.step("boot the attacker");
        let vif = format!("mac={MAC},script=/bin/true");
        let hostile = host.create(&DomuConfig::new(HOSTILE).vif(vif), BOOT)?;
        hostile.run("modprobe xen-gntalloc limit=4096 && modprobe xen-evtchn", SOON)?;
        Ok((victim, frontend, hostile))
    }

    /// Has the attacker do its worst, for so many seconds or cycles where that matters.
    ///
    /// # Errors
    /// Those of [`Shell::run`] where something cannot be found out; what is not as it should be is a result.
    pub fn attack(&self, class: Class, seconds: u64, cycles: u32) -> Result<Row> {
        let run = || {
            let pings = self.ask_victim()?;
            let words = format!("{class} --stay --seconds {seconds} --count {cycles}");
            let limit = PATIENCE + Duration::from_secs(seconds);
            let (attacker, report) = self.start(&words, limit)?;
            let seen = self.look()?;
            attacker.stop()?;
            attacker.wait(SOON)?;
            self.judge(report, &seen, &self.answers(pings)?, cycles)
        };
        run().map_err(|error| backend::explain(error, &self.backend))
    }

    /// What is held when the attacker has closed its device.
    ///
    /// # Errors
    /// As [`attack`](Self::attack).
    pub fn holdings(&self) -> Result<Holdings> {
        let (attacker, report) = self.start(&format!("{} --count 1", Class::Cycles), PATIENCE)?;
        attacker.wait(SOON)?;
        if let Some(failure) = report.failure {
            return Err(unreadable("the end of a connection", &failure, ""));
        }
        Holdings::count(&self.dom0, self.pid, self.hostile.id())
    }

    /// Starts the attacker's program, and waits until it tells what came of it.
    fn start(&self, words: &str, limit: Duration) -> Result<(Job, Report)> {
        let (told, error) = ("/run/hostile.json", "/run/hostile.err");
        self.hostile.run(&format!("rm -f {told}"), SOON)?;
        let job = self.hostile.spawn(&format!(
            "exec hostile {words} --address {ADDRESS} --peer {BACKEND_ADDRESS} >{told} 2>{error}"
        ))?;
        let report = format!("grep '^{{' {told} || {{ cat {error}; false; }}");
        let text = self.hostile.shell().until(&format!("hostile {words}"), &report, limit)?;
        let report = serde_json::from_str(&text);
        Ok((job, report.map_err(|error| unreadable("hostile", &error, &text))?))
    }

    /// Asks the victim for echoes until there were enough.
    fn ask_victim(&self) -> Result<Job> {
        self.dom0.run(&format!("rm -f {ENOUGH}"), SOON)?;
        self.dom0.spawn(&format!(
            "until [ -e {ENOUGH} ]; do ping -q -n -i 0.05 -W 3 -c {ECHOES} {GUEST_ADDRESS}; done; true"
        ))
    }

    /// Ends that, and answers what came back.
    fn answers(&self, pings: Job) -> Result<Vec<Ping>> {
        self.dom0.run(&format!("touch {ENOUGH}"), SOON)?;
        let text = pings.wait(SOON)?.text;
        let calls = text.split("PING ").skip(1).map(|call| Ok(Ping::parse(call)?));
        calls.collect()
    }

    /// Looks at all that must not have suffered.
    fn look(&self) -> Result<Seen> {
        let log = self.backend.daemon().map(Job::file).unwrap_or_default();
        let look = format!(
            "pvnet status --json; echo '{CUT}'; dmesg -c | grep -E '{COMPLAINTS}'; echo '{CUT}'; \
             grep panicked {log}; true"
        );
        let text = self.dom0.run(&look, SOON)?;
        let mut parts = text.splitn(3, CUT);
        let mut part = || parts.next().unwrap_or_default().trim();
        let (status, dom0, panics) = (Status::parse(part())?, part(), part());
        let victim = format!("dmesg -c | grep -E '{COMPLAINTS}'; true");
        let kernel = [dom0, &self.victim.run(&victim, SOON)?].concat();
        Ok(Seen { status, kernel, panics: panics.to_owned() })
    }

    fn judge(&self, report: Report, seen: &Seen, pings: &[Ping], cycles: u32) -> Result<Row> {
        let port = seen.status.port(HOSTILE)?.clone();
        let class = report.class;
        let expected = Expected::of(class, cycles);
        let mut complaints = expected.complaints(&report, &port);
        let victim = [
            pings.iter().map(|ping| ping.received).sum(),
            pings.iter().map(|ping| ping.sent).sum(),
        ];
        let state = &seen.status.port(VICTIM)?.state;
        for (is_so, complaint) in [
            (victim[0] == victim[1] && victim[1] > 0, "the victim's echoes were lost"),
            (state == "up", "the victim's interface is down"),
            (seen.status.pid == self.pid, "another daemon is running"),
        ] {
            if !is_so {
                complaints.push(complaint.to_owned());
            }
        }
        let words = [&seen.kernel, &seen.panics].into_iter().filter(|words| !words.is_empty());
        complaints.extend(words.cloned());
        let longest = pings.iter().filter_map(|ping| ping.rtt).map(|rtt| rtt.max).max();
        let victim_ms = longest.unwrap_or_default().as_secs_f64() * 1e3;
        let (advisories, expected) = (class.advisories(), expected.to_string());
        Ok(Row { class, advisories, expected, report, port, victim, victim_ms, complaints })
    }
}

impl Row {
    /// Whether all is as it should be.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.complaints.is_empty()
    }

    /// What became of it, in a few words.
    #[must_use]
    pub fn seen(&self) -> String {
        match (&self.report.skipped, &self.port.reason) {
            (Some(reason), _) => format!("skipped: {reason}"),
            (None, Some(reason)) if self.port.state == "down" => format!("down: {reason}"),
            _ => {
                let drops = self.port.drops.iter();
                let drops = drops.map(|(reason, count)| format!(", {count} {reason}"));
                format!("{}{}", self.port.state, drops.collect::<String>())
            }
        }
    }
}

fn status(dom0: &Shell) -> Result<Status> {
    Status::parse(&dom0.run("pvnet status --json", SOON)?)
}

/// Echoes to the attacker, whether it answers or not. It is given a neighbour entry: it may not answer ARP either.
fn traffic(dom0: &Shell) -> Result<Job> {
    dom0.spawn(&format!(
        "ip neigh replace {ADDRESS} lladdr {MAC} dev pvnet0 nud permanent; \
         exec ping -q -n -i 0.02 {ADDRESS}"
    ))
}

fn unreadable(what: &str, cause: &dyn std::fmt::Display, text: &str) -> Error {
    Error::Parse { what: what.to_owned(), cause: cause.to_string(), text: text.to_owned() }
}
