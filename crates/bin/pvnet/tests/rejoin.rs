//! Process guests that outlive their daemon: their connections go on with the next one.

#[allow(dead_code, reason = "other tests use the rest")]
mod testbed;

use std::time::Duration;

use lab::{Namespace, OutageProbe, Process};
use testbed::{LIMIT, Testbed, requires, wait};

/// Bytes that take longer than a restart, and fewer than a late one leaves time for.
const BYTES: u64 = 256 << 20;

/// Whether all ports of the daemon are up.
fn is_up(testbed: &Testbed) -> bool {
    let mut command = testbed.command("status");
    command.arg("--json");
    let Ok(text) = lab::run(command, LIMIT) else { return false };
    let status: serde_json::Value = serde_json::from_str(&text).unwrap();
    let ports = status["ports"].as_array().unwrap();
    ports.len() == testbed.guests.len() && ports.iter().all(|port| port["state"] == "up")
}

fn restart(testbed: &mut Testbed) {
    testbed.restart();
    wait("the guests' return", || is_up(testbed));
}

#[test]
fn a_connection_outlives_a_daemon_that_is_killed_or_stopped() {
    requires!("ping");
    let mut testbed = Testbed::start(2, "workers = 1");
    for guest in 0..2 {
        testbed.join(guest, &["--rejoin", "30"]);
    }
    for ending in [Process::kill, Process::stop] {
        let names = [0, 1].map(|guest: usize| testbed.guests[guest].namespace.name().to_owned());
        let address = testbed.guests[1].ipv4;
        let transfer = std::thread::spawn(move || {
            let [from, to] = names.map(|name| Namespace::open(&name).unwrap());
            lab::transfer_file(&from, &to, address, BYTES, 7)
        });
        let carried = |testbed: &Testbed| testbed.port(0)["ingress"]["bytes"].as_u64().unwrap();
        let before = carried(&testbed);
        wait("the transfer's beginning", || carried(&testbed) > before + (4 << 20));
        assert!(!transfer.is_finished());
        ending(&mut testbed.daemon).unwrap();
        std::thread::sleep(Duration::from_millis(50));
        restart(&mut testbed);
        transfer.join().unwrap().expect("the same bytes");
        testbed.ping(1, 0);
    }
    // A signal ends a guest that waits for a daemon.
    testbed.daemon.kill().unwrap();
    for guest in &mut testbed.guests {
        guest.stop_waiting();
    }
}

/// Frames wait: in the stack and in the rings that the last daemon has left, and under the next one until all guests are back.
#[test]
fn no_frame_is_lost_when_the_daemon_is_stopped_and_started() {
    const ROUNDS: usize = 3;
    requires!();
    let mut testbed = Testbed::start(2, "workers = 1");
    for guest in 0..2 {
        testbed.join(guest, &["--rejoin", "30"]);
    }
    let mut outages = Vec::new();
    // The next daemon waits for its guests for less than TCP would; those of a busy machine may need longer, once or twice.
    let good = |outages: &[u64]| outages.iter().filter(|lost| **lost == 0).count();
    while outages.len() < ROUNDS + 2 && good(&outages) < ROUNDS {
        let [from, to] = [0, 1].map(|guest| &testbed.guests[guest]);
        let interval = Duration::from_millis(2);
        let probe =
            OutageProbe::datagrams(&from.namespace, &to.namespace, to.ipv4, interval).unwrap();
        wait("the first datagrams", || probe.bytes() > 10_000);
        testbed.daemon.stop().unwrap();
        restart(&mut testbed);
        let before = probe.bytes();
        wait("more datagrams", || probe.bytes() > before + 10_000);
        outages.push(probe.finish().unwrap().lost);
    }
    assert_eq!(good(&outages), ROUNDS, "lost {outages:?}");
}

/// It may be killed at any step of a guest's return, and the guest waits for the next one.
#[test]
fn a_guest_survives_daemons_that_are_killed_while_it_joins_them() {
    requires!("ping");
    let mut testbed = Testbed::start(2, "workers = 1");
    for guest in 0..2 {
        testbed.join(guest, &["--rejoin", "30"]);
    }
    for delay in (0..30).step_by(3) {
        testbed.daemon.kill().unwrap();
        testbed.restart();
        std::thread::sleep(Duration::from_millis(delay));
    }
    wait("the guests' return", || is_up(&testbed));
    testbed.ping(1, 0);
}

#[test]
fn without_the_option_a_guest_ends_with_its_daemon() {
    requires!("ping");
    let mut testbed = Testbed::start(1, "workers = 1");
    testbed.join(0, &[]);
    testbed.daemon.kill().unwrap();
    testbed.guests[0].wait();
}
