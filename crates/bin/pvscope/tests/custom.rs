//! The user's own machines, and the messages when they cannot be recorded.
//!
//! No test needs the network. Tests that need QEMU 10 are skipped without it.

mod plugin;

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A folder that is removed on drop.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("own-{name}"));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).expect("folder");
        Self(path)
    }

    fn file(&self, name: &str, content: &[u8]) -> String {
        let path = self.0.join(name);
        std::fs::write(&path, content).expect("write");
        path.display().to_string()
    }

    /// A program that prints this QEMU version, and otherwise runs the given commands.
    fn qemu(&self, version: &str, otherwise: &str) -> String {
        let text = format!(
            "#!/bin/sh\n[ \"$1\" = --version ] && {{ echo 'QEMU emulator version {version}'; exit; }}\n{otherwise}\n"
        );
        let path = self.file("qemu", text.as_bytes());
        let mode = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(&path, mode).expect("mode");
        path
    }

    fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.0).expect("folder").flatten();
        let mut names: Vec<_> =
            entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Runs `pvscope run`, with an empty file as plugin unless one is given.
fn run(folder: &Folder, options: &[&str], line: &[&str]) -> Output {
    let plugin = folder.file("plugin.so", b"");
    let out = folder.0.join("out.pvs").display().to_string();
    let fixed = ["run", "--quiet", "--out", &out];
    let plugin = if options.contains(&"--plugin") { &[][..] } else { &["--plugin", &plugin] };
    let words = [&fixed[..], plugin, options, &["--"], line].concat();
    let temporary = folder.0.join("temporary");
    std::fs::create_dir_all(&temporary).expect("folder");
    let mut command = Command::new(env!("CARGO_BIN_EXE_pvscope"));
    let output = command.args(words).env("TMPDIR", &temporary).output().expect("pvscope");
    // No temporary file is left.
    let left: Vec<_> = std::fs::read_dir(&temporary).expect("folder").flatten().collect();
    assert!(left.is_empty(), "{left:?}");
    output
}

/// The error message of a run that fails and leaves no result.
fn failure(folder: &Folder, options: &[&str], line: &[&str]) -> String {
    let before = folder.names();
    let output = run(folder, options, line);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    let made = folder.names().into_iter().filter(|name| !before.contains(name));
    let made: Vec<String> =
        made.filter(|name| name != "plugin.so" && name != "temporary").collect();
    assert!(made.is_empty(), "{made:?}");
    said
}

#[test]
fn a_missing_qemu_is_named() {
    let folder = Folder::new("missing");
    let said = failure(&folder, &[], &["/no/such/qemu-system-x86_64"]);
    assert!(said.contains("/no/such/qemu-system-x86_64: no such program"), "{said}");
    let said = failure(&folder, &[], &["qemu-system-arm"]);
    assert!(said.contains("only whole machines of x86-64"), "{said}");
}

#[test]
fn a_qemu_that_is_too_old_is_named_with_its_version_and_the_way_to_another() {
    let folder = Folder::new("old");
    let qemu = folder.qemu("7.2.0", "exit 9");
    let said = failure(&folder, &[], &[&qemu, "-m", "1G"]);
    for part in [&qemu, "7.2.0", "needs QEMU 10", "qemu-system-x86_64", "bookworm-backports"] {
        assert!(said.contains(part), "{part}: {said}");
    }
}

#[test]
fn a_qemu_without_plugins_is_recognised() {
    let folder = Folder::new("plugins");
    for words in ["Plugin interface not enabled in this build", "-plugin: invalid option"] {
        let qemu = folder.qemu("10.0.2", &format!("echo 'qemu: {words}' >&2; exit 1"));
        let said = failure(&folder, &[], &[&qemu]);
        assert!(said.contains("this QEMU was built without plugins"), "{said}");
        assert!(said.contains(words) && said.contains("--enable-plugins"), "{said}");
    }
}

#[test]
fn a_machine_that_ends_early_is_reported_with_its_last_output() {
    let folder = Folder::new("early");
    let qemu = folder.qemu("10.0.2", "echo 'no bootable device'; exit 0");
    // Output of an earlier machine is not shown.
    let console = format!("file:{}", folder.file("console", b"long ago"));
    let said = failure(&folder, &[], &[&qemu, "-nographic", "-serial", &console]);
    assert!(!said.contains("long ago"), "{said}");
    assert!(said.contains("mark-begin was not executed: QEMU ended"), "{said}");
    assert!(said.contains("no bootable device"), "{said}");
}

#[test]
fn a_given_image_without_symbols_is_refused_and_another_one_noted() {
    let folder = Folder::new("symbols");
    let image = folder.file("vmlinux", &[0x7f; 64]);
    let qemu = folder.qemu("10.0.2", "exit 1");
    for option in ["--kernel-symbols", "--xen-symbols"] {
        let said = failure(&folder, &[option, &image], &[&qemu]);
        assert!(said.contains(&image), "{said}");
    }
    // If QEMU loads the image, the run continues until this QEMU ends.
    let said = failure(&folder, &[], &[&qemu, "-kernel", &image]);
    assert!(said.contains("the kernel's functions are counted as unknown"), "{said}");
    assert!(said.contains("QEMU ended"), "{said}");
}

#[test]
fn options_of_other_forms_are_refused() {
    let folder = Folder::new("forms");
    let qemu = folder.qemu("10.0.2", "exit 1");
    for (options, line, part) in [
        (&["--milliseconds", "5"][..], &[qemu.as_str()][..], "--milliseconds is for"),
        (&["--kernel", "x"], &[&qemu], "belong in the command line"),
        (&[], &[&qemu, "-enable-kvm"], "leave out -enable-kvm"),
        (&[], &[&qemu, "-m", "much"], "-m much: not a size"),
    ] {
        let said = failure(&folder, options, line);
        assert!(said.contains(part), "{part}: {said}");
    }
}

/// QEMU 10 and the plugin, if there is a QEMU 10.
fn real() -> Option<(String, String)> {
    let program = Path::new(env!("CARGO_BIN_EXE_pvscope"));
    let target = program.parent()?.parent()?;
    let fits = |command: &mut Command| {
        let output = command.arg("--version").output();
        output.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains("version 10."))
    };
    // An unpacked QEMU is used too, but none is fetched.
    let roots = std::fs::read_dir(target.join("xenlab/qemu")).into_iter().flatten().flatten();
    let unpacked = roots.map(|root| root.path().join("usr/bin/qemu-system-x86_64"));
    let there = fits(&mut Command::new("qemu-system-x86_64"))
        || unpacked.into_iter().any(|file| file.is_file());
    if !there {
        assert!(std::env::var_os("XENLAB_REQUIRED").is_none(), "no QEMU 10");
        eprintln!("skipped: no QEMU 10");
        return None;
    }
    let plugin = plugin::plugin().display().to_string();
    Some(("qemu-system-x86_64".to_owned(), plugin))
}

#[test]
fn a_mark_that_never_comes_ends_the_run_in_time_and_says_so() {
    let Some((qemu, plugin)) = real() else { return };
    let folder = Folder::new("mark");
    // Without disk and kernel the firmware searches for something to boot forever.
    let line = [qemu.as_str(), "-m", "64M", "-nodefaults", "-display", "none", "-no-reboot"];
    let said = failure(&folder, &["--plugin", &plugin, "--limit", "2"], &line);
    assert!(said.contains("mark-begin was not executed within 2 s"), "{said}");
    assert!(said.contains("--limit"), "{said}");
    let said = failure(&folder, &["--plugin", &plugin], &[&line[..], &["-smp", "2"]].concat());
    assert!(said.contains("one processor can be recorded: use -smp 1"), "{said}");
}

/// The lab's images, if they exist.
fn images() -> Option<(String, Vec<u8>)> {
    let target = Path::new(env!("CARGO_BIN_EXE_pvscope")).parent()?.parent()?;
    let suites = std::fs::read_dir(target.join("xenlab")).ok()?.flatten();
    let folders = suites.filter_map(|suite| std::fs::read_dir(suite.path()).ok()).flatten();
    let image = folders
        .flatten()
        .map(|entry| entry.path())
        .find(|path| path.join("vmlinux").is_file() && path.join("dom0.cpio").is_file())?;
    let root = std::fs::read(image.join("dom0.cpio")).ok()?;
    Some((image.join("vmlinux").display().to_string(), root))
}

/// A file in a cpio archive (newc).
fn archived(name: &str, content: &[u8]) -> Vec<u8> {
    let mut entry = b"070701".to_vec();
    let lengths = [content.len(), 0, 0, 0, 0, name.len() + 1, 0];
    // Number, mode, owner, group, links, time; then lengths and devices.
    for field in [0, 0o100_755, 0, 0, 1, 0].into_iter().chain(lengths) {
        entry.extend(format!("{field:08x}").bytes());
    }
    let pad = |entry: &mut Vec<u8>| entry.resize(entry.len().next_multiple_of(4), 0);
    entry.extend(name.bytes().chain([0]));
    pad(&mut entry);
    entry.extend(content);
    pad(&mut entry);
    entry
}

const INIT: &[u8] = b"#!/bin/sh
export PATH=/usr/local/bin:/usr/sbin:/usr/bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev
ip link set lo up
{
    pvscope-tell before lo
    mark-begin; ping -c 1 127.0.0.1 >/dev/null; mark-end
    pvscope-tell after lo
    pvscope-tell
} >/dev/ttyS1
busybox poweroff -f
";

#[test]
fn a_users_image_is_recorded_with_memory_above_the_device_hole() {
    let Some((_, plugin)) = real() else { return };
    let Some((kernel, mut root)) = images() else {
        eprintln!("skipped: the lab's images do not exist");
        return;
    };
    let folder = Folder::new("image");
    let marks = folder.0.join("marks");
    let written = Command::new(env!("CARGO_BIN_EXE_pvscope")).arg("marks").arg(&marks).output();
    assert!(written.expect("pvscope").status.success());
    root.extend(archived("init", INIT));
    for name in ["mark-begin", "mark-end", "pvscope-tell"] {
        let content = std::fs::read(marks.join(name)).expect("written");
        root.extend(archived(&format!("usr/local/bin/{name}"), &content));
    }
    root.extend(archived("TRAILER!!!", b""));
    let initrd = folder.file("root.cpio", &root);
    let out = folder.0.join("own.pvs");
    let output = Command::new(env!("CARGO_BIN_EXE_pvscope"))
        .args(["run", "image", "--quiet", "--no-snapshot"])
        .args(["--check", "--single", "--about", "one ping"])
        .args(["--memory", "4096", "--kernel", &kernel, "--initrd", &initrd])
        .args(["--plugin", &plugin, "--out", &out.display().to_string()])
        .output()
        .expect("pvscope");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert_eq!(said, "", "nothing is missing");
    let recording = scope_result::read(&out).expect("a recording");
    // Request and reply: what the loopback interface sends counts once.
    let work = &recording.work;
    assert_eq!((work.what.as_str(), work.frames), ("one ping", 2), "{work:?}");
    assert_eq!((work.interface.as_str(), work.acks, work.data_frames), ("lo", 0, 0), "{work:?}");
    assert!(recording.checks.compared > 10_000, "{:?}", recording.checks);
    assert_eq!(recording.checks.stale, 0);
    let functions = &recording.functions;
    assert!(functions.iter().any(|function| function.name == "icmp_rcv"));
    // The shell still runs when it prints its mappings; ping has ended.
    assert!(functions.iter().any(|function| function.module == "dash"), "{functions:?}");
}
