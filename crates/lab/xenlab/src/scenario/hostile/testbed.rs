//! A host with a victim and an attacker, and what comes of an attack there.

use std::time::Duration;

use lab::Progress;
use serde::Serialize;

use crate::host::{Domu, DomuConfig, Host, Job, Shell};
use crate::{Error, Result};

use super::super::backend::{self, Backend, RunningBackend};
use super::super::frontend::{Frontend, RunningFrontend};
use super::super::{BACKEND_ADDRESS, BOOT_TIMEOUT, COMMAND_TIMEOUT, GUEST_ADDRESS};
use super::class::{Class, Report};
use super::echoes::{self, Echoes};
use super::expected::Expected;
use super::resources::Resources;
use super::status::{Port, Status};

/// The attacker's address on the link, and the one above it.
const MAC: &str = "00:16:3e:00:00:66";
const ADDRESS: &str = "10.0.0.3";
const VICTIM: &str = "victim";
const HOSTILE: &str = "hostile";

/// How long an attack, or a look at what it did, may take besides what it was told to: emulation is slow where others
/// work too.
const ATTACK_TIMEOUT: Duration = Duration::from_secs(120);
/// Words with which a kernel complains.
const COMPLAINTS: &str = "WARNING|BUG|Oops|segfault|Call Trace|general protection|blocked for";
/// Between the parts of an answer.
const CUT: &str = "~~~";

/// The host, with all that runs on it.
#[derive(Debug)]
pub struct AttackTestbed {
    dom0: Shell,
    backend: RunningBackend,
    victim: Domu,
    hostile: Domu,
    pid: u32,
    echoes: Job,
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
    /// What the victim answered meanwhile.
    pub victim: Echoes,
    /// All that is not as it should be.
    pub complaints: Vec<String>,
}

/// What is seen from dom0 after an attack.
struct Seen {
    status: Status,
    /// The victim's answers of the whole run that came after the last that was seen before.
    replies: String,
    /// The kernel's and the daemon's complaints.
    words: String,
}

impl AttackTestbed {
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
                let (echoes, traffic) = (echoes(&dom0)?, traffic(&dom0)?);
                // What was said until now is not about an attack.
                let (_traffic, _frontend) = (traffic, frontend);
                let stage =
                    Self { dom0, backend, victim, hostile, pid, echoes, _traffic, _frontend };
                stage.kernels().map(|_| stage)
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
        let victim = host.create(&DomuConfig::new(VICTIM).vif(backend.vif()), BOOT_TIMEOUT)?;
        let frontend = Frontend::Stock.start(&victim)?;
        progress.step("boot the attacker");
        let vif = format!("mac={MAC},script=/bin/true");
        let hostile = host.create(&DomuConfig::new(HOSTILE).vif(vif), BOOT_TIMEOUT)?;
        hostile.run("modprobe xen-gntalloc limit=4096 && modprobe xen-evtchn", COMMAND_TIMEOUT)?;
        Ok((victim, frontend, hostile))
    }

    /// Has the attacker do its worst, for so many seconds or cycles where that matters.
    ///
    /// # Errors
    /// Those of [`Shell::run`] where something cannot be found out; what is not as it should be is a result.
    pub fn attack(&self, class: Class, seconds: u64, cycles: u32) -> Result<Row> {
        let run = || {
            let before = self.last_echo()?;
            let words = format!("{class} --stay --seconds {seconds} --count {cycles}");
            let report = self.hostile(&words, ATTACK_TIMEOUT + Duration::from_secs(seconds))?;
            let seen = self.look()?;
            let victim = Echoes::after(before, &seen.replies)?;
            self.judge(report, &seen, victim, cycles)
        };
        run().map_err(|error| backend::explain(error, &self.backend))
    }

    /// Plugs an interface into the victim and unplugs it, so many times.
    ///
    /// # Errors
    /// Those of [`Shell::run`].
    pub fn plug(&self, cycles: u32) -> Result<()> {
        let (id, vif) = (self.victim.id(), format!("{VICTIM}.1"));
        let script = format!(
            "for n in $(seq {cycles}); do
             xl network-attach {id} script=/bin/true || exit
             until pvnet status | grep '{vif} .* up'; do sleep 0.05; done
             xl network-detach {id} 1 || exit
             while pvnet status | grep '{vif} '; do sleep 0.05; done
             done >/run/plugged 2>&1"
        );
        let limit = COMMAND_TIMEOUT + ATTACK_TIMEOUT * cycles / 10;
        self.dom0
            .run(&script, limit)
            .map(drop)
            .map_err(|error| backend::explain(error, &self.backend))
    }

    /// What is held when the attacker has closed its device.
    ///
    /// # Errors
    /// As [`attack`](Self::attack).
    pub fn resources(&self) -> Result<Resources> {
        let report = self.hostile(&format!("{} --count 1", Class::Cycles), ATTACK_TIMEOUT)?;
        if let Some(failure) = report.failure {
            return Err(unreadable("the end of a connection", &failure, ""));
        }
        Resources::count(&self.dom0, self.pid, self.hostile.id())
    }

    /// What the kernels of dom0 and the victim complain of; of dom0's what came since the last attack.
    ///
    /// # Errors
    /// Those of [`Shell::run`].
    pub fn kernels(&self) -> Result<String> {
        let complaints = format!("dmesg -c | grep -E '{COMPLAINTS}'; true");
        let shells = [&self.dom0, self.victim.shell()];
        shells.into_iter().map(|shell| shell.run(&complaints, ATTACK_TIMEOUT)).collect()
    }

    /// Kills the attacker's program and starts it anew, until it tells what came of it. It runs on, if it was told to
    /// stay, so that it can be looked at.
    fn hostile(&self, words: &str, limit: Duration) -> Result<Report> {
        let script = format!(
            "cd /run; [ -e hostile.pid ] && kill -9 \"$(cat hostile.pid)\" 2>/dev/null\n\
             hostile {words} --address {ADDRESS} --peer {BACKEND_ADDRESS} >told 2>error &\n\
             echo $! >hostile.pid\n\
             while ! grep '^{{' told; do kill -0 $! || exec cat error; sleep 0.05; done"
        );
        let text = self.hostile.run(&script, limit)?;
        serde_json::from_str(&text).map_err(|error| unreadable("hostile", &error, &text))
    }

    /// The last echo that the victim has answered.
    fn last_echo(&self) -> Result<u64> {
        let line = self.dom0.run(&format!("tail -n 1 {}", self.echoes.file()), ATTACK_TIMEOUT)?;
        echoes::sequence(&line)
    }

    /// Looks at all that must not have suffered. The victim must have answered an echo that it was asked for now.
    fn look(&self) -> Result<Seen> {
        let (echoes, log) = (self.echoes.file(), self.backend.daemon().map(Job::file));
        let look = format!(
            "pvnet status --json; echo '{CUT}'; dmesg -c | grep -E '{COMPLAINTS}'; grep panicked {log}\n\
             echo '{CUT}'; size=$(wc -l <{echoes})\n\
             until [ \"$(wc -l <{echoes})\" -gt $((size + 1)) ]; do sleep 0.05; done; tail -n 2000 {echoes}",
            log = log.unwrap_or_default(),
        );
        let text = self.dom0.run(&look, ATTACK_TIMEOUT)?;
        let mut parts = text.splitn(3, CUT).map(str::trim);
        let mut part = || parts.next().unwrap_or_default();
        let status = Status::parse(part())?;
        Ok(Seen { status, words: part().to_owned(), replies: part().to_owned() })
    }

    fn judge(&self, report: Report, seen: &Seen, victim: Echoes, cycles: u32) -> Result<Row> {
        let port = seen.status.port(HOSTILE)?.clone();
        let class = report.class;
        let expected = Expected::of(class, cycles);
        let mut complaints = expected.complaints(&report, &port);
        let state = &seen.status.port(VICTIM)?.state;
        for (is_so, complaint) in [
            (victim.is_complete(), "the victim's echoes were lost"),
            (state == "up", "the victim's interface is down"),
            (seen.status.pid == self.pid, "another daemon is running"),
        ] {
            if !is_so {
                complaints.push(complaint.to_owned());
            }
        }
        complaints.extend(Some(&seen.words).filter(|words| !words.is_empty()).cloned());
        let (advisories, expected) = (class.advisories(), expected.to_string());
        Ok(Row { class, advisories, expected, report, port, victim, complaints })
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
    Status::parse(&dom0.run("pvnet status --json", COMMAND_TIMEOUT)?)
}

/// Asks the victim for echoes, for good; a line for each that it answers.
fn echoes(dom0: &Shell) -> Result<Job> {
    let job = dom0.spawn(&format!("exec ping -n -i 0.1 {GUEST_ADDRESS}"))?;
    let answered = format!("grep icmp_seq {}", job.file());
    dom0.until("an echo of the victim's", &answered, COMMAND_TIMEOUT)?;
    Ok(job)
}

/// Echoes to the attacker, whether it answers or not. It is given a neighbour entry: it may not answer ARP either.
fn traffic(dom0: &Shell) -> Result<Job> {
    dom0.spawn(&format!(
        "ip neigh replace {ADDRESS} lladdr {MAC} dev pvnet0 nud permanent; \
         exec ping -q -n -i 0.1 {ADDRESS}"
    ))
}

fn unreadable(what: &str, cause: &dyn std::fmt::Display, text: &str) -> Error {
    Error::Parse { what: what.to_owned(), cause: cause.to_string(), text: text.to_owned() }
}
