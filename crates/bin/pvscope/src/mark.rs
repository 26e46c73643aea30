//! The programs that mark the begin and the end of a recording, and the script that prints a guest's report.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use clap::Args;
use document::Document;
use schemars::JsonSchema;
use scope_recorder::{MARK_BEGIN, MARK_END, TIME_STAMP};
use serde::Serialize;

use crate::error::{Error, Result};
use crate::report::{json, show};

/// Shell functions that print a guest's report in two parts: the symbols of modules, which is slow, as the kernel goes through
/// all of its own first, and the mappings of programs, which must still run. Their text is part of what the lab's guests execute,
/// so any change of it changes recordings.
pub const TELL: &str = include_str!("tell.sh").trim_ascii_end();
const SCRIPT: &str = include_str!("pvscope-tell.sh");

/// Arguments of `pvscope marks`.
#[derive(Args)]
pub struct MarksArgs {
    /// The folder to write to, which is created if missing.
    #[arg(value_name = "DIR")]
    folder: PathBuf,
    /// Print a JSON document instead of the files' names.
    #[arg(long)]
    json: bool,
}

/// What was written, for programs.
#[derive(JsonSchema, Serialize)]
pub struct MarksData {
    /// The paths of the programs and of the script.
    files: Vec<String>,
}

impl Document for MarksData {
    const SCHEMA: &'static str = "pvscope-marks/1";
}

/// Runs the command.
pub fn run(args: &MarksArgs) -> Result<()> {
    let data = write(&args.folder)?;
    show(&if args.json { json(&data)? } else { data.files.join("\n") + "\n" })
}

/// Writes the programs and the script into a folder.
fn write(folder: &Path) -> Result<MarksData> {
    std::fs::create_dir_all(folder).map_err(Error::path(folder))?;
    let script = ("pvscope-tell".to_owned(), SCRIPT.replace("TELL", TELL).into_bytes());
    let mut files = Vec::new();
    for (name, bytes) in programs().into_iter().chain([script]) {
        let path = folder.join(name);
        report::write_atomic(&path, &bytes)?;
        let mode = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(&path, mode).map_err(Error::path(&path))?;
        files.push(path.display().to_string());
    }
    Ok(MarksData { files })
}

/// The names of the programs in the guest, and their files.
pub fn programs() -> Vec<(String, Vec<u8>)> {
    [("mark-begin", MARK_BEGIN), ("mark-end", MARK_END)]
        .map(|(name, number)| (name.to_owned(), program(number)))
        .into()
}

/// A program that reads the time stamp, executes the mark, a no-op instruction, and exits.
fn program(number: [u8; 4]) -> Vec<u8> {
    // rdtsc; nop [rax + number]
    executable(&[&TIME_STAMP[..], &[0x0f, 0x1f, 0x80], &number, EXIT].concat())
}

/// Exits.
// xor edi, edi; mov eax, 60 (exit); syscall
pub const EXIT: &[u8] = &[0x31, 0xff, 0xb8, 60, 0, 0, 0, 0x0f, 0x05];

/// A static program of this code.
pub fn executable(code: &[u8]) -> Vec<u8> {
    /// Its address, which most static programs have.
    const BASE: u64 = 0x40_0000;
    /// The sizes of the file's two headers.
    const HEADERS: u64 = 64 + 56;
    let size = HEADERS + code.len() as u64;
    let mut file = Vec::new();
    // 64 bits, little-endian, version 1, System V; executable, x86-64, version 1.
    file.extend(b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x02\0\x3e\0\x01\0\0\0");
    // Entry, program headers, section headers; flags.
    [BASE + HEADERS, 64, 0].iter().for_each(|word: &u64| file.extend(word.to_le_bytes()));
    file.extend(0u32.to_le_bytes());
    // Sizes and numbers of headers.
    [64u16, 56, 1, 64, 0, 0].iter().for_each(|half| file.extend(half.to_le_bytes()));
    // The one segment: to be loaded, read and executed.
    [1u32, 5].iter().for_each(|word| file.extend(word.to_le_bytes()));
    [0, BASE, BASE, size, size, 4096].iter().for_each(|word: &u64| file.extend(word.to_le_bytes()));
    file.extend(code);
    file
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_does_nothing_and_succeeds() {
        for (name, bytes) in programs() {
            let path = std::env::temp_dir().join(format!("pvscope-{}-{name}", std::process::id()));
            std::fs::write(&path, &bytes).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
            let status = std::process::Command::new(&path).status().unwrap();
            std::fs::remove_file(&path).unwrap();
            assert!(status.success(), "{name}: {status}");
            let found = bytes.windows(7).find_map(scope_recorder::mark);
            assert!(found.is_some(), "{name}");
        }
    }

    #[test]
    fn programs_and_script_are_written_and_the_script_works() {
        let folder = lab::TempDir::new().unwrap();
        let folder = folder.path().join("new/marks");
        let data = write(&folder).unwrap();
        document::checked(&data);
        let file = |name: &str| folder.join(name);
        let names = ["mark-begin", "mark-end", "pvscope-tell"];
        assert_eq!(data.files, names.map(|name| file(name).display().to_string()));
        assert!(names.iter().all(|name| file(name).is_file()));
        let tell = |words: &[&str]| {
            std::process::Command::new(file("pvscope-tell")).args(words).output().unwrap()
        };
        // The kernel here may have no modules and hide its addresses: the script prints what there is.
        let output = String::from_utf8(tell(&[]).stdout).unwrap();
        assert!(
            output.starts_with("\n@domain 0\n@modules\n") && output.ends_with("@end\n"),
            "{output}"
        );
        let own = format!("@process {} ", std::process::id());
        assert!(output.lines().any(|line| line.starts_with(&own)), "{output}");
        let output = String::from_utf8(tell(&["3"]).stdout).unwrap();
        assert!(output.starts_with("\n@domain 3\n") && !output.contains("@end"), "{output}");
        let before = String::from_utf8(tell(&["before", "lo"]).stdout).unwrap();
        assert_eq!(before.lines().count(), 6, "{before}");
        assert!(before.starts_with("\n@before\n"), "{before}");
        for words in [&["after"][..], &["before", "no-such"], &["what"]] {
            assert!(!tell(words).status.success(), "{words:?}");
        }
    }
}
