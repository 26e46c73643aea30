//! Measures a TCP stream through OVN, and in one pvnet's switch: throughput and processor time per gigabyte.

use std::path::Path;
use std::time::Duration;

use lab::{Children, CpuMeter, Iperf, Namespace, Progress};
use qemulab::Daemon;
use report::{Benchmark, Row, Samples, Table};
use rustix::process::{Pid, Signal, kill_process};
use xenlab::Result;

use crate::central::Central;
use crate::guest::Guest;
use crate::host::Host;
use crate::plan::{self, Attachment, Plan};
use crate::programs::{Programs, content};

/// TCP's congestion control: BBR would send at a pace of its own.
const CONGESTION: &str = "cubic";

/// A way from one guest to another.
struct Way {
    /// Its name in rows.
    name: &'static str,
    /// Its description in tables.
    what: &'static str,
    /// The numbers of its guests.
    guests: [usize; 2],
    /// The hosts through whose Open vSwitch it goes.
    hosts: &'static [usize],
}

/// All others are compared with the first.
const WAYS: [Way; 5] = [
    Way { name: "switch", what: "one pvnet's switch", guests: [0, 1], hosts: &[] },
    Way {
        name: "plain-switch",
        what: "the same without offloads, MTU 1442",
        guests: [2, 3],
        hosts: &[],
    },
    Way { name: "one-host", what: "OVN, devices on one host", guests: [4, 5], hosts: &[0] },
    Way { name: "two-hosts", what: "OVN, devices on two hosts", guests: [4, 6], hosts: &[0, 1] },
    Way {
        name: "virtio-user",
        what: "OVN, from a vhost-user port of OVS-DPDK to another host's device",
        guests: [7, 5],
        hosts: &[2, 0],
    },
];

/// The host whose Open vSwitch polls.
const POLLING: usize = 2;

/// The number of progress steps of [`measure`].
#[must_use]
pub fn steps(rounds: u32) -> usize {
    1 + rounds as usize * WAYS.len()
}

/// The quantities that are measured, and their units.
const QUANTITIES: [(&str, &str); 4] =
    [("throughput", "Mb/s"), ("cpu", "s/GB"), ("cpu-pvnet", "s/GB"), ("cpu-ovs", "s/GB")];

/// Sends by TCP over every way in turn, for `seconds` each, in `rounds` rounds. For each way, the document has a row for the throughput, and rows
/// for the processor time per gigabyte of the machine, of pvnet, and of Open vSwitch.
pub fn measure(
    programs: &Programs,
    rounds: u32,
    seconds: u32,
    progress: &Progress,
) -> Result<Benchmark> {
    progress.step("start OVN, three hosts and a pvnet without OVN");
    let bed = Bed::start(programs)?;
    let mut samples = WAYS.map(|_| QUANTITIES.map(|_| Samples::new()));
    for round in 0..rounds as usize {
        // Each round begins with another way.
        for index in (0..WAYS.len()).map(|n| (n + round) % WAYS.len()) {
            let way = &WAYS[index];
            progress.step(format!("round {} of {rounds}: {}", round + 1, way.what));
            let values = bed.send(way, seconds)?;
            progress.done(&format!("{:.0} Mb/s, {:.2} s/GB", values[0], values[1]));
            for (samples, value) in samples[index].iter_mut().zip(values) {
                samples.push(value);
            }
        }
    }
    Ok(document(&samples))
}

fn document(samples: &[[Samples; QUANTITIES.len()]]) -> Benchmark {
    let mut benchmark = Benchmark::new("ovn-cost");
    for (way, samples) in WAYS.iter().zip(samples) {
        for ((quantity, unit), samples) in QUANTITIES.iter().zip(samples) {
            let Some(stats) = samples.stats() else { continue };
            benchmark.rows.push(Row::new(format!("{}/{quantity}", way.name), *unit, stats));
        }
        for quantity in ["throughput", "cpu"] {
            let name = |way: &Way| format!("{}/{quantity}", way.name);
            benchmark.compare(&name(way), &name(&WAYS[0]));
        }
    }
    benchmark
}

/// The document as a table.
#[must_use]
pub fn table(benchmark: &Benchmark) -> Table {
    let table = Table::new().left("way").right("Mb/s: median (min–max)").right("ratio");
    let table = table.right("CPU s/GB").right("ratio").right("pvnet").right("Open vSwitch");
    WAYS.iter().fold(table, |mut table, way| {
        let row = |quantity| benchmark.row(&format!("{}/{quantity}", way.name));
        let spread = |quantity| row(quantity).map_or(String::new(), |row| row.stats.spread());
        let ratio = |quantity| {
            let ratio = row(quantity).and_then(|row| row.ratio.as_ref());
            ratio.map_or(String::new(), |ratio| report::human(ratio.value))
        };
        table.row([
            way.what.to_owned(),
            spread("throughput"),
            ratio("throughput"),
            spread("cpu"),
            ratio("cpu"),
            spread("cpu-pvnet"),
            spread("cpu-ovs"),
        ]);
        table
    })
}

/// All that runs. Guests are dropped before their hosts, and hosts before the central one.
struct Bed {
    guests: Vec<Guest>,
    /// The pvnet without OVN, and its namespace.
    alone: Daemon,
    hosts: Vec<Host>,
    _central: Central,
    _namespace: Namespace,
}

impl Bed {
    fn start(programs: &Programs) -> Result<Self> {
        use Attachment::{Device, PlainSwitch, Switch, VhostUser};
        let central = Central::start(programs)?;
        let kinds = [Switch, Switch, PlainSwitch, PlainSwitch, Device, Device, Device, VhostUser];
        let guest = |(number, kind)| Ok(Guest::new(1, number, None)?.attached(kind));
        let mut guests = (11..).zip(kinds).map(guest).collect::<Result<Vec<_>>>()?;
        let plans: Vec<Plan> = guests.iter().map(|guest| guest.plan.clone()).collect();
        let namespace = Namespace::create("ovnlab")?;
        let pvnet = &programs.pvnet;
        let alone =
            Daemon::start(pvnet, &namespace, |folder| plan::configuration(folder, &plans[..4]))?;
        for guest in &mut guests[..4] {
            guest.start(pvnet, alone.folder())?;
        }
        let of_hosts = [("a", 11, 4..6), ("b", 12, 6..7), ("c", 13, 7..8)];
        central.make_switches()?;
        let mut hosts = Vec::new();
        for (name, address, own) in of_hosts {
            let address = format!("172.31.0.{address}");
            let plans = &plans[own.clone()];
            let host = Host::start(&central, name, &address, plans)?;
            central.until_known(name)?;
            for guest in &mut guests[own] {
                central.add_port(&guest.plan)?;
                guest.join(&host)?;
                central.until_bound(&guest.plan, name)?;
            }
            hosts.push(host);
        }
        let bed = Self { guests, alone, hosts, _central: central, _namespace: namespace };
        bed.let_poll(false)?;
        Ok(bed)
    }

    /// Lets the polling Open vSwitch run, or stops it: while it runs, it takes a whole CPU.
    fn let_poll(&self, polls: bool) -> Result<()> {
        let signal = if polls { Signal::CONT } else { Signal::STOP };
        let pid = i32::try_from(self.hosts[POLLING].switch.pid()).ok().and_then(Pid::from_raw);
        let sent = pid.map(|pid| kill_process(pid, signal)).transpose();
        sent.map(drop).map_err(|errno| content("ovs-vswitchd", &errno.to_string()))
    }

    /// Sends over a way. Returns the values of all [`QUANTITIES`].
    fn send(&self, way: &Way, seconds: u32) -> Result<[f64; QUANTITIES.len()]> {
        let polls = way.hosts.contains(&POLLING);
        if polls {
            self.let_poll(true)?;
        }
        let values = self.carry(way, seconds);
        if polls {
            self.let_poll(false)?;
        }
        values
    }

    fn carry(&self, way: &Way, seconds: u32) -> Result<[f64; QUANTITIES.len()]> {
        let [from, to] = way.guests.map(|guest| &self.guests[guest]);
        if !from.reaches(to, &[])? {
            return Err(content(way.what, "the guests do not reach each other"));
        }
        let hosts = || way.hosts.iter().map(|host| &self.hosts[*host]);
        let switches: Vec<u32> = hosts().map(|host| host.switch.pid()).collect();
        let daemons = hosts().map(|host| &host.daemon);
        let daemons: Vec<&Daemon> =
            if way.hosts.is_empty() { vec![&self.alone] } else { daemons.collect() };
        let pvnets = daemons.iter().map(|daemon| Ok(daemon.status()?.pid));
        let pvnets = pvnets.collect::<Result<Vec<u32>>>()?;
        let meter = CpuMeter::start(&[&pvnets[..], &switches].concat(), Children::Ignored)?;
        let iperf = Iperf::tcp(&from.namespace, &to.namespace, to.plan.address, seconds);
        let sent = iperf.congestion(Some(CONGESTION)).run()?;
        let usage = meter.read()?;
        let sum = |pids: &[u32]| pids.iter().map(|pid| usage.of(*pid)).sum();
        let per_gigabyte = |time: Duration| time.as_secs_f64() * 1e9 / sent.bytes.max(1) as f64;
        let times = [usage.busy, sum(&pvnets), sum(&switches)].map(per_gigabyte);
        Ok([sent.mbps, times[0], times[1], times[2]])
    }
}

/// Prints the table, and writes the document to a file if one is given.
///
/// # Errors
/// The file cannot be written.
pub fn show(benchmark: &Benchmark, json: Option<&Path>) -> Result<()> {
    xenlab::scenario::print(&table(benchmark))?;
    json.map_or(Ok(()), |file| Ok(benchmark.write(file)?))
}
