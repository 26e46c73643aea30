//! The user's own machines: a QEMU command line, or images.
//!
//! ```text
//!  images ──► arguments ──┐
//!  arguments ─────────────┴─► CommandLine ──► Machine ──► QEMU, the plugin ──► recording
//!                                                └──► consoles ──► GuestReport
//! ```

mod image;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use clap::Args;
use image::arguments;
use lab::{Interrupt, Progress, TempDir};
use scope_result::{Domain, Provenance, Recording, Work};
use xenlab::{Emulator, Suite, default_cache};

use crate::command_line::CommandLine;
use crate::error::{Error, Result};
use crate::guest_report::{GuestReport, frames_and_bytes};
use crate::image_symbols::{ImageSymbols, SymbolFiles};
use crate::link::work;
use crate::names::name_code;
use crate::programs::{Programs, absolute};
use crate::provenance::{self, program as program_file};
use crate::record::RecordArgs;
use crate::snapshot::{self, Identity, Running, SnapshotArgs};
use crate::watch::Watch;

pub use image::ImageArgs;

/// The workload that boots the user's image.
pub const IMAGE: &str = "image";

/// How `pvscope list` describes them.
pub const FORMS: [(&str, &str); 2] = [
    (IMAGE, "a guest of your own image: --kernel FILE, --initrd FILE, --disk FILE"),
    ("-- qemu-system-x86_64 …", "a machine of your own: any QEMU command line"),
];

/// Facts about the user's machine.
#[derive(Args, Debug, Default, PartialEq)]
#[command(next_help_heading = "Your own machine (`image`, or a command line)")]
pub struct CustomArgs {
    /// The kernel's symbols: a vmlinux, a bzImage, or the text of the guest's /proc/kallsyms [default: the image that QEMU
    /// loads].
    #[arg(long, value_name = "FILE")]
    kernel_symbols: Option<PathBuf>,
    /// Xen's symbols: its image [default: the one that QEMU loads].
    #[arg(long, value_name = "FILE")]
    xen_symbols: Option<PathBuf>,
    /// The output of pvscope-tell in the guest [default: the consoles that write to files or to QEMU's output].
    #[arg(long, value_name = "FILE", alias = "told")]
    guest_report: Option<PathBuf>,
    /// A program in the guest, and the file on this host with its symbols; may be repeated.
    #[arg(long = "program", value_name = "PATH=FILE", value_parser = program)]
    programs: Vec<(String, PathBuf)>,
    /// The interface of the machine, or of dom0, whose frames are counted [default: the one with the most payload].
    #[arg(long, value_name = "NAME")]
    interface: Option<String>,
    /// The number of frames between the marks [default: those that the kernel's drivers saw, else from pvscope-tell before and
    /// after].
    #[arg(long, value_name = "N")]
    frames: Option<u64>,
    /// The bytes of these frames.
    #[arg(long, value_name = "N", requires = "frames")]
    bytes: Option<u64>,
    /// A description of the machine's work, for the report.
    #[arg(long, value_name = "TEXT")]
    about: Option<String>,
}

impl CustomArgs {
    /// Returns an error if any of them was given.
    pub fn refuse(&self) -> Result<()> {
        let what = "--kernel-symbols, --xen-symbols, --guest-report, --program, --interface, --frames, --bytes and --about are for a \
                    machine of your own";
        if *self == Self::default() { Ok(()) } else { Err(Error::Usage(what.to_owned())) }
    }
}

fn program(pair: &str) -> std::result::Result<(String, PathBuf), String> {
    let (guest, file) =
        pair.split_once('=').ok_or("expected PATH=FILE, such as /bin/x=target/x")?;
    Ok((guest.to_owned(), file.into()))
}

/// A machine that is ready to start.
pub struct Machine {
    emulator: Emulator,
    command_line: CommandLine,
    folder: TempDir,
    consoles: Vec<(&'static str, PathBuf)>,
    about: &'static str,
}

/// The machine of a QEMU command line.
pub fn from_command_line(words: &[String], quiet: bool) -> Result<Machine> {
    let Some((program, arguments)) = words.split_first() else {
        return Err(Error::Usage(
            "give qemu-system-x86_64 and its arguments after `--`".to_owned(),
        ));
    };
    // Check the arguments first: QEMU may have to be fetched.
    let command_line = CommandLine::new(arguments.to_vec())?;
    let emulator = emulator(program, quiet)?;
    let consoles = command_line.consoles().into_iter().map(|path| ("a console", path)).collect();
    let about = "a machine of your own";
    Ok(Machine { emulator, command_line, folder: TempDir::new()?, consoles, about })
}

pub fn from_image(args: &ImageArgs, quiet: bool) -> Result<Machine> {
    let folder = TempDir::new()?;
    let consoles = [("the console", "console"), ("the second console", "report")]
        .map(|(who, name)| (who, folder.path().join(name)));
    let command_line = CommandLine::new(arguments(args, &consoles)?)?;
    let (emulator, about) = (emulator(PROGRAM, quiet)?, "a guest of your own image");
    Ok(Machine { emulator, command_line, folder, consoles: consoles.into(), about })
}

/// The name of QEMU.
const PROGRAM: &str = "qemu-system-x86_64";
/// The QEMU of this name or path: for its name a suitable version is found.
fn emulator(program: &str, quiet: bool) -> Result<Emulator> {
    if program.contains('/') {
        let missing = || Error::Usage(format!("{program}: no such program"));
        let given = Emulator::given(Path::new(program));
        return given
            .map_err(|error| if error.is_missing_tool() { missing() } else { error.into() });
    }
    if program != PROGRAM {
        let what =
            format!("{program:?}: only whole machines of x86-64 can be recorded: use {PROGRAM}");
        return Err(Error::Usage(what));
    }
    let emulator =
        Emulator::prepare(Suite::of_this_machine(), &absolute(&default_cache())?, quiet)?;
    if let Some(root) = emulator.root().filter(|_| !quiet) {
        eprintln!("pvscope: the system's {PROGRAM} is not version 10: using {}", root.display());
    }
    Ok(emulator)
}

/// The interval at which the guest's output is checked.
const POLL: Duration = Duration::from_millis(100);
/// The last line of the guest report.
const END: &str = "@end";

impl Machine {
    /// Runs and records the machine.
    pub fn run(
        &self,
        (record, snapshot): (&RecordArgs, SnapshotArgs),
        args: &CustomArgs,
        plugin: &Path,
    ) -> Result<()> {
        let files = SymbolFiles {
            kernel: args.kernel_symbols.as_deref(),
            xen: args.xen_symbols.as_deref(),
        };
        let (symbols, notes) = ImageSymbols::of_command_line(files, &self.command_line)?;
        notes.iter().for_each(|text| note(text));
        let raw = self.folder.path().join("recording");
        let low = self.command_line.low_memory()?;
        let argument = record.plugin_argument(plugin, &raw, &symbols, low)?;
        let machine = self.machine(&self.emulator.version_line()?)?;
        let progress = Progress::new(snapshot::STEPS, record.is_quiet());
        let watch = Watch::new(&self.consoles, &progress, record.limit());
        let mut running = machine.start(&argument, snapshot, &watch)?;
        watch.record(&mut running.qemu)?;
        progress.step("wait for the guest's report");
        self.wait_for_report(&mut running, args, record.limit())?;
        running.qemu.stop()?;
        running.complete_consoles()?;
        let text = self.text(&running, args);
        progress.step("name the code");
        let mut recording = scope_result::read(&raw)?;
        let report = GuestReport::parse(&text);
        recording.domains = with_reporting_domain(recording.domains, &report);
        let mut programs = Programs::none();
        for (guest_path, path) in &args.programs {
            programs.add_host_file(guest_path, path)?;
        }
        name_code(&mut recording, &symbols, &report, programs);
        recording.work = self.work(args, &recording, &text);
        let provenance = self.provenance(&machine, record, args)?;
        recording.provenance = Provenance { from_snapshot: running.from_snapshot, ..provenance };
        record.save(&recording)?;
        progress.finish();
        print_missing(&report, &recording.work);
        Ok(())
    }

    /// The machine, for its start.
    fn machine(&self, qemu: &str) -> Result<snapshot::StartableMachine<'_>> {
        let command = || -> Result<Command> {
            let mut command = self.emulator.command()?;
            command.args(self.command_line.arguments()).args(self.command_line.missing()?);
            Ok(command)
        };
        let files = self.command_line.images().into_iter().map(|(_, path)| path).collect();
        let names = (self.about, qemu);
        let identity = Identity::new(names, &command()?, self.folder.path(), files);
        Ok(snapshot::StartableMachine {
            command: Box::new(command),
            identity,
            consoles: self.consoles.iter().map(|(_, path)| path.clone()).collect(),
            folder: self.folder.path(),
            problem: self.command_line.outside(),
        })
    }

    /// What the recording is made with.
    fn provenance(
        &self,
        machine: &snapshot::StartableMachine<'_>,
        record: &RecordArgs,
        args: &CustomArgs,
    ) -> Result<Provenance> {
        let images = self.command_line.images();
        let images = images.iter().map(|(name, path)| provenance::image(name, path));
        let programs = args.programs.iter().map(|(guest, path)| program_file(guest, path));
        Ok(Provenance {
            workload: self.about.to_owned(),
            options: record.options(),
            machine: machine.identity.words().to_vec(),
            images: images.collect::<Result<_>>()?,
            programs: programs.collect::<Result<_>>()?,
            ..provenance::provenance(&machine.identity.qemu)
        })
    }

    /// Waits until the guest's report is complete, or the machine has ended, or no report can come.
    fn wait_for_report(&self, running: &mut Running, args: &CustomArgs, limit: u64) -> Result<()> {
        let start = Instant::now();
        let has_source =
            args.guest_report.is_some() || !self.consoles.is_empty() || self.command_line.prints();
        loop {
            let ended = running.qemu.ended()?.is_some();
            let text = self.text(running, args);
            let is_complete = text.lines().any(|line| line.trim() == END);
            if ended || is_complete || !has_source {
                return Ok(());
            }
            if start.elapsed() > Duration::from_secs(limit) {
                note(&format!(
                    "the guest's report is not complete after {limit} s ({END} is missing)"
                ));
                return Ok(());
            }
            Interrupt::sleep(POLL)?;
        }
    }

    /// The text of the given file, or of all consoles.
    fn text(&self, running: &Running, args: &CustomArgs) -> String {
        let consoles = self.consoles.iter().map(|(_, path)| path);
        let files: Vec<&PathBuf> = match &args.guest_report {
            Some(file) => vec![file],
            None => consoles.collect(),
        };
        let read = |path: &PathBuf| {
            String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()).into_owned()
        };
        let mut texts: Vec<String> = files.into_iter().map(read).collect();
        if args.guest_report.is_none() {
            texts.push(running.stdout());
        }
        texts.join("\n")
    }

    /// The work between the marks: from the options, else from the guest's report.
    fn work(&self, args: &CustomArgs, recording: &Recording, text: &str) -> Work {
        let what = args.about.as_deref().unwrap_or(self.about);
        match args.frames {
            Some(frames) => {
                let bytes = args.bytes.unwrap_or_default();
                Work { what: what.to_owned(), frames, bytes, ..Work::default() }
            }
            None => {
                let interface = (None, args.interface.as_deref());
                work(what, recording, interface, frames_and_bytes(text))
            }
        }
    }
}

/// The domains that ran. If Xen never switched, the only domain is unknown: it is the one that printed the report.
fn with_reporting_domain(domains: Vec<Domain>, report: &GuestReport) -> Vec<Domain> {
    match (&domains[..], report.only_domain()) {
        ([Domain::Unknown], Some(only)) => vec![Domain::Xen(only)],
        _ => domains,
    }
}

/// Prints what is missing, and what to do about it.
fn print_missing(report: &GuestReport, work: &Work) {
    if report.is_empty() {
        note(
            "the guest printed no report of its modules and programs, which are counted as unknown: run pvscope-tell in \
             it after mark-end (`pvscope marks`), and let QEMU write that console to a file",
        );
    } else if report.hides_addresses() {
        note(
            "the guest's kernel hides its addresses: run pvscope-tell as root, after sysctl kernel.kptr_restrict=0",
        );
    }
    if work.frames == 0 {
        note(
            "no frames were counted, so all counts are totals: give --frames and --bytes, or run pvscope-tell before and \
              after",
        );
    }
}

fn note(text: &str) {
    eprintln!("pvscope: {text}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_switch_the_domain_that_reported_is_the_one_that_ran() {
        let (unknown, zero) = (vec![Domain::Unknown], "@domain 0\n@process 1 init\n");
        assert_eq!(
            with_reporting_domain(unknown.clone(), &GuestReport::parse(zero)),
            [Domain::Xen(0)]
        );
        let two =
            GuestReport::parse(&format!("{zero}@process 1 init\n@domain 1\n@process 1 init\n"));
        assert_eq!(with_reporting_domain(unknown.clone(), &two), unknown);
        assert_eq!(with_reporting_domain(unknown.clone(), &GuestReport::default()), unknown);
        let machine = vec![Domain::Machine];
        assert_eq!(with_reporting_domain(machine.clone(), &GuestReport::parse(zero)), machine);
    }

    #[test]
    fn programs_are_pairs() {
        assert_eq!(program("/bin/x=a=b"), Ok(("/bin/x".to_owned(), "a=b".into())));
        assert!(program("/bin/x").is_err());
    }
}
