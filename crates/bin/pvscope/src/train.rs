//! `pvscope train`: what the compiler needs to know about pvnet's traffic.
//!
//! ```text
//!  pvnet that counts its branches ──► ready-made workloads, in QEMU ──► NAME.tar.gz … ──► llvm-profdata ──► rustc -C profile-use
//! ```
//!
//! The machines are those of `pvscope run`: a second run gives nearly the same counts.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clap::Args;
use lab::{Interrupt, Process};
use xenlab::{Batch, BatchHost, Emulator, HostFile, Images, Suite, default_cache};

use crate::error::{Error, Result};
use crate::programs::{absolute, built};
use crate::run;
use crate::workload::{PVNET, Variation, Workload};

/// Arguments of `pvscope train`.
#[derive(Args)]
pub struct TrainArgs {
    /// pvnet, compiled with `-C profile-generate`.
    pvnet: PathBuf,
    /// The folder for the counts: a file for each workload.
    folder: PathBuf,
    /// The workloads: `pvscope list` names those of a Xen host, `local-guests` has process guests, `local-machines` ports of
    /// virtual machines.
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', default_values_t = WORKLOADS.map(str::to_owned))]
    workloads: Vec<String>,
    /// The program pvnet-lab, for the last two [default: the one beside this program].
    #[arg(long, value_name = "FILE")]
    pvnet_lab: Option<PathBuf>,
    /// The number of machines at a time. Each takes a processor and 2 GB of memory.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=64))]
    jobs: u8,
    /// The time limit of a machine, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    limit: u64,
    /// Show no progress on standard error.
    #[arg(long, short)]
    quiet: bool,
}

/// Each way of a frame on Xen once, long frames and short ones, and all others.
const WORKLOADS: [&str; 10] = [
    "tx-device",
    "rx-pvnet",
    "guests-pvnet",
    "rounds-pvnet",
    "rounds-device",
    "small-tx-tap",
    "small-tx-xdp",
    "small-rx-packet",
    GUESTS,
    MACHINES,
];
/// Process guests, and ports of virtual machines.
const GUESTS: &str = "local-guests";
const MACHINES: &str = "local-machines";
/// Where the machine's script finds pvnet-lab.
const PVNET_LAB: &str = "/usr/local/bin/pvnet-lab";

/// Prints the counts of all processes of pvnet that have ended. A process with a sandbox cannot write its own.
const PRINT: &str =
    "echo '@counts'; cd /run/counts && tar -cz *.profraw | base64; echo '@end'; sleep 86400";

/// A line of dom0's script, under traffic: pvnet starts again, so that it may write its counts, and carries it for a second.
fn dom0() -> String {
    format!(
        "kill $(pidof pvnet); while pidof pvnet >/dev/null; do sleep 0.1; done; mkdir /run/counts; \
         sed -i 's/^platform.*/&\\nsandbox = \"off\"/' /lab/pvnet.toml; rm -f /run/pvnet/control.sock; \
         LLVM_PROFILE_FILE=/run/counts/%p.profraw pvnet run --config /lab/pvnet.toml >/run/pvnet.log 2>&1 & \
         until [ -S /run/pvnet/control.sock ]; do sleep 0.05; done; sleep 1; \
         kill $(pidof pvnet); while pidof pvnet >/dev/null; do sleep 0.1; done; {PRINT}"
    )
}

/// The script of a machine without Xen: benchmarks start pvnet and its guests.
fn local(name: &str) -> String {
    let benches: &[&str] = match name {
        MACHINES => &["vhost --alone --rate-only --slice-ms 100"],
        _ => &["latency --count 2000", "stream --seconds 1 --congestion cubic"],
    };
    let bench = |bench| {
        format!("pvnet-lab bench {bench} --quiet --rounds 1 --daemon 'sandbox = \"off\"'\n")
    };
    let benches: String = benches.iter().map(bench).collect();
    format!(
        "set -e\nmodprobe -a tun bridge veth\nmkdir /run/counts\nexport LLVM_PROFILE_FILE=/run/counts/%p.profraw\n{benches}{PRINT}\n"
    )
}

/// Runs the command.
pub fn run(args: &TrainArgs) -> Result<()> {
    std::fs::create_dir_all(&args.folder).map_err(Error::path(&args.folder))?;
    let (suite, cache) = (Suite::of_this_machine(), absolute(&default_cache())?);
    let images = Images::prepare(suite, &cache, args.quiet)?;
    let emulator = Emulator::prepare(suite, &cache, args.quiet)?;
    let names: Vec<&str> = args.workloads.iter().map(String::as_str).collect();
    run::each(&names, args.jobs, args.quiet, |name| {
        let host = BatchHost::new(&images, &batch(name, args)?)?;
        let mut qemu = Process::capture(host.command(&emulator)?)?;
        let counts = counts(&mut qemu, &host, Duration::from_secs(args.limit))?;
        qemu.stop()?;
        let file = args.folder.join(name).with_extension("tar.gz");
        std::fs::write(&file, counts).map_err(Error::path(&file))
    })
}

fn batch(name: &str, args: &TrainArgs) -> Result<Batch> {
    let pvnet = absolute(&args.pvnet)?;
    if ![GUESTS, MACHINES].contains(&name) {
        let batch = Workload::named(name)?.batch(1, Some(pvnet), &Variation::default())?;
        // In place of a recording.
        return Ok(Batch { script: batch.script.replacen("mark-begin", &dom0(), 1), ..batch });
    }
    let lab = built(args.pvnet_lab.as_ref(), "pvnet-lab")?;
    let files = vec![HostFile::new(pvnet)?.at(PVNET), HostFile::new(lab)?.at(PVNET_LAB)];
    let devices = ["-smp", "2"].map(str::to_owned).to_vec();
    Ok(Batch { script: local(name), files, devices, ..Batch::default() })
}

/// Waits until the machine has printed the counts.
fn counts(qemu: &mut Process, host: &BatchHost, limit: Duration) -> Result<Vec<u8>> {
    let start = Instant::now();
    loop {
        let ended = qemu.ended()?;
        let printed = std::fs::read(host.printed()).unwrap_or_default();
        let text = String::from_utf8_lossy(&printed);
        if let Some(counts) = decoded(&text) {
            return Ok(counts);
        }
        if ended.is_some() || start.elapsed() > limit {
            let last = text.get(text.len().saturating_sub(2000)..).unwrap_or_default();
            let what = "the machine printed no counts".to_owned();
            return Err(Error::Machine { what, said: format!("\n{}{last}", qemu.stderr()) });
        }
        Interrupt::sleep(POLL)?;
    }
}

/// The interval at which the machine's output is read.
const POLL: Duration = Duration::from_millis(500);

/// The counts in a machine's output, once they are whole.
fn decoded(printed: &str) -> Option<Vec<u8>> {
    let (_, after) = printed.split_once("@counts")?;
    let (counts, _) = after.split_once("@end")?;
    STANDARD.decode(counts.split_whitespace().collect::<String>()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_decoded_once_they_are_whole() {
        let printed = "@end\r\n@counts\r\naGVs\r\nbG8=\r\n";
        assert_eq!(decoded(printed), None);
        assert_eq!(decoded(&format!("{printed}@end\r\n")).as_deref(), Some(&b"hello"[..]));
    }

    #[test]
    fn scripts_have_no_syntax_error() {
        for script in [dom0(), local(GUESTS), local(MACHINES)] {
            let mut check = lab::command("sh").unwrap();
            assert!(check.args(["-n", "-c", &script]).status().unwrap().success(), "{script}");
        }
    }
}
