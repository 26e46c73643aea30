//! A guest and a namespace behind an uplink: which offloads are left to the device.

use std::net::Ipv4Addr;

use lab::{Namespace, Process, TempDir};
use serde_json::Value;

use crate::MIB;
use crate::testbed::{LIMIT, PING_PAUSE, join, port_of, pvnet, requires, status_of, wait};

/// The frames that crossed the tap in one direction, as tshark reads them.
struct Captured {
    longest: u64,
    /// Frames with a checksum that is not (yet) right.
    unfinished: usize,
    finished: usize,
}

/// A daemon with one guest, and an uplink whose tap is in another namespace.
struct UplinkTestbed {
    outside: Namespace,
    inside: Namespace,
    /// Another guest.
    second: Option<(Namespace, Ipv4Addr)>,
    folder: TempDir,
}

const INSIDE_MAC: &str = "02:00:00:00:03:01";
const OUTSIDE: Ipv4Addr = Ipv4Addr::new(10, 77, 3, 254);
const INSIDE: Ipv4Addr = Ipv4Addr::new(10, 77, 3, 1);

impl UplinkTestbed {
    fn new() -> Self {
        let [outside, inside] = [(); 2].map(|()| Namespace::create("pvt").unwrap());
        let folder = TempDir::new().unwrap();
        let text = format!(
            "[daemon]\ndirectory = \"{}\"\nmeter = true\n\
             [[uplink]]\nname = \"out\"\ntap = \"out0\"\naddresses = [\"{OUTSIDE}/24\"]\n\
             namespace = \"{}\"\n\
             [[guest]]\nname = \"{}\"\nmac = \"{INSIDE_MAC}\"\naddresses = [\"{INSIDE}/24\"]\n",
            folder.path().display(),
            outside.name(),
            inside.name()
        );
        std::fs::write(folder.path().join("pvnet.toml"), text).unwrap();
        Self { outside, inside, second: None, folder }
    }

    /// As [`new`](Self::new), with one more guest.
    fn with_second_guest() -> Self {
        let testbed = Self::new();
        let (second, address) = (Namespace::create("pvt").unwrap(), Ipv4Addr::new(10, 77, 3, 2));
        let file = testbed.folder.path().join("pvnet.toml");
        let name = second.name();
        let text = std::fs::read_to_string(&file).unwrap()
            + &format!(
                "[[guest]]\nname = \"{name}\"\nmac = \"02:00:00:00:03:02\"\n\
                 addresses = [\"{address}/24\"]\n"
            );
        std::fs::write(file, text).unwrap();
        Self { second: Some((second, address)), ..testbed }
    }

    /// The daemon with these changes to its configuration, and its guest.
    fn start(&self, set: &[&str]) -> [Process; 2] {
        let folder = self.folder.path();
        let mut command = pvnet();
        command.arg("run").arg("--config").arg(folder.join("pvnet.toml"));
        for set in set {
            command.args(["--set", set]);
        }
        let mut daemon = Process::capture(command).unwrap();
        wait("the daemon's start", || {
            assert!(daemon.ended().unwrap().is_none(), "{}", daemon.stderr());
            folder.join("control.sock").exists()
        });
        [join(self.folder.path(), self.inside.name(), &[]), daemon]
    }

    /// What the daemon counted, by name.
    fn counts(&self) -> Value {
        status_of(self.folder.path())["meter"]["counts"].clone()
    }

    /// The uplink's state and the reason for it.
    fn uplink(&self) -> [String; 2] {
        let uplink = self.port("out");
        [&uplink["state"], &uplink["reason"]].map(ToString::to_string)
    }

    /// The status of a port.
    fn port(&self, name: &str) -> Value {
        port_of(&status_of(self.folder.path()), name).unwrap()
    }

    /// Captures the tap during `work`, which must send at least `bytes`, and reads the frames that
    /// `direction` selects.
    fn capture(&self, bytes: u64, direction: &str, work: impl FnOnce()) -> Captured {
        let file = self.folder.path().join("out.pcapng");
        let mut tshark = self.outside.exec("tshark").unwrap();
        tshark.args(["-q", "-B", "64", "-i", "out0", "-f", "tcp", "-w"]).arg(&file);
        let mut tshark = Process::capture(tshark).unwrap();
        tshark.says("Capturing on", LIMIT).unwrap();
        tshark.makes(&file, LIMIT).unwrap();
        work();
        wait("the end of the capture", || file.metadata().unwrap().len() > bytes);
        tshark.stop().unwrap();
        let mut tshark = lab::command("tshark").unwrap();
        tshark.args(["-o", "tcp.check_checksum:TRUE", "-r"]).arg(&file);
        tshark.args(["-Y", direction, "-T", "fields", "-e", "frame.len"]);
        tshark.args(["-e", "tcp.checksum.status"]);
        let lines = lab::run(tshark, LIMIT).unwrap();
        std::fs::remove_file(&file).unwrap();
        let frames: Vec<(u64, bool)> = lines
            .lines()
            .filter_map(|line| {
                let (len, status) = line.split_once('\t')?;
                Some((len.parse().unwrap(), matches!(status, "1" | "Good")))
            })
            .collect();
        let finished = frames.iter().filter(|(_, good)| *good).count();
        Captured {
            longest: frames.iter().map(|(len, _)| *len).max().unwrap_or(0),
            unfinished: frames.len() - finished,
            finished,
        }
    }
}

#[test]
fn an_uplink_gets_only_frames_that_its_capabilities_cover() {
    requires!("tshark");
    let testbed = UplinkTestbed::new();
    let from_guest = format!("eth.src == {INSIDE_MAC}");
    for (set, [csum, sg, tso]) in [
        ("none", [false; 3]),
        ("csum", [true, false, false]),
        ("csum+sg", [true, true, false]),
        ("csum+sg+tso", [true; 3]),
    ] {
        let change = format!("out.capabilities={set}");
        // A page that stays mapped needs neither a grant copy nor a DMA mapping.
        let granted = "*.persistent_grants=0";
        let [mut guest, mut daemon] = testbed.start(&[&change, granted]);
        let bytes = 4 * MIB;
        let seen = testbed.capture(bytes, &from_guest, || {
            lab::transfer_file(&testbed.inside, &testbed.outside, OUTSIDE, bytes, 1).unwrap();
        });
        let frames = seen.finished + seen.unfinished;
        assert!(frames > 60, "{set}: {frames} frames");
        assert_eq!(seen.longest > 1514, tso, "{set}: a frame of {}", seen.longest);
        match csum {
            // An unfinished sum is right by chance now and then.
            true => assert!(seen.finished <= frames / 20, "{set}: {} of {frames}", seen.finished),
            false => assert_eq!(seen.unfinished, 0, "{set}: of {frames}"),
        }

        let counts = testbed.counts();
        let count = |name: &str| counts[name].as_u64().unwrap();
        assert_eq!(count("segments") > bytes / 1448 / 2, !tso, "{set}: {counts}");
        assert_eq!(count("dma_maps") > bytes / 4096 / 2, sg, "{set}: {counts}");
        assert_eq!(count("copied_bytes") > bytes / 2, !sg, "{set}: {counts}");
        assert!(guest.stop().unwrap().success(), "{}", guest.stderr());
        assert!(daemon.stop().unwrap().success(), "{}", daemon.stderr());
    }
}

#[test]
fn an_uplink_receives_into_the_buffers_it_is_given() {
    requires!("tshark");
    let testbed = UplinkTestbed::new();
    let to_guest = format!("eth.dst == {INSIDE_MAC}");
    for large in [true, false] {
        for (buffers, huge) in [("recycled", true), ("zeroed-pages", false)] {
            let changes = [
                format!("out.large_receive={large}"),
                format!("out.receive_buffers={buffers}"),
                format!("out.huge_pages={huge}"),
            ];
            let [mut guest, mut daemon] = testbed.start(&changes.each_ref().map(String::as_str));
            let bytes = 4 * MIB;
            let seen = testbed.capture(bytes, &to_guest, || {
                lab::transfer_file(&testbed.outside, &testbed.inside, INSIDE, bytes, 2).unwrap();
            });
            assert_eq!(seen.longest > 1514, large, "{changes:?}: {}", seen.longest);
            let zeroed = testbed.counts()["pages_zeroed"].as_u64().unwrap();
            // The first use of each is of a page that the kernel zeroed.
            let pages = if large { bytes / 4096 } else { bytes / 1448 };
            let expected = if buffers == "recycled" { 0..=0 } else { pages / 2..=4 * pages };
            assert!(expected.contains(&zeroed), "{changes:?}: {zeroed} pages zeroed");
            assert!(guest.stop().unwrap().success(), "{}", guest.stderr());
            assert!(daemon.stop().unwrap().success(), "{}", daemon.stderr());
        }
    }
}

#[test]
fn a_guest_copies_what_comes_from_an_uplink() {
    requires!("ping");
    let testbed = UplinkTestbed::new();
    let bytes = 16 * MIB;
    for (rx, large) in [("guest-copy", true), ("guest-copy", false), ("guest-copy-mapped", true)] {
        let changes = [format!("*.rx={rx}"), format!("out.large_receive={large}")];
        let [mut guest, mut daemon] = testbed.start(&changes.each_ref().map(String::as_str));
        // Compares the sums of both ends.
        lab::transfer_file(&testbed.outside, &testbed.inside, INSIDE, bytes, 3).unwrap();
        lab::transfer_file(&testbed.inside, &testbed.outside, OUTSIDE, bytes / 4, 4).unwrap();
        let ping = lab::ping(&testbed.outside, INSIDE, 3, PING_PAUSE).unwrap();
        assert_eq!((ping.sent, ping.received), (3, 3), "{rx}");
        let counts = testbed.counts();
        let count = |name: &str| counts[name].as_u64().unwrap();
        let copies = &testbed.port(testbed.inside.name())["guest_copy"];
        match rx {
            "guest-copy" => {
                // Its acknowledgements are short, so only they and headers are copied here.
                assert!(count("guest_copied_bytes") > bytes, "{rx}: {counts}");
                assert!(count("copied_bytes") < bytes / 8, "{rx}: {counts}");
                assert!(count("guest_copies") > 4 * count("guest_hypercalls") / 5, "{counts}");
                assert_eq!((&copies["refused"], &copies["pool_pages"]), (&0.into(), &0.into()));
            }
            _ => {
                assert!(count("copied_bytes") > bytes, "{rx}: {counts}");
                assert!(copies["pool_pages"].as_u64() >= Some(256), "{copies}");
            }
        }
        assert!(guest.stop().unwrap().success(), "{}", guest.stderr());
        assert!(daemon.stop().unwrap().success(), "{}", daemon.stderr());
    }
}

/// A guest that is stopped copies nothing. Another guest's frames keep coming, and the uplink has its
/// buffers again after the time limit.
#[test]
fn a_guest_that_stops_copying_delays_no_other() {
    requires!("ping");
    let testbed = UplinkTestbed::with_second_guest();
    let [mut stopped, mut daemon] = testbed.start(&["*.rx=guest-copy"]);
    let (second, address) = testbed.second.as_ref().unwrap();
    let mut other = join(testbed.folder.path(), second.name(), &[]);
    let ping =
        |address: Ipv4Addr| lab::ping(&testbed.outside, address, 3, PING_PAUSE).unwrap().received;
    assert_eq!([ping(INSIDE), ping(*address)], [3, 3]);
    let pid = rustix::process::Pid::from_raw(stopped.pid().cast_signed()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
    let mut flood = testbed.outside.exec("ping").unwrap();
    flood.args(["-q", "-c", "400", "-s", "1400", "-i", "0.002", "-W", "1", &INSIDE.to_string()]);
    let mut flood = Process::capture(flood).unwrap();
    let copies = |name: &str| testbed.port(testbed.inside.name())["guest_copy"][name].as_u64();
    let unused = || copies("granted").unwrap() + copies("expired").unwrap();
    wait("grants that are not used", || unused() > 100);
    assert_eq!(ping(*address), 3, "beside a guest that copies nothing");
    lab::transfer_file(&testbed.outside, second, *address, 4 * MIB, 5).unwrap();
    wait("the time limit", || copies("granted") == Some(0) && copies("expired") > Some(100));
    flood.wait(LIMIT).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::CONT).unwrap();
    wait("the stopped guest's return", || ping(INSIDE) == 3);
    assert!(stopped.stop().unwrap().success(), "{}", stopped.stderr());
    assert!(other.stop().unwrap().success(), "{}", other.stderr());
    assert!(daemon.stop().unwrap().success(), "{}", daemon.stderr());
}

#[test]
fn an_uplink_without_its_namespace_says_how_to_make_it() {
    requires!();
    let testbed = UplinkTestbed::new();
    for (set, code, parts) in [
        ("out.namespace=nowhere", 1, &["uplink out", "nowhere", "ip netns add"][..]),
        ("out.colour=red", 2, &["out.colour=red", "unknown key"]),
        ("inn.capabilities=none", 2, &["\"inn\"", "out"]),
        ("capabilities=none", 2, &["NAME.KEY=VALUE"]),
    ] {
        let mut command = pvnet();
        command.arg("run").arg("--config").arg(testbed.folder.path().join("pvnet.toml"));
        command.args(["--set", set]);
        let mut process = Process::capture(command).unwrap();
        assert_eq!(process.wait(LIMIT).unwrap().code(), Some(code), "{set}");
        let message = process.stderr();
        assert!(parts.iter().all(|part| message.contains(part)), "{set}: {message}");
    }
}

#[test]
fn an_uplink_whose_tap_is_deleted_is_down_with_the_reason() {
    requires!("ip");
    let testbed = UplinkTestbed::new();
    let [_guest, mut daemon] = testbed.start(&[]);
    assert_eq!(testbed.uplink()[0], "\"up\"");
    let mut delete = testbed.outside.exec("ip").unwrap();
    delete.args(["link", "delete", "out0"]);
    lab::run(delete, LIMIT).unwrap();
    wait("the failure", || testbed.uplink()[0] == "\"down\"");
    let reason = &testbed.uplink()[1];
    assert!(reason.contains("device_failed") && reason.contains("tap out0"), "{reason}");
    daemon.stop().unwrap();
}

#[test]
fn frames_that_the_kernel_drops_before_the_daemon_reads_them_are_counted() {
    requires!("ip", "ping");
    let testbed = UplinkTestbed::new();
    let [_guest, mut daemon] = testbed.start(&[]);
    let drops = || testbed.port("out")["device_drops"].clone();
    assert_eq!(drops()["ingress"], 0, "{}", drops());
    testbed.outside.ip(&["link", "set", "out0", "txqueuelen", "10"]).unwrap();
    let pid = rustix::process::Pid::from_raw(daemon.pid().cast_signed()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
    let mut flood = testbed.outside.exec("ping").unwrap();
    // To all, since nobody answers who has an address.
    flood.args(["-q", "-b", "-c", "200", "-l", "200", "-W", "1", "10.77.3.255"]);
    Process::capture(flood).unwrap().wait(LIMIT).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::CONT).unwrap();
    wait("the daemon's return", || drops()["ingress"].as_u64() >= Some(100));
    assert!(daemon.stop().unwrap().success(), "{}", daemon.stderr());
}
