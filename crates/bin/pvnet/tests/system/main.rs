//! The whole program as users run it: a daemon, guests in namespaces, and the kernel's stacks at
//! both ends. Skipped with a message without the permissions.

mod attach;
mod device;
mod direct;
mod gro;
mod json;
mod live_page;
mod log_lines;
mod probes;
mod terminal;
#[allow(dead_code, reason = "other tests use the rest")]
#[path = "../testbed/mod.rs"]
mod testbed;
mod two_vifs;
mod uplink;
mod virtio_user;
mod wrappers;

use control_socket::join_socket;
use lab::{Process, TempDir};
use testbed::{
    LIMIT, PING_PAUSE, Testbed, holdings, join, pvnet, requires, settled_holdings, status_of, wait,
};

const MIB: u64 = 1 << 20;

#[test]
fn guests_reach_each_other_with_any_offloads() {
    requires!("ping");
    let mut testbed = Testbed::start(2, "workers = 1");
    let all: &[&str] = &[];
    let none: &[&str] = &["--no-tso", "--no-csum", "--no-sg"];
    let each = [all, &["--no-tso"], &["--no-tso", "--no-csum"], &["--no-tso", "--no-sg"], none];
    // The same offloads at both ends; then pvnet must do those that only one end has.
    let pairs = each.map(|flags| [flags, flags]).into_iter().chain([[all, none], [none, all]]);
    for flags in pairs {
        testbed.join(0, flags[0]);
        testbed.join(1, flags[1]);
        testbed.ping(0, 1);
        testbed.transfer(0, 1, 4 * MIB);
        let [sent, arrived] = [&testbed.port(0)["ingress"], &testbed.port(1)["egress"]];
        let batches = &testbed.port(0)["batches"];
        assert!(batches["nanoseconds"]["sum"].as_u64() > Some(0), "{flags:?}: {batches}");
        assert!(batches["ingress_frames"]["sum"].as_u64() >= sent["frames"].as_u64(), "{batches}");
        for traffic in [sent, arrived] {
            assert!(traffic["bytes"].as_u64() > Some(5 * MIB), "{flags:?}: {traffic}");
        }
        testbed.leave(0);
        testbed.leave(1);
    }
}

#[test]
fn every_io_channel_carries_with_any_interface() {
    requires!("ping");
    for (tx, rx) in [("remap", "copy"), ("header", "flip"), ("remap", "flip")] {
        for interface in ["high", "basic"] {
            let lines = format!("tx = \"{tx}\"\nrx = \"{rx}\"\ninterface = \"{interface}\"\n");
            let mut testbed = Testbed::start_with(2, "workers = 1\nmeter = true", &lines);
            testbed.join(0, &[]);
            testbed.join(1, &["--no-header-channel"]);
            testbed.ping(0, 1);
            testbed.transfer(0, 1, 4 * MIB);
            testbed.transfer(1, 0, 4 * MIB);
            let counts = &testbed.status()["meter"]["counts"];
            let count = |what: &str| counts[what].as_u64().unwrap();
            assert_eq!(count("unmaps") > 2000, tx == "remap", "{lines}{counts}");
            assert_eq!(count("transfers") > 2000, rx == "flip", "{lines}{counts}");
            assert!(count("pages_zeroed") >= count("transfers"), "{lines}{counts}");
            // A slow channel loses nothing.
            let drops = [0, 1].map(|guest| testbed.port(guest)["drops"].clone());
            assert!(drops.iter().all(|drops| drops["memory_fault"].is_null()), "{drops:?}");
        }
    }
}

#[test]
fn queues_and_workers_share_the_work() {
    requires!("ping");
    let mut testbed = Testbed::start(2, "workers = 2");
    testbed.join(0, &["--queues", "2"]);
    testbed.join(1, &["--queues", "2", "--one-event-channel"]);
    assert_eq!(testbed.status()["worker_threads"].as_array().unwrap().len(), 2);
    assert_eq!([0, 1].map(|guest| testbed.port(guest)["queues"].as_u64()), [Some(2); 2]);
    testbed.ping(0, 1);
    // Each connection is a separate flow: some use one queue and some the other.
    for _ in 0..3 {
        testbed.transfer(0, 1, 16 * MIB);
        testbed.transfer(1, 0, 16 * MIB);
    }
}

#[test]
fn a_guest_reaches_hosts_behind_an_uplink() {
    requires!("ping");
    // The daemon's namespace is the outside.
    let [outside, inside] = [(); 2].map(|()| lab::Namespace::create("pvt").unwrap());
    let folder = TempDir::new().unwrap();
    let config = folder.path().join("pvnet.toml");
    let text = format!(
        "[daemon]\ndirectory = \"{}\"\n\
         [[uplink]]\nname = \"out\"\ntap = \"out0\"\naddresses = [\"10.77.2.254/24\"]\n\
         [[guest]]\nname = \"{}\"\nmac = \"02:00:00:00:02:01\"\naddresses = [\"10.77.2.1/24\"]\n",
        folder.path().display(),
        inside.name()
    );
    std::fs::write(&config, text).unwrap();
    let mut command = outside.exec(env!("CARGO_BIN_EXE_pvnet")).unwrap();
    command.args(["run", "--config"]).arg(&config);
    let _daemon = Process::capture(command).unwrap();
    wait("the daemon's start", || folder.path().join("control.sock").exists());
    for flags in [&[][..], &["--no-tso", "--no-csum", "--no-sg"]] {
        let mut guest = join(folder.path(), inside.name(), flags);
        let [there, back] = [[10, 77, 2, 254], [10, 77, 2, 1]].map(std::net::Ipv4Addr::from);
        assert_eq!(lab::ping(&inside, there, 3, PING_PAUSE).unwrap().received, 3);
        lab::transfer_file(&inside, &outside, there, 16 * MIB, 1).unwrap();
        lab::transfer_file(&outside, &inside, back, 16 * MIB, 2).unwrap();
        assert!(guest.stop().unwrap().success(), "{}", guest.stderr());
        wait("the guest's end", || status_of(folder.path())["absent"][0].is_string());
    }
}

#[test]
fn a_guest_that_is_killed_is_freed_and_no_other_guest_is_affected() {
    requires!("ping", "iperf3");
    let mut testbed = Testbed::start(3, "workers = 1");
    let daemon = testbed.daemon.pid();
    let (red, blue, green) = (0, 1, 2);
    testbed.join(blue, &[]);
    testbed.join(green, &[]);
    testbed.ping(green, blue);
    let before = settled_holdings(daemon);
    for _ in 0..2 {
        testbed.join(red, &[]);
        testbed.ping(red, blue);
        assert_ne!(holdings(daemon), before, "a guest costs something");
        let _traffic = endless_traffic(&testbed, red, blue, "0");
        let carried = || testbed.port(red)["ingress"]["bytes"].as_u64();
        wait("the transfer", || carried() > Some(32 * MIB));
        testbed.kill(red);

        testbed.ping(green, blue);
        testbed.transfer(green, blue, 16 * MIB);
        wait("the end of what the guest held", || holdings(daemon) == before);
    }
}

/// A transfer that runs until it is dropped, with this many bits a second, or with all that go (`0`).
fn endless_traffic(testbed: &Testbed, from: usize, to: usize, rate: &str) -> [Process; 2] {
    let (from, to) = (&testbed.guests[from], &testbed.guests[to]);
    let address = to.ipv4.to_string();
    let mut server = to.namespace.exec("iperf3").unwrap();
    server.args(["--server", "--forceflush", "--bind", &address]);
    let server = Process::capture(server).unwrap();
    wait("the server's start", || server.stdout().contains("Server listening"));
    let mut client = from.namespace.exec("iperf3").unwrap();
    client.args(["--client", &address, "--time", "600", "--bitrate", rate]);
    [Process::capture(client).unwrap(), server]
}

#[test]
fn nothing_stays_behind_a_daemon_and_its_guests() {
    requires!("ping");
    let mut testbed = Testbed::start(1, "workers = 1");
    testbed.join(0, &[]);
    // A guest whose namespace does not exist creates it, and removes it.
    let mut own = Testbed::start(1, "workers = 1");
    let path = own.guests[0].namespace.path();
    own.guests[0].namespace.delete().unwrap();
    own.join(0, &[]);
    assert!(path.exists());
    own.leave(0);
    assert!(!path.exists(), "the guest made it");

    let folder = testbed.folder().to_owned();
    assert!(testbed.daemon.stop().unwrap().success(), "{}", testbed.daemon.stderr());
    let mut left: Vec<_> =
        std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name()).collect();
    left.sort();
    // The record of the ports that were up is for the next daemon.
    assert_eq!(left, ["ports", "pvnet.toml"]);
    // Its guest ends without a signal, and its tap with it.
    let guest = &mut testbed.guests[0];
    let namespace = &guest.namespace;
    wait("the tap's end", || !namespace.ip(&["link", "show"]).unwrap().contains("eth0"));
    assert!(guest.wait().success());
}

#[test]
fn a_wrong_configuration_is_refused_with_the_line() {
    let folder = TempDir::new().unwrap();
    let config = folder.path().join("wrong.toml");
    std::fs::write(&config, "[daemon]\npoll_us = 5\nworkres = 2\n").unwrap();
    let mut command = pvnet();
    command.arg("run").arg("--config").arg(&config);
    let mut process = Process::capture(command).unwrap();
    assert_eq!(process.wait(LIMIT).unwrap().code(), Some(2));
    let message = process.stderr();
    for part in ["wrong.toml", "line 3", "workres"] {
        assert!(message.contains(part), "{message}");
    }
}

#[test]
fn an_unknown_guest_gets_the_list_of_names() {
    requires!();
    let testbed = Testbed::start(1, "workers = 1");
    let mut command = testbed.command("guest");
    command.arg("mallory");
    let mut process = Process::capture(command).unwrap();
    assert_eq!(process.wait(LIMIT).unwrap().code(), Some(1));
    let message = process.stderr();
    let known = testbed.guests[0].namespace.name();
    assert!(message.contains("mallory") && message.contains(known), "{message}");

    let nowhere = TempDir::new().unwrap();
    let mut command = pvnet();
    command.arg("status").arg("--directory").arg(nowhere.path());
    let message = lab::run(command, LIMIT).unwrap_err().to_string();
    assert!(message.contains("no daemon") && message.contains("pvnet run"), "{message}");
}

#[test]
fn status_shows_ports_and_addresses() {
    requires!("ping");
    let mut testbed = Testbed::start(2, "workers = 1\nmeter = true");
    assert_eq!(testbed.status()["absent"].as_array().unwrap().len(), 2);
    testbed.join(0, &[]);
    testbed.join(1, &[]);
    testbed.ping(0, 1);
    let status = testbed.status();
    assert_eq!(status["pid"], testbed.daemon.pid());
    assert_eq!(status["absent"].as_array().unwrap().len(), 0);
    assert!(status["meter"]["counts"]["copies"].as_u64() > Some(0), "{status}");
    let macs: Vec<_> = status["addresses"].as_array().unwrap().iter().map(|a| &a["mac"]).collect();
    for guest in [0, 1] {
        let port = testbed.port(guest);
        assert_eq!((&port["kind"], &port["state"]), (&"guest".into(), &"up".into()), "{port}");
        assert!(macs.contains(&&port["mac"]), "{status}");
    }
    let table = lab::run(testbed.command("status"), LIMIT).unwrap();
    assert!(table.contains(testbed.guests[0].namespace.name()), "{table}");
}

/// Whether the kernel has less than 512 MiB in free blocks of 2 MiB: then it may give smaller pages,
/// and takes its time to make larger ones.
fn few_large_pages_are_free() -> bool {
    let text = std::fs::read_to_string("/proc/buddyinfo").unwrap();
    // After the node and the zone: the free blocks of each order, of which 9 is 2 MiB.
    let blocks = |line: &str| -> usize {
        let counts = line.split_whitespace().skip(4).map(|count| count.parse().unwrap_or(0));
        counts.enumerate().skip(9).map(|(order, count): (_, usize)| count << (order - 9)).sum()
    };
    text.lines().map(blocks).sum::<usize>() < 256
}

#[test]
fn a_guest_gives_memory_back_and_takes_it_again() {
    requires!("ping");
    // In its sandbox the daemon does not know what the guest has mapped.
    let daemon = "workers = 1\nsandbox = \"off\"";
    let mut testbed = Testbed::start_with(2, daemon, "huge_pages = true\nballoon = true\n");
    testbed.join(0, &[]);
    testbed.join(1, &[]);
    let name = testbed.guests[0].namespace.name().to_owned();
    let balloon = |name: &str, mib: &str| {
        let mut command = testbed.command("balloon");
        command.args([name, mib]);
        lab::run(command, LIMIT).map_err(|error| error.to_string())
    };
    let mib = |value: &serde_json::Value| value.as_u64().unwrap() / MIB;
    let memory = || {
        let memory = &testbed.port(0)["memory"];
        let view = |whose: &str| [mib(&memory[whose]["large"]), mib(&memory[whose]["total"])];
        (mib(&memory["reservation"]), view("daemon"), view("guest"))
    };
    let large = memory().1[0] > 0;
    if !large {
        eprintln!("only the amount is checked: this kernel has no 2 MiB pages to give");
    }
    // By blocks, by less than a block, and back.
    for (target, in_large) in [("64", 64), ("48", 48), ("47", 46), ("64", 64)] {
        assert!(balloon(&name, target).unwrap().contains(&format!("has {target} MiB")));
        let target = target.parse().unwrap();
        let view = [if large { in_large } else { 0 }, target];
        wait("the large mappings", || {
            let (amount, daemon, guest) = memory();
            let as_large = daemon == view && guest == view || few_large_pages_are_free();
            amount == target && daemon[1] == target && guest[1] == target && as_large
        });
    }
    let table = lab::run(testbed.command("status"), LIMIT).unwrap();
    assert!(table.contains("2 MiB pages map") && table.contains("of its 64 MiB"), "{table}");
    testbed.transfer(0, 1, 16 * MIB);

    for (name, mib, part) in [
        (&*name, "1", "not enough free memory"),
        (&name, "65", "memory_mib"),
        (&name, "0", "not 1 to the 64 MiB"),
        ("mallory", "10", "pvnet status"),
    ] {
        let why = balloon(name, mib).unwrap_err();
        assert!(why.contains(part), "{why}");
    }
    // The guest gave up what it could, and works with the rest.
    assert!(memory().0 < 32);
    testbed.transfer(0, 1, 4 * MIB);
    let name = testbed.guests[0].namespace.name().to_owned();
    testbed.leave(0);
    let mut command = testbed.command("balloon");
    command.args([&name, "10"]);
    let why = lab::run(command, LIMIT).unwrap_err().to_string();
    assert!(why.contains("is not running"), "{why}");
}

#[test]
fn top_meters_for_as_long_as_it_runs() {
    requires!("ping", "iperf3");
    let mut testbed = Testbed::start(2, "workers = 1");
    testbed.join(0, &[]);
    testbed.join(1, &[]);
    let metered = || testbed.status()["meter"]["on"] == true;
    assert!(!metered());
    let _traffic = endless_traffic(&testbed, 0, 1, "100M");
    let top = |flags: &[&str]| {
        let mut command = testbed.command("top");
        command.args(["--interval", "1"]).args(flags);
        command
    };
    // An endless `top` must not lose the meter when another one ends, nor leave it on.
    let mut endless = Process::capture(top(&[])).unwrap();
    wait("the first block", || endless.stdout().contains("/packet"));
    let text = lab::run(top(&["--count", "2", "--json"]), LIMIT).unwrap();
    assert!(metered());
    let seen: Vec<serde_json::Value> =
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(seen.len(), 2, "{text}");
    for rates in &seen {
        assert!(rates["per_second"]["copies"].as_f64() > Some(0.0), "{rates}");
        assert!(rates["per_packet"]["copied_bytes"].as_f64() > Some(0.0), "{rates}");
        assert!(rates["cpus"]["hypervisor"].as_f64() > Some(0.0), "{rates}");
        assert!(rates["ports"][0]["ingress"]["bits_per_second"].as_f64() > Some(0.0), "{rates}");
    }
    assert!(endless.ended().unwrap().is_none(), "{}", endless.stderr());
    let pid = rustix::process::Pid::from_raw(endless.pid().cast_signed()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    wait("the end of the metering", || !metered());

    let mut endless = Process::capture(top(&[])).unwrap();
    wait("the meter", metered);
    assert!(endless.stop().unwrap().success(), "{}", endless.stderr());
    wait("the end of the metering", || !metered());

    let mut orphan = Process::capture(top(&["--json"])).unwrap();
    wait("the first line", || orphan.stdout().contains('\n'));
    testbed.daemon.stop().unwrap();
    assert_eq!(orphan.wait(LIMIT).unwrap().code(), Some(1));
    assert!(orphan.stderr().contains("has gone"), "{}", orphan.stderr());
    // Nor does its connection keep what the daemon cleans up.
    assert!(!join_socket(testbed.folder()).exists());
}

#[test]
fn tshark_finds_every_segments_checksum_correct() {
    requires!("tshark");
    let mut testbed = Testbed::start(2, "workers = 1");
    // pvnet must segment and checksum for the second guest what the first sends as one frame.
    testbed.join(0, &[]);
    testbed.join(1, &["--no-tso", "--no-csum"]);
    let capture = testbed.folder().join("segments.pcapng");
    let mut tshark = testbed.guests[1].namespace.exec("tshark").unwrap();
    // Room for the whole transfer, however late the capture gets its turn.
    tshark.args(["-q", "-B", "64", "-i", "eth0", "-f", "tcp", "-w"]).arg(&capture);
    let mut tshark = Process::capture(tshark).unwrap();
    wait("the start of the capture", || {
        assert!(tshark.ended().unwrap().is_none(), "{}", tshark.stderr());
        tshark.stderr().contains("Capturing on") && capture.exists()
    });
    testbed.transfer(0, 1, 4 * MIB);
    // Ended too soon, it would leave out what the kernel still holds.
    wait("the end of the capture", || capture.metadata().unwrap().len() > 5 * MIB);
    tshark.stop().unwrap();

    let list = |filter: &str| {
        let mut tshark = lab::command("tshark").unwrap();
        tshark.args(["-o", "tcp.check_checksum:TRUE", "-o", "ip.check_checksum:TRUE"]);
        tshark.arg("-r").arg(&capture).args(["-Y", filter]);
        lab::run(tshark, LIMIT).unwrap()
    };
    let count = |filter: &str| list(filter).lines().count();
    let full_sized = [("ip", 4 * MIB / 1448), ("ipv6", MIB / 1428)];
    for (version, segments) in full_sized {
        let seen = count(&format!("{version} && tcp.len > 1400"));
        assert!(seen as u64 > segments / 2, "{seen} segments of {version}");
    }
    assert_eq!(count("frame.len > 1514"), 0);
    // pvnet computes the checksums of all that the first sends. The second's own frames are not judged:
    // its kernel stores a sum of 0 as 0xffff for TCP too (`CSUM_MANGLED_0`), one in 65,536, and
    // tshark calls that bad.
    let sent = format!("eth.src == {}", testbed.guests[0].mac);
    let bad = "(tcp.checksum.status == \"Bad\" || ip.checksum.status == \"Bad\")";
    assert_eq!(list(&format!("{sent} && {bad}")), "");
    // The filter would find one.
    assert!(count(&format!("{sent} && tcp.checksum.status == \"Good\"")) > 1000);
}
