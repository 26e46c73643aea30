//! Blocks that take minutes. They see the system and the repository, and what they write there is thrown away.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use lab::documents::{Block, commands};
use lab::{TempDir, requires};

use super::{
    Configured, Paste, Try, can_paste, has_reconnect_ms, paste, root, rows, shell_blocks, stand_ins,
};

/// For all of a block's commands, as timeout(1) takes it.
const LIMIT: &str = "3h";

/// Lets apt ask nothing.
pub const APT: &str = "echo 'APT::Get::Assume-Yes \"true\";' >/etc/apt/apt.conf.d/90yes";
/// Another build of pvnet.
pub const OTHER: &str = "mkdir -p target/before && cp target/release/pvnet target/before";
/// Any Linux: the one that the labs boot.
pub const KERNEL: &str = "cp \"$(ls target/xenlab/*/*/vmlinuz | head -n 1)\" K";
/// A daemon whose frames are seen, as the package's program.
pub const PROBED: &str = "printf '[[guest]]\\nname = \"red\"\\nmac = \"02:00:00:00:00:01\"\\n' >red.toml; cp target/release/pvnet /usr/bin; /usr/bin/pvnet run --config red.toml &";

/// What stands in for programs in long blocks: experiments in short form, an editor that writes what the units need, no systemd, and no
/// Ctrl-C.
const SHORT: [(&str, &str); 5] = [
    (
        "pvnet-lab",
        "PATH=${PATH#*:}\n\
         case $* in *--rounds*) ;; bench* | repro*) set -- \"$@\" --rounds 1 ;; esac\n\
         case $* in 'bench isolation'*) set -- \"$@\" --class slow-stops,malformed ;; esac\n\
         exec pvnet-lab \"$@\"",
    ),
    (
        "pvscope",
        "PATH=${PATH#*:}\n\
         case $* in 'repro netback'*) set -- \"$@\" --pairs guests-pvnet ;; esac\n\
         exec pvscope \"$@\"",
    ),
    (
        "editor",
        "cat >>\"$1\" <<'END'\n[[guest]]\nname = \"red\"\nmac = \"02:00:00:00:00:01\"\n\
         [[nic]]\nname = \"card0\"\nwire = { tap = \"wire0\" }\nEND",
    ),
    (
        "systemctl",
        "[ \"$1 $2\" = 'enable --now' ] || exit\n\
         unit=${3%%@*}; [ $unit = $3 ] || unit+=@\n\
         command=$(sed -n 's/^ExecStart=//p' /lib/systemd/system/$unit.service)\n\
         setsid ${command//%i/${3#*@}} 2>/run/$3.log &\n\
         sleep 3; kill -0 $! || { cat /run/$3.log; exit 1; }",
    ),
    ("bpftrace", "PATH=${PATH#*:} timeout -s INT 10 bpftrace \"$@\" || [ $? = 124 ]"),
];

/// Makes what is written to the system and to the repository go to files below a folder. All long blocks share them: a later one
/// finds what an earlier one has made.
const COPY: &str = "number=0\n\
    for folder in /usr /etc /var \"$HOME\" \"$PWD\"; do\n\
    number=$((number + 1)) && mkdir -p $copy/$number/upper $copy/$number/work || exit\n\
    layers=lowerdir=$folder,upperdir=$copy/$number/upper,workdir=$copy/$number/work\n\
    mount -t overlay overlay -o \"$layers\" \"$folder\" || exit\n\
    done\ncd \"$PWD\" || exit\n";

/// What a long block needs and this machine lacks.
fn missing(needs: &[&'static str]) -> Vec<&'static str> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_there = |need: &str| {
        // An absolute path replaces the folder that it is joined to.
        std::env::split_paths(&path).any(|folder| folder.join(need).exists())
    };
    needs.iter().copied().filter(|need| !is_there(need)).collect()
}

/// Pastes a long block. Returns why it does not work.
fn paste_long(block: &Block, before: &str, words: &str, folder: &Path) -> Result<(), String> {
    let calls = |program: &str| commands(&block.text).iter().any(|command| command[0] == program);
    // What serves guests has a network of its own. Other blocks may fetch.
    let is_alone = calls("pvnet") || calls("pvnet-lab") || before.contains("pvnet run");
    let own = if is_alone {
        "mount -t tmpfs none /run && mkdir -p /run/netns /run/pvnet && ip link set lo up || exit\n"
    } else {
        ""
    };
    let text = folder.join("block");
    std::fs::write(&text, &block.text).unwrap();
    let (text, folder) = (text.display(), folder.display());
    let script = format!(
        "{own}copy={folder}/copy\n{COPY}export PATH={folder}/bin:$PWD/target/release:$PATH\n{before}\n\
         timeout -k 9 {LIMIT} bash -ev -o pipefail {text}"
    );
    let mut command = Command::new("unshare");
    command.args(["--mount", "--pid", "--fork", "--mount-proc", "--kill-child"]);
    command.args(is_alone.then_some("--net")).args(["bash", "-c", &script]);
    // Steps are shown on standard error.
    command.current_dir(root()).stdin(Stdio::null()).stderr(Stdio::inherit());
    let output = command.output().unwrap();
    let printed = String::from_utf8_lossy(&output.stdout);
    match output.status.success() && printed.contains(words) {
        true => Ok(()),
        false => Err(format!("{}: {}\n{printed}", block.place, output.status)),
    }
}

#[test]
#[ignore = "hours: make test-documents"]
fn long_blocks_work_as_they_stand() {
    requires!("ping", "unshare", "timeout");
    let only = std::env::var("DOCUMENT").unwrap_or_default();
    let is_asked = |place: &str| {
        only.is_empty() || only.split(' ').any(|document| place.starts_with(document))
    };
    let folder = TempDir::new().unwrap();
    stand_ins(&folder.path().join("bin"), &SHORT);
    let mut failed = Vec::new();
    for block in shell_blocks() {
        let Some(Try::Long(needs, before, words)) = rows(&block).next() else { continue };
        if !is_asked(&block.place) {
            continue;
        }
        let missing = missing(needs).join(" and ");
        if !missing.is_empty() {
            eprintln!("{}: skipped, this machine lacks {missing}", block.place);
            continue;
        }
        eprintln!("{}:", block.place);
        let start = Instant::now();
        let result = paste_long(&block, before, words, folder.path());
        let verdict = if result.is_ok() { "works" } else { "FAILED" };
        eprintln!("{}: {verdict}, {} s", block.place, start.elapsed().as_secs());
        failed.extend(result.err());
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

/// Those of QEMU 10 where an older one is installed, with the one that the labs have unpacked.
#[test]
#[ignore = "make test-documents"]
fn blocks_for_another_qemu_work_as_they_stand() {
    requires!("unshare", "timeout");
    let unpacked = root().join("target/xenlab/qemu/bookworm-10");
    if has_reconnect_ms() != Some(false) || !unpacked.exists() {
        eprintln!("skipped: QEMU 10 is installed, or no lab has unpacked it");
        return;
    }
    let mut pasted = 0;
    for block in shell_blocks().iter().filter(|block| !can_paste(block)) {
        let Some(Paste(Configured, words)) = rows(block).next() else { continue };
        eprintln!("{}: with QEMU 10", block.place);
        paste(block, &Configured, None, words, Some(&unpacked));
        pasted += 1;
    }
    assert!(pasted > 0);
}
