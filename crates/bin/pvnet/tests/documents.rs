//! The documents' blocks of shell commands, pasted: in namespaces of their own, so that they use `/run/pvnet` and names such as `red`
//! literally. What is not pasted stands here with its reason; its commands are parsed by unit tests of the three programs.

use std::fmt::Write as _;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use lab::documents::{Block, blocks, commands};
use lab::{Process, TempDir, requires};

/// For all of a block's commands.
const LIMIT: Duration = Duration::from_secs(300);

/// What is done with a block.
enum Try {
    /// It is pasted, as it stands.
    Paste(Before),
    Not(#[allow(dead_code, reason = "for who reads the table")] &'static str),
}

/// What an operator has done before.
enum Before {
    Nothing,
    /// Written the document's first configuration to a file, and started the daemon with it.
    Configured,
    /// Started a daemon and these guests.
    Guests(&'static [&'static str]),
}

use Before::{Configured, Guests, Nothing};
use Try::{Not, Paste};

const LABORATORY: &str =
    "an experiment of minutes to hours; pvnet-lab and pvscope test that its commands are known";
const XEN: &str = "it needs a Xen host; make lab-xen-domains and lab-xen-device do this in one";
const OVN: &str = "it needs Open vSwitch and OVN; make lab-ovn does this";
const INSTALLS: &str = "it installs what it needs; CI and make deb-test do this";

/// Each block by its document and how it begins; the first that fits.
const BLOCKS: &[(&str, &str, Try)] = &[
    ("README.md", "make demo", Not(INSTALLS)),
    ("README.md", "make deb", Not(INSTALLS)),
    ("docs/cdna.md", "pvnet nic card0 &", Paste(Configured)),
    ("docs/chadha07.md", "", Not(LABORATORY)),
    (
        "docs/cpus.md",
        "pvnet worker list",
        Not("it needs a virtual machine that carries traffic, and three workers"),
    ),
    ("docs/kvm-speed.md", "", Not(LABORATORY)),
    ("docs/kvm.md", "qemu-system-x86_64", Paste(Configured)),
    ("docs/labs.md", "", Not(LABORATORY)),
    ("docs/menon06.md", "", Not(LABORATORY)),
    ("docs/operations.md", "make deb", Not(INSTALLS)),
    ("docs/operations.md", "pvnet mirror add", Paste(Guests(&["red", "blue", "probe"]))),
    (
        "docs/operations.md",
        "# Frames per second",
        Not("it needs bpftrace; tests/probes reads the probes"),
    ),
    ("docs/operations.md", "journalctl", Not("it needs systemd; tests/log_lines reads such lines")),
    (
        "docs/operations.md",
        "pvnet rootless",
        Not("it runs the demo, as make demo does without root"),
    ),
    ("docs/ovn.md", "", Not(OVN)),
    ("docs/ports.md", "pvnet run", Paste(Nothing)),
    ("docs/ports.md", "pvnet capture", Paste(Guests(&["red", "blue"]))),
    ("docs/ports.md", "pvnet reload", Paste(Guests(&["red", "green"]))),
    ("docs/pvscope.md", "", Not(LABORATORY)),
    ("docs/santos08.md", "", Not(LABORATORY)),
    ("docs/toolstacks.md", "", Not(XEN)),
    ("docs/willmann07.md", "", Not(LABORATORY)),
    ("docs/xen-cost.md", "", Not(LABORATORY)),
    ("docs/xen.md", "", Not(XEN)),
    ("docs/xenserver7.md", "", Not(LABORATORY)),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..").canonicalize().unwrap()
}

fn shell_blocks() -> Vec<Block> {
    blocks(&root()).unwrap().into_iter().filter(|block| block.language == "sh").collect()
}

fn row(block: &Block) -> Option<usize> {
    let fits = |(document, start, _): &(&str, &str, Try)| {
        block.document() == *document && block.text.starts_with(start)
    };
    BLOCKS.iter().position(fits)
}

#[test]
fn every_block_is_pasted_or_has_a_reason() {
    let blocks = shell_blocks();
    let rows: Vec<_> = blocks.iter().map(row).collect();
    for (block, row) in blocks.iter().zip(&rows) {
        assert!(row.is_some(), "{} is in no row of BLOCKS", block.place);
    }
    for (number, (document, start, _)) in BLOCKS.iter().enumerate() {
        assert!(rows.contains(&Some(number)), "{document} has no block {start:?}");
        if let (.., Not(why)) = &BLOCKS[number] {
            assert!(!why.is_empty(), "{document}");
        }
    }
}

#[test]
fn every_block_is_shell_and_names_targets_of_make() {
    let makefile = std::fs::read_to_string(root().join("Makefile")).unwrap();
    for block in shell_blocks() {
        let checked = Command::new("bash").args(["-n", "-c", &block.text]).output().unwrap();
        assert!(checked.status.success(), "{}: {checked:?}", block.place);
        for command in commands(&block.text).iter().filter(|command| command[0] == "make") {
            for target in &command[1..] {
                let rule = format!("\n{target}:");
                assert!(makefile.contains(&rule), "{}: make {target}", block.place);
            }
        }
    }
}

/// The version of QEMU that is installed, and the one from which on `reconnect-ms` is known.
fn has_reconnect_ms() -> Option<bool> {
    let output = Command::new("qemu-system-x86_64").arg("--version").output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let version = text.split("version ").nth(1)?.split([' ', '\n']).next()?;
    let mut parts = version.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
    Some((parts.next()?, parts.next()?) >= (9, 2))
}

/// Whether this machine can run it: QEMU's blocks are for one version each.
fn can_paste(block: &Block) -> bool {
    let calls = |program: &str| commands(&block.text).iter().any(|command| command[0] == program);
    !calls("qemu-system-x86_64") || has_reconnect_ms() == Some(block.text.contains("reconnect-ms"))
}

/// Programs in place of some that show windows, or run for ever. QEMU's first line shows whether its options fit pvnet's: it ends
/// once its front-end is connected.
const STAND_INS: [(&str, &str); 3] = [
    ("wireshark", "exec cat >/dev/null"),
    ("tcpdump", "exec cat >/dev/null"),
    (
        "qemu-system-x86_64",
        "PATH=${PATH#*:} qemu-system-x86_64 -display none -S \"$@\" & qemu=$!\n\
         until pvnet status | grep -q 'a front-end is connected'; do\n\
         kill -0 $qemu 2>/dev/null || { wait $qemu; exit; }\n\
         sleep 0.2\ndone\nkill $qemu",
    ),
];

/// A paste as a script. Lines without an end (`pvnet top`) get three seconds and Ctrl-C; the others may be pasted four times, since
/// a person repeats a ping whose guest was not up yet.
fn script(block: &Block, before: &str, folder: &Path) -> String {
    let programs = Path::new(env!("CARGO_BIN_EXE_pvnet")).parent().unwrap().display();
    let folder = folder.display();
    let mut script = format!(
        "mount -t tmpfs none /run && mkdir -p /run/netns /run/pvnet && ip link set lo up && cd {folder} || exit\n\
         export PATH={folder}/bin:{programs}:$PATH\n{before}"
    );
    let text = block.text.replace("\\\n", " ");
    for line in text.lines() {
        let own = commands(line);
        let Some(last) = own.last() else { continue };
        let is_endless = own.iter().any(|command| {
            let words: Vec<_> = command.iter().map(String::as_str).collect();
            matches!(words[..], ["pvnet", "top" | "capture", ..])
        });
        let code = line.split(" # ").next().unwrap_or(line).trim();
        let quoted = code.replace('\'', "'\\''");
        // Writing into a string cannot fail.
        let _ = match (code.ends_with('&'), is_endless) {
            (true, _) => writeln!(script, "{code}"),
            (false, true) => writeln!(
                script,
                "timeout -s INT -k 9 3 bash -c '{quoted}' || [ $? = 124 ] || {{ echo 'FAILED: {quoted}'; exit 1; }}"
            ),
            (false, false) => writeln!(
                script,
                "for try in 1 2 3 4; do timeout 60 bash -c '{quoted}' && break; [ $try != 4 ] || {{ echo 'FAILED: {quoted}'; exit 1; }}; sleep $try; done"
            ),
        };
        assert!(!last.is_empty(), "{line}");
    }
    script
}

/// The daemon and the guests that were there before.
fn before(block: &Block, before: &Before, folder: &Path) -> String {
    let config = folder.join("pvnet.toml");
    let text = match before {
        Nothing => return String::new(),
        Configured => {
            let all = blocks(&root()).unwrap();
            let own =
                |other: &&Block| other.document() == block.document() && other.language == "toml";
            all.iter().find(own).unwrap().text.clone()
        }
        Guests(names) => {
            let recordings = folder.display();
            let mut text =
                format!("[daemon]\nsandbox = \"devices\"\nrecordings = \"{recordings}\"\n");
            for (number, name) in (1..).zip(*names) {
                let _ = writeln!(
                    text,
                    "[[guest]]\nname = \"{name}\"\nmac = \"02:00:00:00:00:{number:02}\"\n\
                     addresses = [\"10.77.0.{number}/24\"]"
                );
            }
            text
        }
    };
    std::fs::write(&config, text).unwrap();
    // Whoever pastes a block has started these before; a busy machine may need longer than one command waits.
    let mut script = "pvnet run --config pvnet.toml &\n\
                      until pvnet status >/dev/null 2>&1; do sleep 0.1; done\n"
        .to_owned();
    if let Guests(names) = before {
        for name in *names {
            let _ = writeln!(
                script,
                "pvnet guest {name} &\nuntil pvnet exec {name} -- true; do :; done"
            );
        }
    }
    script
}

#[test]
fn blocks_work_as_they_stand() {
    requires!("ping", "unshare", "timeout");
    let mut pasted = 0;
    for block in shell_blocks() {
        let Some((.., Paste(earlier))) = row(&block).map(|row| &BLOCKS[row]) else { continue };
        if !can_paste(&block) {
            eprintln!("skipped: {} is for another version of QEMU", block.place);
            continue;
        }
        let folder = TempDir::new().unwrap();
        symlink(root().join("examples"), folder.path().join("examples")).unwrap();
        std::fs::write(folder.path().join("vm1.qcow2"), [0; 1 << 16]).unwrap();
        let bin = folder.path().join("bin");
        std::fs::create_dir(&bin).unwrap();
        for (name, text) in STAND_INS {
            let file = bin.join(name);
            std::fs::write(&file, format!("#!/bin/bash\n{text}\n")).unwrap();
            std::fs::set_permissions(&file, PermissionsExt::from_mode(0o755)).unwrap();
        }
        let before = before(&block, earlier, folder.path());
        let script = script(&block, &before, folder.path());
        let mut command = Command::new("unshare");
        command.args(["--mount", "--net", "--pid", "--fork", "--mount-proc", "--kill-child"]);
        command.args(["bash", "-c", &script]);
        let mut process = Process::capture(command).unwrap();
        let status = process.wait(LIMIT).unwrap();
        let (output, errors) = (process.stdout(), process.stderr());
        assert!(
            status.success() && !output.contains("FAILED"),
            "{}: {status}\n{output}\n{errors}\nthe script:\n{script}",
            block.place
        );
        pasted += 1;
    }
    assert!(pasted >= 5, "{pasted}");
}
