//! Checks of a connected pair.

use std::collections::BTreeMap;
use std::time::Duration;

use lab::{Ping, Throughput};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use crate::host::{Domu, Job, Shell};
use crate::{Error, Result};

use super::{BACKEND_ADDRESS, COMMAND_TIMEOUT};

/// The argument by which a kernel fills free pages with a pattern, and checks the pattern when the pages are used again.
pub const POISON: &str = "page_poison=1";
/// Words of a kernel's messages about harmed memory.
const HARM: &str = "pagealloc: memory corruption|Bad page|BUG:|Oops|general protection";

/// The TCP port for files.
const PORT: u16 = 5555;

/// TCP throughput in both directions, in 10⁶ bits of payload per second.
#[derive(Clone, Copy, Debug, PartialEq, JsonSchema, Serialize)]
pub struct Rates {
    /// From the guest.
    pub tx_mbps: f64,
    /// To the guest.
    pub rx_mbps: f64,
}

/// What both ends offered, and the offloads that the guest uses.
#[derive(Clone, Debug, Default, PartialEq, Eq, JsonSchema, Serialize)]
pub struct Features {
    /// The frontend's keys in the store.
    pub frontend: BTreeMap<String, String>,
    /// The backend's.
    pub backend: BTreeMap<String, String>,
    /// The enabled offloads of the guest's interface.
    pub offloads: Vec<String>,
}

/// Pings one domain from another.
pub fn ping(from: &Shell, to: &str, count: u32) -> Result<Ping> {
    let limit = COMMAND_TIMEOUT + Duration::from_secs(count.into());
    let output = from.sh(&format!("ping -q -n -W 1 -i 0.2 -c {count} {to}"), limit)?;
    Ok(Ping::parse(&output.text)?)
}

/// Measures TCP between a guest and the backend's domain, for `seconds` in each direction.
pub fn throughput(guest: &Shell, backend: &Shell, seconds: u32) -> Result<Rates> {
    Ok(Rates {
        tx_mbps: one_way(guest, backend, seconds, "")?.mbps,
        rx_mbps: one_way(guest, backend, seconds, "--reverse")?.mbps,
    })
}

fn one_way(guest: &Shell, backend: &Shell, seconds: u32, more: &str) -> Result<Throughput> {
    let limit = COMMAND_TIMEOUT + Duration::from_secs(seconds.into());
    let server = backend.spawn(&format!("iperf3 -s -1 -B {BACKEND_ADDRESS}"))?;
    listens(backend, 5201)?;
    let client = format!("iperf3 --json -t {seconds} {more} -c {BACKEND_ADDRESS}");
    let output = guest.sh(&client, limit)?;
    let throughput = Throughput::parse(&output.text, BACKEND_ADDRESS)?;
    server.wait(COMMAND_TIMEOUT)?;
    Ok(throughput)
}

/// Sends `mib` MiB of random bytes from one domain to another, at `address`. Returns whether the digests at both ends are the same.
pub fn same_file(from: &Shell, to: &Shell, address: &str, mib: u32) -> Result<bool> {
    // The receiver returns its digest over the connection, once the sender has closed its half.
    let receiver = to.spawn(&format!("nc -l -p {PORT} -e sha256sum"))?;
    listens(to, PORT)?;
    let sender = format!(
        "set -e\ndd if=/dev/urandom of=/run/file bs=1M count={mib} 2>/dev/null\nsha256sum </run/file\n\
         nc {address} {PORT} </run/file\nrm /run/file"
    );
    let printed = from.run(&sender, COMMAND_TIMEOUT * 2)?;
    receiver.wait(COMMAND_TIMEOUT)?;
    compare(&printed)
}

/// A file on its way from one domain to another, for some seconds.
#[derive(Debug)]
pub struct Transfer {
    sender: Job,
    receiver: Job,
}

impl Transfer {
    /// Sends a file in many parts, with pauses between them, to `address`, which `to` has.
    pub fn begin(from: &Shell, to: &Shell, address: &str) -> Result<Self> {
        let receiver = to.spawn(&format!("nc -l -p {PORT} -e sha256sum"))?;
        listens(to, PORT)?;
        let sender = from.spawn(&format!(
            "set -e\nfile=/run/part.$$\ndd if=/dev/urandom of=$file bs=64k count=4 2>/dev/null\n\
             send() {{ n=0; while [ $n -lt 100 ]; do cat $file; $1; n=$((n + 1)); done; }}\n\
             send true | sha256sum\nsend 'sleep 0.1' | nc {address} {PORT}\nrm $file"
        ))?;
        let flows = format!("netstat -tn | grep -w {PORT} | grep ESTABLISHED");
        to.until("a connection", &flows, COMMAND_TIMEOUT)?;
        Ok(Self { sender, receiver })
    }

    /// Waits for the end. Returns whether the digests at both ends are the same.
    pub fn finish(self) -> Result<bool> {
        let printed = self.sender.wait(COMMAND_TIMEOUT * 2)?.text;
        self.receiver.wait(COMMAND_TIMEOUT)?;
        compare(&printed)
    }

    /// Stops the sender.
    pub fn stop(self) -> Result<()> {
        self.sender.stop()
    }
}

/// Whether the two lines of `sha256sum` have the same digest.
fn compare(printed: &str) -> Result<bool> {
    let digests: Vec<&str> = printed.lines().filter_map(|line| line.strip_suffix("  -")).collect();
    match digests[..] {
        [sent, received] if sent.len() == 64 => Ok(sent == received),
        _ => Err(Error::parse("sha256sum", "not two digests", printed)),
    }
}

/// The daemon's `pvnet status --json`.
pub(super) fn status(shell: &Shell) -> Result<Value> {
    Error::json("pvnet status", &shell.run("pvnet status --json", COMMAND_TIMEOUT)?)
}

/// A port of a status, by its name.
pub(super) fn port<'a>(status: &'a Value, name: &str) -> Option<&'a Value> {
    status["ports"].as_array().into_iter().flatten().find(|port| port["name"] == name)
}

/// Asks a running `pvnet frontend` for its report.
pub(super) fn frontend_report(guest: &Shell, file: &str) -> Result<Value> {
    let script = format!(
        "before=$(grep -c '^{{' {file})\nkill -USR1 $(pidof pvnet)\n\
         until [ $(grep -c '^{{' {file}) -gt $before ]; do sleep 0.05; done\ngrep '^{{' {file} | tail -n 1"
    );
    Error::json("the frontend's report", &guest.run(&script, COMMAND_TIMEOUT)?)
}

/// Waits until somebody listens at a TCP port.
pub fn listens(shell: &Shell, port: u16) -> Result<()> {
    let listening = format!("netstat -ltn | grep -w {port}");
    shell.until(&format!("a listener at port {port}"), &listening, COMMAND_TIMEOUT).map(drop)
}

/// Reads the features that both ends of a guest's first interface offered.
pub fn features(dom0: &Shell, guest: &Domu) -> Result<Features> {
    let vif = format!("/local/domain/{}/device/vif/0", guest.id());
    let frontend = dom0.run(&format!("xenstore-ls {vif}"), COMMAND_TIMEOUT)?;
    let backend =
        dom0.run(&format!("xenstore-ls $(xenstore-read {vif}/backend)"), COMMAND_TIMEOUT)?;
    let offloads = guest.run("ethtool -k eth0", COMMAND_TIMEOUT)?;
    Ok(Features {
        frontend: keys(&frontend),
        backend: keys(&backend),
        offloads: switched_on(&offloads),
    })
}

/// The keys in the output of `xenstore-ls` that describe features: `NAME = "VALUE"`.
fn keys(text: &str) -> BTreeMap<String, String> {
    let pairs = text.lines().filter_map(|line| line.split_once(" = "));
    let about = ["feature-", "multi-queue-", "request-"];
    let wanted = pairs.filter(|(key, _)| about.iter().any(|prefix| key.starts_with(prefix)));
    wanted.map(|(key, value)| (key.to_owned(), value.trim_matches('"').to_owned())).collect()
}

/// The features in the output of `ethtool -k` that are on, without those inside a group.
pub(super) fn switched_on(text: &str) -> Vec<String> {
    let lines = text.lines().filter_map(|line| line.split_once(": "));
    let on = lines.filter(|(name, state)| state.starts_with("on") && !name.starts_with('\t'));
    on.map(|(name, _)| name.to_owned()).collect()
}

/// The first message of a domain's or machine's kernel about harmed memory. With [`POISON`] the kernel also finds free pages that were
/// changed.
pub fn harm(shell: &Shell) -> Result<Option<String>> {
    let said = shell.run(&format!("dmesg | grep -E '{HARM}' || true"), COMMAND_TIMEOUT)?;
    Ok(said.lines().next().map(|line| format!("the kernel of {} says: {line}", shell.name())))
}

/// Unplugs a guest's first interface, plugs in another like it, and destroys the guest. Returns what went wrong:
/// nodes that are left in the store, and complaints of the toolstack, for example that a backend has not cleaned up
/// within 10 s.
pub fn ends(dom0: &Shell, guest: &Domu, vif: &str) -> Result<Vec<String>> {
    let (id, vif) = (guest.id(), vif.replace(',', " "));
    // The toolstack is stopped for a second after it has asked the backend to close, as on a busy host.
    let script = format!(
        "front=/local/domain/{id}/device/vif; back=$(xenstore-read $front/0/backend); back=${{back%/0}}\n\
         left() {{ for vif in $front/$1 $back/$1; do\n\
         if xenstore-read $vif/state >/dev/null 2>&1; then echo \"$vif is left\"; fi; done; }}\n\
         slowly() {{ xl \"$@\" 2>&1 & while [ \"$(xenstore-read $back/$vif/online 2>/dev/null)\" = 1 ] && kill -0 $! 2>/dev/null; do :; done\n\
         kill -STOP $! 2>/dev/null; sleep 1; kill -CONT $! 2>/dev/null; wait $! || echo \"xl $1: status $?\"; }}\n\
         vif=0; slowly network-detach {id} 0; left 0\n\
         xl network-attach {id} {vif} 2>&1; vif=$(xenstore-list $front | tail -n 1)\n\
         until [ \"$(xenstore-read $back/$vif/state)\" -ge 2 ]; do sleep 0.05; done\n\
         slowly destroy {id}; left $vif"
    );
    let text = dom0.run(&script, COMMAND_TIMEOUT)?;
    Ok(text.lines().map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    // Recorded in dom0 of Xen 4.17 with both stock ends.
    const STORE: &str = "frontend = \"/local/domain/1/device/vif/0\"\nfeature-sg = \"1\"\n\
        feature-gso-tcpv4 = \"1\"\nmulti-queue-max-queues = \"1\"\nstate = \"4\"\nrequest-rx-copy = \"1\"\n";
    const ETHTOOL: &str = "Features for eth0:\nrx-checksumming: on [fixed]\ntx-checksumming: on\n\
        \ttx-checksum-ipv4: on\n\ttx-checksum-sctp: off [fixed]\nscatter-gather: on\nrx-vlan-offload: off [fixed]\n";

    #[test]
    fn features_are_separated_from_the_rest_of_the_store() {
        let keys = keys(STORE);
        let names: Vec<&str> = keys.keys().map(String::as_str).collect();
        assert_eq!(
            names,
            ["feature-gso-tcpv4", "feature-sg", "multi-queue-max-queues", "request-rx-copy"]
        );
        assert!(keys.values().all(|value| value == "1"));
    }

    #[test]
    fn groups_of_offloads_are_named_once() {
        assert_eq!(switched_on(ETHTOOL), ["rx-checksumming", "tx-checksumming", "scatter-gather"]);
        assert!(switched_on("Cannot get device settings").is_empty());
    }

    #[test]
    fn digests_are_compared_and_both_must_be_there() {
        let line = |digit: &str| format!("{}  -\n", digit.repeat(64));
        assert!(compare(&(line("a") + &line("a"))).expect("two"));
        assert!(!compare(&(line("a") + &line("b"))).expect("two"));
        assert!(compare(&line("a")).is_err());
        assert!(compare("nc: no connection\n").is_err());
    }
}
