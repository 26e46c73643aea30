//! The documents' blocks of shell commands, pasted: in namespaces of their own, so that they use `/run/pvnet` and names such as `red`
//! literally. Those that need other hosts are pasted by labs, and those that take minutes by `make test-documents`.

mod long;

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
    /// It is pasted, as it stands. Its output has these words.
    Paste(Before, &'static str),
    /// It is a script, which is run with this argument. Its output has these words.
    Script(&'static str, &'static str),
    /// This target of make pastes it; in this source file, which names the document and the row's words.
    Lab(&'static str, &'static str),
    /// `make test-documents` pastes it, in the short forms of `long.rs`. It needs these programs and files, which `scripts/deps` does
    /// not install, and what this script prepares. Its output has these words.
    Long(&'static [&'static str], &'static str, &'static str),
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
use Try::{Lab, Long, Paste, Script};
use long::{APT, KERNEL, OTHER, PROBED};

const OVN_DHCP: Try = Lab("lab-ovn", "crates/lab/ovnlab/src/dhcp.rs");
const XEN: Try = Lab("lab-xen-domains", "crates/lab/xenlab/src/scenario/domains.rs");

/// Each block by its document and words that no other block of the document has.
const BLOCKS: &[(&str, &str, Try)] = &[
    ("README.md", "make demo", Long(&[], "", "out/demo.html")),
    ("README.md", "make deb", Long(&[], APT, "Setting up pvnet ")),
    ("bench/README.md", "gungraun-runner", Long(&["valgrind"], "", "Instructions:")),
    ("docs/cdna.md", "pvnet nic card0 &", Paste(Configured, "card0")),
    ("docs/chadha07.md", "make scope", Long(&[], "", "Figure 17")),
    ("docs/chadha07.md", "--pause 2000", Long(&[], "", "Figure 10")),
    ("docs/cpus.md", "pvnet worker move", Paste(Guests(&["vm1"]), "vm1/0")),
    ("docs/kvm-speed.md", "bench vhost", Long(&[], OTHER, "other-packed")),
    ("docs/kvm.md", "reconnect-ms=50", Paste(Configured, "")),
    ("docs/kvm.md", "reconnect=1", Paste(Configured, "")),
    ("docs/labs.md", "bench stream", Long(&[], "", "Jain's index")),
    ("docs/menon06.md", "repro menon06", Long(&[], "", "Figure 6")),
    ("docs/operations.md", "make deb", Long(&[], APT, "Setting up pvnet ")),
    ("docs/operations.md", "mirror add", Paste(Guests(&["red", "blue", "probe"]), "span")),
    (
        "docs/operations.md",
        "bpftrace",
        Long(&["bpftrace", "/sys/bus/event_source/devices/uprobe"], PROBED, "Attaching"),
    ),
    ("docs/operations.md", "journalctl", Paste(Guests(&["red"]), "\tINFO\tconnected\t")),
    ("docs/operations.md", "pvnet rootless", Paste(Nothing, "Two guests talk")),
    ("docs/ovn.md", "add-port br-int vif-red", OVN_DHCP),
    (
        "docs/ovn.md",
        "/etc/xen/scripts/vif-ovn",
        Lab("lab-xen-device", "crates/lab/xenlab/src/scenario/device/ovn.rs"),
    ),
    ("docs/ovn.md", "ip tuntap add", Lab("lab-ovn", "crates/lab/ovnlab/src/kinds.rs")),
    ("docs/ovn.md", "DHCP_Options", OVN_DHCP),
    ("docs/ovn.md", "add-port br-int up0", Lab("lab-ovn", "crates/lab/ovnlab/src/vhost_user.rs")),
    ("docs/ports.md", "pvnet run", Paste(Nothing, "3 received")),
    ("docs/ports.md", "pvnet capture blue", Paste(Guests(&["red", "blue"]), "")),
    ("docs/ports.md", "pvnet reload", Paste(Guests(&["red", "green"]), "")),
    ("docs/pvscope.md", "pvscope list", Long(&[], "", "tx-stock")),
    ("docs/pvscope.md", "pvscope marks", Long(&["/bin/busybox", "cpio"], KERNEL, "busybox")),
    (
        "docs/pvscope.md",
        "-- qemu-system-x86_64",
        Long(&["/bin/busybox", "cpio"], KERNEL, "web.pvs"),
    ),
    ("docs/santos08.md", "repro santos08", Long(&[], "", "Figure")),
    ("docs/toolstacks.md", "modules-load.d", Paste(Nothing, "")),
    (
        "docs/toolstacks.md",
        "XENBUS_PATH",
        Script("online vif3.1", "backend/vif/3/1: online type_if=vif"),
    ),
    ("docs/willmann07.md", "repro willmann07", Long(&[], "", "Table 2")),
    ("docs/xen-cost.md", "repro netback", Long(&[], "", "guests-pvnet")),
    ("docs/xen-cost.md", "xen-floor/floor.c", Long(&[], "", "asks another guest")),
    ("docs/xen.md", "modprobe -a", XEN),
    ("docs/xen.md", "blacklist", Paste(Nothing, "")),
    ("docs/xen.md", "pvnet attach", XEN),
    ("docs/xen.md", "xen_gntalloc/parameters", XEN),
    ("docs/xenserver7.md", "repro xenserver7", Long(&[], "", "queues")),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..").canonicalize().unwrap()
}

fn shell_blocks() -> Vec<Block> {
    blocks(&root()).unwrap().into_iter().filter(|block| block.language == "sh").collect()
}

/// The rows of a block.
fn rows(block: &Block) -> impl Iterator<Item = &'static Try> {
    let fits = |(document, words, _): &&(&str, &str, Try)| {
        block.document() == *document && block.text.contains(words)
    };
    BLOCKS.iter().filter(fits).map(|(.., what)| what)
}

#[test]
fn every_block_is_pasted() {
    let blocks = shell_blocks();
    for block in &blocks {
        assert_eq!(rows(block).count(), 1, "{} must be in one row of BLOCKS", block.place);
    }
    // Each of them is of another block, as no block has two.
    assert_eq!(BLOCKS.len(), blocks.len(), "a row of BLOCKS has no block");
}

#[test]
fn labs_that_paste_blocks_name_them() {
    let makefile = std::fs::read_to_string(root().join("Makefile")).unwrap();
    for (document, words, what) in BLOCKS {
        let Lab(target, source) = what else { continue };
        assert!(makefile.contains(&format!("\n{target}:")), "make {target}");
        let text = std::fs::read_to_string(root().join(source)).unwrap();
        let has_page = text.contains("include_str!") && text.contains(&format!("/{document}\");"));
        assert!(
            has_page && text.contains(&format!("\"{words}\"")),
            "{source}: {document}, {words}"
        );
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

#[test]
fn make_bench_runs_the_benches_of_the_documents() {
    let script = std::fs::read_to_string(root().join("scripts/bench")).unwrap();
    let list = script.lines().find_map(|line| line.strip_prefix("for bench in ")).unwrap();
    let list: Vec<_> = list.trim_end_matches("; do").split(' ').collect();
    for block in shell_blocks() {
        for command in commands(&block.text) {
            if let ["pvnet-lab", "bench", bench, ..] =
                command.iter().map(String::as_str).collect::<Vec<_>>()[..]
            {
                assert!(list.contains(&bench), "{}: {bench}", block.place);
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
/// once its front-end is connected. `QEMU` is the folder where its packages were unpacked, if it is not the installed one.
const STAND_INS: [(&str, &str); 5] = [
    ("wireshark", "exec cat >/dev/null"),
    ("tcpdump", "exec cat >/dev/null"),
    // The journal has what the daemon writes to standard error, and this one is no unit.
    ("journalctl", "[ \"$*\" = '-u pvnet -o cat' ] && exec cat pvnet.log"),
    // In short form.
    ("pvnet-lab", "PATH=${PATH#*:} exec pvnet-lab \"$@\" --quick --quiet --step talk"),
    (
        "qemu-system-x86_64",
        "libraries=$QEMU/usr/lib/x86_64-linux-gnu\n\
         [ -z \"$QEMU\" ] || set -- -L $QEMU/usr/share/seabios -L $QEMU/usr/share/qemu \"$@\"\n\
         PATH=${QEMU:+$QEMU/usr/bin:}${PATH#*:} LD_LIBRARY_PATH=${QEMU:+$libraries} \\\n\
         qemu-system-x86_64 -display none -S \"$@\" & qemu=$!\n\
         until pvnet status | grep -q 'a front-end is connected'; do\n\
         kill -0 $qemu 2>/dev/null || { wait $qemu; exit; }\n\
         sleep 0.2\ndone\nkill $qemu",
    ),
];

/// XenServer's own script for interfaces, by what it is given.
const TOOLSTACK: &str = "mkdir -p /etc/xensource/scripts\n\
    printf '#!/bin/sh\\necho \"$XENBUS_PATH: $*\"\\n' >/etc/xensource/scripts/vif\n\
    chmod 755 /etc/xensource/scripts/vif\n";

/// A paste as a script. Lines without an end (`pvnet top`) get three seconds and Ctrl-C; the others may be pasted four times, since
/// a person repeats a ping whose guest was not up yet.
fn script(block: &Block, before: &str, folder: &Path) -> String {
    let programs = Path::new(env!("CARGO_BIN_EXE_pvnet")).parent().unwrap().display();
    let folder = folder.display();
    let mut script = format!(
        "mount -t tmpfs none /run && mkdir -p /run/netns /run/pvnet && ip link set lo up && cd {folder} || exit\n\
         cp -a /etc /run/etc && mount --bind /run/etc /etc && mkdir -p /etc/modprobe.d /etc/modules-load.d || exit\n\
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
            let mut text = format!(
                "[daemon]\nworkers = 3\nsandbox = \"devices\"\nrecordings = \"{recordings}\"\nlog = \"json\"\n"
            );
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
    let mut script = "pvnet run --config pvnet.toml 2>pvnet.log &\n\
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

/// Writes programs that stand before others in the search path.
fn stand_ins(bin: &Path, programs: &[(&str, &str)]) {
    std::fs::create_dir(bin).unwrap();
    for (name, text) in programs {
        let file = bin.join(name);
        std::fs::write(&file, format!("#!/bin/bash\n{text}\n")).unwrap();
        std::fs::set_permissions(&file, PermissionsExt::from_mode(0o755)).unwrap();
    }
}

/// Pastes a block, after what an operator has done before. A script gets an argument. QEMU is the installed one, or that whose packages were unpacked to
/// `qemu`.
fn paste(
    block: &Block,
    earlier: &Before,
    argument: Option<&str>,
    words: &str,
    qemu: Option<&Path>,
) {
    let folder = TempDir::new().unwrap();
    symlink(root().join("examples"), folder.path().join("examples")).unwrap();
    std::fs::write(folder.path().join("vm1.qcow2"), [0; 1 << 16]).unwrap();
    stand_ins(&folder.path().join("bin"), &STAND_INS);
    let before = before(block, earlier, folder.path());
    let script = match argument {
        None => script(block, &before, folder.path()),
        Some(argument) => {
            std::fs::write(folder.path().join("script"), &block.text).unwrap();
            let as_block = Block { text: format!("sh script {argument}"), ..block.clone() };
            script(&as_block, TOOLSTACK, folder.path())
        }
    };
    let mut command = Command::new("unshare");
    command.env("QEMU", qemu.unwrap_or(Path::new("")));
    command.args(["--mount", "--net", "--pid", "--fork", "--mount-proc", "--kill-child"]);
    command.args(["bash", "-c", &script]);
    let mut process = Process::capture(command).unwrap();
    let status = process.wait(LIMIT).unwrap();
    let (output, errors) = (process.stdout(), process.stderr());
    assert!(
        status.success() && !output.contains("FAILED") && output.contains(words),
        "{}: {status}\n{output}\n{errors}\nthe script:\n{script}",
        block.place
    );
}

#[test]
fn blocks_work_as_they_stand() {
    requires!("ping", "unshare", "timeout", "jq");
    let mut pasted = 0;
    for block in shell_blocks() {
        let (earlier, argument, words) = match rows(&block).next() {
            Some(Paste(earlier, words)) => (earlier, None, words),
            Some(Script(argument, words)) => (&Nothing, Some(*argument), words),
            _ => continue,
        };
        if !can_paste(&block) {
            eprintln!("skipped: {} is for another version of QEMU", block.place);
            continue;
        }
        paste(&block, earlier, argument, words, None);
        pasted += 1;
    }
    assert!(pasted >= 12, "{pasted}");
}
