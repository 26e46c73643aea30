//! `pvscope bench`: how much the plugin slows QEMU down.
//!
//! The machine boots once, and each measurement loads it at its first mark. So a round of all rows takes less than a minute, and
//! rounds that were measured apart can be added up (`--samples`).

mod rounds;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use lab::{Interrupt, Process, Progress};
use report::{Benchmark, Row, Table, human};
use rounds::{Rounds, Seconds};
use serde::{Deserialize, Serialize};
use xenlab::{BatchHost, Emulator, Images, Suite, default_cache};

use crate::error::{Error, Result};
use crate::image_symbols::ImageSymbols;
use crate::programs::{absolute, built};
use crate::record::call_words;
use crate::snapshot::{Snapshot, SnapshotArgs, StartableMachine};
use crate::watch::Watch;
use crate::workload::{Variation, Workload};

/// Arguments of `pvscope bench`.
#[derive(Args)]
pub struct BenchArgs {
    /// The number of rounds; rows are medians, with minimum and maximum.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// The length of the measured part, in milliseconds of the machine's own time.
    #[arg(long, value_name = "N", default_value_t = 500)]
    milliseconds: u32,
    /// The workload: `pvscope list` names it.
    #[arg(long, default_value = "loopback")]
    workload: String,
    /// Keep the measured rounds in FILE, and add to those that it has: rounds can be measured at several times.
    #[arg(long, value_name = "FILE")]
    samples: Option<PathBuf>,
    /// Measure only these rows, beside QEMU without a plugin [default: all].
    #[arg(long, value_name = "ROW,…", value_delimiter = ',', value_enum)]
    rows: Vec<Mode>,
    /// Boot the machine even if there is a snapshot of it.
    #[arg(long)]
    fresh: bool,
    /// Write the rows to FILE as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// The plugin [default: the one beside this program].
    #[arg(long, value_name = "FILE")]
    plugin: Option<PathBuf>,
    /// Show no progress on standard error.
    #[arg(long, short)]
    quiet: bool,
}

/// The interval at which the machine's output is checked.
const POLL: Duration = Duration::from_millis(2);
/// The time limit of a machine.
const LIMIT: Duration = Duration::from_secs(600);

/// Runs the command.
pub fn run(args: &BenchArgs) -> Result<()> {
    let workload = Workload::named(&args.workload)?;
    let plugin = built(args.plugin.as_ref(), "libscope_plugin.so")?;
    let (suite, cache) = (Suite::of_this_machine(), absolute(&default_cache())?);
    let images = Images::prepare(suite, &cache, args.quiet)?;
    let emulator = Emulator::prepare(suite, &cache, args.quiet)?;
    let pvnet = if workload.needs_pvnet() { Some(built(None, "pvnet")?) } else { None };
    let host =
        BatchHost::new(&images, &workload.batch(args.milliseconds, pvnet, &Variation::default())?)?;
    let symbols = ImageSymbols::of_lab(&images, workload.has_xen())?;
    let calls = call_words(&host.folder().join("bench"), &symbols)?;
    let modes: Vec<Mode> = Mode::ALL
        .into_iter()
        .filter(|mode| *mode == Mode::None || args.rows.is_empty() || args.rows.contains(mode))
        .collect();
    let mut rounds = args.samples.as_deref().map(Rounds::read).transpose()?.unwrap_or_default();
    rounds.is_of(workload.name, args.milliseconds).map_err(Error::Usage)?;
    // A boot and a snapshot come first if there is no snapshot yet.
    let progress = Progress::new(2 + args.rounds as usize * modes.len(), args.quiet);
    let names = (workload.name, &*emulator.version_line()?);
    let machine = StartableMachine::of_lab(names, &host, &images, &emulator)?;
    let consoles = [("the console", host.log()), ("the script", host.printed())];
    let watch = Watch::new(&consoles, &progress, LIMIT.as_secs());
    let out = host.folder().join("recording");
    let words = |mode: Mode| mode.words(&plugin, &out, &calls);
    let boots = SnapshotArgs { fresh: args.fresh, ..SnapshotArgs::default() };
    let waiting = words(Mode::Waiting).unwrap_or_default();
    let snapshot = machine.saved(&waiting, boots, &watch)?;
    for round in 1..=args.rounds {
        let mut measured = Vec::new();
        for mode in modes.iter().copied() {
            progress.step(format!("round {round} of {}: {}", args.rounds, mode.name()));
            let spent = measure(words(mode).as_deref(), &machine, &snapshot, &host)?;
            progress.done(&format!("{} s", human(spent.wall)));
            measured.push((mode, spent));
        }
        rounds.add(measured);
        if let Some(file) = &args.samples {
            rounds.write(file)?;
        }
    }
    progress.finish();
    let mut benchmark = Benchmark::new("pvscope");
    let mut table = Table::new()
        .left("QEMU with")
        .right("rounds")
        .right("seconds")
        .right("ratio: median (min–max)")
        .right("processor time: ratio");
    for mode in Mode::ALL {
        let [seconds, ratios, processors] = rounds.samples(mode);
        let stats = (seconds.stats(), ratios.stats(), processors.stats());
        let (Some(seconds), Some(ratio), Some(processors)) = stats else { continue };
        table.row([
            mode.name().to_owned(),
            rounds.count(mode).to_string(),
            human(seconds.median),
            format!("{:.2} ({:.2}–{:.2})", ratio.median, ratio.min, ratio.max),
            format!("{:.2} ({:.2}–{:.2})", processors.median, processors.min, processors.max),
        ]);
        benchmark.rows.push(Row::new(format!("{}/ratio", mode.name()), "times", ratio));
        let name = format!("{}/processors-ratio", mode.name());
        benchmark.rows.push(Row::new(name, "times", processors));
    }
    crate::report::show(&table.render(false))?;
    match &args.json {
        Some(path) => Ok(benchmark.write(path)?),
        None => Ok(()),
    }
}

/// Measures the time from the first mark until the machine prints a line after the second.
fn measure(
    words: Option<&str>,
    machine: &StartableMachine<'_>,
    snapshot: &Snapshot,
    host: &BatchHost,
) -> Result<Seconds> {
    let _ = std::fs::remove_file(host.printed());
    let loaded = machine.load(snapshot, words)?;
    let pid = loaded.qemu.pid();
    let before = spent(pid).unwrap_or_default();
    let start = Instant::now();
    let mut qemu = loaded.resume()?;
    let after = until(&mut qemu, host, start, "@after")?;
    qemu.stop()?;
    Ok(Seconds { processors: after.processors - before, ..after })
}

/// Waits until the machine has printed a line. Returns the time that QEMU has spent since the start.
fn until(qemu: &mut Process, host: &BatchHost, start: Instant, line: &str) -> Result<Seconds> {
    loop {
        let ended = qemu.ended()?;
        let printed = std::fs::read(host.printed()).unwrap_or_default();
        let (processors, wall) = (spent(qemu.pid()), start.elapsed());
        if String::from_utf8_lossy(&printed).lines().any(|own| own.trim() == line)
            && let Some(processors) = processors
        {
            return Ok(Seconds { wall: wall.as_secs_f64(), processors });
        }
        if ended.is_some() || wall > LIMIT {
            let said = format!("\nQEMU:\n  {}", qemu.stderr());
            return Err(Error::Machine { what: format!("the machine never printed {line}"), said });
        }
        Interrupt::sleep(POLL)?;
    }
}

/// The processor time of a process and of its threads, ended ones too, from `/proc/PID/stat`, in seconds.
fn spent(pid: u32) -> Option<f64> {
    /// Ticks per second of Linux on x86.
    const TICKS: f64 = 100.0;
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name may contain spaces and ends with the last parenthesis; user and system time come 12 words later.
    let (_, words) = text.rsplit_once(')')?;
    let ticks = words.split_whitespace().skip(11).take(2).map(|word| word.parse::<u64>().ok());
    Some(ticks.sum::<Option<u64>>()? as f64 / TICKS)
}

named::named! {
    /// What QEMU has loaded, and what that models.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize, Deserialize)]
    #[serde(rename_all = "kebab-case")]
    pub enum Mode {
        /// QEMU alone.
        None => "no plugin",
        /// The plugin, which ignores the marks.
        Waiting => "plugin, no models",
        /// One configuration.
        Single => "one configuration",
        /// All sizes and policies.
        All => "all sizes and policies",
        /// One configuration, with the call graph.
        SingleCalls => "one configuration, call graph",
        /// All sizes and policies, with the call graph.
        AllCalls => "all, call graph",
    }
}

impl Mode {
    /// The plugin's argument; `calls` are the words for the call graph.
    pub fn words(self, plugin: &Path, out: &Path, calls: &str) -> Option<String> {
        let plugin = format!("{},out={}", plugin.display(), out.display());
        match self {
            Self::None => None,
            Self::Waiting => Some(plugin + ",ignore_marks=on"),
            Self::Single => Some(plugin + ",single=on"),
            Self::All => Some(plugin),
            Self::SingleCalls => Some(format!("{plugin},single=on{calls}")),
            Self::AllCalls => Some(plugin + calls),
        }
    }
}
