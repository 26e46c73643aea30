//! Virtual machines' ports as their operators use them: a daemon, and DPDK's `dpdk-testpmd` as front-end and driver.
//! Skipped with a message without testpmd.

#[allow(dead_code, reason = "other tests use the rest")]
#[path = "../testbed/mod.rs"]
mod testbed;

mod inflight;

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use inflight::{Machine, Stream};
use lab::{Process, TempDir, able};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use testbed::{Testbed, holdings, requires, settled_holdings, wait};

/// Frames that must have come from each port.
const FRAMES: u64 = 2000;

/// How often testpmd sends its burst, and how long the frames may then take.
const TRIES: u32 = 12;
const TRY: Duration = Duration::from_secs(5);

/// What testpmd does with the frames of its ports.
const FORWARD: &str = "--interactive --forward-mode=mac";
const SEND: &str = "--forward-mode=txonly";
const RECEIVE: &str = "--forward-mode=rxonly";

/// A daemon with pairs of ports, in a folder with their sockets.
struct Bed {
    testbed: Testbed,
    sockets: TempDir,
}

/// A driver's choices: packed rings, descriptors in order, mergeable buffers, vectorised, and pairs of rings.
#[derive(Clone, Copy, Debug)]
struct Layout(u8, u8, u8, u8, u8);

/// Who makes the socket.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Mode {
    PvnetListens,
    TestpmdListens,
}

impl Bed {
    /// A daemon with two ports for each mode.
    fn start(modes: &[Mode]) -> Self {
        let sockets = TempDir::new().unwrap();
        let ports: String = (0..)
            .zip(modes.iter().flat_map(|mode| [mode, mode]))
            .map(|(n, mode)| {
                let mode = if *mode == Mode::PvnetListens { "server" } else { "client" };
                format!(
                    "[[port]]\nname = \"vm{n}\"\nkind = \"vhost-user\"\nsocket = \"{}/{n}\"\n\
                     mac = \"{}\"\nmode = \"{mode}\"\nqueues = 4\npacked = true\n",
                    sockets.path().display(),
                    mac(n)
                )
            })
            .collect();
        Self { testbed: Testbed::start(0, &format!("workers = 1\n{ports}")), sockets }
    }

    /// Starts testpmd with the first port of each direction, whose frames go to the second.
    fn testpmd(
        &self,
        directions: &[(u8, u8)],
        mode: Mode,
        layout: Layout,
        forward: &str,
    ) -> Process {
        let Layout(packed, in_order, mergeable, vectorised, queues) = layout;
        let mut command = lab::command("dpdk-testpmd").unwrap();
        command.args(["--lcores", "0@0,1@0", "--no-huge", "--no-shconf", "--no-pci"]);
        // The vectorised driver of packed rings needs AVX-512, where the CPU has it.
        command.args(["--no-telemetry", "-m", "64", "--force-max-simd-bitwidth=512"]);
        let server = u8::from(mode == Mode::TestpmdListens);
        for (n, (port, _)) in directions.iter().enumerate() {
            let socket = self.sockets.path().join(port.to_string());
            if mode == Mode::TestpmdListens {
                // A testpmd that was killed has left it, and the next one does not replace it.
                let _ = std::fs::remove_file(&socket);
            }
            let device = format!(
                "net_virtio_user{n},path={},server={server},queues={queues},mac={},packed_vq={packed},\
                 in_order={in_order},mrg_rxbuf={mergeable},vectorized={vectorised}",
                socket.display(),
                mac(*port)
            );
            command.args(["--vdev", &device]);
        }
        let queues = queues.to_string();
        command.args(["--", "--nb-cores=1", "--total-num-mbufs=8192", "--stats-period=1"]);
        command.args(forward.split(' ')).args(["--rxq", &queues, "--txq", &queues]);
        for (n, (_, peer)) in directions.iter().enumerate() {
            command.arg(format!("--eth-peer={n},{}", mac(*peer)));
        }
        Process::interactive(command).unwrap()
    }

    fn ports(&self) -> Vec<Value> {
        self.testbed.status()["ports"].as_array().unwrap().clone()
    }

    fn until_up(&self, name: &str) {
        let is_up = |port: &Value| port["name"] == *name && port["state"] == "up";
        wait(name, || self.ports().iter().any(is_up));
    }

    /// A port's frames in this direction; 0 while it is not there.
    fn frames(&self, port: u8, side: &str) -> u64 {
        let port = self.testbed.named(&format!("vm{port}"));
        port.and_then(|port| port[side]["frames"].as_u64()).unwrap_or(0)
    }

    /// Waits until many more frames than now have come in on `from` and gone out of `to`.
    fn carries(&self, testpmd: &mut [&mut Process], from: u8, to: u8) {
        assert!(self.carries_within(testpmd, from, to, testbed::LIMIT), "no frames");
    }

    /// The same, for this long at most. Returns whether they have.
    fn carries_within(
        &self,
        testpmd: &mut [&mut Process],
        from: u8,
        to: u8,
        limit: Duration,
    ) -> bool {
        let start = Instant::now();
        let now = || [self.frames(from, "ingress"), self.frames(to, "egress")];
        let before = now();
        while now().iter().zip(before).any(|(now, before)| *now <= before + FRAMES) {
            for process in testpmd.iter_mut() {
                assert!(process.ended().unwrap().is_none(), "{}", process.stdout());
            }
            if start.elapsed() > limit {
                return false;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        true
    }

    /// Whether frames of a port from which none come wait in its rings, so that a poll without a notification brings them.
    fn has_forgotten(&self, port: u8) -> bool {
        // No frame waits as long as a second for its worker, unless it is forgotten.
        let frames = || {
            std::thread::sleep(Duration::from_secs(1));
            self.frames(port, "ingress")
        };
        let [before, then] = [frames(), frames()];
        // The queues of a port have a turn after any change of its limits.
        for limit in ["limit.egress.mbps=100000", "limit={}"] {
            let mut command = testbed::pvnet();
            command.args(["port", "set", "--directory"]).arg(self.testbed.folder());
            command.args([&format!("vm{port}"), limit]);
            lab::run(command, testbed::LIMIT).unwrap();
        }
        before == then && frames() > then
    }

    /// Carries frames in both directions with this layout, and ends the session.
    fn drive(&self, pair: u8, mode: Mode, layout: Layout) {
        let [one, other] = [2 * pair, 2 * pair + 1];
        let directions = [(one, other), (other, one)];
        let mut testpmd = self.testpmd(&directions, mode, layout, FORWARD);
        [one, other].iter().for_each(|port| self.until_up(&format!("vm{port}")));
        let mut tries = 0;
        loop {
            // A burst in each direction, which then goes round.
            testpmd.write_line("start tx_first").unwrap();
            let is_silent =
                |(from, to): &(u8, u8)| !self.carries_within(&mut [&mut testpmd], *from, *to, TRY);
            let Some((from, _)) = directions.into_iter().find(is_silent) else { break };
            // What came before the worker served the port that it is for is lost.
            assert!(!self.has_forgotten(from), "vm{from}: {layout:?}, {:?}", self.ports());
            tries += 1;
            assert!(tries < TRIES, "no frames: {layout:?}, {:?}", self.ports());
            testpmd.write_line("stop").unwrap();
        }
        let are = |state: &str| {
            let names = [one, other].map(|port| format!("vm{port}"));
            self.ports()
                .iter()
                .filter(|port| names.iter().any(|name| port["name"] == **name))
                .all(|port| port["state"] == state)
        };
        let up = || self.ports().into_iter().filter(|port| port["state"] == "up");
        for port in up() {
            assert_eq!(port["queues"], layout.4, "{layout:?}: {port}");
        }
        // A program that does not run for a moment is said to have stalled.
        wait("ports without a reason", || up().all(|port| port["reason"].is_null()));
        end(&mut testpmd);
        wait("the end of the sessions", || are("down"));
    }
}

fn mac(port: u8) -> String {
    format!("02:00:00:00:07:0{port}")
}

fn kill(process: &mut Process) {
    signal(process, Signal::KILL);
}

/// Asks a process to end, which takes testpmd a while.
fn end(process: &mut Process) {
    signal(process, Signal::TERM);
}

fn signal(process: &mut Process, signal: Signal) {
    let pid = Pid::from_raw(process.pid().cast_signed()).unwrap();
    kill_process(pid, signal).unwrap();
    process.wait(testbed::LIMIT).unwrap();
}

#[test]
fn dpdk_drives_rings_of_every_layout() {
    requires!("dpdk-testpmd");
    let modes = [Mode::PvnetListens, Mode::TestpmdListens];
    let bed = Bed::start(&modes);
    // Each pair of choices is in one of them.
    for (layout, pair) in [
        (Layout(0, 0, 1, 0, 1), 0),
        (Layout(0, 1, 0, 1, 2), 1),
        (Layout(1, 0, 1, 1, 4), 1),
        (Layout(1, 1, 0, 1, 1), 0),
        (Layout(1, 1, 1, 0, 3), 0),
        (Layout(0, 0, 0, 0, 4), 0),
    ] {
        bed.drive(pair, modes[usize::from(pair)], layout);
    }
}

#[test]
#[ignore = "some minutes: make lab-dpdk"]
fn dpdk_drives_all_layouts_there_are() {
    requires!("dpdk-testpmd");
    let modes = [Mode::PvnetListens, Mode::TestpmdListens];
    let bed = Bed::start(&modes);
    for n in 0..16u8 {
        let bit = |shift: u8| n >> shift & 1;
        for queues in 1..=4 {
            let pair = (n + queues) % 2;
            let layout = Layout(bit(0), bit(1), bit(2), bit(3), queues);
            bed.drive(pair, modes[usize::from(pair)], layout);
        }
    }
}

/// The cases of DPDK's test plan `pvp_vhost_user_reconnect`, with frames on their way all the time.
fn reconnects(packed: u8, times: u32) {
    let layout = Layout(packed, 0, 1, 0, 1);
    let mode = Mode::TestpmdListens;
    let mut bed = Bed::start(&[mode]);
    // One sends and one receives, without an end: frames that go round would end with the first that is lost, and of
    // packed rings testpmd drops all that are on their way when a back-end comes back.
    let mut sender = bed.testpmd(&[(0, 1)], mode, layout, SEND);
    let mut receiver = bed.testpmd(&[(1, 0)], mode, layout, RECEIVE);
    bed.carries(&mut [&mut sender, &mut receiver], 0, 1);
    for _ in 0..times {
        // The back-end. DPDK's front-ends come back only where they listen.
        kill(&mut bed.testbed.daemon);
        bed.testbed.restart();
        bed.carries(&mut [&mut sender, &mut receiver], 0, 1);
        // Each front-end, and then both.
        kill(&mut sender);
        sender = bed.testpmd(&[(0, 1)], mode, layout, SEND);
        bed.carries(&mut [&mut sender, &mut receiver], 0, 1);
        kill(&mut receiver);
        receiver = bed.testpmd(&[(1, 0)], mode, layout, RECEIVE);
        bed.carries(&mut [&mut sender, &mut receiver], 0, 1);
        kill(&mut receiver);
        kill(&mut sender);
        receiver = bed.testpmd(&[(1, 0)], mode, layout, RECEIVE);
        sender = bed.testpmd(&[(0, 1)], mode, layout, SEND);
        bed.carries(&mut [&mut sender, &mut receiver], 0, 1);
    }
}

#[test]
fn traffic_goes_on_after_either_side_was_killed() {
    if able(&["dpdk-testpmd"]) {
        reconnects(0, 1);
        reconnects(1, 1);
    }
}

#[test]
#[ignore = "some minutes: make lab-dpdk"]
fn traffic_goes_on_after_either_side_was_killed_many_times() {
    if able(&["dpdk-testpmd"]) {
        reconnects(0, 5);
        reconnects(1, 5);
    }
}

/// The front-end keeps the log of inflight descriptors, so each chain comes back once and in order, and no frame is missing.
fn is_killed_under_traffic(layout: virtqueue::Layout, times: u64) {
    let mut bed = Bed::start(&[Mode::PvnetListens]);
    let machine = |n: u8| {
        let socket = bed.sockets.path().join(n.to_string());
        Machine::boot(&socket, [2, 0, 0, 0, 7, n], layout)
    };
    let mut stream = Stream::new(machine(0), machine(1));
    for time in 0..=times {
        // The receiver first: frames for a port that is not there are lost.
        stream.to.connect();
        bed.until_up("vm1");
        stream.from.connect();
        bed.until_up("vm0");
        // At some moment in the middle of the rings, lap after lap.
        stream.carry(700 + time * 137 % 300);
        if time < times {
            kill(&mut bed.testbed.daemon);
            bed.testbed.restart();
        }
    }
    stream.finish();
    let window = u64::from(u16::try_from(port::WINDOW).unwrap());
    assert!(stream.repeated <= times * window, "{} frames came again", stream.repeated);
}

#[test]
fn a_packed_ring_with_a_log_is_continued_after_the_daemon_was_killed() {
    if able(&[]) {
        is_killed_under_traffic(virtqueue::Layout::Packed, 8);
    }
}

#[test]
fn a_split_ring_is_continued_after_the_daemon_was_killed() {
    if able(&[]) {
        is_killed_under_traffic(virtqueue::Layout::Split, 3);
    }
}

/// The laboratory's front-end: two guests, of which the first sends to the second for as long as it lives.
fn front_end(sockets: &TempDir, layout: &str) -> Child {
    let mut command = testbed::pvnet_lab();
    command.args(["bench", "vhost-front-end", "--layout", layout, "--sockets"]);
    command.args(["0", "1"].map(|name| sockets.path().join(name)));
    let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let mut child = child.unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.contains("Ready"), "{line}");
    let request = br#"{"Throughput":{"len":64,"ms":60000}}"#;
    child.stdin.as_mut().unwrap().write_all(&[&request[..], b"\n"].concat()).unwrap();
    child
}

/// A process's descriptors, by kind.
fn descriptors(pid: u32) -> BTreeMap<String, usize> {
    let mut kinds = BTreeMap::new();
    for entry in std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap() {
        // It may be closed meanwhile.
        let Ok(link) = std::fs::read_link(entry.unwrap().path()) else { continue };
        let kind = link.to_string_lossy().replace(|c: char| c.is_ascii_digit(), "");
        *kinds.entry(kind).or_default() += 1;
    }
    kinds
}

#[test]
fn a_front_end_that_is_killed_in_the_middle_of_traffic_leaves_nothing() {
    const TIMES: usize = 20;
    requires!();
    let sockets = TempDir::new().unwrap();
    let ports = [0, 1].map(|n| {
        let socket = sockets.path().join(n.to_string());
        format!(
            "[[port]]\nname = \"vm{n}\"\nkind = \"vhost-user\"\nsocket = {socket:?}\nmac = \"02:70:76:6e:02:0{n}\"\npacked = true\n"
        )
    });
    let testbed = Testbed::start(0, &format!("workers = 1\n{}", ports.concat()));
    let pid = testbed.daemon.pid();
    let ports = || testbed.status()["ports"].as_array().unwrap().clone();
    let carried = || ports()[1]["egress"]["frames"].as_u64().unwrap_or(0);
    let mut first = None;
    for time in 0..TIMES {
        let layout = if time % 2 == 0 { "split" } else { "packed" };
        let mut child = front_end(&sockets, layout);
        let before = carried();
        wait("the frames", || carried() > before + FRAMES);
        child.kill().unwrap();
        child.wait().unwrap();
        wait("the end of the sessions", || ports().iter().all(|port| port["state"] == "down"));
        // A thread that watches the sessions' notifications ends a moment later.
        let held = *first.get_or_insert_with(|| settled_holdings(pid));
        wait(&format!("{held:?} after {time}: {:?}", descriptors(pid)), || holdings(pid) == held);
    }
}
