//! Machines of the user's own: a command line of QEMU's, or images.
//!
//! ```text
//!  image ──► words ──┐
//!  words ────────────┴─► Line ──► Machine ──► QEMU, the plugin ──► recording
//!                                    └──► consoles ──► what the guest tells of itself
//! ```

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use lab::{Interrupt, Process, Progress};
use scope_result::{Domain, Work};
use xenlab::{CLOCK, Emulator, PROCESSOR, Suite, TempDir, default_cache};

use crate::error::{Error, Result};
use crate::line::{Line, escaped};
use crate::names::Told;
use crate::programs::Programs;
use crate::run::{self, RunArgs, Watch, absolute, plugin_words};
use crate::tables::{Given, Tables};

/// What `pvscope list` says of them.
pub const FORMS: [(&str, &str); 2] = [
    (run::IMAGE, "a guest of your own image: --kernel FILE, --initrd FILE, --disk FILE"),
    ("-- qemu-system-x86_64 …", "a machine of your own: any command line of QEMU's"),
];

/// What there is to know of a machine of one's own.
#[derive(Args, Debug, Default, PartialEq)]
#[command(next_help_heading = "Your own machine (`image`, or a command line)")]
pub struct OwnArgs {
    /// Where the kernel's names are: a vmlinux, a bzImage, or what the guest's /proc/kallsyms says [default: the image
    /// that QEMU loads].
    #[arg(long, value_name = "FILE")]
    kernel_symbols: Option<PathBuf>,
    /// Where Xen's names are: its image [default: the one that QEMU loads].
    #[arg(long, value_name = "FILE")]
    xen_symbols: Option<PathBuf>,
    /// What pvscope-tell prints in the guest [default: what its consoles write to files or to QEMU's output].
    #[arg(long, value_name = "FILE")]
    told: Option<PathBuf>,
    /// A program in the guest, and the file here that has its symbols; may be given more than once.
    #[arg(long = "program", value_name = "PATH=FILE", value_parser = program)]
    programs: Vec<(String, PathBuf)>,
    /// The frames that cross between the marks [default: what pvscope-tell before and after say].
    #[arg(long, value_name = "N")]
    frames: Option<u64>,
    /// Their bytes.
    #[arg(long, value_name = "N", requires = "frames")]
    bytes: Option<u64>,
    /// What the machine does, for the report.
    #[arg(long, value_name = "TEXT")]
    about: Option<String>,
}

/// An image of one's own.
#[derive(Args, Debug, Default, PartialEq)]
#[command(next_help_heading = "A guest of your own image (`pvscope run image`)")]
pub struct ImageArgs {
    /// Its Linux, a bzImage or a vmlinux.
    #[arg(long, value_name = "FILE")]
    kernel: Option<PathBuf>,
    /// Its first root.
    #[arg(long, value_name = "FILE", requires = "kernel")]
    initrd: Option<PathBuf>,
    /// A disk, raw or qcow2; nothing is written to it. Two runs with a disk are not the same to the last instruction.
    #[arg(long, value_name = "FILE")]
    disk: Option<PathBuf>,
    /// More words for the kernel, which has console=ttyS0, loglevel=4, panic=-1, nokaslr and norandmaps already.
    #[arg(long, value_name = "WORDS", requires = "kernel", allow_hyphen_values = true)]
    append: Option<String>,
    /// Its memory, in megabytes [default: 1024].
    #[arg(long, value_name = "MB", value_parser = clap::value_parser!(u32).range(1..))]
    memory: Option<u32>,
}

impl OwnArgs {
    /// Says what is wrong if anything was given.
    pub fn refuse(&self) -> Result<()> {
        let what = "--kernel-symbols, --xen-symbols, --told, --program, --frames, --bytes and --about are for a machine of \
                    your own";
        if *self == Self::default() { Ok(()) } else { Err(Error::Usage(what.to_owned())) }
    }
}

impl ImageArgs {
    /// Says why they can not be heeded if any was given.
    pub fn refuse(&self, why: &str) -> Result<()> {
        let what = "--kernel, --initrd, --disk, --append and --memory";
        if *self == Self::default() { Ok(()) } else { Err(Error::Usage(format!("{what} {why}"))) }
    }
}

fn program(word: &str) -> std::result::Result<(String, PathBuf), String> {
    let (guest, file) = word.split_once('=').ok_or("it is PATH=FILE, such as /bin/x=target/x")?;
    Ok((guest.to_owned(), file.into()))
}

/// A machine that is ready to be started.
pub struct Machine {
    emulator: Emulator,
    line: Line,
    folder: TempDir,
    consoles: Vec<(&'static str, PathBuf)>,
    about: &'static str,
}

/// Of a command line.
pub fn of_line(words: &[String], quiet: bool) -> Result<Machine> {
    let Some((program, words)) = words.split_first() else {
        return Err(Error::Usage(
            "after `--` comes qemu-system-x86_64 with its arguments".to_owned(),
        ));
    };
    // What is wrong with the words is known sooner than a QEMU is there.
    let line = Line::new(words.to_vec())?;
    let emulator = emulator(program, quiet)?;
    let consoles = line.consoles().into_iter().map(|path| ("a console", path)).collect();
    let about = "a machine of your own";
    Ok(Machine { emulator, line, folder: TempDir::new()?, consoles, about })
}

/// Of images.
pub fn of_image(args: &ImageArgs, quiet: bool) -> Result<Machine> {
    let folder = TempDir::new()?;
    let consoles = [("the console", "console"), ("the second console", "told")]
        .map(|(who, name)| (who, folder.path().join(name)));
    let line = Line::new(words(args, &consoles)?)?;
    let (emulator, about) = (emulator(PROGRAM, quiet)?, "a guest of your own image");
    Ok(Machine { emulator, line, folder, consoles: consoles.into(), about })
}

/// What QEMU is called.
const PROGRAM: &str = "qemu-system-x86_64";
/// An image's memory in megabytes.
const MEMORY: u32 = 1024;

/// The command line of a machine that boots an image, the same in every run.
fn words(args: &ImageArgs, consoles: &[(&str, PathBuf)]) -> Result<Vec<String>> {
    if args.kernel.is_none() && args.disk.is_none() {
        let what =
            "an image is --kernel FILE, with --initrd FILE, or --disk FILE with a boot loader";
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
        // What tells of a failure, ends with it, and stays where the image says.
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

/// A disk's format, by how it begins.
fn format(disk: &Path) -> Result<&'static str> {
    let mut magic = Vec::new();
    let file = std::fs::File::open(disk).map_err(Error::path(disk))?;
    file.take(4).read_to_end(&mut magic).map_err(Error::path(disk))?;
    Ok(if magic == b"QFI\xfb" { "qcow2" } else { "raw" })
}

/// The QEMU that is called so: by its name one that fits, by a path that one.
fn emulator(program: &str, quiet: bool) -> Result<Emulator> {
    if program.contains('/') {
        let missing = || Error::Usage(format!("{program}: no such program"));
        let given = Emulator::given(Path::new(program));
        return given
            .map_err(|error| if error.is_missing_tool() { missing() } else { error.into() });
    }
    if program != PROGRAM {
        let what = format!("{program:?}: only whole machines of x86-64 are recorded, by {PROGRAM}");
        return Err(Error::Usage(what));
    }
    let emulator =
        Emulator::prepare(Suite::of_this_machine(), &absolute(&default_cache())?, quiet)?;
    if let Some(root) = emulator.root().filter(|_| !quiet) {
        eprintln!("pvscope: {PROGRAM} is not version 10 here: {} is", root.display());
    }
    Ok(emulator)
}

/// How often it is looked what a guest tells.
const POLL: Duration = Duration::from_millis(100);
/// What ends what is told.
const END: &str = "@end";

impl Machine {
    /// Runs it, from its start to the result.
    pub fn run(&self, args: &RunArgs, own: &OwnArgs, plugin: &Path) -> Result<()> {
        let given =
            Given { kernel: own.kernel_symbols.as_deref(), xen: own.xen_symbols.as_deref() };
        let (tables, notes) = Tables::of_line(given, &self.line)?;
        notes.iter().for_each(|text| note(text));
        let raw = self.folder.path().join("recording");
        let mut command = self.emulator.command()?;
        command.args(self.line.words()).args(self.line.missing()?);
        let low = self.line.low_memory()?;
        command.arg("-plugin").arg(plugin_words(args, plugin, &raw, &tables, low));
        let progress = Progress::new(4, args.is_quiet());
        let watch = Watch::new(&self.consoles, &progress, args.limit());
        let mut qemu = Process::capture(command)?;
        watch.record(&mut qemu)?;
        progress.step("hear what the guest tells");
        let text = self.hear(&mut qemu, own, args.limit())?;
        qemu.stop()?;
        progress.step("name the code");
        let mut recording = scope_result::read(&raw)?;
        let told = Told::parse(&text);
        recording.domains = known(recording.domains, &told);
        let mut programs = Programs::of_nobody();
        for (place, path) in &own.programs {
            programs.here(place, path)?;
        }
        run::name(&mut recording, &tables, &told, programs);
        recording.work = self.work(own, &text);
        args.keep(&recording)?;
        progress.finish();
        doubts(&told, &recording.work);
        args.tell()
    }

    /// Waits until the guest has told all, or has ended, or nothing more can come; answers what it told.
    fn hear(&self, qemu: &mut Process, own: &OwnArgs, limit: u64) -> Result<String> {
        let start = Instant::now();
        let listens = own.told.is_some() || !self.consoles.is_empty() || self.line.prints();
        loop {
            let ended = qemu.ended()?.is_some();
            let text = self.text(qemu, own);
            let all = text.lines().any(|line| line.trim() == END);
            if ended || all || !listens {
                return Ok(text);
            }
            if start.elapsed() > Duration::from_secs(limit) {
                note(&format!("the guest has not told all within {limit} s ({END} is missing)"));
                return Ok(text);
            }
            Interrupt::sleep(POLL)?;
        }
    }

    /// What was told, wherever that is.
    fn text(&self, qemu: &Process, own: &OwnArgs) -> String {
        let consoles = self.consoles.iter().map(|(_, path)| path);
        let files: Vec<&PathBuf> = match &own.told {
            Some(told) => vec![told],
            None => consoles.collect(),
        };
        let read = |path: &PathBuf| {
            String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()).into_owned()
        };
        let mut texts: Vec<String> = files.into_iter().map(read).collect();
        if own.told.is_none() {
            texts.push(qemu.stdout());
        }
        texts.join("\n")
    }

    /// What was done between the marks: as it was given, else as it was told.
    fn work(&self, own: &OwnArgs, text: &str) -> Work {
        let what = own.about.clone().unwrap_or_else(|| self.about.to_owned());
        let told = run::work(text).unwrap_or_default();
        let (frames, bytes) =
            own.frames.map_or(told, |frames| (frames, own.bytes.unwrap_or_default()));
        Work { what, frames, bytes }
    }
}

/// Who ran. Who does is known from Xen's switches: where there was none, it is who told.
fn known(domains: Vec<Domain>, told: &Told) -> Vec<Domain> {
    match (&domains[..], told.only()) {
        ([Domain::Unknown], Some(only)) => vec![Domain::Xen(only)],
        _ => domains,
    }
}

/// Says what is missing, and what to do about it.
fn doubts(told: &Told, work: &Work) {
    if told.is_empty() {
        note(
            "the guest told nothing of its modules and programs, which are counted as unknown: run pvscope-tell in it \
             after mark-end (`pvscope marks`), and let QEMU write that console to a file",
        );
    } else if told.hides() {
        note(
            "the guest's kernel hides its addresses: run pvscope-tell as root, after sysctl kernel.kptr_restrict=0",
        );
    }
    if work.frames == 0 {
        note(
            "no frames were counted, and all counts are of the whole: give --frames and --bytes, or run pvscope-tell \
              before and after",
        );
    }
}

fn note(text: &str) {
    eprintln!("pvscope: {text}");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(args: &ImageArgs) -> Result<String> {
        Ok(words(args, &[("the console", "/run/console".into())])?.join(" "))
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
    fn what_is_missing_of_an_image_is_named() {
        let message = image(&ImageArgs::default()).unwrap_err().to_string();
        assert!(message.contains("--kernel FILE"), "{message}");
        let args = ImageArgs { kernel: Some("/no/such/linux".into()), ..ImageArgs::default() };
        let message = image(&args).unwrap_err().to_string();
        assert!(message.starts_with("/no/such/linux: "), "{message}");
    }

    #[test]
    fn without_a_switch_who_told_is_who_ran() {
        let (unknown, zero) = (vec![Domain::Unknown], "@domain 0\n@process 1 init\n");
        assert_eq!(known(unknown.clone(), &Told::parse(zero)), [Domain::Xen(0)]);
        let two = Told::parse(&format!("{zero}@process 1 init\n@domain 1\n@process 1 init\n"));
        assert_eq!(known(unknown.clone(), &two), unknown);
        assert_eq!(known(unknown.clone(), &Told::default()), unknown);
        let machine = vec![Domain::Machine];
        assert_eq!(known(machine.clone(), &Told::parse(zero)), machine);
    }

    #[test]
    fn programs_are_pairs() {
        assert_eq!(program("/bin/x=a=b"), Ok(("/bin/x".to_owned(), "a=b".into())));
        assert!(program("/bin/x").is_err());
    }
}
