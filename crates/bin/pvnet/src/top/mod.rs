//! `pvnet top`: the daemon's traffic and its cost, live.

mod contexts;
mod rates;
mod screen;
mod show;

use std::path::Path;
use std::time::Duration;

use clap::Args;
use control_socket::{Status, control_socket};
use lab::Interrupt;

use crate::args::DaemonArgs;
use rates::Rates;
use screen::Screen;

/// Options of `pvnet top`.
#[derive(Args)]
pub struct TopArgs {
    #[command(flatten)]
    daemon: DaemonArgs,
    /// Seconds between two readings.
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = interval)]
    interval: Duration,
    /// End after this many intervals [default: at Ctrl-C].
    #[arg(long, value_name = "N")]
    count: Option<u64>,
    /// Print one JSON object per interval, each on one line.
    ///
    /// Its fields: `seconds`, the length of the interval; `processors`; `cpus`, processors kept
    /// busy by `guest`, `driver`, `hypervisor`, and `idle` and `stolen` ones; `per_second` and
    /// `per_packet`, objects that hold `packets` and `bytes` (in the first only), each counter
    /// of `pvnet status --json` by name and `guest_bytes`; `us_per_packet` and
    /// `s_per_gigabyte`, CPU time by `guest`, `driver` and `hypervisor`; `ports`, a list of
    /// `name`, `state`, `reason` if there is one (a `code` and perhaps a `detail`), `ingress` (from
    /// the port into the switch) and `egress` (out of the port) with `frames_per_second` and
    /// `bits_per_second`, and `drops_per_second`; `contexts`, a list with a context's `nic`, `context`,
    /// `guest`, `protection`, `state`, `references`, `tx` (from the guest) and `rx` as above, and
    /// `drops_per_second`, `interrupts_per_second`, `calls_per_second` and `descriptors_per_call`. What is
    /// per packet, gigabyte or call is null when there were none.
    #[arg(long)]
    json: bool,
}

/// The shortest interval: the kernel counts idle time in ticks of up to 10 ms.
const SHORTEST: f64 = 0.1;
/// The longest interval, a day.
const LONGEST: f64 = 86_400.0;

fn interval(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    if !(SHORTEST..=LONGEST).contains(&seconds) {
        return Err(format!("not {SHORTEST} to {LONGEST} seconds"));
    }
    Ok(Duration::from_secs_f64(seconds))
}

/// Shows rates until Ctrl-C, or for the given number of intervals.
pub fn run(args: &TopArgs) -> Result<(), String> {
    Interrupt::install().map_err(|error| error.to_string())?;
    let socket = control_socket(&args.daemon.directory);
    let _metered = control_socket::meter(&socket)?;
    let mut before = control_socket::status(&socket)?;
    let mut screen = Screen::start(args.json);
    for _ in 0..args.count.unwrap_or(u64::MAX) {
        if Interrupt::sleep(args.interval).is_err() {
            break;
        }
        let after = look(&socket, before.pid)?;
        let rates = Rates::between(&before, &after)
            .ok_or("the daemon cannot tell the machine's processor time")?;
        let text = if args.json { show::json(&rates) } else { show::text(&rates) };
        match screen.show(&text) {
            // The reader has closed the pipe.
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => break,
            shown => shown.map_err(|error| format!("standard output: {error}"))?,
        }
        before = after;
    }
    Ok(())
}

/// The status of the same daemon. A restarted daemon counts from zero, and its meter is not switched
/// on for this process.
fn look(socket: &Path, pid: u32) -> Result<Status, String> {
    let gone = |why| format!("the daemon (process {pid}) has gone: {why}");
    let status = control_socket::status(socket).map_err(gone)?;
    if status.pid != pid {
        return Err(gone(format!("process {} is in its place", status.pid)));
    }
    Ok(status)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_seconds_within_reason() {
        assert_eq!(interval("0.5"), Ok(Duration::from_millis(500)));
        assert_eq!(interval("60"), Ok(Duration::from_secs(60)));
        for wrong in ["0", "-1", "nan", "inf", "1e99", "soon", ""] {
            assert!(interval(wrong).is_err(), "{wrong}");
        }
    }
}
