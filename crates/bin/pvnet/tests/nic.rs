//! Cards with contexts as users run them: a daemon, `pvnet nic`, and guests whose only interface is a context. Skipped with a
//! message without the permissions.

#[allow(dead_code, reason = "other tests use the rest")]
mod testbed;

use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use lab::{Namespace, Process, TempDir};
use machine::MachineGuest;
use nic_session::channel::GuestEnd;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use testbed::{
    LIMIT, PING_PAUSE, Testbed, holdings, pvnet, requires, settled_holdings, started, wait,
};

const MIB: u64 = 1 << 20;
/// The address of the stack at the other end of the wire.
const PEER: Ipv4Addr = Ipv4Addr::new(10, 77, 1, 200);

/// A daemon with a card, and a host behind the card's wire.
struct Bed {
    // Dropped in this order: the card before its daemon.
    card: Option<Process>,
    testbed: Testbed,
    peer: Namespace,
}

impl Bed {
    /// Starts a daemon and its card, with these lines in its `[[nic]]`. No guest joins yet.
    fn start(guests: u8, nic: &str) -> Self {
        Self::start_each(guests, nic, |_| "nic = \"card0\"\n")
    }

    /// As [`start`](Self::start), with lines in each `[[guest]]` by its number.
    fn start_each(guests: u8, nic: &str, lines: impl Fn(usize) -> &'static str) -> Self {
        let peer = Namespace::create("pvw").unwrap();
        let wire = format!(
            "wire = {{ tap = \"w0\", namespace = \"{}\", addresses = [\"{PEER}/24\"] }}",
            peer.name()
        );
        let tables = format!("workers = 1\n[[nic]]\nname = \"card0\"\n{wire}\n{nic}\n");
        let testbed = Testbed::start_each(guests, &tables, lines);
        let mut this = Self { card: None, testbed, peer };
        this.start_card();
        this
    }

    fn start_card(&mut self) {
        let mut command = self.testbed.command("nic");
        command.arg("card0");
        self.card = Some(started(command));
    }

    fn kill_card(&mut self) {
        let mut card = self.card.take().unwrap();
        kill_process(Pid::from_raw(card.pid().cast_signed()).unwrap(), Signal::KILL).unwrap();
        card.wait(LIMIT).unwrap();
    }

    /// The status of the card.
    fn nic(&self) -> Value {
        self.testbed.status()["nics"][0].clone()
    }

    /// The status of a guest's context.
    fn context(&self, guest: usize) -> Value {
        self.nic()["contexts"][guest].clone()
    }

    fn wait_state(&self, guest: usize, state: &str) {
        wait(&format!("a context that is {state}"), || self.context(guest)["state"] == state);
    }

    fn ping_peer(&self, guest: usize) {
        let ping = lab::ping(&self.testbed.guests[guest].namespace, PEER, 3, PING_PAUSE).unwrap();
        assert_eq!((ping.sent, ping.received), (3, 3), "{}", self.nic());
    }

    /// Sends bytes from a guest to the host behind the wire, and back.
    fn transfer_peer(&self, guest: usize, bytes: u64) {
        let guest = &self.testbed.guests[guest];
        lab::transfer_file(&guest.namespace, &self.peer, PEER, bytes, 3).unwrap();
        lab::transfer_file(&self.peer, &guest.namespace, guest.ipv4, bytes, 4).unwrap();
    }

    /// This process as a guest, and its channel about contexts.
    fn hostile(&self, guest: usize) -> ((MachineGuest, OwnedFd), GuestEnd) {
        let socket = self.testbed.folder().join("machine.sock");
        let name = self.testbed.guests[guest].namespace.name();
        let joined = machine::join(&socket, name).unwrap();
        let channel = GuestEnd::new(joined.0.open_contexts().unwrap());
        (joined, channel)
    }

    fn has_carrier(&self, guest: usize) -> bool {
        let shown = self.testbed.guests[guest].namespace.ip(&["link", "show", "eth0"]).unwrap();
        !shown.contains("NO-CARRIER")
    }
}

#[test]
fn every_protection_carries_between_guests_and_to_the_wire() {
    requires!("ping");
    for (protection, name) in [
        ("\"none\"", "none"),
        ("\"hypervisor\"", "hypervisor"),
        ("{ iommu = \"static\" }", "iommu-static"),
        ("{ iommu = \"strict\", cache_entries = 16 }", "iommu-strict"),
        ("{ iommu = \"deferred\" }", "iommu-deferred"),
    ] {
        for tso in [false, true] {
            let mut bed = Bed::start(2, &format!("protection = {protection}\ntso = {tso}"));
            bed.testbed.join(0, &[]);
            bed.testbed.join(1, &["--no-csum", "--no-tso"]);
            bed.testbed.ping(0, 1);
            bed.testbed.transfer(0, 1, 2 * MIB);
            bed.testbed.transfer(1, 0, 2 * MIB);
            bed.ping_peer(0);
            bed.transfer_peer(0, 2 * MIB);
            // A busy card's answer may be late, and missing from one status.
            wait("the card's counts", || {
                let nic = bed.nic();
                let mut contexts = nic["contexts"].as_array().unwrap().iter();
                contexts.all(|context| context["tx"]["bytes"].as_u64() > Some(2 * MIB))
            });
            let nic = bed.nic();
            assert_eq!((&nic["state"], &nic["faults"]), (&"up".into(), &0.into()), "{nic}");
            for context in nic["contexts"].as_array().unwrap() {
                assert_eq!(
                    (&context["state"], &context["protection"]),
                    (&"up".into(), &name.into())
                );
                let count = |what: &str| context[what].as_u64().unwrap();
                assert!(context["tx"]["bytes"].as_u64() > Some(2 * MIB), "{context}");
                assert!(count("interrupts") > 0 && count("events") > 0, "{context}");
                let is_each = name == "iommu-strict" || name == "iommu-deferred";
                assert_eq!(count("calls") > 0, name == "hypervisor" || is_each, "{context}");
                assert_eq!(count("descriptors") > 0, name == "hypervisor", "{context}");
                assert_eq!(count("mapped") > 0, is_each, "{context}");
                assert_eq!(count("references") > 0, name != "none", "{context}");
                assert_eq!(count("refused"), 0, "{context}");
            }
            bed.testbed.leave(0);
            bed.wait_state(0, "free");
            // Deferred unmappings end a moment later.
            wait("the end of all references", || bed.context(0)["references"] == 0);
        }
    }
}

#[test]
fn guests_lose_their_links_with_the_card_and_get_them_back_with_the_next() {
    requires!("ping");
    for protection in ["\"hypervisor\"", "{ iommu = \"strict\" }"] {
        let mut bed = Bed::start(2, &format!("protection = {protection}"));
        bed.testbed.join(0, &[]);
        bed.testbed.join(1, &[]);
        bed.testbed.ping(0, 1);
        assert!(bed.has_carrier(0) && bed.has_carrier(1));
        for killed in [true, false] {
            let held = settled_holdings(bed.testbed.daemon.pid());
            if killed {
                bed.kill_card();
            } else {
                let mut card = bed.card.take().unwrap();
                assert!(card.stop().unwrap().success(), "{}", card.stderr());
            }
            wait("the links' end", || !bed.has_carrier(0) && !bed.has_carrier(1));
            bed.wait_state(0, "down");
            let nic = bed.nic();
            assert_eq!(nic["state"], "down", "{nic}");
            assert_eq!(nic["contexts"][0]["references"], 0, "{nic}");
            bed.start_card();
            wait("the links' return", || bed.has_carrier(0) && bed.has_carrier(1));
            bed.testbed.ping(0, 1);
            bed.testbed.transfer(0, 1, 4 * MIB);
            bed.ping_peer(1);
            wait("the end of what the first card held", || {
                holdings(bed.testbed.daemon.pid()) == held
            });
        }
        // A card that comes after its guests, and guests that come before their card.
        bed.kill_card();
        bed.testbed.leave(0);
        bed.testbed.join(0, &[]);
        bed.start_card();
        wait("the links' return", || bed.has_carrier(0) && bed.has_carrier(1));
        bed.testbed.ping(0, 1);
    }
}

#[test]
fn a_guest_that_is_killed_under_load_leaves_nothing_behind() {
    requires!("ping", "iperf3");
    let protections =
        ["\"none\"", "\"hypervisor\"", "{ iommu = \"static\" }", "{ iommu = \"deferred\" }"];
    for protection in protections {
        let mut bed = Bed::start(3, &format!("protection = {protection}"));
        let (daemon, card) = (bed.testbed.daemon.pid(), bed.card.as_ref().unwrap().pid());
        bed.testbed.join(1, &[]);
        bed.testbed.join(2, &[]);
        bed.testbed.ping(1, 2);
        let before = [daemon, card].map(settled_holdings);
        bed.testbed.join(0, &[]);
        bed.testbed.ping(0, 1);
        let address = bed.testbed.guests[1].ipv4.to_string();
        let mut server = bed.testbed.guests[1].namespace.exec("iperf3").unwrap();
        server.args(["--server", "--forceflush", "--bind", &address]);
        let server = Process::capture(server).unwrap();
        wait("the server's start", || server.stdout().contains("Server listening"));
        let mut client = bed.testbed.guests[0].namespace.exec("iperf3").unwrap();
        client.args(["--client", &address, "--bidir", "--time", "600"]);
        let _client = Process::capture(client).unwrap();
        wait("the transfer", || bed.context(0)["tx"]["bytes"].as_u64() > Some(16 * MIB));
        bed.testbed.kill(0);
        bed.wait_state(0, "free");
        assert_eq!(bed.context(0)["references"], 0);
        bed.testbed.ping(1, 2);
        bed.testbed.transfer(1, 2, 4 * MIB);
        wait("the end of what the guest held", || [daemon, card].map(holdings) == before);
    }
}

#[test]
fn a_context_that_is_revoked_is_down_until_its_guest_starts_again() {
    requires!("ping");
    let mut bed = Bed::start(2, "");
    let red = bed.testbed.guests[0].namespace.name().to_owned();
    let revoke = |bed: &Bed, card: &str, guest: &str| {
        let mut command = bed.testbed.command("revoke");
        command.args([card, guest]);
        lab::run(command, LIMIT).map_err(|error| error.to_string())
    };
    bed.testbed.join(1, &[]);
    let why = revoke(&bed, "card0", &red).unwrap_err();
    assert!(why.contains("is not running"), "{why}");
    let why = revoke(&bed, "card9", &red).unwrap_err();
    assert!(why.contains("there are: card0"), "{why}");
    bed.testbed.join(0, &[]);
    bed.testbed.ping(0, 1);
    assert!(revoke(&bed, "card0", &red).unwrap().contains("until it starts again"));
    wait("the link's end", || !bed.has_carrier(0));
    let context = bed.context(0);
    assert_eq!((&context["state"], &context["references"]), (&"revoked".into(), &0.into()));
    assert_eq!(context["reason"], "taken away");
    bed.ping_peer(1);
    let table = lab::run(bed.testbed.command("status"), LIMIT).unwrap();
    assert!(table.contains("card card0: up") && table.contains("revoked"), "{table}");
    bed.testbed.leave(0);
    bed.testbed.join(0, &[]);
    bed.testbed.ping(0, 1);
}

#[test]
fn a_card_that_does_not_answer_is_not_waited_for_long() {
    requires!("ping");
    let mut bed = Bed::start(1, "");
    bed.testbed.join(0, &[]);
    bed.ping_peer(0);
    let card = Pid::from_raw(bed.card.as_ref().unwrap().pid().cast_signed()).unwrap();
    kill_process(card, Signal::STOP).unwrap();
    let mut command = bed.testbed.command("revoke");
    command.args(["card0", bed.testbed.guests[0].namespace.name()]);
    let begin = Instant::now();
    let why = lab::run(command, LIMIT).unwrap_err().to_string();
    let (took, limit) = (begin.elapsed(), Duration::from_secs(2));
    assert!(why.contains("does not answer"), "{why}");
    assert!((limit..4 * limit).contains(&took), "{took:?}");
    kill_process(card, Signal::CONT).unwrap();
    bed.wait_state(0, "revoked");
}

#[test]
fn the_error_of_a_card_that_cannot_start_names_the_next_step() {
    requires!();
    let run = |mut command: std::process::Command, name: &str| {
        command.arg(name);
        let mut process = Process::capture(command).unwrap();
        assert_eq!(process.wait(LIMIT).unwrap().code(), Some(1));
        process.stderr()
    };
    let nowhere = TempDir::new().unwrap();
    let mut command = pvnet();
    command.arg("nic").arg("--directory").arg(nowhere.path());
    let message = run(command, "card0");
    assert!(message.contains("no daemon") && message.contains("[[nic]]"), "{message}");
    let bed = Bed::start(1, "");
    let message = run(bed.testbed.command("nic"), "card1");
    assert!(message.contains("card1") && message.contains("there are: card0"), "{message}");
    let message = run(bed.testbed.command("nic"), "card0");
    let own = bed.card.as_ref().unwrap().pid().to_string();
    assert!(message.contains("already") && message.contains(&own), "{message}");
}

#[test]
fn a_vif_and_contexts_are_interfaces_of_one_guest() {
    requires!("ping");
    let context = "[[guest.context]]\nnic = \"card0\"\nmac = \"02:00:00:00:09:01\"\n\
                   addresses = [\"10.77.9.1/24\"]\n";
    let mut bed = Bed::start_each(2, "", |guest| if guest == 0 { context } else { "" });
    bed.peer.ip(&["addr", "add", "10.77.9.200/24", "dev", "w0"]).unwrap();
    bed.testbed.join(0, &[]);
    bed.testbed.join(1, &[]);
    bed.testbed.ping(0, 1);
    let there = Ipv4Addr::new(10, 77, 9, 200);
    let ping = lab::ping(&bed.testbed.guests[0].namespace, there, 3, PING_PAUSE).unwrap();
    assert_eq!(ping.received, 3);
}

#[test]
fn a_guest_without_a_vif_has_a_balloon_and_keeps_what_its_card_uses() {
    requires!("ping");
    for protection in ["\"hypervisor\"", "{ iommu = \"strict\" }"] {
        let lines = |_| "nic = \"card0\"\nmemory_mib = 64\nballoon = true\n";
        let mut bed = Bed::start_each(2, &format!("protection = {protection}"), lines);
        bed.testbed.join(0, &[]);
        bed.testbed.join(1, &[]);
        let name = bed.testbed.guests[0].namespace.name().to_owned();
        let balloon = |bed: &Bed, mib: &str| {
            let mut command = bed.testbed.command("balloon");
            command.args([&name, mib]);
            lab::run(command, LIMIT).map_err(|error| error.to_string())
        };
        let reservation = |bed: &Bed| bed.context(0)["memory"]["reservation"].as_u64().unwrap();
        assert_eq!(reservation(&bed), 64 * MIB);
        let works = |bed: &Bed| {
            bed.testbed.ping(0, 1);
            bed.testbed.transfer(0, 1, 4 * MIB);
            bed.testbed.transfer(1, 0, 4 * MIB);
            assert!(bed.context(0)["references"].as_u64() > Some(0));
        };
        assert!(balloon(&bed, "32").unwrap().contains("has 32 MiB"));
        assert_eq!(reservation(&bed), 32 * MIB);
        works(&bed);
        // Less than its buffers.
        let why = balloon(&bed, "1").unwrap_err();
        assert!(why.contains("not enough free memory"), "{why}");
        assert!(reservation(&bed) >= 4 * MIB);
        works(&bed);
        assert!(balloon(&bed, "64").unwrap().contains("has 64 MiB"));
        works(&bed);
    }
}

/// As in SPECIFICATION.md.
const REQUESTS: u32 = 1024;
const REQUESTS_PER_SECOND: f64 = 100.0;
const ASSIGNMENTS: u32 = 32;
const ASSIGNMENTS_PER_SECOND: f64 = 2.0;

#[test]
fn a_guest_that_asks_for_its_context_without_end_is_answered_at_a_pace() {
    requires!();
    let bed = Bed::start(1, "");
    let (_guest, channel) = bed.hostile(0);
    let (start, times) = (Instant::now(), REQUESTS + 50);
    for _ in 0..times {
        channel.close(0).unwrap();
    }
    let earned = start.elapsed().as_secs_f64() * REQUESTS_PER_SECOND;
    assert!(earned >= 49.0, "{times} requests in the time of {earned}");
}

/// Each time the daemon makes files and the card maps them, which serves others meanwhile.
#[test]
fn a_guest_that_opens_and_closes_its_context_without_end_does_so_at_a_pace() {
    requires!("ping");
    for protection in ["\"hypervisor\"", "{ iommu = \"static\" }"] {
        let mut bed = Bed::start(3, &format!("protection = {protection}"));
        bed.testbed.join(0, &[]);
        bed.testbed.join(1, &[]);
        let (_guest, channel) = bed.hostile(2);
        let (start, times) = (Instant::now(), ASSIGNMENTS + 4);
        for _ in 0..times {
            let opened = channel.open(0).unwrap();
            while channel.assignment(0, opened.opened.protection).unwrap().is_none() {}
            channel.close(0).unwrap();
        }
        let earned = start.elapsed().as_secs_f64() * ASSIGNMENTS_PER_SECOND;
        assert!(earned >= 3.0, "{times} assignments in the time of {earned}");
        bed.testbed.ping(0, 1);
    }
}

#[test]
fn a_guest_ends_with_its_daemon() {
    requires!();
    let mut bed = Bed::start(1, "");
    bed.testbed.join(0, &[]);
    let daemon = Pid::from_raw(bed.testbed.daemon.pid().cast_signed()).unwrap();
    kill_process(daemon, Signal::KILL).unwrap();
    bed.testbed.guests[0].wait();
}

#[test]
fn guests_on_netback_reach_the_card_through_the_driver_domains_context() {
    requires!("ping");
    for protection in ["\"none\"", "{ iommu = \"deferred\" }"] {
        reach_the_card_through_the_driver_domain(protection);
    }
}

fn reach_the_card_through_the_driver_domain(protection: &str) {
    let uplink = format!(
        "[[uplink]]\nname = \"out\"\nkind = \"cdna\"\nnic = \"card0\"\n\
         mac = \"02:00:00:00:09:02\"\nprotection = {protection}\n"
    );
    let lines = |guest| if guest == 1 { "nic = \"card0\"\n" } else { "" };
    let mut bed = Bed::start_each(3, &uplink, lines);
    let uplink = |bed: &Bed| bed.testbed.named("out").unwrap();
    (0..3).for_each(|guest| bed.testbed.join(guest, &[]));
    for round in 0..2 {
        wait("the uplink", || uplink(&bed)["state"] == "up");
        // The first two guests meet on the card, the last two in the switch.
        bed.testbed.ping(0, 1);
        bed.testbed.ping(1, 0);
        bed.testbed.ping(0, 2);
        bed.testbed.transfer(0, 1, 2 * MIB);
        bed.testbed.transfer(1, 2, 2 * MIB);
        bed.ping_peer(0);
        bed.transfer_peer(2, 2 * MIB);
        if round == 0 {
            bed.kill_card();
            wait("the uplink's end", || uplink(&bed)["reason"]["code"] == "no_card");
            bed.testbed.ping(0, 2);
            bed.start_card();
            wait("the link's return", || bed.has_carrier(1));
        }
    }
}
