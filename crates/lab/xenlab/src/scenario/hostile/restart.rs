//! Attacks in the middle of which pvnet is killed and started again.

use crate::Result;

use super::super::{COMMAND_TIMEOUT, backend};
use super::class::Class;
use super::echoes::{Baseline, Echoes};
use super::phase;
use super::testbed::{ATTACK_TIMEOUT, AttackTestbed, REPORT, Row, parse, status};

/// How long the victim is pinged after a restart, in seconds.
const AFTER_SECONDS: u64 = 3;
/// How long late replies of the victim may still come after its first ones, in seconds.
const LATE_SECONDS: u64 = 1;

impl AttackTestbed {
    /// Runs an attack that [needs a restart](Class::needs_restart): pvnet is killed with SIGKILL while the attacker is
    /// connected, the attacker forges its memory, and the next pvnet adopts all interfaces. The victim must keep its
    /// connection. Its echoes count from its first replies to the next pvnet.
    pub fn attack_across_restart(&mut self, class: Class, baseline: &Baseline) -> Result<Row> {
        let row = self.across_restart(class, baseline);
        row.map_err(|error| backend::explain(error, &self.backend))
    }

    fn across_restart(&mut self, class: Class, baseline: &Baseline) -> Result<Row> {
        let connection = self.victim_connection()?;
        self.launch(&format!("{class} --stay"), phase::CONNECTED, ATTACK_TIMEOUT)?;
        let log = self.backend.kill()?;
        self.proceed(phase::KILLED, phase::FORGED)?;
        self.backend.restart()?;
        self.pid = status(&self.dom0)?.pid;
        let report = parse(&self.proceed(phase::RESTARTED, REPORT)?)?;

        let answered = format!("{}; sleep {LATE_SECONDS}", self.two_replies());
        self.dom0.run(&answered, ATTACK_TIMEOUT)?;
        let before = self.last_echo()?;
        self.dom0.run(&format!("sleep {AFTER_SECONDS}"), COMMAND_TIMEOUT)?;
        let seen = self.observe()?;
        let victim = Echoes::after(before, &seen.replies)?;
        let mut row = self.judge(report, &seen, victim, 0)?;
        row.complaints.extend(baseline.complaint(&victim));
        for (is_so, complaint) in [
            (self.victim_connection()? == connection, "the victim has another connection"),
            (!log.contains("panicked"), "the killed daemon had panicked"),
        ] {
            if !is_so {
                row.complaints.push(complaint.to_owned());
            }
        }
        Ok(row)
    }

    /// The victim's keys, and how often its carrier changed. A new connection changes the count.
    fn victim_connection(&self) -> Result<String> {
        let keys = format!("xenstore-ls /local/domain/{}/device/vif/0", self.victim.id());
        let keys = self.dom0.run(&keys, COMMAND_TIMEOUT)?;
        let changes = "cat /sys/class/net/eth0/carrier_changes";
        Ok(keys + &self.victim.run(changes, COMMAND_TIMEOUT)?)
    }
}
