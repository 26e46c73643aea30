//! A short test of pvnet on a real Xen: dom0, one unmodified guest, and a daemon that is killed during a TCP
//! connection.
//!
//! Needs QEMU and, the first time, Debian's mirrors. Without QEMU, see [`lab::needed`].

use std::time::{Duration, Instant};

use xenlab::scenario::{self, Backend, Frontend};
use xenlab::{DomuConfig, Error, Host, HostFile, Images, Options, Result, Suite, default_cache};

const COMMAND_TIMEOUT: Duration = Duration::from_secs(90);
/// How long the TCP stream runs at most, in seconds of an emulated machine.
const STREAM: u32 = 300;
/// Bytes of the stream that the second daemon must carry: more than single retransmissions.
const CARRIED: u64 = 200_000;

/// A host, or `None` if the test is skipped.
fn boot() -> Option<Host> {
    lab::needed(lab::command("qemu-system-x86_64"))?;
    let cache = std::path::absolute(default_cache()).expect("a working directory");
    let boot = || -> Result<Host> {
        let images = Images::prepare(Suite::of_this_machine(), &cache, true)?;
        let pvnet = scenario::program("pvnet").ok_or(Error::NotBuilt("pvnet"))?;
        let files = vec![HostFile::new(pvnet)?];
        Host::boot(&images, &Options { files, ..Options::default() })
    };
    match boot() {
        Ok(host) => Some(host),
        Err(error) => panic!("{error}"),
    }
}

/// The value, or a panic with the error's message.
fn ok<T>(result: Result<T>) -> T {
    result.unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn a_guests_connection_outlives_its_backend() {
    let Some(host) = boot() else { return };
    let mut backend = ok(Backend::Pvnet.start(&host));
    let guest = DomuConfig::new("guest").vif(backend.vif());
    let guest = ok(host.create(&guest, scenario::BOOT_TIMEOUT));
    ok(Frontend::Stock.start(&guest));
    let ping = || ok(scenario::ping(backend.shell(), scenario::GUEST_ADDRESS, 3));
    assert_eq!((ping().sent, ping().received), (3, 3));

    let address = scenario::BACKEND_ADDRESS;
    let server = ok(backend.shell().spawn("iperf3 -s -1"));
    ok(backend.shell().until("a listener", "netstat -ltn | grep -w 5201", COMMAND_TIMEOUT));
    let client = ok(guest.spawn(&format!("iperf3 --json -t {STREAM} -c {address}")));
    // iperf3's second connection carries the data.
    let connected = "[ $(netstat -tn | grep -w 5201 | grep -c ESTABLISHED) -ge 2 ]";
    ok(backend.shell().until("a connection", connected, COMMAND_TIMEOUT));
    ok(backend.kill());
    ok(backend.restart());
    let end = Instant::now() + COMMAND_TIMEOUT;
    loop {
        let status = ok(host.run("pvnet status --json", COMMAND_TIMEOUT));
        let parsed: serde_json::Value = serde_json::from_str(&status).expect("JSON");
        let ports = parsed["ports"].as_array().expect("ports");
        let port = ports.iter().find(|port| port["name"] == "guest");
        if port.and_then(|port| port["ingress"]["bytes"].as_u64()) > Some(CARRIED) {
            assert_eq!(port.expect("a port")["state"], "up", "{status}");
            break;
        }
        assert!(Instant::now() < end, "{status}");
        std::thread::sleep(Duration::from_millis(100));
    }
    ok(client.stop());
    ok(server.stop());
    ok(guest.destroy());
    ok(host.dom0().until(
        "the end of the guest",
        "! pvnet status | grep -w guest",
        COMMAND_TIMEOUT,
    ));
}
