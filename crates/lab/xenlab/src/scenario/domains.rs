//! A day of a Xen host: what operators do with their guests, on pvnet.

use std::time::Duration;

use lab::Progress;
use serde::Serialize;
use serde_json::Value;

use crate::host::{Domu, DomuConfig, Host};
use crate::{Error, Result};

use super::backend::{self, Backend, RunningBackend};
use super::frontend::Frontend;
use super::{BOOT, SOON, check};

/// What was done, and what was seen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Step {
    /// What was done.
    pub what: String,
    /// What was seen.
    pub seen: String,
    /// Whether that was as it should be.
    pub sound: bool,
}

/// Steps of [`domains`], for progress.
pub const STEPS: usize = ALL.len() + 1;

/// dom0, as guests reach it.
const DOM0: &str = "10.0.0.1";
/// The two guests, by address and MAC.
const GUESTS: [(&str, &str); 2] =
    [("10.0.0.2", "00:16:3e:00:00:02"), ("10.0.0.3", "00:16:3e:00:00:03")];
/// What QEMU plays beyond dom0's network card.
const OUTSIDE: &str = "10.0.2.2";
/// Frames longer than this were not cut on their way.
const MTU: f64 = 1514.0;
/// A command that is to outlast what is done to the daemon meanwhile, in seconds.
const WHILE: u32 = 20;
/// Bytes that no lone retransmission is.
const ENOUGH: u64 = 200_000;

/// One guest has two queues though one virtual CPU, and dom0's network is the switch's.
const CONFIGURATION: &str = r#"
set -e
cat >/lab/pvnet.toml <<'END'
[daemon]
platform = "xen"
meter = true

[[uplink]]
name = "host"
tap = "pvnet0"
persistent = true

[[guest]]
name = "*"
queues = 2
END
modprobe bridge
ip addr flush dev pvnet0
ip link add br0 type bridge stp_state 0 forward_delay 0
ip link set eth0 master br0
ip link set eth0 up
ip addr add 10.0.0.1/24 dev br0
ip addr add 10.0.2.15/24 dev br0
ip link set br0 up
ip link set pvnet0 master br0
"#;

/// Everything that is there at one time.
struct Day<'a> {
    host: &'a Host,
    backend: RunningBackend,
    guests: Vec<Domu>,
}

type Act = fn(&mut Day<'_>) -> Result<(String, bool)>;

/// What is done, in this order.
const ALL: [(&str, Act); 12] = [
    ("two guests connect, with two queues and one vCPU each", connected),
    ("guests, dom0 and the outside reach each other", reachable),
    ("multicast", multicast),
    ("TCP from guest to guest, segments and checksums left to others", offloads),
    ("an interface comes and goes while its guest runs", hot_plug),
    ("kill -9 and a restart under a TCP connection", kill),
    ("an orderly stop and a restart", stop),
    ("a guest reboots", reboot),
    ("a guest is saved and restored", save_and_restore),
    ("a guest is checkpointed and runs on", checkpoint),
    ("a guest is destroyed in the middle of traffic", destroy),
    ("a backend of a type of its own", own_type),
];

/// Does all of it on a host that was just booted, with a network card and the program `pvnet`; stops at the first step
/// that cannot be done.
///
/// # Errors
/// Those of the steps, with the daemon's last words.
pub fn domains(host: &Host, progress: &Progress) -> Result<Vec<Step>> {
    progress.step("start pvnet in dom0, and two guests");
    let mut day = Day::begin(host)?;
    let mut steps = Vec::new();
    for (what, act) in ALL {
        progress.step(what);
        let (seen, sound) = act(&mut day).map_err(|error| backend::explain(error, &day.backend))?;
        steps.push(Step { what: what.to_owned(), seen, sound });
    }
    Ok(steps)
}

impl<'a> Day<'a> {
    fn begin(host: &'a Host) -> Result<Self> {
        let backend = Backend::Pvnet.start(host)?;
        let mut day = Self { host, backend, guests: Vec::new() };
        day.host.run(CONFIGURATION, SOON)?;
        day.backend.restart()?;
        for number in 0..GUESTS.len() {
            let guest = day.create(number)?;
            day.guests.push(guest);
        }
        Ok(day)
    }

    fn create(&self, number: usize) -> Result<Domu> {
        let (address, mac) = GUESTS[number];
        let name = format!("guest{}", number + 1);
        let config = DomuConfig::new(name).vif(format!("mac={mac},script=/bin/true"));
        let config = DomuConfig { restarts: true, memory_mib: 192, ..config };
        let guest = self.host.create(&config, BOOT)?;
        bring_up(&guest, address)?;
        Ok(guest)
    }

    fn status(&self) -> Result<Value> {
        let text = self.host.run("pvnet status --json", SOON)?;
        serde_json::from_str(&text).map_err(|cause| Error::Parse {
            what: "pvnet status".to_owned(),
            cause: cause.to_string(),
            text,
        })
    }

    /// The port of this name, if there is one.
    fn port(&self, name: &str) -> Result<Option<Value>> {
        let status = self.status()?;
        let ports = status["ports"].as_array().into_iter().flatten();
        Ok(ports.into_iter().find(|port| port["name"] == name).cloned())
    }

    /// Waits until `pvnet status` shows the port in a state.
    fn until(&self, name: &str, state: &str) -> Result<()> {
        let condition = format!("pvnet status | grep -E '^{name} +guest +{state} '");
        self.host.dom0().until(&format!("{name} {state}"), &condition, SOON).map(drop)
    }

    /// Pings a guest from dom0, in words and as it should be.
    fn ping(&self, number: usize) -> Result<(String, bool)> {
        let ping = check::ping(self.host.dom0(), GUESTS[number].0, 5)?;
        Ok((format!("{} of {} echoes", ping.received, ping.sent), ping.received == ping.sent))
    }

    /// Starts TCP from the first guest to the second.
    fn stream(&self) -> Result<(crate::Job, crate::Job)> {
        let (address, _) = GUESTS[1];
        let server = self.guests[1].spawn("iperf3 -s -1")?;
        let listens = "netstat -ltn | grep -w 5201";
        self.guests[1].shell().until("a listener", listens, SOON)?;
        let client = self.guests[0].spawn(&format!("iperf3 --json -t {WHILE} -c {address}"))?;
        // The second of iperf3's connections is the one that carries data.
        let flows = "[ $(netstat -tn | grep -w 5201 | grep -c ESTABLISHED) -ge 2 ]";
        self.guests[1].shell().until("a connection", flows, SOON)?;
        Ok((server, client))
    }
}

/// Connects the guest's interface as its distribution would.
fn bring_up(guest: &Domu, address: &str) -> Result<()> {
    guest.run(
        &format!(
            "set -e\nmodprobe xen-netfront max_queues=2\nuntil [ -e /sys/class/net/eth0 ]; do sleep 0.05; done\n\
             ip addr add {address}/24 dev eth0\nip link set eth0 up\n\
             sysctl -qw net.ipv4.icmp_echo_ignore_broadcasts=0"
        ),
        SOON,
    )?;
    let outside = address.replace("10.0.0.", "10.0.2.10");
    guest.run(&format!("ip addr add {outside}/24 dev eth0"), SOON)?;
    guest.shell().until("a carrier", "grep -q 1 /sys/class/net/eth0/carrier", SOON).map(drop)
}

fn connected(day: &mut Day<'_>) -> Result<(String, bool)> {
    let mut queues = Vec::new();
    for guest in &day.guests {
        day.until(guest.name(), "up")?;
        queues.push(day.port(guest.name())?.and_then(|port| port["queues"].as_u64()));
    }
    let words: Vec<_> = queues.iter().map(|count| count.unwrap_or(0).to_string()).collect();
    Ok((format!("{} queues", words.join(" and ")), queues.iter().all(|count| *count == Some(2))))
}

fn reachable(day: &mut Day<'_>) -> Result<(String, bool)> {
    let [one, two] = GUESTS.map(|(address, _)| address);
    let (first, second) = (day.guests[0].shell(), day.guests[1].shell());
    let (mut sent, mut received) = (0, 0);
    for (from, to) in [
        (day.host.dom0(), one),
        (day.host.dom0(), two),
        (first, two),
        (second, one),
        (first, DOM0),
        (first, OUTSIDE),
        (second, OUTSIDE),
    ] {
        let ping = check::ping(from, to, 3)?;
        (sent, received) = (sent + ping.sent, received + ping.received);
    }
    // QEMU's network answers for every address that it hears of, with a reset: not for what is to
    // be restarted, when the switch does not know yet where a guest is.
    day.host.run("ip link set eth0 nomaster", SOON)?;
    Ok((format!("{received} of {sent} echoes on 7 ways"), sent == received))
}

fn multicast(day: &mut Day<'_>) -> Result<(String, bool)> {
    let output = day.guests[0].sh("ping -n -c 5 -W 1 -i 0.3 -I eth0 224.0.0.1", SOON)?;
    let answers = output.text.lines().filter(|line| line.contains(GUESTS[1].0)).count();
    // dom0 answers too, and ping ends with whichever answer to its last echo is the first.
    Ok((format!("{answers} answers of the other guest"), answers >= 4))
}

fn offloads(day: &mut Day<'_>) -> Result<(String, bool)> {
    let before = day.status()?;
    let (server, client) = day.stream()?;
    let limit = SOON + Duration::from_secs(WHILE.into());
    let output = client.wait(limit)?;
    server.wait(SOON)?;
    let after = day.status()?;
    let rate = lab::Throughput::parse(&output.text, GUESTS[1].0)?.mbps;
    let counted = |name: &str| {
        let count = |status: &Value| status["meter"]["counts"][name].as_f64().unwrap_or(0.0);
        count(&after) - count(&before)
    };
    let carried = |key: &str| {
        let sum = |status: &Value| -> f64 {
            let ports = status["ports"].as_array().into_iter().flatten();
            ports.filter_map(|port| port["rx"][key].as_f64()).sum()
        };
        sum(&after) - sum(&before)
    };
    let (frames, bytes) = (carried("frames").max(1.0), carried("bytes"));
    let seen = format!(
        "{rate:.0} Mb/s, {:.0} bytes a frame, {:.1} hypercalls a frame, {} segments cut",
        bytes / frames,
        counted("hypercalls") / frames,
        counted("segments"),
    );
    // Acknowledgements, which are small, are half of the frames at worst.
    Ok((seen, bytes / frames > MTU && counted("segments") == 0.0))
}

fn hot_plug(day: &mut Day<'_>) -> Result<(String, bool)> {
    let guest = &day.guests[0];
    let name = format!("{}.1", guest.name());
    let attach = "mac=00:16:3e:00:00:11 script=/bin/true";
    day.host.run(&format!("xl network-attach {} {attach}", guest.id()), SOON)?;
    day.until(&name, "up")?;
    guest.run("ip link show eth1", SOON)?;
    day.host.run(&format!("xl network-detach {} 1", guest.id()), SOON)?;
    let gone = format!("! pvnet status | grep {name}");
    day.host.dom0().until("the end of the interface", &gone, SOON)?;
    let left = format!("xenstore-ls /local/domain/0/backend/vif/{}/1", guest.id());
    let left = day.host.sh(&left, SOON)?.status == 0;
    Ok((format!("up, then gone, {} in the store", if left { "NOT" } else { "also" }), !left))
}

fn kill(day: &mut Day<'_>) -> Result<(String, bool)> {
    let (server, client) = day.stream()?;
    day.backend.kill()?;
    day.backend.restart()?;
    survived(day, server, client)
}

fn stop(day: &mut Day<'_>) -> Result<(String, bool)> {
    let (server, client) = day.stream()?;
    // The daemon says goodbye to nobody: on_stop is "keep".
    day.host.run("kill $(pidof pvnet) && while pidof pvnet; do sleep 0.05; done", SOON)?;
    day.backend.restart()?;
    survived(day, server, client)
}

/// Whether a connection that began before a restart went on after it: the daemon's counters are new.
fn survived(day: &Day<'_>, server: crate::Job, client: crate::Job) -> Result<(String, bool)> {
    let output = client.wait(SOON + Duration::from_secs(WHILE.into()))?;
    server.wait(SOON)?;
    let rate = lab::Throughput::parse(&output.text, GUESTS[1].0)?.mbps;
    let mut bytes = 0;
    for guest in &day.guests {
        day.until(guest.name(), "up")?;
        let port = day.port(guest.name())?;
        bytes += port.and_then(|port| port["rx"]["bytes"].as_u64()).unwrap_or(0);
    }
    let seen = format!(
        "the connection went on: {} kB of it came after, {rate:.0} Mb/s in all",
        bytes / 1000
    );
    Ok((seen, bytes > ENOUGH))
}

fn reboot(day: &mut Day<'_>) -> Result<(String, bool)> {
    let (address, _) = GUESTS[0];
    day.guests[0].reboot(BOOT)?;
    bring_up(&day.guests[0], address)?;
    day.ping(0)
}

fn save_and_restore(day: &mut Day<'_>) -> Result<(String, bool)> {
    day.guests[0].save_and_restore()?;
    day.until(day.guests[0].name(), "up")?;
    day.ping(0)
}

fn checkpoint(day: &mut Day<'_>) -> Result<(String, bool)> {
    let name = day.guests[0].name();
    let save = format!("xl save -c {name} /run/{name}.saved >/dev/null && rm /run/{name}.saved");
    day.host.run(&save, SOON * 2)?;
    day.until(name, "up")?;
    day.ping(0)
}

fn destroy(day: &mut Day<'_>) -> Result<(String, bool)> {
    let (_server, _client) = day.stream()?;
    let guest = day.guests.remove(0);
    let (name, id) = (guest.name().to_owned(), guest.id());
    guest.destroy()?;
    let gone = format!("! pvnet status | grep -w {name}");
    day.host.dom0().until("the end of the guest", &gone, SOON)?;
    let left = day.host.sh(&format!("xenstore-ls /local/domain/0/backend/vif/{id}"), SOON)?;
    let (seen, sound) = day.ping(1)?;
    let zombie = day.host.run("xl list", SOON)?.contains("(null)");
    let seen = format!("the other guest: {seen}");
    Ok((seen, sound && left.status != 0 && !zombie))
}

fn own_type(day: &mut Day<'_>) -> Result<(String, bool)> {
    day.guests.remove(0).destroy()?;
    day.host.run("sed -i '1i [xen]\\nbackend = \"pvnet\"\\n' /lab/pvnet.toml", SOON)?;
    day.backend.restart()?;
    let guest = day.host.create(&DomuConfig::new("other"), BOOT)?;
    guest.run("modprobe xen-netfront", SOON)?;
    let (_, mac) = GUESTS[0];
    day.host.run(&format!("pvnet attach other --mac {mac}"), SOON)?;
    Frontend::Stock.start(&guest)?;
    let (seen, sound) = day.ping(0)?;
    day.host.run("pvnet detach other", SOON)?;
    let left = day.host.sh("xenstore-ls /local/domain/0/backend/pvnet/*", SOON)?.status == 0;
    let gone = guest.shell().until("the end of eth0", "! [ -e /sys/class/net/eth0 ]", SOON);
    Ok((format!("{seen}, then detached"), sound && !left && gone.is_ok()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_step_has_its_name() {
        let names: std::collections::BTreeSet<_> = ALL.iter().map(|(what, _)| what).collect();
        assert_eq!(names.len() + 1, STEPS);
    }
}
