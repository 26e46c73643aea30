//! The machine that carries the windows: plain Linux, in which `pvnet-lab bench pps --lockstep` runs.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use clap::Args;
use lab::Progress;
use scope_model::LAYOUTS;
use scope_result::Recording;
use xenlab::{Batch, BatchHost, Emulator, HostFile, Images, Kind, Suite, default_cache};

use super::baseline::BaselineProvenance;
use super::layouts::{self, PROGRAM};
use super::measured::Measured;
use crate::command_line::escaped;
use crate::error::{Error, Result};
use crate::guest_report::GuestReport;
use crate::image_symbols::ImageSymbols;
use crate::mark::TELL;
use crate::names::name_all;
use crate::programs::{Programs, absolute, built};
use crate::provenance::{compiler, of_file, profile};
use crate::record::RecordArgs;
use crate::snapshot::{self, SnapshotArgs};
use crate::watch::Watch;

/// Frames of a window.
const FRAMES: u64 = 2048;
/// Frames of a window of 64 KiB each: as many pages.
const LARGE_FRAMES: u64 = 128;

/// The frames of the window of this name.
pub fn frames_of(name: &str) -> u64 {
    if name.ends_with("-64k") { LARGE_FRAMES } else { FRAMES }
}

/// The options of the machine.
#[derive(Args)]
pub struct MachineArgs {
    /// Compare only these paths (copy) or windows (copy-1514) [default: all].
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', conflicts_with = "update")]
    pub windows: Vec<String>,
    /// The program pvnet-lab [default: the one beside this program].
    #[arg(long, value_name = "FILE")]
    pub pvnet_lab: Option<PathBuf>,
    /// The plugin [default: the one beside this program].
    #[arg(long, value_name = "FILE")]
    pub plugin: Option<PathBuf>,
    #[command(flatten)]
    pub snapshot: SnapshotArgs,
    /// The time limit of the machine, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    pub limit: u64,
    /// Show no progress on standard error.
    #[arg(long, short)]
    pub quiet: bool,
}

/// A machine that can be started.
pub struct Machine {
    pub provenance: BaselineProvenance,
    images: Images,
    emulator: Emulator,
    program: PathBuf,
    record: RecordArgs,
    plugin: PathBuf,
}

/// A window as the bench has printed it.
#[derive(Debug, PartialEq)]
struct Printed {
    name: String,
    frames: u64,
    bytes: u64,
    counts: BTreeMap<String, u64>,
}

impl Printed {
    /// `@window NAME FRAMES BYTES COUNT=NUMBER…`
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.trim().strip_prefix("@window ")?.split(' ');
        let name = words.next()?.to_owned();
        let frames = words.next()?.parse().ok()?;
        let bytes = words.next()?.parse().ok()?;
        let count = |word: &str| {
            let (name, count) = word.split_once('=')?;
            Some((name.to_owned(), count.parse().ok()?))
        };
        let counts = words.map(count).collect::<Option<_>>()?;
        Some(Self { name, frames, bytes, counts })
    }

    /// The name, and what the window's recording says.
    fn measured(self, recording: &Recording) -> (String, Measured) {
        let Self { name, frames, bytes, counts } = self;
        (name, Measured::new(recording, frames, bytes, counts))
    }
}

/// The machine's script. The bench waits at its end, so that its mappings can be read, and prints nothing before.
fn script(windows: &[String]) -> String {
    let windows = match windows {
        [] => String::new(),
        names => format!("--windows {}", names.join(",")),
    };
    format!(
        "set -e\nmodprobe tun\nmkfifo /run/in /run/out\n{TELL}\n\
         tell_modules 0\n\
         pvnet-lab bench pps --lockstep --marks --quiet --frames {FRAMES} --large-frames {LARGE_FRAMES} {windows} </run/in >/run/out 2>&1 &\n\
         exec 3>/run/in\n\
         while read -r line; do echo \"$line\"; [ \"$line\" != @done ] || break; done </run/out\n\
         tell_processes 0\necho '@end'\n"
    )
}

impl Machine {
    /// Finds the images and the programs.
    pub fn prepare(args: &MachineArgs) -> Result<Self> {
        let program = built(args.pvnet_lab.as_ref(), "pvnet-lab")?;
        let record = RecordArgs::of_gate(args.plugin.clone(), args.limit, args.quiet);
        let plugin = record.plugin()?;
        let (suite, cache) = (Suite::of_this_machine(), absolute(&default_cache())?);
        let images = Images::prepare(suite, &cache, args.quiet)?;
        let emulator = Emulator::prepare(suite, &cache, args.quiet)?;
        let provenance = BaselineProvenance::new(vec![
            // The processor that programs see, for which the C library chooses its functions, is QEMU's: all that this version has
            // (`-cpu max`), whatever the host's is.
            ("qemu", emulator.version_line()?),
            ("rustc", compiler(&program)?),
            ("profile", profile(&program)),
            ("kernel", of_file(&images.kernel())?),
            ("system", of_file(&images.root(Kind::Dom0))?),
            ("model", "server".to_owned()),
            ("frames", FRAMES.to_string()),
            ("large-frames", LARGE_FRAMES.to_string()),
            ("layouts", LAYOUTS.to_string()),
        ]);
        Ok(Self { provenance, images, emulator, program, record, plugin })
    }

    /// Records the windows.
    pub fn record(&self, args: &MachineArgs) -> Result<BTreeMap<String, Measured>> {
        let progress = Progress::new(snapshot::STEPS, args.quiet);
        progress.step("write the images");
        let files = vec![HostFile::new(&self.program)?.at(PROGRAM)];
        let script = script(&args.windows);
        let batch = Batch { script, files, ..Batch::default() };
        let host = BatchHost::new(&self.images, &batch)?;
        let symbols = ImageSymbols::of_lab(&self.images, false)?;
        let raw = host.folder().join("recording");
        let argument = self.record.plugin_argument(&self.plugin, &raw, &symbols, None)?;
        let qemu = self.emulator.version_line()?;
        let names = ("pvnet-lab bench pps --lockstep", &*qemu);
        let machine =
            snapshot::StartableMachine::of_lab(names, &host, &self.images, &self.emulator)?;
        let printed = host.printed();
        let consoles = [("the console", host.log()), ("the script", printed.clone())];
        let watch = Watch::new(&consoles, &progress, args.limit);
        let plan = host.folder().join("layouts");
        let text = layouts::plan(&self.program, &symbols)?.text();
        std::fs::write(&plan, text).map_err(Error::path(&plan))?;
        let plan = escaped(&plan.display().to_string());
        let argument = format!("{argument},windows=on,layouts={plan}");
        let mut running = machine.start(&argument, args.snapshot, &watch)?;
        watch.record(&mut running.qemu)?;
        watch.end(&mut running.qemu)?;
        running.complete_consoles()?;
        progress.step("name the code");
        let text = std::fs::read(&printed).map_err(Error::path(&printed))?;
        let text = String::from_utf8_lossy(&text);
        let windows: Vec<Printed> = text.lines().filter_map(Printed::parse).collect();
        if windows.is_empty() || !text.contains("@end") {
            let (what, said) = ("the bench in the machine failed".to_owned(), format!("\n{text}"));
            return Err(Error::Machine { what, said });
        }
        let mut recordings = read_all(&raw, windows.len())?;
        let files = host.files()?;
        let kernel = self.images.kernel();
        let vmlinux = std::fs::read(&kernel).map_err(Error::path(&kernel))?;
        let mut programs = Programs::of_lab(&files, &vmlinux);
        programs.add_host_file(PROGRAM, &self.program)?;
        let report = GuestReport::parse(&text);
        layouts::check(&report)?;
        name_all(&mut recordings, &symbols, &report, programs);
        progress.finish();
        let windows = windows.into_iter().zip(&recordings);
        Ok(windows.map(|(window, recording)| window.measured(recording)).collect())
    }
}

/// Reads the recordings of one boot.
fn read_all(raw: &Path, count: usize) -> Result<Vec<Recording>> {
    let file = |number: usize| {
        let mut name = raw.as_os_str().to_owned();
        name.push(format!(".{number}"));
        PathBuf::from(name)
    };
    (0..count).map(|number| Ok(scope_result::read(&file(number))?)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_is_what_the_bench_has_printed() {
        let window = Printed::parse("@window copy-1514 320 484480 hypercalls=40 maps=0\r").unwrap();
        assert_eq!((&*window.name, window.frames, window.bytes), ("copy-1514", 320, 484_480));
        assert_eq!(window.counts["hypercalls"], 40);
        assert_eq!(Printed::parse("@done"), None);
        assert_eq!(Printed::parse("@window copy-1514 320"), None);
    }

    #[test]
    fn the_script_has_no_syntax_error() {
        let mut check = lab::command("sh").unwrap();
        check.args(["-n", "-c", &script(&["copy".to_owned()])]);
        assert!(check.status().unwrap().success());
    }
}
