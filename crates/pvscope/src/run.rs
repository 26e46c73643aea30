//! `pvscope run`: a machine under the plugin, from its start to the second mark.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Args;
use lab::{Interrupt, Process, Progress};
use scope_result::{Recording, Work};
use scope_symbols::{Program, Symbols};
use xenlab::{BatchHost, Emulator, Images, Suite, default_cache};

use crate::error::{Error, Result};
use crate::names::{Names, Told};
use crate::workload::Workload;

/// What can be told to it.
#[derive(Args)]
pub struct RunArgs {
    /// What to profile: `pvscope list` names it.
    workload: String,
    /// Where the result goes.
    #[arg(long, short, value_name = "FILE", default_value = "out/scope.pvs")]
    out: PathBuf,
    /// How long is recorded, in milliseconds of the machine's own time: a million instructions each.
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    milliseconds: u32,
    /// Model one L2, one size of TLB and no policies but the processor's: faster.
    #[arg(long)]
    single: bool,
    /// Keep the order of so many blocks of code, for `pvscope packet`.
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    flow: u32,
    /// Compare every hit of the model's TLBs with QEMU's own translation, and say how many were stale.
    #[arg(long)]
    check: bool,
    /// Keep something from the model, so that the comparison has something to find.
    #[arg(long, value_name = "WHAT", requires = "check", value_parser = ["cr3", "invlpg"])]
    deaf_to: Option<String>,
    /// How long each part may take, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    limit: u64,
    /// The plugin [default: the one beside this program].
    #[arg(long, value_name = "FILE")]
    plugin: Option<PathBuf>,
    /// The program pvnet [default: the one beside this program].
    #[arg(long, value_name = "FILE")]
    pvnet: Option<PathBuf>,
    /// Show no progress on standard error.
    #[arg(long, short)]
    quiet: bool,
}

/// What the plugin says begins so; all but its news is why it gives up.
const SAYS: &str = "pvscope: ";
const NEWS: [&str; 2] = ["recording", "recorded"];
/// How often it is looked what QEMU says.
const POLL: Duration = Duration::from_millis(20);
/// Where Xen 4.17 to 4.20 keep the domain of a virtual processor, in bytes from its beginning. The
/// recording says if that is not so: no switch would be to a domain.
const VCPU_DOMAIN: u64 = 0x10;
/// Instructions before the order of blocks is kept: the programs that mark and wait have to start first.
const FLOW_AFTER: u64 = 4_000_000;
/// Where pvnet is in a guest.
const PVNET: &str = "/usr/local/bin/pvnet";

/// Runs it.
pub fn run(args: &RunArgs) -> Result<()> {
    let workload = Workload::named(&args.workload)?;
    let plugin = built(args.plugin.as_ref(), "libscope_plugin.so")?;
    let pvnet = built(args.pvnet.as_ref(), "pvnet");
    let pvnet = if workload.needs_pvnet() { Some(pvnet?) } else { None };
    let (suite, cache) = (Suite::of_this_machine(), absolute(&default_cache())?);
    let images = Images::prepare(suite, &cache, args.quiet)?;
    let emulator = Emulator::prepare(suite, &cache, args.quiet)?;
    let progress = Progress::new(4, args.quiet);
    progress.step("write what is booted");
    let host = BatchHost::new(&images, &workload.batch(args.milliseconds, pvnet.clone())?)?;
    let tables = Tables::read(&images, workload)?;
    let raw = host.folder().join("recording");
    let mut command = host.command(&emulator)?;
    command.arg("-plugin").arg(plugin_words(args, &plugin, &raw, &tables));
    let recording = record(command, &host, &progress, args.limit)
        .and_then(|()| Ok(scope_result::read(&raw)?))?;
    progress.step("name the code");
    let printed = host.printed();
    let text = std::fs::read(&printed).map_err(Error::path(printed))?;
    let text = String::from_utf8_lossy(&text);
    let recording = finish(recording, workload, &tables, &text, pvnet.as_deref())?;
    if let Some(folder) = args.out.parent() {
        std::fs::create_dir_all(folder).map_err(Error::path(folder))?;
    }
    scope_result::write(&args.out, &recording)?;
    progress.finish();
    crate::report::show(&format!("{}\n", args.out.display()))
}

/// The images' own symbols.
struct Tables {
    kernel: Arc<Symbols>,
    /// The hypervisor's, and its function that switches domains.
    xen: Option<(Arc<Symbols>, u64)>,
}

impl Tables {
    fn read(images: &Images, workload: Workload) -> Result<Self> {
        let read = |path: PathBuf, parse: fn(&[u8]) -> std::result::Result<Symbols, _>| {
            let bytes = std::fs::read(&path).map_err(Error::path(&path))?;
            parse(&bytes).map(Arc::new).map_err(|cause| Error::Symbols { path, cause })
        };
        let kernel = read(images.kernel(), scope_symbols::linux_image)?;
        if !workload.has_xen() {
            return Ok(Self { kernel, xen: None });
        }
        let xen = read(images.xen(), scope_symbols::xen_image)?;
        let switch = xen.iter().find(|symbol| symbol.name == "context_switch");
        let no_switch = || Error::Usage("this Xen has no function context_switch".to_owned());
        let switch = switch.ok_or_else(no_switch)?.start;
        Ok(Self { kernel, xen: Some((xen, switch)) })
    }
}

fn plugin_words(args: &RunArgs, plugin: &Path, raw: &Path, tables: &Tables) -> String {
    let on = |on: bool| if on { "on" } else { "off" };
    let deaf = |what: &str| on(args.deaf_to.as_deref() == Some(what));
    let switch = tables
        .xen
        .as_ref()
        .map(|(_, switch)| format!(",switch={switch:#x},vcpu_domain={VCPU_DOMAIN:#x}"));
    format!(
        "{},out={}{},single={},flow={},flow_after={FLOW_AFTER},check={},deaf_to_cr3={},deaf_to_invlpg={}",
        plugin.display(),
        raw.display(),
        switch.unwrap_or_default(),
        on(args.single),
        args.flow,
        on(args.check),
        deaf("cr3"),
        deaf("invlpg"),
    )
}

/// Runs the machine until it ends by itself, which it does when its script has.
fn record(command: Command, host: &BatchHost, progress: &Progress, limit: u64) -> Result<()> {
    let mut qemu = Process::capture(command)?;
    let limit = Duration::from_secs(limit);
    for (what, word) in [("boot, to the first mark", "recording"), ("record", "recorded")] {
        progress.step(what);
        wait(&mut qemu, host, what, limit, |said| {
            said.lines().any(|line| line.strip_prefix(SAYS) == Some(word))
        })?;
    }
    wait(&mut qemu, host, "the machine's end", limit, |_| false)
}

/// Waits until QEMU has said something, or for its end where it is to say nothing.
fn wait(
    qemu: &mut Process,
    host: &BatchHost,
    what: &str,
    limit: Duration,
    has_said: impl Fn(&str) -> bool,
) -> Result<()> {
    let start = Instant::now();
    loop {
        let ended = qemu.ended()?;
        let said = qemu.stderr();
        if has_said(&said) {
            return Ok(());
        }
        let problem = match ended {
            None if said.lines().any(complains) => {
                format!("{what}: the plugin gave up")
            }
            Some(status) if status.success() && what == "the machine's end" => return Ok(()),
            Some(status) => format!("{what}: QEMU ended ({status})"),
            None if start.elapsed() > limit => {
                format!("{what}: not within {} s; --limit gives it longer", limit.as_secs())
            }
            None => {
                Interrupt::sleep(POLL)?;
                continue;
            }
        };
        return Err(Error::Machine { what: problem, said: last_words(&said, host) });
    }
}

/// Whether a line of QEMU's is one of the plugin's that is no news.
fn complains(line: &str) -> bool {
    line.strip_prefix(SAYS).is_some_and(|words| !NEWS.contains(&words))
}

/// The ends of what QEMU, the console and the script said.
fn last_words(said: &str, host: &BatchHost) -> String {
    let tail = |text: &str| {
        let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
        lines[lines.len().saturating_sub(8)..].join("\n  ")
    };
    let file = |path: PathBuf| {
        String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()).into_owned()
    };
    let parts = [
        ("QEMU", said.to_owned()),
        ("the console", file(host.log())),
        ("the script", file(host.printed())),
    ];
    let told = parts.iter().filter(|(_, text)| !text.trim().is_empty());
    told.map(|(who, text)| format!("\n{who}:\n  {}", tail(text))).collect()
}

/// Names the code, and counts the work.
fn finish(
    mut recording: Recording,
    workload: Workload,
    tables: &Tables,
    text: &str,
    pvnet: Option<&Path>,
) -> Result<Recording> {
    let mut programs = HashMap::new();
    if let Some(path) = pvnet {
        let bytes = std::fs::read(path).map_err(Error::path(path))?;
        let program = Program::parse("pvnet", bytes);
        let program = program.map_err(|cause| Error::Symbols { path: path.to_owned(), cause })?;
        programs.insert(PVNET.to_owned(), Arc::new(program));
    }
    let xen = tables.xen.as_ref().map(|(xen, _)| xen);
    let names = Names::new(xen, Some(&tables.kernel), &Told::parse(text), &programs);
    names.give(&mut recording);
    let (frames, bytes) = work(text).unwrap_or_default();
    recording.work = Work { what: workload.about.to_owned(), frames, bytes };
    Ok(recording)
}

/// Frames and bytes, both ways together, between the numbers after `@before` and those after `@after`.
fn work(text: &str) -> Option<(u64, u64)> {
    let numbers = |mark: &str| -> Option<Vec<u64>> {
        let after = text.lines().skip_while(|line| line.trim() != mark).skip(1);
        after.take(4).map(|line| line.trim().parse().ok()).collect()
    };
    let (before, after) = (numbers("@before")?, numbers("@after")?);
    let [packets_rx, bytes_rx, packets_tx, bytes_tx] =
        [0, 1, 2, 3].map(|n| Some(after.get(n)?.saturating_sub(*before.get(n)?)));
    Some((packets_rx? + packets_tx?, bytes_rx? + bytes_tx?))
}

/// A file of this project: as it was given, or beside this program.
pub fn built(given: Option<&PathBuf>, name: &str) -> Result<PathBuf> {
    if let Some(path) = given {
        return absolute(path);
    }
    let this = std::env::current_exe().map_err(Error::path("/proc/self/exe"))?;
    let folders = this.ancestors().skip(1).take(2);
    let found = folders.map(|folder| folder.join(name)).find(|file| file.is_file());
    found.ok_or_else(|| Error::NotBuilt(name.to_owned()))
}

/// The same from wherever it is used.
pub fn absolute(path: &Path) -> Result<PathBuf> {
    std::path::absolute(path).map_err(Error::path(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn news_of_the_plugin_is_no_complaint() {
        for line in ["pvscope: recording", "pvscope: recorded", "qemu: warning", ""] {
            assert!(!complains(line), "{line}");
        }
        assert!(complains("pvscope: /run/recording: No space left on device (os error 28)"));
    }

    #[test]
    fn work_is_what_was_counted_between() {
        let text = "@before\n1\n100\n10\n1000\nother\n@after\n4\n700\n12\n1132\n";
        assert_eq!(work(text), Some((5, 732)));
        assert_eq!(work("@before\n1\n"), None);
        assert_eq!(work(""), None);
    }
}
