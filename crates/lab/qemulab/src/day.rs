//! An operator's day with virtual machines: its steps, in order.

use std::time::Duration;

use control_socket::PortState;
use lab::{Interrupt, Process, Progress};
use xenlab::scenario::{self, Step};
use xenlab::{Error, Result};

use crate::COMMAND;
use crate::setup::{Inputs, Setup, gone};
use crate::testbed::{Testbed, WIRE};
use crate::traffic::{self, Peer};
use crate::{administrator, checksums, migration, mistakes, mixed, network_boot};

type StepFn = fn(&mut Setup<'_>) -> Result<(String, bool)>;

/// The steps, in order.
const ALL: [(&str, StepFn); 29] = [
    ("two machines connect, with one queue and with two", connected),
    ("machines, a process guest and the tap reach each other", reachable),
    ("TCP between machines, with segmentation and checksum offload", mixed::machines),
    ("TCP between a machine and a process guest", mixed::guest),
    ("TCP between a machine and a tap without offloads", mixed::wire),
    ("files between all kinds of ports", mixed::files),
    ("a card's guest talks to all of them", mixed::card),
    ("TCP whose checksum lies behind many VLAN tags", checksums::tags),
    ("a machine that takes no checksum offload (guest_csum=off)", checksums::without_flags),
    ("ring sizes change under a flood (ethtool -G)", administrator::ring_sizes),
    ("the number of queues changes (ethtool -L)", administrator::queues),
    ("offloads go off and on (ethtool -K)", administrator::offloads),
    ("drivers are taken out and put in again", administrator::reload),
    ("a machine sleeps and wakes up", administrator::suspend),
    ("a machine starts another kernel (kexec)", administrator::kexec),
    ("an XDP program in a machine", administrator::xdp),
    ("iPXE and UEFI boot machines over the network", network_boot::run),
    ("U-Boot fetches a file", network_boot::u_boot),
    ("a mistake: memory that is not shared, or on a disk", mistakes::memory),
    ("a mistake: more queues than the port has", mistakes::queues),
    ("a mistake: a second QEMU at a socket that is taken", mistakes::taken),
    ("a machine reboots", reboot),
    (
        "devices that ask for packed rings (packed=on), and a restart of one whose port does not offer them",
        packed,
    ),
    ("restarts where guests get no link state (status=off)", without_link_state),
    ("devices are unplugged and plugged again", hot_plug),
    ("an orderly stop and a restart under a TCP connection", stop),
    ("kill -9 and a restart under a TCP connection", kill),
    ("QEMU is killed in the middle of traffic", end),
    ("a machine moves to another pvnet under a TCP connection", migration::step),
];

/// An operator's day, or some of its steps.
#[derive(Clone, Debug)]
pub struct Day(Vec<(&'static str, StepFn)>);

impl Day {
    /// The steps whose name contains one of these texts, in order; all without a text.
    pub fn choose(texts: &[String]) -> Result<Self> {
        let names = || ALL.iter().map(|(what, _)| *what);
        if let Some(text) = texts.iter().find(|text| !names().any(|what| what.contains(*text))) {
            let cause = "no step's name contains this".to_owned();
            return Err(Error::Content { what: format!("--step {text}"), cause });
        }
        let is_chosen =
            |what: &str| texts.is_empty() || texts.iter().any(|text| what.contains(text));
        Ok(Self(ALL.into_iter().filter(|(what, _)| is_chosen(what)).collect()))
    }

    /// The number of its progress steps.
    #[must_use]
    pub fn steps(&self) -> usize {
        self.0.len() + 1
    }

    /// Runs the steps. Stops at the first one that fails to run.
    pub fn run(&self, inputs: Inputs<'_>, progress: &Progress) -> Result<Vec<Step>> {
        progress.step("start pvnet, a process guest, and two machines");
        let mut setup = Setup::begin(inputs)?;
        scenario::run_all(&self.0, progress, |act| {
            act(&mut setup).and_then(|outcome| unharmed(&setup, outcome)).map_err(|cause| {
                let mut log = setup.testbed.daemon.said();
                for machine in setup.machines.iter().flatten() {
                    log += &format!("\nQEMU of {}: {}", machine.name(), machine.complaints());
                }
                Error::Explained { cause: Box::new(cause), log }
            })
        })
    }
}

/// Fails a step if the memory of a guest was harmed.
fn unharmed(setup: &Setup<'_>, (seen, passed): (String, bool)) -> Result<(String, bool)> {
    for machine in setup.machines.iter().flatten() {
        if let Some(harm) = scenario::harm(machine.shell())? {
            return Ok((format!("{seen}; {harm}"), false));
        }
    }
    Ok((seen, passed))
}

fn connected(setup: &mut Setup<'_>) -> Result<(String, bool)> {
    let queues = ["vm1", "vm2"].map(|name| setup.testbed.daemon.port(name).map(|port| port.queues));
    let [one, two] = queues;
    let (one, two) = (one?, two?);
    Ok((format!("{one} and {two} queues"), (one, two) == (1, 2)))
}

fn reachable(setup: &mut Setup<'_>) -> Result<(String, bool)> {
    setup.ping_all()
}

fn reboot(setup: &mut Setup<'_>) -> Result<(String, bool)> {
    setup.machine(0)?.reboot()?;
    setup.bring_up(0)?;
    setup.ping_all()
}

/// Both devices ask for packed rings, and only the second one's port offers them. A restart is tried with split rings.
fn packed(setup: &mut Setup<'_>) -> Result<(String, bool)> {
    let mut are_packed = [false; 2];
    for (number, is_packed) in are_packed.iter_mut().enumerate() {
        setup.plug_again(number, &[("packed", true)])?;
        // VIRTIO_F_RING_PACKED
        let features =
            setup.shell(number)?.run("cat /sys/class/net/eth0/device/features", COMMAND)?;
        *is_packed = features.trim().as_bytes().get(34) == Some(&b'1');
    }
    let (echoes, all) = setup.ping_all()?;
    let (rates, whole) = mixed::machines(setup)?;
    setup.plug_again(1, &[])?;
    let (killed, is_survived) = kill(setup)?;
    let [one, two] = are_packed.map(|is_packed| if is_packed { "packed" } else { "split" });
    let seen =
        format!("{one} and {two} rings; {echoes}; {rates}; killed with the former: {killed}");
    Ok((seen, are_packed == [false, true] && all && whole && is_survived))
}

fn hot_plug(setup: &mut Setup<'_>) -> Result<(String, bool)> {
    for number in 0..setup.machines.len() {
        setup.plug_again(number, &[])?;
    }
    setup.ping_all()
}

/// The daemon is stopped and killed under devices that report no link state: guests keep their neighbour entries.
fn without_link_state(setup: &mut Setup<'_>) -> Result<(String, bool)> {
    for number in 0..setup.machines.len() {
        setup.plug_again(number, &[("status", false)])?;
    }
    let (stopped, is_stop_survived) = stop(setup)?;
    let (killed, is_kill_survived) = kill(setup)?;
    let seen = format!("stopped: {stopped}; killed: {killed}");
    Ok((seen, is_stop_survived && is_kill_survived))
}

type Ending = fn(&mut crate::Daemon) -> Result<()>;

/// A file and echoes pass from machine to machine while the daemon ends and is started again.
fn restart(setup: &mut Setup<'_>, ending: Ending) -> Result<(String, bool)> {
    const PAUSE: Duration = Duration::from_secs(2);
    let address = Testbed::address(1);
    let transfer = scenario::Transfer::begin(setup.shell(0)?, setup.shell(1)?, &address)?;
    let echoes = setup.shell(0)?.spawn(&format!("exec ping -D -n -i 0.02 -w 15 {address}"))?;
    let mut command = setup.testbed.guest_namespace.exec("ping")?;
    command.args(["-D", "-n", "-i", "0.005", "-w", "15", WIRE]);
    let mut guest = Process::capture(command)?;
    Interrupt::sleep(PAUSE)?;
    let daemon = &mut setup.testbed.daemon;
    ending(daemon)?;
    daemon.restart()?;
    for name in ["vm1", "vm2"] {
        daemon.until_port(name, PortState::Up)?;
    }
    let is_same = transfer.finish()?;
    guest.wait(COMMAND)?;
    let gaps = [gap(&echoes.wait(COMMAND)?.text), gap(&guest.stdout())];
    let [machines, guest] =
        gaps.map(|gap| gap.map_or("ever".to_owned(), |gap| format!("{:.0} ms", gap * 1e3)));
    let verdict = if is_same { "unchanged" } else { "CHANGED" };
    let seen = format!(
        "the file is {verdict}; no echo between machines for {machines}, of the process guest for {guest}"
    );
    Ok((seen, is_same && gaps.iter().all(Option::is_some)))
}

/// The longest time without an answer in the output of `ping -D`, in seconds, including the time after the last answer.
fn gap(text: &str) -> Option<f64> {
    let answers = text.lines().filter(|line| line.contains("bytes from"));
    let mut times: Vec<f64> = answers
        .filter_map(|line| line.strip_prefix('[')?.split_once(']')?.0.parse().ok())
        .collect();
    let lasted =
        text.lines().find_map(|line| line.rsplit_once("loss, time ")?.1.strip_suffix("ms"));
    let lasted: f64 = lasted?.parse().ok()?;
    times.push(times.first()? + lasted / 1e3);
    times.windows(2).map(|pair| pair[1] - pair[0]).max_by(f64::total_cmp)
}

fn stop(setup: &mut Setup<'_>) -> Result<(String, bool)> {
    restart(setup, crate::Daemon::stop)
}

fn kill(setup: &mut Setup<'_>) -> Result<(String, bool)> {
    restart(setup, crate::Daemon::kill)
}

fn end(setup: &mut Setup<'_>) -> Result<(String, bool)> {
    let server = setup.shell(1)?.spawn("iperf3 -s -1")?;
    scenario::listens(setup.shell(1)?, 5201)?;
    setup.shell(0)?.spawn(&format!("iperf3 -t 60 -c {}", Testbed::address(1)))?;
    let flows = "[ $(netstat -tn | grep -w 5201 | grep -c ESTABLISHED) -ge 2 ]";
    setup.shell(1)?.until("a connection", flows, COMMAND)?;
    let machine = setup.machines[0].take().ok_or_else(gone)?;
    machine.kill()?;
    setup.testbed.daemon.until_port("vm1", PortState::Down)?;
    server.stop()?;
    // The others notice nothing.
    let ping = traffic::ping(Peer::Machine(setup.shell(1)?), WIRE, 5)?;
    let machine = setup.machines[1].take().ok_or_else(gone)?;
    machine.kill()?;
    setup.testbed.daemon.until_port("vm2", PortState::Down)?;
    let left = setup.testbed.daemon.holdings()?;
    // Another machine is started and killed: it leaves as little.
    let machine = setup.boot(0)?;
    let again = traffic::ping(Peer::Machine(machine.shell()), WIRE, 3)?;
    machine.kill()?;
    setup.testbed.daemon.until_port("vm1", PortState::Down)?;
    let later = setup.testbed.daemon.holdings()?;
    let machine = setup.boot(0)?;
    setup.machines[0] = Some(machine);
    let seen = format!(
        "{} of {} echoes of the other machine; without both {left}; {} of {} echoes of a new machine; without it {later}",
        ping.received, ping.sent, again.received, again.sent
    );
    let passed = ping.sent == ping.received && again.sent == again.received;
    Ok((seen, passed && left == later))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_step_has_its_name() {
        let names: std::collections::BTreeSet<_> = ALL.iter().map(|(what, _)| what).collect();
        assert_eq!(names.len(), ALL.len());
    }

    #[test]
    fn steps_are_chosen_by_a_part_of_their_names() {
        let steps = |texts: &[&str]| {
            let texts: Vec<_> = texts.iter().map(|text| (*text).to_owned()).collect();
            Day::choose(&texts).map(|day| day.steps() - 1)
        };
        assert_eq!(steps(&[]).unwrap(), ALL.len());
        assert_eq!(steps(&["a restart under"]).unwrap(), 2);
        assert!(steps(&["a restart under", "no such step"]).is_err());
    }

    #[test]
    fn the_longest_silence_is_found() {
        let text = |lasted| {
            format!(
                "PING 10.0.0.2\n[100.00] 64 bytes from 10.0.0.2: icmp_seq=1\n[100.02] 64 bytes from x\n\
                 [101.52] no answer yet for icmp_seq=3\n[101.57] 64 bytes from x\n\n\
                 90 packets transmitted, 3 received, 96% packet loss, time {lasted}ms\n"
            )
        };
        assert!((gap(&text(1600)).unwrap() - 1.55).abs() < 1e-6);
        assert!((gap(&text(4570)).unwrap() - 3.0).abs() < 1e-6, "the silence at the end counts");
        assert_eq!(gap("PING 10.0.0.2\n"), None);
    }
}
