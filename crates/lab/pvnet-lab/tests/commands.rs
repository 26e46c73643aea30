//! The laboratory's commands, as a user runs them. They start the program `pvnet` beside `pvnet-lab`. `cargo test --workspace` builds
//! both; before a test of this package alone, run `cargo build -p pvnet`.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use lab::{Process, TempDir, requires};
use serde_json::Value;

/// A time limit far above the duration of any step.
const LIMIT: Duration = Duration::from_secs(60);

/// The program under test.
fn pvnet_lab() -> Command {
    let program = env!("CARGO_BIN_EXE_pvnet-lab");
    assert!(Path::new(program).with_file_name("pvnet").is_file(), "run `cargo build -p pvnet`");
    lab::command(program).unwrap()
}

/// The schema of a document.
fn schema(name: &str) -> Value {
    let mut command = pvnet_lab();
    command.args(["schema", name]);
    serde_json::from_str(&lab::run(command, LIMIT).unwrap()).unwrap()
}

/// Parses a document, and checks it against its schema.
fn checked(name: &str, text: &str) -> Value {
    let document = serde_json::from_str(text).unwrap();
    assert_eq!(document::errors(&schema(name), &document), [""; 0]);
    document
}

#[test]
fn the_configurations_of_the_experiments_are_valid() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("pvnet.toml");
    let texts = experiments::repro::configurations();
    assert!(!texts.is_empty());
    for text in texts {
        std::fs::write(&file, &text).unwrap();
        let pvnet = Path::new(env!("CARGO_BIN_EXE_pvnet-lab")).with_file_name("pvnet");
        let mut command = lab::command(&pvnet.to_string_lossy()).unwrap();
        command.args(["run", "--check", "--config"]).arg(&file);
        lab::run(command, LIMIT).unwrap_or_else(|error| panic!("{error}:\n{text}"));
    }
}

#[test]
fn both_ends_of_a_stream_of_datagrams_print_json_alone() {
    let mut command = pvnet_lab();
    command.args(["load", "sink", "--listen", "127.0.0.1:0", "--json", "-"]);
    let mut sink = Process::capture(command).unwrap();
    sink.says("listening on 127.0.0.1:", LIMIT).unwrap();
    let said = sink.stderr();
    let port = said.trim().rsplit(':').next().unwrap();
    let mut command = pvnet_lab();
    command.args(["load", "source", "127.0.0.1", "--port", port, "--seconds", "1", "--json", "-"]);
    let sent = checked("load-source", &lab::run(command, LIMIT).unwrap());
    assert!(sent["datagrams"].as_u64() > Some(0) && sent["refused"] == 0, "{sent}");
    sink.stop().unwrap();
    let arrived = checked("load-sink", &sink.stdout());
    assert!(arrived["received"].as_u64() > Some(0), "{arrived}");
    assert!(arrived["sent"].as_u64() <= sent["datagrams"].as_u64(), "{arrived} {sent}");
}

#[test]
fn the_report_of_a_bench_is_as_its_schema_says() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("pps.json");
    let mut command = pvnet_lab();
    command.args(["bench", "pps", "--lockstep", "--frames", "64", "--windows", "copy-1514"]);
    command.args(["--rounds", "1", "--quiet", "--json"]).arg(&file);
    lab::run(command, LIMIT).unwrap();
    let report = checked("bench", &std::fs::read_to_string(file).unwrap());
    assert_eq!(report["schema"], "pvnet-bench/1");
    let mut other = report;
    other["rows"][0]["median"] = "fast".into();
    assert_eq!(document::errors(&schema("bench"), &other).len(), 1);
}

#[test]
fn the_bench_of_isolation_has_virtual_machines_as_victims_and_as_attackers() {
    requires!("iperf3", "ping");
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("isolation.json");
    let mut command = pvnet_lab();
    command.args(["bench", "isolation", "--class", "virtio-kick-storm", "--victims", "virtio"]);
    command.args(["--workers", "1", "--rounds", "1", "--quiet", "--json"]).arg(&file);
    lab::run(command, 3 * LIMIT).unwrap();
    let report = checked("bench", &std::fs::read_to_string(file).unwrap());
    let attack = "virtio-kick-storm-1w-virtio-victims-tcp+attack";
    let rows = report["rows"].as_array().unwrap();
    let row = rows.iter().find(|row| row["name"] == attack);
    let row = row.unwrap_or_else(|| panic!("no row {attack} in {report}"));
    assert_eq!((&row["victims"], &row["ended_by"]), (&"virtio".into(), &Value::Null));
    assert!(row["operations"].as_f64().unwrap() > 0.0, "{row}");
    let idle = &rows[0];
    assert!(idle["median"].as_f64().unwrap() > 0.0, "{idle}");
}

/// The network namespaces that process `pid` made, and that still exist.
fn namespaces_of(pid: u32) -> Vec<String> {
    let mut command = lab::command("ip").unwrap();
    command.arg("netns");
    let list = lab::run(command, LIMIT).unwrap();
    let made = format!("-{pid}-");
    list.lines().filter(|line| line.contains(&made)).map(str::to_owned).collect()
}

#[test]
fn the_demo_tells_what_it_measured() {
    requires!("iperf3", "ping", "ethtool");
    let folder = TempDir::new().unwrap();
    let [json, page] = ["demo.json", "demo.html"].map(|name| folder.path().join(name));
    let mut command = pvnet_lab();
    command.args(["demo", "--quick", "--json"]).arg(&json).arg("--report").arg(&page);
    let mut demo = Process::capture(command).unwrap();
    demo.succeed(3 * LIMIT).unwrap();
    // Lines are wrapped at blanks that the test does not know.
    let shown = demo.stdout().split_whitespace().collect::<Vec<_>>().join(" ");
    for words in [
        "The kernel has no link",
        "With all mechanisms for sending",
        "SHA-256",
        "disabled its port: \"",
        "wall between",
    ] {
        assert!(shown.contains(words), "{words:?} is not in {shown}");
    }
    let report = checked("bench", &std::fs::read_to_string(json).unwrap());
    let rows = report["rows"].as_array().unwrap();
    let row = |name: &str| {
        let row = rows.iter().find(|row| row["name"] == name);
        row.unwrap_or_else(|| panic!("no row {name} in {report}"))
    };
    assert!(row("kill-pause")["median"].as_f64() > Some(0.0), "{report}");
    assert_eq!(row("kill-pause")["sha256"].as_str().map(str::len), Some(64), "{report}");
    // The papers' point. The factor is 12 on a quiet machine.
    let [off, on] = ["all/off", "all/on"].map(|name| row(name)["median"].as_f64().unwrap());
    assert!(on > 2.0 * off && off > 1.0, "{report}");
    assert!(row("attack-disabled")["median"].as_f64() > Some(0.0), "{report}");
    let streams =
        ["talk-tcp", "attack-tcp/during", "ports-vhost-user", "ports-card", "cost-tcp/veth-bridge"];
    for name in streams {
        assert!(row(name)["median"].as_f64() > Some(1.0), "{name}: {report}");
    }
    let page = std::fs::read_to_string(page).unwrap();
    assert!(page.matches("<figure>").count() >= 4, "{page}");
    assert_eq!(namespaces_of(demo.pid()), [""; 0]);
}

/// A program in a folder, as a script.
fn program(folder: &Path, name: &str, text: &str) {
    let file = folder.join(name);
    std::fs::write(&file, format!("#!/bin/sh\n{text}\n")).unwrap();
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o755)).unwrap();
}

#[test]
fn the_demo_installs_rivals_on_a_machine_that_has_no_lists_of_packages_yet() {
    requires!("iperf3", "ping", "ethtool");
    let folder = TempDir::new().unwrap();
    let calls = folder.path().join("calls");
    // A machine that has no rival, and can install none.
    program(folder.path(), "apt-get", &format!("echo \"$1\" >>{}\nexit 100", calls.display()));
    for name in ["ip", "iperf3", "ping", "ethtool"] {
        program(folder.path(), name, "exit 1");
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_pvnet-lab"));
    command.args(["demo", "--rivals", "--quiet", "--report"]).arg(folder.path().join("page.html"));
    command.env("PATH", folder.path());
    let mut demo = Process::capture(command).unwrap();
    assert_eq!(demo.wait(LIMIT).unwrap().code(), Some(1), "{}", demo.stderr());
    assert!(demo.stderr().contains("apt-get install"), "{}", demo.stderr());
    assert_eq!(std::fs::read_to_string(calls).unwrap(), "update\ninstall\n");
}

#[test]
fn an_interrupted_demo_leaves_nothing() {
    requires!("iperf3", "ping", "ethtool");
    let folder = TempDir::new().unwrap();
    let page = folder.path().join("demo.html");
    let mut command = pvnet_lab();
    command.args(["demo", "--quick", "--step", "kill", "--report"]).arg(&page);
    command.env("TMPDIR", folder.path());
    let mut demo = Process::capture(command).unwrap();
    // The demo has begun when its daemon's folder exists.
    let begun = std::time::Instant::now();
    while std::fs::read_dir(folder.path()).unwrap().next().is_none() {
        assert!(begun.elapsed() < LIMIT, "{}", demo.stderr());
        std::thread::sleep(Duration::from_millis(10));
    }
    let mut interrupt = lab::command("sh").unwrap();
    // A test in the background may ignore SIGINT.
    interrupt.args(["-c", &format!("kill -TERM {}", demo.pid())]);
    lab::run(interrupt, LIMIT).unwrap();
    assert_eq!(demo.wait(LIMIT).unwrap().code(), Some(130), "{}", demo.stderr());
    assert!(demo.stderr().contains("nothing is left running"), "{}", demo.stderr());
    assert_eq!(namespaces_of(demo.pid()), [""; 0]);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn a_paper_is_repeated_and_compared_with_its_numbers() {
    requires!("iperf3", "ping", "ethtool");
    let folder = TempDir::new().unwrap();
    let [json, html] = ["menon06.json", "menon06.html"].map(|name| folder.path().join(name));
    let mut command = pvnet_lab();
    command.args(["repro", "menon06", "--figure", "5,9", "--config", "none,high,SP-GP"]);
    command.args(["--seconds", "1", "--rounds", "1", "--json"]).arg(&json);
    command.arg("--html").arg(&html);
    let mut repro = Process::capture(command).unwrap();
    repro.succeed(3 * LIMIT).unwrap();
    let table = repro.stdout();
    assert!(table.contains("2,794") && table.contains("TLB misses"), "{table}");
    let document = checked("repro menon06", &std::fs::read_to_string(json).unwrap());
    assert_eq!(document["paper"], "menon06");
    let [none, high, global] = &document["rows"].as_array().unwrap()[..] else {
        panic!("{document}")
    };
    assert_eq!([&none["config"], &high["config"], &global["config"]], ["none", "high", "SP-GP"]);
    for row in [none, high] {
        assert!(row["mbps"]["median"].as_f64() > Some(1.0), "{row}");
        assert!(row["cpu_s_per_gb"]["hypervisor"].as_f64() > Some(0.0), "{row}");
        // A frame of a page or more is mapped, and what was sent went through the NIC.
        assert!(row["per_packet"]["maps"].as_f64() > Some(0.0), "{row}");
        assert!(row["per_packet"]["frames"].as_f64() > Some(0.0), "{row}");
    }
    assert!(high["ratio_to_none"].as_f64() > Some(0.0), "{high}");
    assert!(global["mbps"].is_null() && global["not_measurable"].is_string(), "{global}");
    assert!(std::fs::read_to_string(html).unwrap().contains("<figure>"));
    assert_eq!(namespaces_of(repro.pid()), [""; 0]);
}
