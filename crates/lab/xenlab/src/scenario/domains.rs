//! An operator's everyday actions on guests that pvnet serves.

use std::time::Duration;

use lab::Progress;
use lab::documents::shell_block;
use serde_json::Value;

use super::backend::{self, Backend, RunningBackend};
use super::cell::Frontend;
use super::step::{self, Step};
use super::{BOOT_TIMEOUT, COMMAND_TIMEOUT, check};
use crate::Result;
use crate::host::{Domu, DomuConfig, Host};

/// Progress steps of [`domains`].
pub const STEPS: usize = ALL.len() + 1;

const PAGE: &str = include_str!("../../../../../docs/xen.md");
/// The configuration that the document's first block starts pvnet with.
const EXAMPLE: &str = include_str!("../../../../../examples/xen.toml");
/// dom0's address for guests.
const DOM0: &str = "10.0.0.1";
/// The two guests, by address and MAC.
const GUESTS: [(&str, &str); 2] =
    [("10.0.0.2", "00:16:3e:00:00:02"), ("10.0.0.3", "00:16:3e:00:00:03")];
/// The host that QEMU emulates behind dom0's network card.
const OUTSIDE: &str = "10.0.2.2";
/// Bytes. If frames are longer on average, they were not segmented.
const MTU: f64 = 1514.0;
/// The `rate=` of an interface, in Mb/s.
const RATE: f64 = 1.0;
/// The duration, in seconds, of TCP streams that must outlast a restart of the daemon.
const STREAM_SECONDS: u32 = 20;
/// More bytes than single retransmissions carry.
const STREAM_BYTES: u64 = 200_000;

/// Each guest has two queues but one virtual CPU. A bridge joins dom0's network card and pvnet's switch.
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

/// The backend and the guests on the host.
struct Setup<'a> {
    host: &'a Host,
    backend: RunningBackend,
    guests: Vec<Domu>,
}

type StepFn = fn(&mut Setup<'_>) -> Result<(String, bool)>;

/// The steps, in order.
const ALL: [(&str, StepFn); 14] = [
    ("two guests connect, with two queues and one vCPU each", connected),
    ("guests, dom0 and the outside reach each other", reachable),
    ("multicast", multicast),
    ("multicast, while a guest lists the groups that it wants", multicast_list),
    ("TCP from guest to guest, with segmentation and checksum offload", offloads),
    ("an interface comes and goes while its guest runs", hot_plug),
    ("an interface with a rate", rate),
    ("kill -9 and a restart under a TCP connection", kill),
    ("an orderly stop and a restart", stop),
    ("a guest reboots", reboot),
    ("a guest is saved and restored", save_and_restore),
    ("a guest is checkpointed and runs on", checkpoint),
    ("a guest is destroyed in the middle of traffic", destroy),
    ("pvnet's own backend type", own_type),
];

/// Runs all steps on a freshly booted host with a network card and the program `pvnet`. Stops at the first step
/// that fails to run.
pub fn domains(host: &Host, progress: &Progress) -> Result<Vec<Step>> {
    progress.step("start pvnet in dom0, and two guests");
    let mut setup = Setup::begin(host)?;
    step::run_all(&ALL, progress, |act| {
        act(&mut setup).map_err(|error| backend::explain(error, &setup.backend))
    })
}

impl<'a> Setup<'a> {
    fn begin(host: &'a Host) -> Result<Self> {
        paste(host)?;
        let backend = Backend::Pvnet.start(host)?;
        let mut setup = Self { host, backend, guests: Vec::new() };
        setup.host.run(CONFIGURATION, COMMAND_TIMEOUT)?;
        setup.backend.restart()?;
        for number in 0..GUESTS.len() {
            let guest = setup.create(number)?;
            setup.guests.push(guest);
        }
        Ok(setup)
    }

    fn create(&self, number: usize) -> Result<Domu> {
        let (address, mac) = GUESTS[number];
        let name = format!("guest{}", number + 1);
        let config = DomuConfig::new(name).vif(format!("mac={mac},script=/bin/true"));
        let config = DomuConfig { restarts: true, memory_mib: 192, ..config };
        let guest = self.host.create(&config, BOOT_TIMEOUT)?;
        bring_up(&guest, address)?;
        Ok(guest)
    }

    fn status(&self) -> Result<Value> {
        check::status(self.host.dom0())
    }

    fn port(&self, name: &str) -> Result<Option<Value>> {
        Ok(check::port(&self.status()?, name).cloned())
    }

    /// Waits until `pvnet status` shows the port in a state.
    fn until(&self, name: &str, state: &str) -> Result<()> {
        let condition = format!("pvnet status | grep -E '^{name} +guest +{state} '");
        self.host.dom0().until(&format!("{name} {state}"), &condition, COMMAND_TIMEOUT).map(drop)
    }

    /// Pings a guest from dom0. Returns a description, and whether all echoes were answered.
    fn ping(&self, number: usize) -> Result<(String, bool)> {
        let ping = check::ping(self.host.dom0(), GUESTS[number].0, 5)?;
        Ok((format!("{} of {} echoes", ping.received, ping.sent), ping.received == ping.sent))
    }

    /// Starts TCP from the first guest to the second.
    fn stream(&self) -> Result<(crate::Job, crate::Job)> {
        let (address, _) = GUESTS[1];
        let server = self.guests[1].spawn("iperf3 -s -1")?;
        let listens = "netstat -ltn | grep -w 5201";
        self.guests[1].shell().until("a listener", listens, COMMAND_TIMEOUT)?;
        let client =
            self.guests[0].spawn(&format!("iperf3 --json -t {STREAM_SECONDS} -c {address}"))?;
        // iperf3's second connection carries the data.
        let flows = "[ $(netstat -tn | grep -w 5201 | grep -c ESTABLISHED) -ge 2 ]";
        self.guests[1].shell().until("a connection", flows, COMMAND_TIMEOUT)?;
        Ok((server, client))
    }
}

/// Loads the modules and starts pvnet as the document says, until it answers; and raises gntalloc's limit as it says.
fn paste(host: &Host) -> Result<()> {
    let files =
        format!("mkdir -p /lab/examples && cat >/lab/examples/xen.toml <<'END'\n{EXAMPLE}END");
    host.run(&files, COMMAND_TIMEOUT)?;
    let daemon = host.spawn(&format!("cd /lab\n{}", shell_block(PAGE, "modprobe -a")))?;
    let answers = format!("pvnet status || {{ cat {}; false; }}", daemon.file());
    host.dom0().until("pvnet with the example's configuration", &answers, COMMAND_TIMEOUT)?;
    daemon.stop()?;
    daemon.wait(COMMAND_TIMEOUT)?;
    host.run(&shell_block(PAGE, "xen_gntalloc/parameters"), COMMAND_TIMEOUT).map(drop)
}

/// Configures the guest's interface as a distribution would.
fn bring_up(guest: &Domu, address: &str) -> Result<()> {
    guest.run(
        &format!(
            "set -e\nmodprobe xen-netfront max_queues=2\nuntil [ -e /sys/class/net/eth0 ]; do sleep 0.05; done\n\
             ip addr add {address}/24 dev eth0\nip link set eth0 up\n\
             sysctl -qw net.ipv4.icmp_echo_ignore_broadcasts=0"
        ),
        COMMAND_TIMEOUT,
    )?;
    let outside = address.replace("10.0.0.", "10.0.2.10");
    guest.run(&format!("ip addr add {outside}/24 dev eth0"), COMMAND_TIMEOUT)?;
    guest
        .shell()
        .until("a carrier", "grep -q 1 /sys/class/net/eth0/carrier", COMMAND_TIMEOUT)
        .map(drop)
}

fn connected(setup: &mut Setup<'_>) -> Result<(String, bool)> {
    let mut queues = Vec::new();
    for guest in &setup.guests {
        setup.until(guest.name(), "up")?;
        queues.push(setup.port(guest.name())?.and_then(|port| port["queues"].as_u64()));
    }
    let words: Vec<_> = queues.iter().map(|count| count.unwrap_or(0).to_string()).collect();
    Ok((format!("{} queues", words.join(" and ")), queues.iter().all(|count| *count == Some(2))))
}

fn reachable(setup: &mut Setup<'_>) -> Result<(String, bool)> {
    let [one, two] = GUESTS.map(|(address, _)| address);
    let (first, second) = (setup.guests[0].shell(), setup.guests[1].shell());
    let (mut sent, mut received) = (0, 0);
    for (from, to) in [
        (setup.host.dom0(), one),
        (setup.host.dom0(), two),
        (first, two),
        (second, one),
        (first, DOM0),
        (first, OUTSIDE),
        (second, OUTSIDE),
    ] {
        let ping = check::ping(from, to, 3)?;
        (sent, received) = (sent + ping.sent, received + ping.received);
    }
    // QEMU's network answers every packet that it sees with a reset. After a restart, the switch does not know yet
    // where a guest is, and would flood packets there: so the card leaves the bridge.
    setup.host.run("ip link set eth0 nomaster", COMMAND_TIMEOUT)?;
    Ok((format!("{received} of {sent} echoes on 7 paths"), sent == received))
}

fn multicast(setup: &mut Setup<'_>) -> Result<(String, bool)> {
    let answers = answers(setup)?;
    // dom0 answers too. ping ends with the first answer to its last echo, so one answer may be missing.
    Ok((format!("{answers} answers of the other guest"), answers >= 4))
}

/// How many of five echoes to a group the second guest answers to the first.
fn answers(setup: &Setup<'_>) -> Result<usize> {
    let output =
        setup.guests[0].sh("ping -n -c 5 -W 1 -i 0.3 -I eth0 224.0.0.1", COMMAND_TIMEOUT)?;
    Ok(output.text.lines().filter(|line| line.contains(GUESTS[1].0)).count())
}

/// A guest that lists groups gets no others. Linux's frontend never lists any, so the host writes its key in the store.
fn multicast_list(setup: &mut Setup<'_>) -> Result<(String, bool)> {
    let guest = &setup.guests[1];
    let key = format!("/local/domain/{}/device/vif/0/request-multicast-control", guest.id());
    let list = |value: &str| {
        setup.host.run(&format!("xenstore-write {key} {value}"), COMMAND_TIMEOUT).map(drop)
    };
    let offered = format!(
        "xenstore-read /local/domain/0/backend/vif/{}/0/feature-multicast-control",
        guest.id()
    );
    let is_offered = setup.host.run(&offered, COMMAND_TIMEOUT)?.trim() == "1";
    list("1")?;
    // The list is in force once a frame to a group is counted as not wanted.
    let not_wanted = format!(
        "ping -n -c 1 -W 1 -I br0 224.0.0.1 >/dev/null; pvnet status | grep '^{} ' | grep not_wanted",
        guest.name()
    );
    setup.host.dom0().until("a drop", &not_wanted, COMMAND_TIMEOUT)?;
    let answers = answers(setup)?;
    let (_, echoes) = setup.ping(1)?;
    list("0")?;
    // Three echoes, because the first answer to the last echo ends ping, and may be the other guest's.
    let back = format!("ping -n -c 3 -W 1 -i 0.3 -I br0 224.0.0.1 | grep -F {}", GUESTS[1].0);
    setup.host.dom0().until("frames to all groups", &back, COMMAND_TIMEOUT)?;
    let seen = format!("{answers} answers of the guest, and all again when it stops");
    Ok((seen, is_offered && echoes && answers == 0))
}

fn offloads(setup: &mut Setup<'_>) -> Result<(String, bool)> {
    let before = setup.status()?;
    let (server, client) = setup.stream()?;
    let limit = COMMAND_TIMEOUT + Duration::from_secs(STREAM_SECONDS.into());
    let output = client.wait(limit)?;
    server.wait(COMMAND_TIMEOUT)?;
    let after = setup.status()?;
    let rate = lab::Throughput::parse(&output.text, GUESTS[1].0)?.mbps;
    let counted = |name: &str| {
        let count = |status: &Value| status["meter"]["counts"][name].as_f64().unwrap_or(0.0);
        count(&after) - count(&before)
    };
    let carried = |key: &str| {
        let sum = |status: &Value| -> f64 {
            let ports = status["ports"].as_array().into_iter().flatten();
            ports.filter_map(|port| port["ingress"][key].as_f64()).sum()
        };
        sum(&after) - sum(&before)
    };
    let (frames, bytes) = (carried("frames").max(1.0), carried("bytes"));
    let seen = format!(
        "{rate:.0} Mb/s, {:.0} bytes per frame, {:.1} hypercalls per frame, {} segments cut",
        bytes / frames,
        counted("hypercalls") / frames,
        counted("segments"),
    );
    // At worst, half of the frames are acknowledgements, which are small.
    Ok((seen, bytes / frames > MTU && counted("segments") == 0.0))
}

fn hot_plug(setup: &mut Setup<'_>) -> Result<(String, bool)> {
    let guest = &setup.guests[0];
    let name = format!("{}.1", guest.name());
    let attach = "mac=00:16:3e:00:00:11 script=/bin/true";
    setup.host.run(&format!("xl network-attach {} {attach}", guest.id()), COMMAND_TIMEOUT)?;
    setup.until(&name, "up")?;
    guest.run("ip link show eth1", COMMAND_TIMEOUT)?;
    setup.host.run(&format!("xl network-detach {} 1", guest.id()), COMMAND_TIMEOUT)?;
    // `-F`: the name of another interface's queue 1 is similar.
    let gone = format!("! pvnet status | grep -F {name}");
    setup.host.dom0().until("the end of the interface", &gone, COMMAND_TIMEOUT)?;
    let left = format!("xenstore-ls /local/domain/0/backend/vif/{}/1", guest.id());
    let left = setup.host.sh(&left, COMMAND_TIMEOUT)?.status == 0;
    Ok((format!("up, then gone, {} in the store", if left { "NOT" } else { "also" }), !left))
}

/// libxl writes `rate=` to the store, and netback polices by it.
fn rate(setup: &mut Setup<'_>) -> Result<(String, bool)> {
    let guest = &setup.guests[0];
    let (id, name) = (guest.id(), format!("{}.1", guest.name()));
    let attach = format!("mac=00:16:3e:00:00:12 script=/bin/true rate={RATE}Mb/s");
    setup.host.run(
        &format!("ip addr add 10.0.3.1/24 dev br0 && xl network-attach {id} {attach}"),
        COMMAND_TIMEOUT,
    )?;
    setup.until(&name, "up")?;
    let configure = "ip addr add 10.0.3.2/24 dev eth1 && ip link set eth1 up";
    guest.run(configure, COMMAND_TIMEOUT)?;
    let mut rates = [0.0; 2];
    for (rate, address) in rates.iter_mut().zip(["10.0.3.1", DOM0]) {
        let server = setup.host.spawn("iperf3 -s -1")?;
        check::listens(setup.host.dom0(), 5201)?;
        let output = guest.sh(&format!("iperf3 --json -t 4 -c {address}"), COMMAND_TIMEOUT)?;
        server.wait(COMMAND_TIMEOUT)?;
        *rate = lab::Throughput::parse(&output.text, address)?.mbps;
    }
    let is_shown = setup.port(&name)?.is_some_and(|port| port["toolstack"]["rate"] == true);
    setup.host.run(&format!("xl network-detach {id} 1"), COMMAND_TIMEOUT)?;
    let seen = format!(
        "{:.1} Mb/s of {RATE}, {}; {:.1} without",
        rates[0],
        if is_shown { "which pvnet status shows" } else { "NOT in pvnet status" },
        rates[1]
    );
    let is_limited = rates[0] > RATE / 4.0 && rates[0] < RATE * 2.0 && rates[1] > RATE * 4.0;
    Ok((seen, is_shown && is_limited))
}

fn kill(setup: &mut Setup<'_>) -> Result<(String, bool)> {
    let (server, client) = setup.stream()?;
    setup.backend.kill()?;
    setup.backend.restart()?;
    survived(setup, server, client)
}

fn stop(setup: &mut Setup<'_>) -> Result<(String, bool)> {
    let (server, client) = setup.stream()?;
    // on_stop is "keep": the daemon leaves its interfaces connected.
    setup
        .host
        .run("kill $(pidof pvnet) && while pidof pvnet; do sleep 0.05; done", COMMAND_TIMEOUT)?;
    setup.backend.restart()?;
    survived(setup, server, client)
}

/// Whether a connection that began before a restart went on after it. The new daemon's counters started at zero.
fn survived(setup: &Setup<'_>, server: crate::Job, client: crate::Job) -> Result<(String, bool)> {
    let output = client.wait(COMMAND_TIMEOUT + Duration::from_secs(STREAM_SECONDS.into()))?;
    server.wait(COMMAND_TIMEOUT)?;
    let rate = lab::Throughput::parse(&output.text, GUESTS[1].0)?.mbps;
    let mut bytes = 0;
    for guest in &setup.guests {
        setup.until(guest.name(), "up")?;
        let port = setup.port(guest.name())?;
        bytes += port.and_then(|port| port["ingress"]["bytes"].as_u64()).unwrap_or(0);
    }
    let seen = format!(
        "the connection went on: {} kB of it came after, {rate:.0} Mb/s in all",
        bytes / 1000
    );
    Ok((seen, bytes > STREAM_BYTES))
}

fn reboot(setup: &mut Setup<'_>) -> Result<(String, bool)> {
    let (address, _) = GUESTS[0];
    setup.guests[0].reboot(BOOT_TIMEOUT)?;
    bring_up(&setup.guests[0], address)?;
    setup.ping(0)
}

fn save_and_restore(setup: &mut Setup<'_>) -> Result<(String, bool)> {
    setup.guests[0].save_and_restore()?;
    setup.until(setup.guests[0].name(), "up")?;
    setup.ping(0)
}

fn checkpoint(setup: &mut Setup<'_>) -> Result<(String, bool)> {
    let name = setup.guests[0].name();
    let save = format!("xl save -c {name} /run/{name}.saved >/dev/null && rm /run/{name}.saved");
    setup.host.run(&save, COMMAND_TIMEOUT * 2)?;
    setup.until(name, "up")?;
    setup.ping(0)
}

fn destroy(setup: &mut Setup<'_>) -> Result<(String, bool)> {
    let (_server, _client) = setup.stream()?;
    let guest = setup.guests.remove(0);
    let (name, id) = (guest.name().to_owned(), guest.id());
    guest.destroy()?;
    let gone = format!("! pvnet status | grep -wF {name}");
    setup.host.dom0().until("the end of the guest", &gone, COMMAND_TIMEOUT)?;
    let left =
        setup.host.sh(&format!("xenstore-ls /local/domain/0/backend/vif/{id}"), COMMAND_TIMEOUT)?;
    let (seen, passed) = setup.ping(1)?;
    let zombie = setup.host.run("xl list", COMMAND_TIMEOUT)?.contains("(null)");
    let seen = format!("the other guest: {seen}");
    Ok((seen, passed && left.status != 0 && !zombie))
}

fn own_type(setup: &mut Setup<'_>) -> Result<(String, bool)> {
    setup.guests.remove(0).destroy()?;
    setup
        .host
        .run("sed -i '1i [xen]\\nbackend = \"pvnet\"\\n' /lab/pvnet.toml", COMMAND_TIMEOUT)?;
    setup.backend.restart()?;
    // The document's name for any guest.
    let guest = setup.host.create(&DomuConfig::new("GUEST"), BOOT_TIMEOUT)?;
    guest.run("modprobe xen-netfront", COMMAND_TIMEOUT)?;
    let block = shell_block(PAGE, "pvnet attach");
    let (attach, detach) = block.split_once('\n').unwrap_or_default();
    // dom0 still has the MAC address of the first guest, whose address this one gets.
    setup.host.run(&format!("ip neigh flush dev br0\n{attach}"), COMMAND_TIMEOUT)?;
    Frontend::Stock.start(&guest)?;
    let (seen, passed) = setup.ping(0)?;
    setup.host.run(detach, COMMAND_TIMEOUT)?;
    let left =
        setup.host.sh("xenstore-ls /local/domain/0/backend/pvnet/*", COMMAND_TIMEOUT)?.status == 0;
    let gone =
        guest.shell().until("the end of eth0", "! [ -e /sys/class/net/eth0 ]", COMMAND_TIMEOUT);
    Ok((format!("{seen}, then detached"), passed && !left && gone.is_ok()))
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
