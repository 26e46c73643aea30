//! The options for a guest of the user's own image, and the arguments of QEMU that they stand for.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use clap::Args;
use xenlab::{CLOCK, PROCESSOR};

use crate::command_line::escaped;
use crate::error::{Error, Result};

/// The user's image.
#[derive(Args, Debug, Default, PartialEq)]
#[command(next_help_heading = "A guest of your own image (`pvscope run image`)")]
pub struct ImageArgs {
    /// The Linux kernel, a bzImage or a vmlinux.
    #[arg(long, value_name = "FILE")]
    kernel: Option<PathBuf>,
    /// The initial root file system.
    #[arg(long, value_name = "FILE", requires = "kernel")]
    initrd: Option<PathBuf>,
    /// A disk, raw or qcow2; nothing is written to it. Runs with a disk differ in a few instructions.
    #[arg(long, value_name = "FILE")]
    disk: Option<PathBuf>,
    /// More arguments for the kernel, after console=ttyS0 loglevel=4 panic=-1 nokaslr norandmaps.
    #[arg(long, value_name = "WORDS", requires = "kernel", allow_hyphen_values = true)]
    append: Option<String>,
    /// The memory in megabytes [default: 1024].
    #[arg(long, value_name = "MB", value_parser = clap::value_parser!(u32).range(1..))]
    memory: Option<u32>,
}

impl ImageArgs {
    /// Returns an error with the reason `why` if any of them was given.
    pub fn refuse(&self, why: &str) -> Result<()> {
        let what = "--kernel, --initrd, --disk, --append and --memory";
        if *self == Self::default() { Ok(()) } else { Err(Error::Usage(format!("{what} {why}"))) }
    }
}

/// The default memory of an image in megabytes.
const MEMORY: u32 = 1024;

/// The arguments of QEMU for an image, the same in every run.
pub fn arguments(args: &ImageArgs, consoles: &[(&str, PathBuf)]) -> Result<Vec<String>> {
    if args.kernel.is_none() && args.disk.is_none() {
        let what =
            "give an image: --kernel FILE, with --initrd FILE, or --disk FILE with a boot loader";
        return Err(Error::Usage(what.to_owned()));
    }
    let memory = args.memory.unwrap_or(MEMORY).to_string();
    let mut words: Vec<String> = ["-accel", "tcg", "-smp", "1", "-m", &memory, "-cpu", PROCESSOR]
        .iter()
        .chain(CLOCK.as_flattened())
        .map(|word| (*word).to_owned())
        .collect();
    let mut add = |option: &str, value: String| words.extend([option.to_owned(), value]);
    if let Some(kernel) = &args.kernel {
        readable(kernel)?;
        add("-kernel", kernel.display().to_string());
        // Show failures, end on a panic, and load all code at fixed addresses.
        let fixed = "console=ttyS0 loglevel=4 panic=-1 nokaslr norandmaps";
        let append = format!("{fixed} {}", args.append.as_deref().unwrap_or_default());
        add("-append", append.trim().to_owned());
    }
    if let Some(initrd) = &args.initrd {
        readable(initrd)?;
        add("-initrd", escaped(&initrd.display().to_string()));
    }
    if let Some(disk) = &args.disk {
        let format = format(disk)?;
        let file = escaped(&disk.display().to_string());
        add("-drive", format!("file={file},format={format},if=virtio,snapshot=on"));
    }
    for (_, console) in consoles {
        add("-serial", format!("file:{}", console.display()));
    }
    let quiet = ["-nodefaults", "-no-reboot", "-display", "none", "-monitor", "none"];
    words.extend(quiet.map(str::to_owned));
    Ok(words)
}

fn readable(path: &Path) -> Result<()> {
    std::fs::File::open(path).map_err(Error::path(path)).map(drop)
}

/// A disk's format, by its first bytes.
fn format(disk: &Path) -> Result<&'static str> {
    let mut magic = Vec::new();
    let file = std::fs::File::open(disk).map_err(Error::path(disk))?;
    file.take(4).read_to_end(&mut magic).map_err(Error::path(disk))?;
    Ok(if magic == b"QFI\xfb" { "qcow2" } else { "raw" })
}

#[cfg(test)]
mod tests {
    use lab::TempDir;

    use super::*;

    fn image(args: &ImageArgs) -> Result<String> {
        Ok(arguments(args, &[("the console", "/run/console".into())])?.join(" "))
    }

    #[test]
    fn an_image_becomes_a_command_line_that_is_the_same_twice() {
        let folder = TempDir::new().unwrap();
        let file = |name: &str, content: &[u8]| {
            let path = folder.path().join(name);
            std::fs::write(&path, content).unwrap();
            path
        };
        let args = ImageArgs {
            kernel: Some(file("linux", b"x")),
            initrd: Some(file("a,b", b"x")),
            disk: Some(file("disk", b"QFI\xfb...")),
            append: Some("root=/dev/vda".to_owned()),
            memory: Some(5120),
        };
        let text = image(&args).unwrap();
        for part in [
            "-m 5120 -cpu max,",
            "-icount shift=0,sleep=off -seed 1 -rtc base=2026-01-01,clock=vm",
            "norandmaps root=/dev/vda",
            "a,,b",
            "disk,format=qcow2,if=virtio,snapshot=on",
            "-serial file:/run/console",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let args = ImageArgs { disk: Some(file("disk", b"")), ..ImageArgs::default() };
        let text = image(&args).unwrap();
        assert!(text.contains("format=raw") && !text.contains("-kernel"), "{text}");
    }

    #[test]
    fn a_missing_image_is_named() {
        let message = image(&ImageArgs::default()).unwrap_err().to_string();
        assert!(message.contains("--kernel FILE"), "{message}");
        let args = ImageArgs { kernel: Some("/no/such/linux".into()), ..ImageArgs::default() };
        let message = image(&args).unwrap_err().to_string();
        assert!(message.starts_with("/no/such/linux: "), "{message}");
    }
}
