//! Virtual machines' ports as their operators use them: a daemon, and DPDK's `dpdk-testpmd` as the front-end and driver of two
//! devices, which sends each frame that comes out of one into the other. Skipped with a message without testpmd.

#[allow(dead_code, reason = "other tests use the rest")]
mod testbed;

use lab::{Process, TempDir};
use serde_json::Value;
use testbed::{Testbed, able, wait};

/// Frames that must have come from each port.
const FRAMES: u64 = 2000;

/// A daemon with two ports, in a folder with their sockets.
struct Bed {
    testbed: Testbed,
    sockets: TempDir,
}

impl Bed {
    fn start(lines: &str) -> Self {
        let sockets = TempDir::new().unwrap();
        let port = |n: u8| {
            format!(
                "[[port]]\nname = \"vm{n}\"\nkind = \"vhost-user\"\nsocket = \"{}/{n}\"\n\
                 mac = \"02:00:00:00:07:0{n}\"\n{lines}\n",
                sockets.path().display()
            )
        };
        let daemon = format!("workers = 1\n{}{}", port(0), port(1));
        Self { testbed: Testbed::start(0, &daemon), sockets }
    }

    /// Starts testpmd with devices of this layout.
    fn testpmd(&self, layout: &str, queues: u8) -> Process {
        let mut command = lab::command("dpdk-testpmd").unwrap();
        command.args(["--lcores", "0@0,1@0", "--no-huge", "--no-shconf", "--no-pci"]);
        command.args(["--no-telemetry", "-m", "192"]);
        for n in 0..2 {
            let socket = self.sockets.path().join(n.to_string());
            let mac = format!("02:00:00:00:07:0{n}");
            let device = format!(
                "net_virtio_user{n},path={},queues={queues},mac={mac},{layout}",
                socket.display()
            );
            command.args(["--vdev", &device]);
        }
        let queues = queues.to_string();
        command.args(["--", "--nb-cores=1", "--total-num-mbufs=4096", "--forward-mode=mac"]);
        command.args(["--tx-first", "--stats-period=1", "--rxq", &queues, "--txq", &queues]);
        command.args(["--eth-peer=0,02:00:00:00:07:01", "--eth-peer=1,02:00:00:00:07:00"]);
        Process::capture(command).unwrap()
    }

    fn ports(&self) -> Vec<Value> {
        self.testbed.status()["ports"].as_array().unwrap().clone()
    }

    /// Waits until frames come from both ports, more than `before` of each.
    fn carries(&self, testpmd: &mut Process, before: u64) {
        wait("the frames", || {
            assert!(testpmd.ended().unwrap().is_none(), "{}", testpmd.stdout());
            self.ports().iter().all(|port| {
                let [frames, out] =
                    ["ingress", "egress"].map(|side| port[side]["frames"].as_u64().unwrap());
                frames > before + FRAMES && out > before + FRAMES
            })
        });
    }
}

#[test]
fn dpdk_drives_every_layout() {
    if !able(&["dpdk-testpmd"]) {
        return;
    }
    let bed = Bed::start("queues = 2");
    for (layout, queues) in [
        ("packed_vq=0,in_order=0,mrg_rxbuf=1", 1),
        ("packed_vq=0,in_order=1,mrg_rxbuf=0", 2),
        ("packed_vq=1,in_order=0,mrg_rxbuf=1", 2),
        ("packed_vq=1,in_order=1,mrg_rxbuf=0", 1),
    ] {
        let mut testpmd = bed.testpmd(layout, queues);
        bed.carries(&mut testpmd, 0);
        for port in bed.ports() {
            assert_eq!(port["queues"], queues, "{layout}: {port}");
            assert!(port["reason"].is_null(), "{port}");
        }
        testpmd.stop().unwrap();
        wait("the end of the sessions", || bed.ports().iter().all(|port| port["state"] == "down"));
    }
}
