//! The services of Xen that pvnet uses, and pvnet's messages where one is missing.

use lab::Progress;

use crate::Result;
use crate::host::{DomuConfig, Host, Shell};

use super::step::Step;
use super::{BOOT_TIMEOUT, COMMAND_TIMEOUT};

/// Progress steps of [`platform`].
pub const PLATFORM_STEPS: usize = MISSING.len() + 2;

/// What is missing, the script that takes it away, and a part of the message that pvnet must print. The toolstack
/// needs most of these, so each script gives back what it took.
const MISSING: [(&str, &str, &str); 7] = [
    ("the driver gntdev", "without gntdev pvnet run --config none.toml", "modprobe xen-gntdev"),
    ("the driver evtchn", "without evtchn pvnet run --config none.toml", "modprobe xen-evtchn"),
    (
        "the driver gntalloc, which frontends need",
        "without gntalloc pvnet frontend --vif 0",
        "modprobe xen-gntalloc",
    ),
    ("permission", "su nobody -s /bin/sh -c 'pvnet run --config /lab/none.toml'", "run as root"),
    (
        "the store's device and socket",
        "mv /run/xenstored/socket socket; without xenbus pvnet run --config none.toml; mv socket /run/xenstored/socket",
        "start xenstored",
    ),
    (
        "an answer of the store",
        "kill -STOP $(pidof xenstored); timeout 60 pvnet run --config none.toml; kill -CONT $(pidof xenstored)",
        "the store does not answer",
    ),
    (
        "sole use of the backend type",
        "pvnet run --config none.toml & until [ -S /run/pvnet/control.sock ]; do sleep 0.05; done\n\
         pvnet run --config none.toml; kill $!; wait",
        "another pvnet serves the backends of type \"vif\" already",
    ),
];

/// Writes a configuration, and adds a user without permissions.
const PREPARED: &str = "cd /lab && printf '[daemon]\nplatform = \"xen\"\n' >none.toml\n\
    grep -q nobody /etc/passwd || echo 'nobody:x:65534:65534::/:/bin/sh' >>/etc/passwd\n\
    without() { device=$1; shift; mv /dev/xen/$device device; \"$@\"; mv device /dev/xen/$device; }\n";

/// Runs all checks on a freshly booted host with the programs `pvnet` and `loopback`, an example of the crate
/// `xen`.
pub fn platform(host: &Host, progress: &Progress) -> Result<Vec<Step>> {
    let mut steps = Vec::new();
    for (what, script, expected) in MISSING {
        progress.step(format!("pvnet without {what}"));
        steps.push(missing(host.dom0(), what, script, expected)?);
    }
    progress.step("every service of Xen, in dom0 alone");
    let script = "modprobe xen-gntalloc && exec loopback";
    steps.extend(proven("every service, in dom0 alone", host.dom0(), script)?);
    progress.step("every service of Xen, between dom0 and a guest");
    let guest = host.create(&DomuConfig::new("other"), BOOT_TIMEOUT)?;
    guest.spawn("modprobe -a xen-evtchn xen-gntdev xen-gntalloc && exec loopback guest")?;
    let script = format!("exec loopback other {}", guest.id());
    steps.extend(proven("every service, between dom0 and a guest", host.dom0(), &script)?);
    Ok(steps)
}

fn missing(dom0: &Shell, what: &str, script: &str, expected: &str) -> Result<Step> {
    let text = dom0.sh(&format!("{PREPARED}{script}"), COMMAND_TIMEOUT)?.text;
    // The last such line counts: the daemon's log may come before.
    let said = text.lines().rev().find(|line| line.contains(expected));
    let seen = said.or_else(|| text.lines().last()).unwrap_or_default().to_owned();
    Ok(Step { what: format!("without {what}"), seen, passed: said.is_some() })
}

/// The result of the program `loopback`: its failed checks and the number of passed ones, then its counts.
fn proven(what: &str, dom0: &Shell, script: &str) -> Result<Vec<Step>> {
    let output = dom0.sh(script, COMMAND_TIMEOUT * 2)?;
    let shown = |line: &&str| line.starts_with("FAIL ") || line.contains("checks hold");
    let seen: Vec<&str> = output.text.lines().filter(shown).collect();
    let passed = output.status == 0 && !seen.is_empty();
    let verdict = Step { what: what.to_owned(), seen: seen.join("; "), passed };
    let counted =
        output.text.lines().filter_map(|line| line.strip_prefix("      ")?.split_once(": "));
    let counted = counted.map(|(what, seen)| Step {
        what: what.to_owned(),
        seen: seen.to_owned(),
        passed: true,
    });
    Ok(std::iter::once(verdict).chain(counted).collect())
}
