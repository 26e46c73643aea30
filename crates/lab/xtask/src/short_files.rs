//! Short files. A reader must open each of them, and many are only a part of another file's idea: so each needs a reason.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::Path;

/// A file with fewer lines needs a reason.
const LINES_MIN: usize = 60;

/// A reason, and the files of `crates` that are short for it.
type Reasons<'a> = &'a [(&'a str, &'a [&'a str])];

const REASONS: Reasons<'_> = &[
    (
        "a command, a benchmark, a group of checks or attacks, or a step of a lab: each has a file",
        &[
            "bin/pvnet/src/config_check.rs",
            "bin/pvnet/src/revoke.rs",
            "bin/pvnet/src/rootless.rs",
            "bin/pvscope/src/schema.rs",
            "lab/ovnlab/src/vhost_user.rs",
            "lab/pvnet-lab/src/schema.rs",
            "lab/xenlab/src/bin/hostile/leaving.rs",
        ],
    ),
    (
        "a format or a header file, of which each has a file",
        &[
            "nic/cdna/src/address.rs",
            "packets/ring/src/netif.rs",
            "packets/wire/src/ip.rs",
            "packets/wire/src/netif/header_channel.rs",
            "platforms/hypervisor/src/id.rs",
            "platforms/xenstore/src/xenbus.rs",
        ],
    ),
    (
        "files of several ideas use it, and it uses none of them",
        &[
            "bin/pvnet/src/args.rs",
            "bin/pvscope/tests/plugin/mod.rs",
            "lab/lab/src/memory.rs",
            "lab/xenlab/src/scenario/lease.rs",
            "nic/firmware/src/finish.rs",
            "packets/shm/src/code.rs",
            "platforms/machine/src/store/quota.rs",
            "platforms/xen/src/peer.rs",
            "ports/virtio-user/src/error.rs",
            "scope/scope-symbols/src/bytes.rs",
            "switching/datapath/src/probes.rs",
            "switching/port/src/metric.rs",
            "switching/port/src/steering.rs",
        ],
    ),
    (
        "in the file of the same idea it would close a circle of imports",
        &["lab/ovnlab/src/central.rs", "platforms/machine/src/guest_copy/hypercall.rs"],
    ),
    (
        "what the modules within it share",
        &[
            "lab/xenlab/src/scenario/hostile.rs",
            "platforms/machine/src/store/tests.rs",
            "scope/scope-symbols/src/proc.rs",
        ],
    ),
    (
        "it has `unsafe`, or a test includes it without the rest of its crate",
        &[
            "packets/shm/src/region/record.rs",
            "platforms/xen/src/sys.rs",
            "scope/scope-plugin/src/memory.rs",
        ],
    ),
];

/// The short files of the crates below `root` that have no reason, and the reasons whose file is not short.
///
/// Some are short by nature: the root of a library, a program or a test, a module that only declares others, and a test
/// of one case.
///
/// # Errors
/// A folder or file cannot be read.
pub fn check(root: &Path) -> io::Result<Vec<String>> {
    findings(&root.join("crates"), REASONS)
}

fn findings(crates: &Path, reasons: Reasons<'_>) -> io::Result<Vec<String>> {
    let mut short = BTreeSet::new();
    find(crates, crates, &mut short)?;
    let known: BTreeSet<_> =
        reasons.iter().flat_map(|(_, files)| *files).map(|&file| file.to_owned()).collect();
    let part = short.difference(&known).map(|file| {
        format!(
            "crates/{file} has less than {LINES_MIN} lines: move it to the file whose idea it is a part of, or say in short_files.rs why not"
        )
    });
    let unneeded = known.difference(&short);
    let unneeded = unneeded.map(|file| format!("short_files.rs: crates/{file} needs no reason"));
    Ok(part.chain(unneeded).collect())
}

/// Adds the short files in a folder, by their paths in `crates`.
fn find(crates: &Path, folder: &Path, short: &mut BTreeSet<String>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            find(crates, &path, short)?;
        } else if path.extension() == Some(OsStr::new("rs")) && !is_root(&path) {
            let text = fs::read_to_string(&path)?;
            let is_case =
                path.iter().any(|part| part == "tests") && text.matches("#[test]").count() == 1;
            if text.lines().count() < LINES_MIN && !is_case && !only_declares(&text) {
                let path = path.strip_prefix(crates).unwrap_or(&path);
                short.insert(path.to_string_lossy().into_owned());
            }
        }
    }
    Ok(())
}

/// Whether a file is the root of a library, a program or a test, or the script of a build.
fn is_root(path: &Path) -> bool {
    let is_of_tests = path.parent().is_some_and(|folder| {
        folder.ends_with("tests") && folder.with_file_name("Cargo.toml").is_file()
    });
    is_of_tests || ["lib.rs", "main.rs", "build.rs"].iter().any(|name| path.ends_with(name))
}

/// Whether a file has only declarations of modules (`mod`), and names that it passes on (`pub use`).
fn only_declares(text: &str) -> bool {
    let lines = text.lines().filter_map(|line| line.split("//").next());
    let code: Vec<_> = lines.filter(|line| !line.trim_start().starts_with('#')).collect();
    code.join("\n").split(';').map(str::trim).all(|item| {
        let item = match item.strip_prefix("pub(") {
            Some(rest) => rest.split_once(')').map_or(rest, |(_, rest)| rest),
            None => item.strip_prefix("pub").unwrap_or(item),
        };
        let item = item.trim_start();
        item.is_empty()
            || item.starts_with("use ")
            || item.starts_with("mod ") && !item.contains('{')
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings_of(files: &[(&str, String)], reasons: Reasons<'_>) -> Vec<String> {
        let root = std::env::temp_dir().join(format!("xtask-short-{}", std::process::id()));
        for (file, text) in files {
            let file = root.join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        }
        let found = findings(&root, reasons).unwrap();
        fs::remove_dir_all(root).unwrap();
        found
    }

    #[test]
    fn a_short_file_has_a_reason_and_no_other_has_one() {
        let code = || "fn f() {}\n".to_owned();
        let root = "//! A module.\n\n#[cfg(test)]\nmod tests;\npub(crate) mod a;\n\npub use a::{A,\n    B};\n";
        let mut files = vec![
            ("port/Cargo.toml", String::new()),
            ("port/src/lib.rs", code()),
            ("port/src/long.rs", code().repeat(LINES_MIN)),
            ("port/src/root.rs", root.to_owned()),
            ("port/tests/frames.rs", code()),
            ("port/tests/hostile/main.rs", code()),
            ("port/tests/hostile/rings.rs", format!("#[test]\n{}", code())),
        ];
        assert_eq!(findings_of(&files, &[]), [""; 0]);
        let of_long: Reasons<'_> = &[("it was short", &["port/src/long.rs"])];
        assert_eq!(findings_of(&files, of_long).len(), 1);
        for file in ["port/src/short.rs", "port/src/tests/short.rs", "port/tests/common/mod.rs"] {
            files.push((file, code()));
            let found = findings_of(&files, &[]);
            assert!(found.len() == 1 && found[0].contains(file), "{found:?}");
            assert_eq!(findings_of(&files, &[("small", &[file])]), [""; 0]);
            files.pop();
        }
        files.push(("port/src/inline.rs", format!("pub mod inner {{\n{}}}\n", code())));
        assert_eq!(findings_of(&files, &[]).len(), 1);
    }
}
