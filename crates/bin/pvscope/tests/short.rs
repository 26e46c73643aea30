//! A short recording in QEMU under the plugin: no Xen, TCP over loopback.
//!
//! The first run needs packages from Debian's mirrors. Without QEMU, see [`lab::needed`].

mod plugin;

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Output};

use scope_model::{CostEvent, Counters};
use scope_result::{Domain, Recording};

fn pvscope(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_pvscope")).args(arguments).output().expect("pvscope")
}

fn record(plugin: &Path, out: &Path, more: &[&str]) -> Recording {
    record_aloud(plugin, out, &[&["--quiet"], more].concat()).0
}

/// A recording, and what pvscope said meanwhile.
fn record_aloud(plugin: &Path, out: &Path, more: &[&str]) -> (Recording, String) {
    let (plugin, out_text) = (plugin.display().to_string(), out.display().to_string());
    let fixed = ["run", "loopback", "--milliseconds", "5", "--plugin", &plugin, "--out", &out_text];
    let output = pvscope(&[&fixed, more].concat());
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    (scope_result::read(out).expect("a recording"), said)
}

#[test]
fn a_machine_is_recorded_twice_with_equal_and_complete_counts() {
    if lab::needed(lab::command("qemu-system-x86_64")).is_none() {
        return;
    }
    let plugin = plugin::plugin();
    let file = |name: &str| Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let [first, second, booted, checked] =
        ["first.pvs", "second.pvs", "booted.pvs", "checked.pvs"].map(file);
    // The first boots, saves and loads the machine, the second loads it, and the third boots it without a snapshot.
    let recording = record(&plugin, &first, &["--call-graph", "--fresh"]);
    let (_, said) = record_aloud(&plugin, &second, &["--call-graph"]);
    assert!(said.contains("from the snapshot") && !said.contains("boot, to"), "{said}");
    let (_, said) = record_aloud(&plugin, &booted, &["--call-graph", "--no-snapshot"]);
    assert!(said.contains("boot, to") && !said.contains("snapshot"), "{said}");
    let provenance = &recording.provenance;
    assert_eq!((&*provenance.workload, provenance.images.len()), ("loopback", 2));
    assert!(provenance.qemu.contains("version 10."), "{provenance:?}");
    assert_eq!(provenance.options, ["--milliseconds 5"]);
    let bytes = |path: &Path| std::fs::read(path).expect("a file");
    assert!(bytes(&first) == bytes(&second), "two runs from a snapshot differ");
    // A recording says how its machine started.
    let mut booted = scope_result::read(&booted).expect("a recording");
    assert!(provenance.from_snapshot && !booted.provenance.from_snapshot);
    booted.provenance.from_snapshot = true;
    assert!(recording == booted, "a boot and a snapshot differ");

    assert!(recording.instructions >= 5_000_000, "{}", recording.instructions);
    assert_eq!(recording.domains, [Domain::Machine]);
    let mut total = Counters::default();
    recording.blocks.iter().for_each(|block| total += &block.total());
    assert_eq!(total.instructions, recording.instructions);
    let sweep = |of: fn(&scope_model::Sweep) -> u64| -> u64 {
        recording.sweeps.iter().map(|(_, sweep)| of(sweep)).sum()
    };
    // The preset: 1 MiB of L2 and 64 TLB entries, before 16 MiB of L3 and 1024 entries.
    assert_eq!(sweep(|sweep| sweep.l2d[2]), total.l2d_misses);
    assert_eq!(sweep(|sweep| sweep.dtlb[0][2]), total.dtlb_misses);
    assert_eq!(sweep(|sweep| sweep.l2i[6] + sweep.l2d[6]), total.l3_misses);
    assert_eq!(sweep(|sweep| sweep.itlb[0][6] + sweep.dtlb[0][6]), total.page_walks);
    let l2 = total.l2i_misses + total.l2d_misses;
    assert!(total.l2_sequential > l2 / 10 && total.l2_sequential < l2, "{total:?}");
    assert!(total.events[CostEvent::Syscall as usize] > 0, "{total:?}");
    assert!(sweep(|sweep| sweep.l2d[0]) > sweep(|sweep| sweep.l2d[6]));
    let name = |wanted: &str| recording.functions.iter().any(|function| function.name == wanted);
    assert!(name("tcp_sendmsg_locked") && name("schedule"));
    // The driver saw frames with data and without, all of one interface.
    let work = &recording.work;
    assert_eq!(work.interface, "lo");
    assert!(work.data_frames > 0 && work.payload > work.data_frames, "{work:?}");
    assert!(work.frames >= work.data_frames + work.acks && work.bytes > work.payload, "{work:?}");
    assert_eq!(recording.checks.not_frames, 0);
    // QEMU's clock counts instructions too, and those that fit into idle time.
    let clock = recording.checks.clock.expect("a time stamp at both marks");
    let more = recording.instructions.saturating_sub(clock);
    assert!(more * 1000 <= clock, "{} instructions, {clock} by the clock", recording.instructions);

    chains_of_calls_are_complete(&recording, &total);

    // The model's TLBs had no stale entry; without writes of CR3 they would have.
    let whole = record(&plugin, &checked, &["--check"]);
    assert!(whole.checks.compared > 1_000_000);
    assert_eq!(whole.checks.stale, 0);
    let ignoring = record(&plugin, &checked, &["--check", "--ignore-flush", "cr3"]);
    assert!(ignoring.checks.stale > 1000, "{:?}", ignoring.checks);

    // Groups give the same counts as single accesses, except for blocks that exceptions leave and the order of uses within a
    // block.
    let mut one_by_one = Counters::default();
    whole.blocks.iter().for_each(|block| one_by_one += &block.total());
    let near = |one: u64, other: u64| one.abs_diff(other) * 100 <= one;
    for (one, other) in [
        (whole.instructions, recording.instructions),
        (one_by_one.reads, total.reads),
        (one_by_one.writes, total.writes),
        (one_by_one.read_misses, total.read_misses),
        (one_by_one.write_misses, total.write_misses),
        (one_by_one.l2d_misses, total.l2d_misses),
        (one_by_one.dtlb_misses, total.dtlb_misses),
    ] {
        assert!(near(one, other), "{one_by_one:?}\n{total:?}");
    }

    let first = first.display().to_string();
    for format in ["callgrind", "folded", "svg", "firefox"] {
        let out = file(format).display().to_string();
        let output = pvscope(&["export", &first, "--format", format, "--out", &out]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    for (name, command) in [
        ("report", &["report", &first][..]),
        ("calls", &["calls", &first]),
        ("diff", &["diff", &first, &second.display().to_string()]),
    ] {
        is_as_its_schema_says(name, command);
    }
    let calls = pvscope(&["calls", &first, "--of", "tcp_sendmsg_locked"]);
    let calls = String::from_utf8_lossy(&calls.stdout).into_owned();
    assert!(calls.contains("tcp_sendmsg") && calls.contains("tcp_push"), "{calls}");
    callgrind_annotate_reads(&file("callgrind"));
    objdump_finds_the_code(&file("callgrind"), &recording);
    let report = pvscope(&["report", &first, "--top", "500"]);
    let report = String::from_utf8_lossy(&report.stdout).into_owned();
    assert!(report.contains("A frame takes") && report.contains("tcp_sendmsg_locked"), "{report}");
}

/// What a command prints as JSON is as `pvscope schema` says.
fn is_as_its_schema_says(name: &str, command: &[&str]) {
    let json = |arguments: &[&str]| -> serde_json::Value {
        let output = pvscope(arguments);
        let said = String::from_utf8_lossy(&output.stderr);
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {said}"))
    };
    let (schema, document) = (json(&["schema", name]), json(&[command, &["--json"]].concat()));
    assert_eq!(document::errors(&schema, &document), [""; 0]);
}

/// The nodes of the call graph count everything, and a function that programs reach by system calls has the chain.
fn chains_of_calls_are_complete(recording: &Recording, total: &Counters) {
    let mut counted = Counters::default();
    recording.calls.iter().for_each(|node| counted += &node.counters);
    assert_eq!(counted.instructions, recording.instructions);
    assert_eq!(counted.events, total.events);
    assert_eq!(counted.dtlb_misses, total.dtlb_misses);
    assert_eq!(counted.l2d_misses, total.l2d_misses);
    assert_eq!(recording.calls[0].counters.instructions, 0, "the root executes nothing");
    let name = |node: usize| {
        let block = &recording.blocks[recording.calls[node].block as usize];
        recording.functions[block.function as usize].name.as_str()
    };
    let has_caller = |mut node: usize, wanted: &str| {
        while node > 0 {
            node = recording.calls[node].parent as usize;
            if name(node).starts_with(wanted) {
                return true;
            }
        }
        false
    };
    let sends = (1..recording.calls.len()).filter(|node| name(*node) == "tcp_sendmsg_locked");
    let (mut all, mut by_system_call) = (0, 0);
    for node in sends {
        let calls = recording.calls[node].counters.executions;
        all += calls;
        by_system_call += if has_caller(node, "entry_SYSCALL_64") { calls } else { 0 };
    }
    assert!(all > 0 && by_system_call * 10 >= all * 9, "{by_system_call} of {all}");
}

/// Valgrind's own reader, where it is installed.
fn callgrind_annotate_reads(file: &Path) {
    let Ok(output) = Command::new("callgrind_annotate").arg("--inclusive=yes").arg(file).output()
    else {
        eprintln!("skipped: no callgrind_annotate");
        return;
    };
    let text = String::from_utf8_lossy(&output.stdout);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("tcp_sendmsg_locked"), "{text}\n{said}");
}

/// `objdump` shows the kernel's code as it was executed: an instruction at each address that has costs, and the names.
fn objdump_finds_the_code(file: &Path, recording: &Recording) {
    let text = std::fs::read_to_string(file).expect("a file");
    let mut objects = text.lines().filter_map(|line| line.strip_prefix("ob="));
    let object = objects.find(|path| path.ends_with("callgrind.objects/machine-vmlinux"));
    let object = object.expect("the kernel");
    let output = Command::new("objdump").args(["-d", object]).output().expect("objdump");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let shown = String::from_utf8_lossy(&output.stdout);
    assert!(shown.contains(" <tcp_sendmsg_locked>:"));
    let address = |line: &str| u64::from_str_radix(line.split_once(":\t")?.0.trim(), 16).ok();
    let instructions: BTreeSet<u64> = shown.lines().filter_map(address).collect();
    let is_kernel = |function: u32| recording.functions[function as usize].module == "vmlinux";
    let blocks = recording.blocks.iter().filter(|block| is_kernel(block.function));
    let kernel: Vec<_> = blocks.filter(|block| block.total().executions > 0).collect();
    assert!(kernel.len() > 1000);
    for block in kernel {
        let range = block.address..block.address + block.code.len() as u64;
        let found = instructions.range(range).count();
        assert!(found >= usize::from(block.instructions), "{found} at {:#x}", block.address);
    }
}
