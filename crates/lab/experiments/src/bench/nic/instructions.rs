//! Instructions of the card per frame, counted by callgrind in another process of this program.

use std::time::Duration;

use clap::Args;

use super::machine::{CardProtection, Machine, To};
use crate::error::{Error, Result};
use crate::testbed::this_program;

/// Options of the process whose instructions are counted.
#[derive(Args)]
pub struct CountedArgs {
    #[arg(long)]
    protection: CardProtection,
    #[arg(long)]
    size: u16,
    #[arg(long)]
    batches: u32,
}

/// Two lengths of a run. The difference of their counts has no start and no end.
const BATCHES: [u32; 2] = [10, 50];
/// Far more time than callgrind needs.
const LIMIT: Duration = Duration::from_secs(120);

/// Whether callgrind is installed.
pub fn are_countable() -> bool {
    lab::command("valgrind").is_ok()
}

/// Carries some batches to the wire, and prints how many frames these were.
pub fn run_counted(args: &CountedArgs) -> Result<()> {
    let protection = args.protection.protection();
    let machine = Machine::new(protection, To::Wire, args.size.into()).map_err(Error::Failed)?;
    // Valgrind hides the vDSO, without which rustix cannot read a clock.
    let mut machine = machine.with_clock(|| Duration::ZERO);
    let sample = machine.run_batches(args.batches).map_err(Error::Failed)?;
    crate::output::print(&format!("{}\n", sample.frames))
}

/// Instructions of the card per frame to the wire.
pub fn per_frame(kind: CardProtection, size: u16) -> Result<f64> {
    let [short, long] = BATCHES.map(|batches| count(kind, size, batches));
    let ((few, frames), (more, more_frames)) = (short?, long?);
    Ok((more.saturating_sub(few)) as f64 / more_frames.saturating_sub(frames).max(1) as f64)
}

/// The instructions of a run, and its frames.
fn count(kind: CardProtection, size: u16, batches: u32) -> Result<(u64, u64)> {
    let mut command = lab::command("valgrind")?;
    command.args(["--tool=callgrind", "--callgrind-out-file=/dev/null"]);
    command.arg("--toggle-collect=*step_card*").arg(this_program()?);
    command.args(["bench", "nic-counted", "--protection", kind.name()]);
    command.args(["--size", &size.to_string(), "--batches", &batches.to_string()]);
    let mut process = lab::Process::capture(command)?;
    process.succeed(LIMIT)?;
    let failed = || Error::Failed(format!("no count in callgrind's output: {}", process.stderr()));
    let frames = process.stdout().trim().parse().map_err(|_| failed())?;
    collected(&process.stderr()).map(|count| (count, frames)).ok_or_else(failed)
}

/// `==1234== Collected : 56789`.
fn collected(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.split_once("Collected :"));
    line.and_then(|(_, count)| count.trim().parse().ok()).filter(|count| *count > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callgrinds_count_is_found() {
        let said = "==7== Callgrind\n==7== Events    : Ir\n==7== Collected : 1234567\n==7== \n";
        assert_eq!(collected(said), Some(1_234_567));
        assert_eq!(collected("==7== Collected : 0\n"), None, "the function was not found");
        assert_eq!(collected("==7== Events : Ir\n"), None);
    }
}
