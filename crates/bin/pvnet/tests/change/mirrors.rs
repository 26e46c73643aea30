//! Mirrors and snooping that come and go by a reload and by commands.

use std::fs::File;
use std::io::BufReader;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use capture::{Blocks, Content};

use crate::testbed::{LIMIT, PING_PAUSE, Testbed, holdings, requires, wait};
use crate::{change, file, steps};

/// Answers to two pings from the first guest to another one.
fn answers(testbed: &Testbed, to: usize) -> u64 {
    let (from, to) = (&testbed.guests[0], &testbed.guests[to]);
    lab::ping(&from.namespace, to.ipv4, 2, PING_PAUSE).unwrap().received
}

#[test]
fn a_guest_becomes_a_mirrors_target_and_is_put_back() {
    requires!("ping");
    let mut testbed = Testbed::start(3, "workers = 1");
    (0..3).for_each(|guest| testbed.join(guest, &[]));
    assert_eq!([answers(&testbed, 1), answers(&testbed, 2)], [2, 2]);
    let text = std::fs::read_to_string(file(&testbed)).unwrap();
    let [red, probe] = [0, 2].map(|n: usize| testbed.guests[n].namespace.name().to_owned());
    let mirror = |to: &str| {
        let span = format!("[[mirror]]\nname = \"span\"\nfrom = [\"{red}\"]\nto = \"{to}\"\n");
        format!("{text}{span}[switch]\nmulticast = \"snoop\"\n")
    };
    std::fs::write(file(&testbed), mirror("nobody")).unwrap();
    let error = change(&testbed, &["reload"]).unwrap_err();
    assert!(error.contains("no port \"nobody\""), "{error}");

    std::fs::write(file(&testbed), mirror(&probe)).unwrap();
    let report = change(&testbed, &["reload"]).unwrap();
    assert_eq!(steps(&report), ["change  multicast", "add span"]);
    let egress = || testbed.named(&probe).unwrap()["egress"]["frames"].as_u64().unwrap();
    let before = egress();
    assert_eq!([answers(&testbed, 1), answers(&testbed, 2)], [2, 0]);
    wait("the copies", || egress() >= before + 4);
    let state = testbed.status();
    assert!(state["mirrors"][0]["copied"].as_u64() >= Some(4), "{state}");
    assert!(state["multicast"]["groups"].is_number(), "{state}");
    // It is in the switch as little when it comes again.
    testbed.leave(2);
    testbed.join(2, &[]);
    assert_eq!([answers(&testbed, 1), answers(&testbed, 2)], [2, 0]);

    std::fs::write(file(&testbed), &text).unwrap();
    let report = change(&testbed, &["reload"]).unwrap();
    assert_eq!(steps(&report), ["change  multicast", "remove span"]);
    wait("an answer", || answers(&testbed, 2) == 2);
    let state = testbed.status();
    assert!(state["mirrors"].is_null() && state["multicast"].is_null(), "{state}");
}

/// The packets of a file, and whether it is complete.
fn packets(file: &Path) -> (usize, bool) {
    let mut blocks = Blocks::new(BufReader::new(File::open(file).unwrap()));
    let (mut packets, mut ends) = (0, false);
    while let Some(block) = blocks.next().unwrap() {
        match block.content {
            Content::Packet(_) => packets += 1,
            Content::End(_) => ends = true,
            Content::Other => {}
        }
    }
    (packets, ends)
}

#[test]
fn mirrors_come_and_go_by_commands() {
    requires!("ping");
    let folder = lab::TempDir::new().unwrap();
    let recordings = folder.path().join("recordings");
    std::fs::create_dir(&recordings).unwrap();
    let lines = format!("workers = 1\nrecordings = \"{}\"", recordings.display());
    let mut testbed = Testbed::start(3, &lines);
    (0..3).for_each(|guest| testbed.join(guest, &[]));
    let [red, probe] = [0, 2].map(|n: usize| testbed.guests[n].namespace.name().to_owned());
    let from = format!("from={red}");
    let file = recordings.join("span.00001.pcapng");

    // Once to files, in the sandbox.
    let add = ["mirror", "add", "span", &from, "file=span", "filter=icmp"];
    let report = change(&testbed, &[&add[..], &["--dry-run"]].concat()).unwrap();
    assert_eq!((steps(&report), file.exists()), (vec!["add span".to_owned()], false));
    assert_eq!(steps(&change(&testbed, &add).unwrap()), ["add span"]);
    let carried = || {
        let port = testbed.named(&red).unwrap();
        let frames = ["ingress", "egress"].map(|way| port[way]["frames"].as_u64().unwrap());
        usize::try_from(frames.iter().sum::<u64>()).unwrap()
    };
    let before = carried();
    assert_eq!(answers(&testbed, 1), 2);
    let list = || change(&testbed, &["mirror", "list"]).unwrap()["mirrors"][0].clone();
    // More, if an answer was late: then ping asks again.
    wait("the packets", || list()["copied"].as_u64() >= Some(4));
    assert_eq!(list()["file"]["path"].as_str(), file.to_str());
    let error = change(&testbed, &add).unwrap_err();
    assert!(error.contains("\"span\" is in use"), "{error}");
    let error = change(&testbed, &["mirror", "add", "up", &from, "file=../x"]).unwrap_err();
    assert!(error.contains("recordings in [daemon]"), "{error}");
    let report = change(&testbed, &["mirror", "del", "span"]).unwrap();
    assert_eq!(steps(&report), ["remove span"]);
    let (count, ends) = packets(&file);
    assert!(count >= 4 && ends, "{count}, {ends}");
    assert!(count <= carried() - before, "each once: {count}, {before}, {}", carried());

    // Once to a port, until a reload.
    let to = format!("to={probe}");
    change(&testbed, &["mirror", "add", "span", &from, &to]).unwrap();
    assert_eq!([answers(&testbed, 1), answers(&testbed, 2)], [2, 0]);
    let report = change(&testbed, &["reload"]).unwrap();
    assert_eq!(steps(&report), ["remove span"]);
    assert_eq!(report["steps"][0]["reverts_command"], true);
    wait("an answer", || answers(&testbed, 2) == 2);
}

#[test]
fn a_disk_that_hangs_stops_no_command() {
    requires!("unshare", "mount");
    let program = std::env::current_exe().unwrap();
    let mut command = Command::new("unshare");
    let test = "mirrors::on_a_disk_that_hangs";
    command.arg("--mount").arg(program).args(["--exact", test, "--ignored"]);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

#[test]
#[ignore = "a_disk_that_hangs_stops_no_command runs it where it may mount"]
fn on_a_disk_that_hangs() {
    let folder = lab::TempDir::new().unwrap();
    // The sandbox has no rule for what is mounted over the folder later.
    let lines =
        format!("workers = 1\nsandbox = \"off\"\nrecordings = \"{}\"", folder.path().display());
    let testbed = Testbed::start(1, &lines);
    let threads = || holdings(testbed.daemon.pid())[1];
    let from = format!("from={}", testbed.guests[0].namespace.name());
    let add = ["mirror", "add", "span", &from, "file=span"];
    let try_it = [&add[..], &["--dry-run"]].concat();
    let tried = || {
        let report = change(&testbed, &try_it).unwrap();
        report["steps"][0]["reason"].as_str().unwrap_or_default().to_owned()
    };
    let Some(disk) = lab::needed(lab::HungDisk::over(folder.path())) else { return };
    let (start, before) = (Instant::now(), threads());
    assert!(tried().contains("the disk hangs"));
    // It is asked once.
    for _ in 0..3 {
        let error = change(&testbed, &add).unwrap_err();
        assert!(error.contains("the disk still hangs"), "{error}");
        assert!(tried().contains("the disk still hangs"));
    }
    assert!(start.elapsed() < LIMIT / 4, "{:?}", start.elapsed());
    wait("the clients' threads", || threads() <= before + 1);
    drop(disk);
    wait("the disk", || tried().is_empty());
    change(&testbed, &add).unwrap();
    assert!(folder.path().join("span.00001.pcapng").exists());
}
