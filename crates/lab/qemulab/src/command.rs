//! `pvnet-lab qemu`: an operator's day with virtual machines in QEMU as pvnet's guests.

use std::path::PathBuf;
use std::process::ExitCode;

use crate::{Day, Error, Firmware, Inputs, Result, ZeroCopy, pvnet};
use clap::Args;
use lab::{Interrupt, Progress};
use xenlab::{Edition, Emulator, Images, Suite, default_cache, scenario};

/// The arguments of `pvnet-lab qemu`.
#[derive(Args)]
pub struct QemuArgs {
    /// Run pvnet inside a virtual machine instead, with the machine's card as its uplink by AF_XDP with zero copy.
    #[arg(long, conflicts_with_all = ["suite", "step"])]
    zero_copy: bool,
    /// The QEMU to use: `installed`, `5`, `10` or a path; repeatable [default: installed, 5 and 10]. Versions 5 and 10 are
    /// fetched from Debian unless they are the installed one.
    #[arg(long, value_name = "WHICH")]
    qemu: Vec<String>,
    /// The program pvnet [default: the one beside this program].
    #[arg(long, value_name = "FILE")]
    pvnet: Option<PathBuf>,
    /// Write the results to this file, as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// The Debian release to take packages from [default: this machine's, if it is known].
    #[arg(long, value_name = "NAME")]
    suite: Option<Suite>,
    /// Where images are kept [default: xenlab in cargo's target folder].
    #[arg(long, value_name = "DIR")]
    cache: Option<PathBuf>,
    /// Run only the steps whose name contains this; repeatable [default: all].
    #[arg(long, value_name = "TEXT")]
    step: Vec<String>,
    /// Show no progress on standard error.
    #[arg(long, short)]
    quiet: bool,
}

/// The default emulators.
const EMULATORS: [&str; 3] = ["installed", "5", "10"];

/// Runs the steps.
///
/// # Errors
/// Something is missing, or a machine fails.
pub fn run(args: &QemuArgs) -> Result<ExitCode> {
    Interrupt::install()?;
    let day = Day::choose(&args.step)?;
    lab::preflight(&["tshark", "iperf3"])?;
    let suite = args.suite.unwrap_or_else(Suite::of_this_machine);
    let cache = args.cache.clone().unwrap_or_else(default_cache);
    let cache =
        std::path::absolute(&cache).map_err(|cause| Error::Path { path: cache.clone(), cause })?;
    let pvnet = pvnet(args.pvnet.as_deref())?;
    let images = match args.zero_copy {
        true => ZeroCopy::images(&cache, args.quiet)?,
        false => Images::prepare_edition(Edition::Vlan, suite, &cache, args.quiet)?,
    };
    let firmware = Firmware::prepare(suite, &cache, args.quiet)?;
    let mut emulators: Vec<(u32, Emulator)> = Vec::new();
    let named = args.qemu.iter().map(String::as_str);
    let all = if args.qemu.is_empty() { EMULATORS.to_vec() } else { named.collect() };
    for which in all {
        let emulator = match which {
            "installed" => Emulator::any("qemu-system-x86_64")?,
            "5" => Emulator::prepare_version(5, suite, &cache, args.quiet)?,
            "10" => Emulator::prepare_version(10, suite, &cache, args.quiet)?,
            path => Emulator::any(path)?,
        };
        let version = emulator.version()?;
        // On Debian 13 the installed one is version 10.
        if emulators.iter().all(|(other, _)| *other != version) {
            emulators.push((version, emulator));
        }
    }
    let each = if args.zero_copy { ZeroCopy::STEPS } else { day.steps() };
    let progress = Progress::new(each * emulators.len(), args.quiet);
    let mut steps = Vec::new();
    for (version, emulator) in &emulators {
        let done = match args.zero_copy {
            true => ZeroCopy::run(&images, emulator, &pvnet, &progress)?,
            false => {
                let (images, firmware, pvnet) = (&images, &firmware, pvnet.as_path());
                day.run(Inputs { images, emulator, firmware, pvnet }, &progress)?
            }
        };
        for mut step in done {
            step.what = format!("QEMU {version}: {}", step.what);
            steps.push(step);
        }
    }
    progress.finish();
    let passed = scenario::report("qemu", &steps, args.json.as_deref())?;
    Ok(if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
