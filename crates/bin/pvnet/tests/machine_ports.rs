//! What `pvnet status` and the metrics say of virtual machines' ports. The machines are the front-end program of `pvnet-lab bench vhost`.

#[allow(dead_code, unused_imports, reason = "other tests use the rest")]
mod testbed;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};

use lab::TempDir;
use serde_json::Value;
use testbed::{LIMIT, Testbed, pvnet_lab, wait};

const NAMES: [&str; 2] = ["vm0", "vm1"];
/// The front-end program's addresses.
const MACS: [&str; 2] = ["02:70:76:6e:02:00", "02:70:76:6e:02:01"];
/// Bytes of its frames in round trips.
const FRAME: u64 = 64;

/// The front-end program.
struct Machines {
    child: Child,
    replies: BufReader<ChildStdout>,
}

impl Machines {
    fn boot(sockets: &[PathBuf], layout: &str) -> Self {
        let mut command: Command = pvnet_lab();
        command.args(["bench", "vhost-front-end", "--layout", layout, "--sockets"]).args(sockets);
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the front-end");
        let replies = BufReader::new(child.stdout.take().unwrap());
        let mut machines = Self { child, replies };
        assert_eq!(machines.reply(), "\"Ready\"");
        machines
    }

    fn reply(&mut self) -> String {
        let mut line = String::new();
        self.replies.read_line(&mut line).unwrap();
        line.trim().to_owned()
    }

    /// Sends this many frames to and fro.
    fn exchange(&mut self, count: u64) {
        let request = format!("{{\"RoundTrips\":{{\"count\":{count},\"pause_us\":0}}}}\n");
        self.child.stdin.as_mut().unwrap().write_all(request.as_bytes()).unwrap();
        let reply = self.reply();
        assert!(reply.contains("Times"), "{reply}");
    }
}

impl Drop for Machines {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A port's status, and its metrics by name.
struct Port {
    status: Value,
    metrics: String,
    name: &'static str,
}

impl Port {
    fn count(&self, side: &str, what: &str) -> u64 {
        self.status[side][what].as_u64().unwrap()
    }

    fn metric(&self, name: &str) -> Option<u64> {
        let start = format!("pvnet_port_{name}{{port=\"{}\"}} ", self.name);
        self.metrics.lines().find_map(|line| line.strip_prefix(&start)?.parse().ok())
    }

    fn is_up(&self) -> bool {
        let is_up = self.status["state"] == "up";
        assert_eq!(self.metric("up"), Some(is_up.into()), "{}", self.metrics);
        is_up
    }
}

/// A daemon with a port for each machine.
struct Bed {
    testbed: Testbed,
    metrics: SocketAddr,
    /// The sockets.
    folder: TempDir,
}

impl Bed {
    fn start() -> Self {
        // Free a moment ago.
        let metrics = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let folder = TempDir::new().unwrap();
        let port = |(name, mac): (&str, &str)| {
            let socket = folder.path().join(name);
            let socket = socket.display();
            format!(
                "[[port]]\nname = \"{name}\"\nkind = \"vhost-user\"\nsocket = \"{socket}\"\nmac = \"{mac}\"\npacked = true\n"
            )
        };
        let ports: String = NAMES.into_iter().zip(MACS).map(port).collect();
        let lines = format!("workers = 1\nmetrics = \"{metrics}\"\n{ports}");
        let testbed = Testbed::start(0, &lines);
        Self { testbed, metrics, folder }
    }

    fn sockets(&self) -> Vec<PathBuf> {
        NAMES.map(|name| self.folder.path().join(name)).to_vec()
    }

    fn scrape(&self) -> String {
        let mut stream = TcpStream::connect(self.metrics).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    }

    /// Both ports, at a moment between two at which their status is the same.
    fn ports(&self) -> [Port; 2] {
        let status = || self.testbed.status()["ports"].clone();
        let mut after = status();
        let (ports, metrics) = loop {
            let before = after;
            let metrics = self.scrape();
            after = status();
            if before == after {
                break (after, metrics);
            }
        };
        let ports = ports.as_array().unwrap();
        NAMES.map(|name| {
            let status = ports.iter().find(|port| port["name"] == name).unwrap().clone();
            Port { status, metrics: metrics.clone(), name }
        })
    }
}

#[test]
fn status_and_metrics_count_what_machines_exchange() {
    let bed = Bed::start();
    for port in bed.ports() {
        let reason = &port.status["reason"]["code"];
        assert!(!port.is_up() && reason == "waiting_for_frontend", "{}", port.status);
    }
    for layout in ["split", "packed"] {
        let mut machines = Machines::boot(&bed.sockets(), layout);
        let frames = |port: &Port| {
            assert!(port.is_up() && port.status["reason"].is_null(), "{}", port.status);
            assert_eq!(port.status["queues"], 1, "{}", port.status);
            [port.count("ingress", "frames"), port.count("egress", "frames")]
        };
        let before = bed.ports();
        assert_eq!(before[1].status["mac"], MACS[1]);
        machines.exchange(100);
        let wanted = [&before[0], &before[1]].map(|port| frames(port).map(|count| count + 100));
        wait("the counts", || bed.ports().each_ref().map(frames) == wanted);
        for (before, after) in before.iter().zip(bed.ports()) {
            for side in ["ingress", "egress"] {
                let bytes = after.count(side, "bytes") - before.count(side, "bytes");
                assert_eq!(bytes, 100 * FRAME, "{side} {}", after.status);
                for what in ["frames", "bytes"] {
                    let metric = after.metric(&format!("{side}_{what}_total"));
                    assert_eq!(metric, Some(after.count(side, what)), "{}", after.metrics);
                }
            }
        }
        let counts = |port: &Port| {
            [("ingress", "frames"), ("ingress", "bytes"), ("egress", "frames"), ("egress", "bytes")]
                .map(|(side, what)| port.count(side, what))
        };
        let before = bed.ports().each_ref().map(counts);
        drop(machines);
        wait("the end of the sessions", || {
            let gone = |port: &Port| port.status["reason"]["code"] == "frontend_gone";
            bed.ports().iter().all(|port| !port.is_up() && gone(port))
        });
        // They are the port's, and not the session's.
        let after = bed.ports();
        assert_eq!(after.each_ref().map(counts), before);
        for port in &after {
            let metric = port.metric("ingress_frames_total");
            assert_eq!(metric, Some(port.count("ingress", "frames")), "{}", port.metrics);
        }
    }
}
