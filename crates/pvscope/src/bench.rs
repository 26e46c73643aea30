//! `pvscope bench`: what the plugin costs, beside QEMU without it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use ::report::{Benchmark, Row, Samples, Table, human};
use clap::Args;
use lab::{Interrupt, Process, Progress};
use xenlab::{BatchHost, Emulator, Images, Suite, default_cache};

use crate::error::{Error, Result};
use crate::run::{absolute, built};
use crate::workload::Workload;

/// What can be told to it.
#[derive(Args)]
pub struct BenchArgs {
    /// How often everything is measured; rows are medians, with minimum and maximum.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// The part that is measured, in milliseconds of the machine's own time.
    #[arg(long, value_name = "N", default_value_t = 500)]
    milliseconds: u32,
    /// What the machine does: `pvscope list` names it.
    #[arg(long, default_value = "loopback")]
    workload: String,
    /// Where to write the rows for programs.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// The plugin [default: the one beside this program].
    #[arg(long, value_name = "FILE")]
    plugin: Option<PathBuf>,
    /// Show no progress on standard error.
    #[arg(long, short)]
    quiet: bool,
}

/// What QEMU has loaded.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    None,
    Waiting,
    Single,
    All,
}

impl Mode {
    const ALL: [Self; 4] = [Self::None, Self::Waiting, Self::Single, Self::All];

    fn name(self) -> &'static str {
        match self {
            Self::None => "no plugin",
            Self::Waiting => "plugin, no models",
            Self::Single => "one configuration",
            Self::All => "all sizes and policies",
        }
    }

    fn words(self, plugin: &Path, out: &Path) -> Option<String> {
        let plugin = format!("{},out={}", plugin.display(), out.display());
        match self {
            Self::None => None,
            Self::Waiting => Some(plugin + ",wait=on"),
            Self::Single => Some(plugin + ",single=on"),
            Self::All => Some(plugin),
        }
    }
}

/// How often it is looked where the machine is.
const POLL: Duration = Duration::from_millis(2);
/// How long a machine may take.
const LIMIT: Duration = Duration::from_secs(600);

/// Runs it.
pub fn run(args: &BenchArgs) -> Result<()> {
    let workload = Workload::named(&args.workload)?;
    let plugin = built(args.plugin.as_ref(), "libscope_plugin.so")?;
    let (suite, cache) = (Suite::of_this_machine(), absolute(&default_cache())?);
    let images = Images::prepare(suite, &cache, args.quiet)?;
    let emulator = Emulator::prepare(suite, &cache, args.quiet)?;
    let pvnet = if workload.needs_pvnet() { Some(built(None, "pvnet")?) } else { None };
    let host = BatchHost::new(&images, &workload.batch(args.milliseconds, pvnet)?)?;
    let progress = Progress::new(args.rounds as usize * Mode::ALL.len(), args.quiet);
    let mut samples = Mode::ALL.map(|mode| (mode, Samples::new(), Samples::new()));
    for round in 1..=args.rounds {
        let mut plain = None;
        for (mode, seconds, ratios) in &mut samples {
            progress.step(format!("round {round} of {}: {}", args.rounds, mode.name()));
            let spent = measure(*mode, &host, &emulator, &plugin)?;
            progress.done(&format!("{} s", human(spent)));
            seconds.push(spent);
            ratios.push(spent / *plain.get_or_insert(spent));
        }
    }
    progress.finish();
    let mut benchmark = Benchmark::new("pvscope");
    let mut table =
        Table::new().left("QEMU with").right("CPU seconds").right("ratio: median (min–max)");
    for (mode, seconds, ratios) in &samples {
        let (Some(seconds), Some(ratio)) = (seconds.stats(), ratios.stats()) else { continue };
        table.row([
            mode.name().to_owned(),
            human(seconds.median),
            format!("{:.2} ({:.2}–{:.2})", ratio.median, ratio.min, ratio.max),
        ]);
        benchmark.rows.push(Row::new(format!("{}/ratio", mode.name()), "times", ratio));
    }
    crate::report::show(&table.render(false))?;
    match &args.json {
        Some(path) => benchmark.write(path).map_err(|error| Error::Usage(error.to_string())),
        None => Ok(()),
    }
}

/// Processor time of QEMU between what the machine prints before the marks and after them, in seconds.
fn measure(mode: Mode, host: &BatchHost, emulator: &Emulator, plugin: &Path) -> Result<f64> {
    let mut command = host.command(emulator)?;
    let out = host.folder().join("recording");
    if let Some(words) = mode.words(plugin, &out) {
        command.arg("-plugin").arg(words);
    }
    let _ = std::fs::remove_file(host.printed());
    let mut qemu = Process::capture(command)?;
    let before = until(&mut qemu, host, "@before")?;
    let after = until(&mut qemu, host, "@after")?;
    qemu.stop()?;
    Ok(after - before)
}

/// Waits until the machine has printed a line; answers QEMU's processor time then, in seconds.
fn until(qemu: &mut Process, host: &BatchHost, line: &str) -> Result<f64> {
    let start = std::time::Instant::now();
    loop {
        let ended = qemu.ended()?;
        let printed = std::fs::read(host.printed()).unwrap_or_default();
        let spent = spent(qemu.pid());
        if String::from_utf8_lossy(&printed).lines().any(|own| own.trim() == line)
            && let Some(spent) = spent
        {
            return Ok(spent);
        }
        if ended.is_some() || start.elapsed() > LIMIT {
            let said = format!("\nQEMU:\n  {}", qemu.stderr());
            return Err(Error::Machine { what: format!("the machine never printed {line}"), said });
        }
        Interrupt::sleep(POLL)?;
    }
}

/// The processor time of a process, from `/proc/PID/schedstat`, in seconds of all its threads.
fn spent(pid: u32) -> Option<f64> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).ok()?;
    let nanoseconds = threads.flatten().filter_map(|thread| {
        let text = std::fs::read_to_string(thread.path().join("schedstat")).ok()?;
        text.split(' ').next()?.parse::<u64>().ok()
    });
    Some(nanoseconds.sum::<u64>() as f64 / 1e9)
}
