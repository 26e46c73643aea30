//! `pvscope bench`: how much the plugin slows QEMU down.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ::report::{Benchmark, Row, Samples, Table, human};
use clap::Args;
use lab::{Interrupt, Process, Progress};
use xenlab::{BatchHost, Emulator, Images, Suite, default_cache};

use crate::error::{Error, Result};
use crate::image_symbols::ImageSymbols;
use crate::paths::{absolute, built};
use crate::record::call_words;
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

/// What QEMU has loaded, and what that models.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    None,
    Waiting,
    Single,
    All,
    SingleCalls,
    AllCalls,
}

impl Mode {
    const ALL: [Self; 6] =
        [Self::None, Self::Waiting, Self::Single, Self::All, Self::SingleCalls, Self::AllCalls];

    fn name(self) -> &'static str {
        match self {
            Self::None => "no plugin",
            Self::Waiting => "plugin, no models",
            Self::Single => "one configuration",
            Self::All => "all sizes and policies",
            Self::SingleCalls => "one configuration, call graph",
            Self::AllCalls => "all, call graph",
        }
    }

    /// The plugin's argument; `calls` are the words for the call graph.
    fn words(self, plugin: &Path, out: &Path, calls: &str) -> Option<String> {
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
    let progress = Progress::new(args.rounds as usize * Mode::ALL.len(), args.quiet);
    let mut samples = Mode::ALL.map(Measured::new);
    for round in 1..=args.rounds {
        let mut plain = None;
        for measured in &mut samples {
            let mode = measured.mode;
            progress.step(format!("round {round} of {}: {}", args.rounds, mode.name()));
            let spent = measure(mode, &host, &emulator, (&plugin, &calls))?;
            progress.done(&format!("{} s", human(spent.wall)));
            measured.add(spent, *plain.get_or_insert(spent));
        }
    }
    progress.finish();
    let mut benchmark = Benchmark::new("pvscope");
    let mut table = Table::new()
        .left("QEMU with")
        .right("seconds")
        .right("ratio: median (min–max)")
        .right("processor time: ratio");
    for Measured { mode, seconds, ratios, processors } in &samples {
        let stats = (seconds.stats(), ratios.stats(), processors.stats());
        let (Some(seconds), Some(ratio), Some(processors)) = stats else { continue };
        table.row([
            mode.name().to_owned(),
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
        Some(path) => benchmark.write(path).map_err(|error| Error::Usage(error.to_string())),
        None => Ok(()),
    }
}

/// Time in seconds.
#[derive(Clone, Copy)]
struct Seconds {
    /// Wall-clock time.
    wall: f64,
    /// Processor time of all threads of QEMU, including the models.
    processors: f64,
}

/// The measurements of one mode, by round.
struct Measured {
    mode: Mode,
    seconds: Samples,
    /// Ratios of wall-clock time to that without a plugin in the same round.
    ratios: Samples,
    /// Ratios of processor time.
    processors: Samples,
}

impl Measured {
    fn new(mode: Mode) -> Self {
        let [seconds, ratios, processors] = [(); 3].map(|()| Samples::new());
        Self { mode, seconds, ratios, processors }
    }

    fn add(&mut self, spent: Seconds, plain: Seconds) {
        self.seconds.push(spent.wall);
        self.ratios.push(spent.wall / plain.wall);
        self.processors.push(spent.processors / plain.processors);
    }
}

/// Measures the time between the lines that the machine prints before the marks and after them.
fn measure(
    mode: Mode,
    host: &BatchHost,
    emulator: &Emulator,
    (plugin, calls): (&Path, &str),
) -> Result<Seconds> {
    let mut command = host.command(emulator)?;
    let out = host.folder().join("recording");
    if let Some(words) = mode.words(plugin, &out, calls) {
        command.arg("-plugin").arg(words);
    }
    let _ = std::fs::remove_file(host.printed());
    let start = Instant::now();
    let mut qemu = Process::capture(command)?;
    let before = until(&mut qemu, host, start, "@before")?;
    let after = until(&mut qemu, host, start, "@after")?;
    qemu.stop()?;
    let [wall, processors] = [after.wall - before.wall, after.processors - before.processors];
    Ok(Seconds { wall, processors })
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
