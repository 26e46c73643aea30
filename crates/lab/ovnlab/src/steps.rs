//! The steps of the lab.

use std::net::IpAddr;
use std::thread::JoinHandle;
use std::time::Duration;

use lab::{Namespace, Progress};
use xenlab::scenario::{self, Step};
use xenlab::{Error, Result};

use crate::plan::MTU;
use crate::programs::{Form, Programs, until};
use crate::testbed::{A, B, P11, P12, P21, Testbed};
use crate::{dhcp, kinds, network, scripts, vhost_user};

type StepFn = fn(&mut Testbed) -> Result<(String, bool)>;

/// The steps in order, each with the shortest form that includes it.
const ALL: [(&str, StepFn, Form); 14] = [
    ("two hosts and a central one, two logical switches and a router", network, Form::Short),
    ("guests of both hosts' pvnet are logical ports", bind, Form::Short),
    ("one switch, over the tunnel", switched, Form::Short),
    ("two switches, through the router", routed, Form::Whole),
    ("frames of the largest size, and files both ways", largest, Form::Short),
    ("a forged source is dropped", forged, Form::Whole),
    ("an ACL drops new connections and lets replies in", access, Form::Whole),
    ("an address from OVN's DHCP", dhcp::run, Form::Short),
    (
        "NAT at the router's gateway: guests reach the outside, and the outside one of them",
        network::run,
        Form::Short,
    ),
    ("a port moves to the other host under a TCP stream", moves, Form::Whole),
    ("a host's pvnet is killed and started again under a TCP stream", kill, Form::Short),
    ("a guest behind a vhost-user port of Open vSwitch with DPDK", vhost_user::run, Form::Whole),
    ("a virtual machine and a card's guest are logical ports", kinds::run, Form::Whole),
    ("Xen's own hotplug scripts, unmodified, on a device", scripts::run, Form::Whole),
];

/// The number of progress steps of [`run`] in its whole form.
pub const STEPS: usize = ALL.len() + 1;

/// Bytes of a file between two guests.
const FILE: u64 = 4 << 20;
/// Bytes of a stream during which something happens: some seconds at the sender's rate.
const STREAM: u64 = 32 << 20;
/// The pause between two pings.
const PAUSE: Duration = Duration::from_millis(200);

/// Runs the steps of a form. Stops at the first one that fails to run.
pub fn run(programs: &Programs, form: Form, progress: &Progress) -> Result<Vec<Step>> {
    progress.step("start OVN, Open vSwitch and pvnet");
    let mut testbed = Testbed::start(programs)?;
    let steps = ALL.iter().filter(|(_, _, shortest)| *shortest <= form);
    let steps: Vec<_> = steps.map(|(what, step, _)| (*what, *step)).collect();
    scenario::run_all(&steps, progress, |act| {
        act(&mut testbed).map_err(|cause| {
            let log =
                testbed.hosts.iter().map(|host| host.daemon.said()).collect::<Vec<_>>().join("\n");
            Error::Explained { cause: Box::new(cause), log }
        })
    })
}

fn network(testbed: &mut Testbed) -> Result<(String, bool)> {
    testbed.make_network()?;
    let count =
        testbed.central.south("--bare --columns=name list chassis")?.split_whitespace().count();
    Ok((format!("{count} hosts"), count == 2))
}

fn bind(testbed: &mut Testbed) -> Result<(String, bool)> {
    for (guest, host) in [(P11, A), (P12, B), (P21, B)] {
        testbed.join(guest, host)?;
    }
    Ok(("3 ports are up".to_owned(), true))
}

/// Whether guest `to` answers guest `from` within a few attempts.
fn answers(testbed: &Testbed, from: usize, to: usize, arguments: &[&str]) -> Result<bool> {
    testbed.guests[from].reaches(&testbed.guests[to], arguments)
}

/// Whether guest `to` answers one of two echoes from guest `from`.
fn at_once(testbed: &Testbed, from: usize, to: usize, arguments: &[&str]) -> Result<bool> {
    testbed.guests[from].reaches_at_once(testbed.guests[to].plan.address, arguments)
}

fn echoes(testbed: &Testbed, from: usize, to: usize) -> Result<(String, bool)> {
    let first = answers(testbed, from, to, &[])?;
    let address = IpAddr::from(testbed.guests[to].plan.address);
    let ping = lab::ping(&testbed.guests[from].namespace, address, 5, PAUSE)?;
    Ok((format!("{} of {} echoes", ping.received, ping.sent), first && ping.received == ping.sent))
}

fn switched(testbed: &mut Testbed) -> Result<(String, bool)> {
    echoes(testbed, P11, P12)
}

fn routed(testbed: &mut Testbed) -> Result<(String, bool)> {
    echoes(testbed, P11, P21)
}

fn largest(testbed: &mut Testbed) -> Result<(String, bool)> {
    // Without the headers of IPv4 and ICMP.
    let payload = (MTU - 28).to_string();
    let fits = answers(testbed, P11, P12, &["-M", "do", "-s", &payload])?;
    let shown = testbed.guests[P12].namespace.ip(&["link", "show", "dev", "eth0"])?;
    let knows = shown.contains(&format!("mtu {MTU}"));
    for (from, to, seed) in [(P11, P12, 1), (P12, P11, 2), (P21, P11, 3)] {
        transfer(testbed, from, to, FILE, seed)?;
    }
    let mut nstat = testbed.guests[P12].namespace.exec("nstat")?;
    nstat.args(["-a", "-s", "-z", "TcpInCsumErrors"]);
    let sums = lab::run(nstat, PAUSE * 50)?;
    let bad = sums.lines().find(|line| line.starts_with("TcpInCsumErrors"));
    let bad = bad.and_then(|line| line.split_whitespace().nth(1)).unwrap_or("?").to_owned();
    let seen = format!("{MTU} bytes pass; 3 files; {bad} bad checksums");
    Ok((seen, fits && knows && bad == "0"))
}

fn transfer(
    testbed: &Testbed,
    from: usize,
    to: usize,
    bytes: u64,
    seed: u64,
) -> Result<lab::Transfer> {
    let (from, to) = (&testbed.guests[from], &testbed.guests[to]);
    Ok(lab::transfer_file(&from.namespace, &to.namespace, to.plan.address, bytes, seed)?)
}

fn forged(testbed: &mut Testbed) -> Result<(String, bool)> {
    let forged = "10.1.0.99";
    let own = &testbed.guests[P11].namespace;
    own.ip(&["address", "add", &format!("{forged}/24"), "dev", "eth0"])?;
    let passes = at_once(testbed, P11, P12, &["-I", forged])?;
    own.ip(&["address", "delete", &format!("{forged}/24"), "dev", "eth0"])?;
    let still = answers(testbed, P11, P12, &[])?;
    Ok((format!("forged: {passes}; its own: {still}"), !passes && still))
}

fn access(testbed: &mut Testbed) -> Result<(String, bool)> {
    let port = &testbed.guests[P12].plan.port;
    let rule = |direction: &str, priority: &str, of: &str, verdict: &str| {
        let matches = format!("{of}==\"{port}\" && ip4");
        testbed.central.north_words(&["acl-add", "s1", direction, priority, &matches, verdict])
    };
    rule("to-lport", "1000", "outport", "drop")?;
    rule("from-lport", "1001", "inport", "allow-related")?;
    testbed.central.sync()?;
    let inbound = at_once(testbed, P11, P12, &[])?;
    let outbound = answers(testbed, P12, P11, &[])?;
    testbed.central.north("acl-del s1")?;
    testbed.central.sync()?;
    let after = answers(testbed, P11, P12, &[])?;
    let seen = format!("in: {inbound}, out: {outbound}, in without the rules: {after}");
    Ok((seen, !inbound && outbound && after))
}

/// Starts a stream from the slow guest to guest `to`, and waits until it is under way.
fn stream(
    testbed: &Testbed,
    to: usize,
    seed: u64,
) -> Result<JoinHandle<lab::Result<lab::Transfer>>> {
    let names = [P11, to].map(|guest| testbed.guests[guest].namespace.name().to_owned());
    let address = testbed.guests[to].plan.address;
    let sender = names[0].clone();
    let sent = || testbed.hosts[A].daemon.port(&sender).map(|port| port.ingress.bytes);
    let before = sent()?;
    let run = move || {
        let [from, to] = names.map(|name| Namespace::open(&name));
        lab::transfer_file(&from?, &to?, address, STREAM, seed)
    };
    let thread = std::thread::Builder::new().spawn(run);
    let thread = thread.map_err(|cause| Error::Path { path: "a thread".into(), cause })?;
    until("the stream", || Ok(sent()? > before + (STREAM >> 4)))?;
    Ok(thread)
}

fn joined(thread: JoinHandle<lab::Result<lab::Transfer>>) -> Result<(String, bool)> {
    let transfer = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
    let (mib, seconds) = (transfer.bytes >> 20, transfer.duration.as_secs_f64());
    Ok((format!("{mib} MiB unchanged in {seconds:.1} s"), transfer.bytes == STREAM))
}

fn moves(testbed: &mut Testbed) -> Result<(String, bool)> {
    let stream = stream(testbed, P12, 4)?;
    let was_over = stream.is_finished();
    testbed.guests[P12].leave(&testbed.hosts[B])?;
    testbed.join(P12, A)?;
    let (seen, whole) = joined(stream)?;
    let outside = network::reaches_guest(testbed)?;
    let seen = format!("{seen}, from b to a; its address outside moved with it: {outside}");
    Ok((seen, whole && !was_over && outside))
}

fn kill(testbed: &mut Testbed) -> Result<(String, bool)> {
    let stream = stream(testbed, P21, 5)?;
    let was_over = stream.is_finished();
    let device = testbed.guests[P21].plan.device.clone();
    let host = &mut testbed.hosts[B];
    host.daemon.kill()?;
    let carrier = |host: &crate::host::Host| -> Result<bool> {
        Ok(!host.node.namespace.ip(&["link", "show", "dev", &device])?.contains("NO-CARRIER"))
    };
    let while_dead = carrier(host)?;
    let port = host.vsctl(&format!("get interface {device} ofport"))?;
    host.daemon.restart()?;
    until("the guest's return", || carrier(&testbed.hosts[B]))?;
    let (seen, whole) = joined(stream)?;
    let same = testbed.hosts[B].vsctl(&format!("get interface {device} ofport"))? == port;
    Ok((
        format!("{seen}; port {} all the time", port.trim()),
        whole && !was_over && !while_dead && same,
    ))
}
