//! `pvscope run`: records a machine.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::ScopedJoinHandle;

use clap::Args;
use lab::Progress;
use scope_result::{Domain, Provenance};
use xenlab::{BatchHost, Emulator, Images, Suite, default_cache};

use crate::custom::{self, CustomArgs, ImageArgs};
use crate::error::{Error, Result};
use crate::guest_report::{GuestReport, frames_and_bytes};
use crate::image_symbols::ImageSymbols;
use crate::link::work;
use crate::names::name_code;
use crate::programs::{Programs, absolute, built};
use crate::provenance::{self, program};
use crate::record::RecordArgs;
use crate::snapshot::{self, SnapshotArgs};
use crate::watch::Watch;
use crate::workload::{PVNET, Variation, Workload};

/// Arguments of `pvscope run`.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct RunArgs {
    /// What to profile: `pvscope list` names it.
    #[arg(required_unless_present = "qemu", conflicts_with = "qemu")]
    workload: Option<String>,
    /// A QEMU command line, after `--`. pvscope adds the plugin, memory that the plugin can read unless there is a memory
    /// backend, and a clock that counts instructions unless there is an -icount. It records what the guest does between
    /// mark-begin and mark-end (`pvscope marks`).
    #[arg(last = true, value_name = "qemu-system-x86_64 ARGS")]
    qemu: Vec<String>,
    /// The length of the recording of a ready-made workload, in milliseconds of the machine's own time: a million
    /// instructions each [default: 200].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    milliseconds: Option<u32>,
    /// The program pvnet [default: the one beside this program].
    #[arg(long, value_name = "FILE")]
    pvnet: Option<PathBuf>,
    #[command(flatten)]
    variation: Variation,
    #[command(flatten)]
    record: RecordArgs,
    #[command(flatten)]
    snapshot: SnapshotArgs,
    #[command(flatten)]
    custom: CustomArgs,
    #[command(flatten)]
    image: ImageArgs,
}

const EXAMPLES: &str = "Examples:
  pvscope run tx-stock --out tx.pvs
  pvscope run image --kernel vmlinuz --initrd initrd.img --append quiet
  pvscope run --guest-report console.log -- qemu-system-x86_64 -m 1G -kernel vmlinuz -initrd initrd.img \\
      -append 'console=ttyS0 nokaslr' -nodefaults -display none -serial file:console.log";

/// The default length of a recording.
const MILLISECONDS: u32 = 200;

/// Runs the command.
pub fn run(args: &RunArgs) -> Result<()> {
    record(args)?;
    args.record.print_path()
}

/// Makes the recording.
pub fn record(args: &RunArgs) -> Result<()> {
    let plugin = args.record.plugin()?;
    let machine = match args.workload.as_deref() {
        None => {
            args.image.refuse("belong in the command line after `--`")?;
            custom::from_command_line(&args.qemu, args.record.is_quiet())?
        }
        Some(custom::IMAGE) => custom::from_image(&args.image, args.record.is_quiet())?,
        Some(name) => {
            args.image.refuse("are for `pvscope run image`")?;
            args.custom.refuse()?;
            return ready_made(args, Workload::named(name)?, &plugin);
        }
    };
    if args.milliseconds.is_some() {
        let what = "--milliseconds is for ready-made workloads: the recording of your own machine lasts from mark-begin \
                    to mark-end";
        return Err(Error::Usage(what.to_owned()));
    }
    args.variation.refuse()?;
    machine.run((&args.record, args.snapshot), &args.custom, &plugin)
}

fn ready_made(args: &RunArgs, workload: Workload, plugin: &Path) -> Result<()> {
    let variation = &args.variation;
    workload.check(variation)?;
    let pvnet = built(args.pvnet.as_ref(), "pvnet");
    let pvnet = if workload.needs_pvnet() { Some(pvnet?) } else { None };
    let record = &args.record;
    let (suite, cache) = (Suite::of_this_machine(), absolute(&default_cache())?);
    let images = Images::prepare(suite, &cache, record.is_quiet())?;
    let emulator = Emulator::prepare(suite, &cache, record.is_quiet())?;
    let progress = Progress::new(snapshot::STEPS, record.is_quiet());
    progress.step("write the images");
    let milliseconds = args.milliseconds.unwrap_or(MILLISECONDS);
    let batch = workload.batch(milliseconds, pvnet.clone(), variation)?;
    let host = BatchHost::new(&images, &batch)?;
    let symbols = ImageSymbols::of_lab(&images, workload.has_xen())?;
    let raw = host.folder().join("recording");
    let argument = record.plugin_argument(plugin, &raw, &symbols, None)?;
    let qemu = emulator.version_line()?;
    let machine =
        snapshot::StartableMachine::of_lab((workload.name, &qemu), &host, &images, &emulator)?;
    let printed = host.printed();
    let consoles = [("the console", host.log()), ("the script", printed.clone())];
    let watch = Watch::new(&consoles, &progress, record.limit());
    let mut running = machine.start(&argument, args.snapshot, &watch)?;
    watch.record(&mut running.qemu)?;
    // The machine ends after its script.
    watch.end(&mut running.qemu)?;
    running.complete_consoles()?;
    progress.step("name the code");
    let mut recording = scope_result::read(&raw)?;
    if workload.is_dom0_alone() {
        // Nothing is switched to, so the recorder has not learned whose code runs.
        let unknown = recording.domains.iter_mut().filter(|domain| **domain == Domain::Unknown);
        unknown.for_each(|domain| *domain = Domain::Xen(0));
    }
    let text = read(printed)?;
    let text = String::from_utf8_lossy(&text);
    let files = host.files()?;
    let mut programs = Programs::of_lab(&files, &read(images.kernel())?);
    pvnet.iter().try_for_each(|pvnet| programs.add_host_file(PVNET, pvnet))?;
    name_code(&mut recording, &symbols, &GuestReport::parse(&text), programs);
    let (domain, interface) = workload.counted();
    recording.work = work(
        &variation.describe(&workload.describe()),
        &recording,
        (Some(domain), Some(interface)),
        frames_and_bytes(&text),
    );
    let length = format!("--milliseconds {milliseconds}");
    recording.provenance = Provenance {
        workload: workload.name.to_owned(),
        options: std::iter::once(length)
            .chain(variation.options())
            .chain(record.options())
            .collect(),
        images: provenance::of_images(&images, workload.has_xen())?,
        from_snapshot: running.from_snapshot,
        programs: pvnet.iter().map(|file| program(PVNET, file)).collect::<Result<_>>()?,
        ..provenance::provenance(&qemu)
    };
    record.save(&recording)?;
    progress.finish();
    Ok(())
}

fn read(path: impl AsRef<Path>) -> Result<Vec<u8>> {
    let path = path.as_ref();
    std::fs::read(path).map_err(Error::path(path))
}

/// Runs the machine of each of these workloads, `jobs` at a time, and says which has begun. After an error no other begins.
pub fn each(
    workloads: &[&str],
    jobs: u8,
    quiet: bool,
    one: impl Fn(&str) -> Result<()> + Sync,
) -> Result<()> {
    let count = workloads.len();
    if !quiet {
        eprintln!("{count} machines, of one to two minutes each; {jobs} at a time (--jobs)");
    }
    let next = AtomicUsize::new(0);
    let run = || -> Result<()> {
        loop {
            let n = next.fetch_add(1, Ordering::Relaxed);
            let Some(workload) = workloads.get(n) else { return Ok(()) };
            if !quiet {
                eprintln!("{workload}: {} of {count}", n + 1);
            }
            // The others end what they have begun.
            one(workload).inspect_err(|_| next.store(count, Ordering::Relaxed))?;
        }
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..jobs).map(|_| scope.spawn(run)).collect();
        let join = |thread: ScopedJoinHandle<'_, Result<()>>| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        threads.into_iter().try_for_each(join)
    })
}
