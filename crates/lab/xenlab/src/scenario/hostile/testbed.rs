//! A host with a victim and an attacker, and the results of attacks on it.

use std::time::Duration;

use lab::Progress;
use schemars::JsonSchema;
use serde::Serialize;

use crate::host::{Domu, DomuConfig, Host, Job, Shell};
use crate::{Error, Result};

use super::super::backend::{self, Backend, RunningBackend};
use super::super::cell::{Frontend, RunningFrontend};
use super::super::{BACKEND_ADDRESS, BOOT_TIMEOUT, COMMAND_TIMEOUT, GUEST_ADDRESS};
use super::class::{Class, Report};
use super::echoes::{self, Baseline, Echoes};
use super::expected::Expected;
use super::phase;
use super::resources::Resources;
use super::status::{PortSummary, Status};

/// The attacker's MAC and IP address.
const MAC: &str = "00:16:3e:00:00:66";
const ADDRESS: &str = "10.0.0.3";
const VICTIM: &str = "victim";
const HOSTILE: &str = "hostile";

/// How long an attack or a check may take beyond its set duration: emulation is slow on a busy
/// machine.
pub(super) const ATTACK_TIMEOUT: Duration = Duration::from_secs(120);
/// The duration of a quiet period: fifty echoes.
const QUIET_SECONDS: u64 = 5;
/// Words in a kernel's error messages.
const COMPLAINTS: &str = "WARNING|BUG|Oops|segfault|Call Trace|general protection|blocked for";
/// Separates the parts of a script's output.
const CUT: &str = "~~~";
/// The beginning of the attacker's report.
pub(super) const REPORT: &str = "{";

/// The host with pvnet, the victim and the attacker.
#[derive(Debug)]
pub struct AttackTestbed {
    pub(super) dom0: Shell,
    pub(super) backend: RunningBackend,
    pub(super) victim: Domu,
    hostile: Domu,
    pub(super) pid: u32,
    echoes: Job,
    // Traffic to the attacker throughout.
    _traffic: Job,
    _frontend: RunningFrontend,
}

/// An attack and its result.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct Row {
    /// The attack.
    pub class: Class,
    /// The advisories for this kind of bug.
    pub advisories: String,
    /// The expected result.
    pub expected: String,
    /// The attacker's report.
    pub report: Report,
    /// The attacker's interface, from the daemon's status.
    pub port: PortSummary,
    /// The victim's replies during the attack.
    pub victim: Echoes,
    /// Everything that went wrong.
    pub complaints: Vec<String>,
}

/// Observations in dom0 after an attack.
pub(super) struct Seen {
    status: Status,
    /// The last lines of the victim's replies.
    pub(super) replies: String,
    /// Error messages of the kernel and the daemon.
    words: String,
}

impl AttackTestbed {
    /// Starts pvnet and both guests on a freshly booted host with the programs `pvnet` and `hostile`.
    pub fn new(host: &Host, progress: &Progress) -> Result<Self> {
        progress.step("start pvnet");
        let backend = Backend::Pvnet.start(host)?;
        match Self::guests(host, &backend, progress) {
            Ok((victim, frontend, hostile)) => {
                let dom0 = host.dom0().clone();
                let pid = status(&dom0)?.pid;
                let (echoes, traffic) = (echoes(&dom0)?, traffic(&dom0)?);
                // Discard the kernels' messages until now, which are not from an attack.
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

    /// The victim's replies while nobody attacks, for `QUIET_SECONDS`.
    pub fn quiet(&self) -> Result<Echoes> {
        let run = || {
            let before = self.last_echo()?;
            let limit = ATTACK_TIMEOUT + Duration::from_secs(QUIET_SECONDS);
            self.dom0.run(&format!("sleep {QUIET_SECONDS}"), limit)?;
            Echoes::after(before, &self.observe()?.replies)
        };
        run().map_err(|error| backend::explain(error, &self.backend))
    }

    /// Runs an attack. `seconds` and `cycles` apply to attacks that repeat. The victim's replies are compared with
    /// the baseline.
    pub fn attack(
        &self,
        class: Class,
        seconds: u64,
        cycles: u32,
        baseline: &Baseline,
    ) -> Result<Row> {
        let run = || {
            let before = self.last_echo()?;
            let words = format!("{class} --stay --seconds {seconds} --count {cycles}");
            let report = self.hostile(&words, ATTACK_TIMEOUT + Duration::from_secs(seconds))?;
            let seen = self.observe()?;
            let victim = Echoes::after(before, &seen.replies)?;
            let mut row = self.judge(report, &seen, victim, cycles)?;
            row.complaints.extend(baseline.complaint(&victim));
            Ok(row)
        };
        run().map_err(|error| backend::explain(error, &self.backend))
    }

    /// The share that a program of dom0 which never waits gets of the CPU time that it and pvnet use, while the attacker floods dom0.
    pub fn share_beside_flood(&self) -> Result<f64> {
        let limit = ATTACK_TIMEOUT * 2;
        let run = || {
            let words = format!("{} --seconds {}", Class::Flood, limit.as_secs());
            let pid = self.launch_flood(&words)?;
            let text = self.dom0.run(&shares(self.pid), limit);
            self.hostile.run(&format!("kill -9 {pid}; true"), COMMAND_TIMEOUT)?;
            let text = text?;
            let mut ticks = text.split_whitespace().map(str::parse::<f64>);
            match (ticks.next(), ticks.next()) {
                (Some(Ok(program)), Some(Ok(pvnet))) => Ok(program / (program + pvnet)),
                _ => Err(Error::parse("processor time", "no two numbers", text)),
            }
        };
        run().map_err(|error| backend::explain(error, &self.backend))
    }

    /// Starts a flood, and waits until frames flow. Returns the attacker's process.
    fn launch_flood(&self, words: &str) -> Result<u32> {
        let script = format!(
            "cd /run; [ -e hostile.pid ] && kill -9 \"$(cat hostile.pid)\" 2>/dev/null; : >error\n\
             hostile {words} --address {ADDRESS} --peer {BACKEND_ADDRESS} >report 2>error &\n\
             echo $! >hostile.pid\n\
             until grep -q flows error; do kill -0 $! || exit; sleep 0.05; done; cat hostile.pid"
        );
        let text = self.hostile.run(&script, ATTACK_TIMEOUT)?;
        text.trim().parse().map_err(|error| Error::parse("the attacker's process", &error, &*text))
    }

    /// Plugs an interface into the victim and unplugs it, `cycles` times.
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

    /// The resources held after the attacker has closed its device.
    pub fn resources(&self) -> Result<Resources> {
        let report = self.hostile(&format!("{} --count 1", Class::Cycles), ATTACK_TIMEOUT)?;
        if let Some(failure) = report.failure {
            return Err(Error::parse("the end of a connection", &failure, ""));
        }
        Resources::count(&self.dom0, self.pid, self.hostile.id())
    }

    /// Error messages of the kernels of dom0 and the victim since the last call or attack.
    pub fn kernels(&self) -> Result<String> {
        let complaints = format!("dmesg -c | grep -E '{COMPLAINTS}'; true");
        let shells = [&self.dom0, self.victim.shell()];
        shells.into_iter().map(|shell| shell.run(&complaints, ATTACK_TIMEOUT)).collect()
    }

    /// Kills the attacker's program, starts it again, and waits for its report. With `--stay` the program runs on, so
    /// that dom0 can check its interface.
    fn hostile(&self, words: &str, limit: Duration) -> Result<Report> {
        parse(&self.launch(words, REPORT, limit)?)
    }

    /// Kills the attacker's program, starts it again, and waits until it prints a line that begins with `line`, or its
    /// report.
    pub(super) fn launch(&self, words: &str, line: &str, limit: Duration) -> Result<String> {
        let script = format!(
            "cd /run; [ -e hostile.pid ] && kill -9 \"$(cat hostile.pid)\" 2>/dev/null\n\
             rm -f {killed} {restarted}; : >report\n\
             hostile {words} --address {ADDRESS} --peer {BACKEND_ADDRESS} >report 2>error &\n\
             echo $! >hostile.pid\n{wait}",
            killed = phase::KILLED,
            restarted = phase::RESTARTED,
            wait = printed(line),
        );
        self.hostile.run(&script, limit)
    }

    /// Creates a file that the attacker waits for, and waits as [`launch`](Self::launch) does.
    pub(super) fn proceed(&self, file: &str, line: &str) -> Result<String> {
        let script = format!("cd /run; touch {file}\n{}", printed(line));
        self.hostile.run(&script, ATTACK_TIMEOUT)
    }

    /// The sequence number of the last echo that the victim has answered.
    pub(super) fn last_echo(&self) -> Result<u64> {
        let last = format!("{} | tail -n 1", echoes::replies(&self.echoes.file()));
        echoes::sequence(&self.dom0.run(&last, ATTACK_TIMEOUT)?)
    }

    /// A script that waits for two replies of the victim.
    pub(super) fn two_replies(&self) -> String {
        let replies = echoes::replies(&self.echoes.file());
        format!(
            "size=$({replies} | wc -l)\n\
             until [ \"$({replies} | wc -l)\" -gt $((size + 1)) ]; do sleep 0.05; done"
        )
    }

    /// Collects the state of everything that must not suffer. Waits for two new replies of the victim.
    pub(super) fn observe(&self) -> Result<Seen> {
        let (echoes, log) = (self.echoes.file(), self.backend.daemon().map(Job::file));
        let commands = format!(
            "pvnet status --json; echo '{CUT}'; dmesg -c | grep -E '{COMPLAINTS}'; grep panicked {log}\n\
             echo '{CUT}'; {wait}; tail -n 2000 {echoes}",
            log = log.unwrap_or_default(),
            wait = self.two_replies(),
        );
        let text = self.dom0.run(&commands, ATTACK_TIMEOUT)?;
        let mut parts = text.splitn(3, CUT).map(str::trim);
        let mut part = || parts.next().unwrap_or_default();
        let status = Status::parse(part())?;
        Ok(Seen { status, words: part().to_owned(), replies: part().to_owned() })
    }

    pub(super) fn judge(
        &self,
        report: Report,
        seen: &Seen,
        victim: Echoes,
        cycles: u32,
    ) -> Result<Row> {
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
    /// Whether all checks passed.
    #[must_use]
    pub fn passed(&self) -> bool {
        self.complaints.is_empty()
    }

    /// The result in a few words.
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

/// A script that runs a program which never waits, until the daemon has used a second of CPU time beside it, and prints the time of both. It does not
/// wait for a fixed time: a busy or emulated machine gives them less CPU time in it.
fn shares(pid: u32) -> String {
    format!(
        "ticks() {{ read -r line </proc/$1/stat; set -- ${{line##*) }}; shift 11; echo $(($1 + $2)); }}\n\
         sh -c 'while :; do :; done' & busy=$!\n\
         sleep 0.5; program=$(ticks $busy) pvnet=$(ticks {pid})\n\
         until [ $(($(ticks {pid}) - pvnet)) -ge 100 ]; do sleep 0.2; done\n\
         echo $(($(ticks $busy) - program)) $(($(ticks {pid}) - pvnet)); kill $busy"
    )
}

pub(super) fn status(dom0: &Shell) -> Result<Status> {
    Status::parse(&dom0.run("pvnet status --json", COMMAND_TIMEOUT)?)
}

/// Pings the victim until stopped. The output has a line for each reply.
fn echoes(dom0: &Shell) -> Result<Job> {
    let job = dom0.spawn(&format!("exec ping -n -i 0.1 {GUEST_ADDRESS}"))?;
    let answered = format!("grep icmp_seq {}", job.file());
    dom0.until("an echo of the victim's", &answered, COMMAND_TIMEOUT)?;
    Ok(job)
}

/// Pings the attacker, whether or not it answers. A static neighbour entry replaces ARP, which the attacker may not
/// answer either.
fn traffic(dom0: &Shell) -> Result<Job> {
    dom0.spawn(&format!(
        "ip neigh replace {ADDRESS} lladdr {MAC} dev pvnet0 nud permanent; \
         exec ping -q -n -i 0.1 {ADDRESS}"
    ))
}

/// A script that waits for a line of the attacker, or for its report.
fn printed(line: &str) -> String {
    let found = format!("grep -e '^{line}' -e '^{REPORT}' report");
    // Search again after its end: it may have printed its report after the first search.
    format!(
        "until {found}; do kill -0 \"$(cat hostile.pid)\" 2>/dev/null || {{ {found} || cat error; exit; }}\n\
         sleep 0.05; done"
    )
}

/// Reads the attacker's report.
pub(super) fn parse(text: &str) -> Result<Report> {
    Error::json("hostile", text)
}
