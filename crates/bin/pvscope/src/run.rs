//! `pvscope run`: a machine under the plugin, from its start to the second mark.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use clap::Args;
use lab::{Interrupt, Process, Progress};
use scope_result::{Recording, Work};
use xenlab::{BatchHost, Emulator, Images, Suite, default_cache};

use crate::error::{Error, Result};
use crate::line::escaped;
use crate::names::{Names, Told};
use crate::own::{self, ImageArgs, OwnArgs};
use crate::programs::Programs;
use crate::tables::Tables;
use crate::workload::Workload;

/// What can be told to it.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct RunArgs {
    /// What to profile: `pvscope list` names it.
    #[arg(required_unless_present = "qemu", conflicts_with = "qemu")]
    workload: Option<String>,
    /// Or a command line of QEMU's, after `--`. It is given the plugin, memory that the plugin can read unless it has a
    /// backend, and a clock that counts instructions unless it has an -icount. What is recorded is what the guest does
    /// between mark-begin and mark-end (`pvscope marks`).
    #[arg(last = true, value_name = "qemu-system-x86_64 ARGS")]
    qemu: Vec<String>,
    /// Where the result goes.
    #[arg(long, short, value_name = "FILE", default_value = "out/scope.pvs")]
    out: PathBuf,
    /// How long is recorded of a ready-made workload, in milliseconds of the machine's own time: a million
    /// instructions each [default: 200].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    milliseconds: Option<u32>,
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
    #[command(flatten)]
    own: OwnArgs,
    #[command(flatten)]
    image: ImageArgs,
}

const EXAMPLES: &str = "Examples:
  pvscope run tx-stock --out tx.pvs
  pvscope run image --kernel vmlinuz --initrd initrd.img --append quiet
  pvscope run --told console.log -- qemu-system-x86_64 -m 1G -kernel vmlinuz -initrd initrd.img \\
      -append 'console=ttyS0 nokaslr' -nodefaults -display none -serial file:console.log";

/// The workload that is a guest of the user's own image.
pub const IMAGE: &str = "image";

/// What the plugin says begins so; all but its news is why it gives up.
const SAYS: &str = "pvscope: ";
const NEWS: [&str; 2] = ["recording", "recorded"];
/// What it says when QEMU has ended, which is seen anyway.
const ENDED: &str = "the machine ended";
/// How often it is looked what QEMU says.
const POLL: Duration = Duration::from_millis(20);
/// Where Xen 4.17 to 4.20 keep the domain of a virtual processor, in bytes from its beginning. The
/// recording says if that is not so: no switch would be to a domain.
const VCPU_DOMAIN: u64 = 0x10;
/// Instructions before the order of blocks is kept: the programs that mark and wait have to start first.
const FLOW_AFTER: u64 = 4_000_000;
/// Where pvnet is in a guest.
const PVNET: &str = "/usr/local/bin/pvnet";

/// Recorded where nothing else is said.
const MILLISECONDS: u32 = 200;

/// Runs it.
pub fn run(args: &RunArgs) -> Result<()> {
    let plugin = built(args.plugin.as_ref(), "libscope_plugin.so")?;
    let own = match args.workload.as_deref() {
        None => {
            args.image.refuse("are words of the command line after `--`: give them there")?;
            own::of_line(&args.qemu, args.quiet)?
        }
        Some(IMAGE) => own::of_image(&args.image, args.quiet)?,
        Some(name) => {
            args.image.refuse("are for `pvscope run image`")?;
            args.own.refuse()?;
            return ready_made(args, Workload::named(name)?, &plugin);
        }
    };
    if args.milliseconds.is_some() {
        let what = "--milliseconds is for ready-made workloads: what is recorded of your own machine is what it does \
                    between mark-begin and mark-end";
        return Err(Error::Usage(what.to_owned()));
    }
    own.run(args, &args.own, &plugin)
}

fn ready_made(args: &RunArgs, workload: Workload, plugin: &Path) -> Result<()> {
    let pvnet = built(args.pvnet.as_ref(), "pvnet");
    let pvnet = if workload.needs_pvnet() { Some(pvnet?) } else { None };
    let (suite, cache) = (Suite::of_this_machine(), absolute(&default_cache())?);
    let images = Images::prepare(suite, &cache, args.quiet)?;
    let emulator = Emulator::prepare(suite, &cache, args.quiet)?;
    let progress = Progress::new(4, args.quiet);
    progress.step("write what is booted");
    let milliseconds = args.milliseconds.unwrap_or(MILLISECONDS);
    let host = BatchHost::new(&images, &workload.batch(milliseconds, pvnet.clone())?)?;
    let tables = Tables::of_lab(&images, workload)?;
    let raw = host.folder().join("recording");
    let mut command = host.command(&emulator)?;
    command.arg("-plugin").arg(plugin_words(args, plugin, &raw, &tables, None));
    let printed = host.printed();
    let consoles = [("the console", host.log()), ("the script", printed.clone())];
    let watch = Watch::new(&consoles, &progress, args.limit);
    let mut qemu = Process::capture(command)?;
    watch.record(&mut qemu)?;
    // When its script has ended the machine does, too.
    watch.end(&mut qemu)?;
    progress.step("name the code");
    let mut recording = scope_result::read(&raw)?;
    let text = read(printed)?;
    let text = String::from_utf8_lossy(&text);
    let files = host.files()?;
    let mut programs = Programs::of_lab(&files, &read(images.kernel())?);
    pvnet.iter().try_for_each(|pvnet| programs.here(PVNET, pvnet))?;
    name(&mut recording, &tables, &Told::parse(&text), programs);
    let (frames, bytes) = work(&text).unwrap_or_default();
    recording.work = Work { what: workload.about.to_owned(), frames, bytes };
    args.keep(&recording)?;
    progress.finish();
    args.tell()
}

impl RunArgs {
    /// Writes the result.
    pub fn keep(&self, recording: &Recording) -> Result<()> {
        if let Some(folder) = self.out.parent() {
            std::fs::create_dir_all(folder).map_err(Error::path(folder))?;
        }
        Ok(scope_result::write(&self.out, recording)?)
    }

    /// Says where it is.
    pub fn tell(&self) -> Result<()> {
        crate::report::show(&format!("{}\n", self.out.display()))
    }

    /// Whether nothing is to be said of how far it is.
    pub fn is_quiet(&self) -> bool {
        self.quiet
    }

    /// How long each part may take, in seconds.
    pub fn limit(&self) -> u64 {
        self.limit
    }
}

/// The plugin and its arguments; `low` bytes of memory lie below the hole for devices, where not all do.
pub fn plugin_words(
    args: &RunArgs,
    plugin: &Path,
    raw: &Path,
    tables: &Tables,
    low: Option<u64>,
) -> String {
    let on = |on: bool| if on { "on" } else { "off" };
    let deaf = |what: &str| on(args.deaf_to.as_deref() == Some(what));
    let switch = tables
        .xen
        .as_ref()
        .map(|(_, switch)| format!(",switch={switch:#x},vcpu_domain={VCPU_DOMAIN:#x}"));
    let low = low.map(|low| format!(",low_memory={low:#x}"));
    let file = |path: &Path| escaped(&path.display().to_string());
    format!(
        "{},out={}{}{},single={},flow={},flow_after={FLOW_AFTER},check={},deaf_to_cr3={},deaf_to_invlpg={}",
        file(plugin),
        file(raw),
        switch.unwrap_or_default(),
        low.unwrap_or_default(),
        on(args.single),
        args.flow,
        on(args.check),
        deaf("cr3"),
        deaf("invlpg"),
    )
}

/// A machine that is being waited for.
pub struct Watch<'a> {
    consoles: &'a [(&'static str, PathBuf)],
    progress: &'a Progress,
    limit: u64,
    since: SystemTime,
}

impl<'a> Watch<'a> {
    /// One that is about to be started: what it writes to, and who that is; where it is said how far it is; how long
    /// each part may take, in seconds.
    pub fn new(
        consoles: &'a [(&'static str, PathBuf)],
        progress: &'a Progress,
        limit: u64,
    ) -> Self {
        Self { consoles, progress, limit, since: SystemTime::now() }
    }

    /// Waits until all between the marks is recorded.
    pub fn record(&self, qemu: &mut Process) -> Result<()> {
        let begin = ("boot, to the first mark", "recording", "mark-begin was not executed");
        let end = ("record", "recorded", "mark-end was not executed");
        for (what, word, missing) in [begin, end] {
            self.progress.step(what);
            self.wait(qemu, &format!("{what}: {missing}"), Some(word))?;
        }
        Ok(())
    }

    /// Waits for its end.
    fn end(&self, qemu: &mut Process) -> Result<()> {
        self.wait(qemu, "the machine's end: it has not come", None)
    }

    /// Waits until the plugin has said a word, or for QEMU's end where it is to say nothing.
    fn wait(&self, qemu: &mut Process, missing: &str, word: Option<&str>) -> Result<()> {
        let start = Instant::now();
        loop {
            let ended = qemu.ended()?;
            let said = qemu.stderr();
            if word.is_some() && said.lines().any(|line| line.strip_prefix(SAYS) == word) {
                return Ok(());
            }
            let problem = match ended {
                Some(status) if status.success() && word.is_none() => return Ok(()),
                _ if said.lines().any(complains) => format!("{missing}: the plugin gave up"),
                Some(status) => {
                    let why = explanation(&said).map(|why| format!(": {why}"));
                    format!("{missing}: QEMU ended ({status}){}", why.unwrap_or_default())
                }
                None if start.elapsed() > Duration::from_secs(self.limit) => {
                    format!("{missing} within {} s; --limit gives it longer", self.limit)
                }
                None => {
                    Interrupt::sleep(POLL)?;
                    continue;
                }
            };
            return Err(Error::Machine { what: problem, said: self.last_words(qemu) });
        }
    }

    /// The ends of what QEMU, and what runs in it, said.
    fn last_words(&self, qemu: &Process) -> String {
        let own = [("QEMU", qemu.stderr()), ("QEMU's output", qemu.stdout())];
        // What an earlier machine has left there is not its.
        let is_new = |path: &Path| {
            let written = std::fs::metadata(path).and_then(|file| file.modified());
            written.is_ok_and(|written| written >= self.since)
        };
        let files = self.consoles.iter().filter(|(_, path)| is_new(path)).map(|(who, path)| {
            let text = std::fs::read(path).unwrap_or_default();
            (*who, String::from_utf8_lossy(&text).into_owned())
        });
        let parts = own.into_iter().chain(files).filter(|(_, text)| !text.trim().is_empty());
        parts.map(|(who, text)| format!("\n{who}:\n  {}", tail(&text))).collect()
    }
}

/// The last lines of a text, without those that a QEMU of our own has for modules of an installed one.
fn tail(text: &str) -> String {
    let matters = |line: &&str| {
        !(line.trim().is_empty()
            || line.contains("failed to initialize module")
            || line.starts_with("Only modules from the same build"))
    };
    let lines: Vec<&str> = text.lines().filter(matters).collect();
    lines[lines.len().saturating_sub(8)..].join("\n  ")
}

/// Whether a line of QEMU's is one of the plugin's that is no news.
fn complains(line: &str) -> bool {
    let is_news = |words: &str| NEWS.contains(&words) || words.starts_with(ENDED);
    line.strip_prefix(SAYS).is_some_and(|words| !is_news(words))
}

/// What is known of why QEMU says such a thing.
fn explanation(said: &str) -> Option<&'static str> {
    let said = said.to_lowercase();
    let has = |words: &str| said.contains(words);
    if has("plugin interface not enabled") || has("-plugin: invalid option") {
        Some(
            "this QEMU was built without plugins: give the name alone, qemu-system-x86_64, and Debian's is fetched where \
             the system has no QEMU 10, or build yours with --enable-plugins",
        )
    } else if has("bad icount read") {
        Some(
            "QEMU 10 can not read the clock of an x2APIC's timer under -icount: take it away, as in -cpu max,-x2apic",
        )
    } else {
        None
    }
}

/// Names the code.
pub fn name(recording: &mut Recording, tables: &Tables, told: &Told, mut programs: Programs<'_>) {
    let xen = tables.xen.as_ref().map(|(xen, _)| xen);
    let open = |domain, path: &str| programs.open(domain, path);
    Names::new(xen, &tables.kernel, told, open).give(recording);
}

fn read(path: impl AsRef<Path>) -> Result<Vec<u8>> {
    let path = path.as_ref();
    std::fs::read(path).map_err(Error::path(path))
}

/// Frames and bytes, both ways together, between the numbers after `@before` and those after `@after`.
pub fn work(text: &str) -> Option<(u64, u64)> {
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
        let ended = "pvscope: the machine ended before the first mark";
        for line in ["pvscope: recording", "pvscope: recorded", ended, "qemu: warning", ""] {
            assert!(!complains(line), "{line}");
        }
        assert!(complains("pvscope: /run/recording: No space left on device (os error 28)"));
    }

    #[test]
    fn what_qemu_says_is_explained_where_the_reason_is_known() {
        for said in [
            "qemu-system-x86_64: -plugin x: Plugin interface not enabled in this build",
            "qemu-system-x86_64: -plugin: invalid option",
        ] {
            assert!(explanation(said).is_some_and(|why| why.contains("without plugins")), "{said}");
        }
        assert!(explanation("Bad icount read").is_some_and(|why| why.contains("-x2apic")));
        assert_eq!(explanation("qemu-system-x86_64: -m x: no size"), None);
    }

    #[test]
    fn work_is_what_was_counted_between() {
        let text = "@before\n1\n100\n10\n1000\nother\n@after\n4\n700\n12\n1132\n";
        assert_eq!(work(text), Some((5, 732)));
        assert_eq!(work("@before\n1\n"), None);
        assert_eq!(work(""), None);
    }
}
