//! Two daemons, one of which is the driver of the other's vhost-user port, each with a guest.

#[path = "../../../../ports/virtio-user/tests/back_end/fake.rs"]
#[allow(dead_code, reason = "the driver's own tests use the rest")]
mod fake;

use std::net::{IpAddr, UdpSocket};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use lab::{Namespace, Process, TempDir};
use serde_json::Value;

use crate::MIB;
use crate::testbed::{LIMIT, PING_PAUSE, Testbed, port_of, pvnet, requires, wait};

/// Bytes that take longer than the end and the return of both daemons.
const BYTES: u64 = 128 << 20;

/// The daemon with the uplink, and the one with the port, whose guest is its second one.
struct Bed {
    front: Testbed,
    back: Testbed,
    /// The folder of the socket between them.
    _sockets: TempDir,
}

const BACK_GUEST: usize = 1;

impl Bed {
    /// Starts both, with these lines in the uplink's and in the port's table.
    fn start(uplink: &str, port: &str) -> Self {
        let sockets = TempDir::new().unwrap();
        let socket = sockets.path().join("up");
        let front = format!(
            "workers = 1\n[[uplink]]\nname = \"up\"\nkind = \"virtio-user\"\nsocket = {socket:?}\n{uplink}"
        );
        let back = format!(
            "workers = 1\n[[port]]\nname = \"up\"\nkind = \"vhost-user\"\nsocket = {socket:?}\nguard = \"off\"\n{port}"
        );
        let mut bed = Self {
            front: Testbed::start(1, &front),
            back: Testbed::start(2, &back),
            _sockets: sockets,
        };
        bed.front.join(0, &["--rejoin", "30"]);
        bed.back.join(BACK_GUEST, &["--rejoin", "30"]);
        bed.wait_up();
        bed
    }

    fn wait_up(&self) {
        wait("the link", || [&self.front, &self.back].iter().all(|one| is_up(one)));
    }

    /// Each guest's namespace and address.
    fn ends(&self) -> [(&Namespace, IpAddr); 2] {
        let [front, back] = [&self.front.guests[0], &self.back.guests[BACK_GUEST]];
        [(&front.namespace, front.ipv4.into()), (&back.namespace, back.ipv4.into())]
    }

    fn ping(&self) {
        let [(from, _), (_, address)] = self.ends();
        let ping = lab::ping(from, address, 3, PING_PAUSE).unwrap();
        assert_eq!((ping.sent, ping.received), (3, 3));
    }
}

/// The status of the link at one of its ends; none while the daemon is away.
fn link(testbed: &Testbed) -> Option<Value> {
    let mut command = testbed.command("status");
    command.arg("--json");
    let status: Value = serde_json::from_str(&lab::run(command, LIMIT).ok()?).unwrap();
    port_of(&status, "up")
}

fn is_up(testbed: &Testbed) -> bool {
    link(testbed).is_some_and(|port| port["state"] == "up")
}

#[test]
fn guests_of_two_daemons_reach_each_other_over_rings_of_both_layouts() {
    requires!("ping");
    for (uplink, port) in [
        ("", "mode = \"client\"\npacked = true\n"),
        ("mode = \"client\"\ncapabilities = \"none\"\nmtu = 1442\n", ""),
    ] {
        let bed = Bed::start(uplink, port);
        bed.ping();
        let shown = bed.front.guests[0].namespace.ip(&["link", "show", "dev", "eth0"]).unwrap();
        let mtu = if uplink.contains("mtu") { "mtu 1442" } else { "mtu 1500" };
        assert!(shown.contains(mtu), "the guest knows the uplink's MTU: {shown}");
        let [(front, of_front), (back, of_back)] = bed.ends();
        lab::transfer_file(front, back, of_back, 4 * MIB, 1).unwrap();
        lab::transfer_file(back, front, of_front, 4 * MIB, 2).unwrap();
        let link = link(&bed.front).unwrap();
        let count = |side: &str, what: &str| link[side][what].as_u64().unwrap();
        assert!(count("egress", "bytes") > 4 * MIB && count("ingress", "bytes") > 4 * MIB);
        // Frames of 64 KiB, as the guests made them.
        assert!(count("ingress", "bytes") / count("ingress", "frames") > 1514, "{link}");
        assert_eq!(link["queues"], 1);
    }
}

#[test]
fn a_connection_outlives_either_daemon() {
    requires!("ping");
    let mut bed = Bed::start("", "mode = \"client\"\npacked = true\n");
    for kills_back in [true, false] {
        let names = bed.ends().map(|(namespace, _)| namespace.name().to_owned());
        let address = bed.ends()[1].1;
        let transfer = std::thread::spawn(move || {
            let [from, to] = names.map(|name| Namespace::open(&name).unwrap());
            lab::transfer_file(&from, &to, address, BYTES, 7)
        });
        let carried = |bed: &Bed| link(&bed.front).unwrap()["egress"]["bytes"].as_u64().unwrap();
        let before = carried(&bed);
        wait("the transfer's beginning", || carried(&bed) > before + 4 * MIB);
        assert!(!transfer.is_finished());
        let killed = if kills_back { &mut bed.back } else { &mut bed.front };
        Process::kill(&mut killed.daemon).unwrap();
        let other = if kills_back { &bed.front } else { &bed.back };
        wait("the link's end", || !is_up(other));
        let reason = link(other).unwrap()["reason"].to_string();
        assert!(reason.contains("is gone"), "{reason}");
        std::thread::sleep(Duration::from_millis(50));
        if kills_back { &mut bed.back } else { &mut bed.front }.restart();
        bed.wait_up();
        transfer.join().unwrap().expect("the same bytes");
        bed.ping();
    }
}

#[test]
fn an_uplink_is_added_and_removed_while_its_daemon_runs() {
    requires!("ping");
    let mut bed = Bed::start("", "mode = \"client\"\n");
    let socket = bed._sockets.path().join("up");
    let port = |what: &[&str]| {
        let mut command = pvnet();
        command.args(["port", what[0], "--directory"]).arg(bed.front.folder()).args(&what[1..]);
        lab::run(command, LIMIT).unwrap();
    };
    port(&["del", "up"]);
    assert!(link(&bed.front).is_none() && !socket.exists());
    let key = format!("socket={}", socket.display());
    port(&["add", "uplink", "name=up", "kind=virtio-user", &key, "queues=2", "packed=false"]);
    bed.wait_up();
    bed.ping();
    bed.back.daemon.stop().unwrap();
    wait("the link's end", || !is_up(&bed.front));
}

#[test]
fn a_back_end_that_breaks_its_rings_loses_its_port_and_nothing_else() {
    requires!("ping");
    let sockets = TempDir::new().unwrap();
    let socket = sockets.path().join("up");
    let uplink =
        format!("[[uplink]]\nname = \"up\"\nkind = \"virtio-user\"\nsocket = {socket:?}\n");
    let mut testbed = Testbed::start(2, &format!("workers = 1\n{uplink}"));
    (0..2).for_each(|guest| testbed.join(guest, &[]));
    for _ in 0..2 {
        let stream = UnixStream::connect(&socket).unwrap();
        let fake = fake::Fake::serve(stream, 1 << 32 | 1 << 30 | 1 << 15, |_| None).unwrap();
        wait("the port", || is_up(&testbed));
        fake.give_back(0, 0, 5000, 100);
        rustix::io::write(&fake.calls[0], &1u64.to_ne_bytes()).unwrap();
        wait("its end", || !is_up(&testbed));
        let reason = link(&testbed).unwrap()["reason"].to_string();
        assert!(
            reason.contains("disabled") && reason.contains("buffer 5000 came back"),
            "{reason}"
        );
        testbed.ping(0, 1);
    }
}

#[test]
fn a_back_end_that_takes_no_frames_has_that_as_its_reason() {
    requires!();
    let sockets = TempDir::new().unwrap();
    let socket = sockets.path().join("up");
    let uplink =
        format!("[[uplink]]\nname = \"up\"\nkind = \"virtio-user\"\nsocket = {socket:?}\n");
    let mut testbed = Testbed::start(1, &format!("workers = 1\n{uplink}"));
    testbed.join(0, &[]);
    let stream = UnixStream::connect(&socket).unwrap();
    let _fake = fake::Fake::serve(stream, 1 << 32 | 1 << 30 | 1 << 15, |_| None).unwrap();
    wait("the port", || is_up(&testbed));
    assert!(link(&testbed).unwrap()["reason"].is_null());
    // The switch sends to the uplink what it knows nobody for.
    let guest = &testbed.guests[0].namespace;
    let [station, mac] = ["10.77.1.99", "02:00:00:00:00:99"];
    guest.ip(&["neigh", "add", station, "lladdr", mac, "dev", "eth0"]).unwrap();
    wait("a stall", || {
        let send = move || {
            let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
            // More than the ring has room for.
            (0..300).for_each(|_| drop(socket.send_to(&[0; 64], (station, 9))));
            Ok(())
        };
        guest.thread(send).unwrap().join().unwrap().unwrap();
        let link = link(&testbed).unwrap();
        link["reason"]["code"] == "stalled" && link["state"] == "up"
    });
}

/// DPDK's vhost library as the back-end of two uplinks: testpmd sends by each port to the other one.
struct Dpdk {
    testbed: Testbed,
    sockets: TempDir,
}

impl Dpdk {
    fn testpmd(&self) -> Process {
        let mut command = lab::command("dpdk-testpmd").unwrap();
        command.args(["--lcores", "0@0,1@0", "--no-huge", "--no-shconf", "--no-pci"]);
        command.args(["--no-telemetry", "-m", "192"]);
        for n in 0..2 {
            let socket = self.sockets.path().join(n.to_string());
            command.arg("--vdev");
            command.arg(format!("net_vhost{n},iface={},client=1,queues=1", socket.display()));
        }
        command.args(["--", "--nb-cores=1", "--total-num-mbufs=8192", "--stats-period=1"]);
        command.arg("--forward-mode=flowgen");
        // The addresses of its ports.
        command.args(["--eth-peer=0,56:48:4f:53:54:01", "--eth-peer=1,56:48:4f:53:54:00"]);
        Process::capture(command).unwrap()
    }

    /// The states of both uplinks.
    fn states(&self) -> [Value; 2] {
        ["up0", "up1"].map(|name| self.testbed.named(name).unwrap())
    }

    /// Frames that have passed: the least of both directions of both uplinks.
    fn frames(&self) -> u64 {
        let frames = |port: &Value, side: &str| port[side]["frames"].as_u64().unwrap_or(0);
        let of_both =
            self.states().map(|port| frames(&port, "ingress").min(frames(&port, "egress")));
        of_both[0].min(of_both[1])
    }

    /// Starts testpmd, and waits until it has sent and received.
    fn carry(&self) -> Process {
        let mut testpmd = self.testpmd();
        let before = self.frames();
        wait("the frames", || {
            assert!(testpmd.ended().unwrap().is_none(), "{}", testpmd.stdout());
            self.frames() > before + 2000
        });
        testpmd
    }
}

#[test]
fn dpdks_vhost_library_is_a_back_end() {
    requires!("dpdk-testpmd");
    type Ending = fn(&mut Process) -> lab::Result<std::process::ExitStatus>;
    // One that is killed comes again.
    let endings: [(bool, &[Ending]); 2] =
        [(false, &[Process::kill, Process::stop]), (true, &[Process::stop])];
    for (packed, endings) in endings {
        let sockets = TempDir::new().unwrap();
        let uplinks = [0, 1].map(|n| {
            let socket = sockets.path().join(n.to_string());
            format!("[[uplink]]\nname = \"up{n}\"\nkind = \"virtio-user\"\nsocket = {socket:?}\npacked = {packed}\n")
        });
        let testbed = Testbed::start(0, &format!("workers = 1\n{}", uplinks.concat()));
        let dpdk = Dpdk { testbed, sockets };
        let waiting = dpdk.states().map(|port| port["reason"]["code"].clone());
        assert_eq!(waiting, ["waiting_for_backend", "waiting_for_backend"]);
        for ending in endings {
            let mut testpmd = dpdk.carry();
            assert!(dpdk.states().iter().all(|port| port["reason"].is_null()));
            ending(&mut testpmd).unwrap();
            wait("the end of the connections", || {
                dpdk.states().iter().all(|port| port["state"] == "down")
            });
        }
    }
}
