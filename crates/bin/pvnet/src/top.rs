//! `pvnet top`: the daemon's traffic and its cost, live.

mod contexts;
mod keys;
mod layout;
mod rates;
mod screen;
mod show;
mod top_document;
mod view;
mod workers;

use std::path::Path;
use std::time::{Duration, Instant};

use clap::Args;
use control_socket::{Status, control_socket};
use host::Interrupt;
use keys::Controls;
use rates::Rates;
use screen::{Input, Screen};
use view::{Column, View};

use crate::args::DaemonArgs;
use crate::program::text;

pub use top_document::TopDocument;

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
    /// Show one interval and end: `--count 1`.
    #[arg(long, conflicts_with = "count")]
    once: bool,
    /// Print block after block on a terminal too, and read no keys.
    #[arg(long)]
    batch: bool,
    /// Sort ports and contexts by `name`, `rate` (frames), `bytes`, `drops`, `time` in the daemon or `cost` (that time per frame); with `-` before it, the other way round.
    #[arg(long, value_name = "[-]COLUMN", allow_hyphen_values = true, value_parser = view::sort)]
    sort: Option<(Column, bool)>,
    /// List the other way round.
    #[arg(long)]
    reverse: bool,
    /// List the ports and contexts whose name, kind or state contains this text; with several words, each of them.
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    filter: String,
    /// Print one JSON object per interval, each on one line; `pvnet schema top` describes it.
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

/// Shows rates until Ctrl-C or `q`, or for the given number of intervals.
pub fn run(args: &TopArgs) -> Result<(), String> {
    Interrupt::install().map_err(text)?;
    let socket = control_socket(&args.daemon.directory);
    let _metered = control_socket::meter(&socket)?;
    let mut before = control_socket::status(&socket)?;
    let mut screen = Screen::start(args.json || args.batch);
    let mut controls = Controls::new(args.view());
    let mut left = if args.once { 1 } else { args.count.unwrap_or(u64::MAX) };
    let mut rates = None;
    let mut due = Instant::now() + args.interval;
    while left > 0 {
        match screen.wait(due).map_err(|error| format!("standard input: {error}"))? {
            Input::Interrupted => break,
            Input::Keys(keys) => {
                if !keys.into_iter().all(|key| controls.press(key)) {
                    break;
                }
            }
            Input::Due => {
                left -= 1;
                let after = status_of(&socket, before.pid)?;
                let new = Rates::between(&before, &after);
                rates = Some(new.ok_or("the daemon cannot tell the machine's processor time")?);
                before = after;
                due = Instant::now() + args.interval;
            }
        }
        let Some(rates) = &rates else { continue };
        let text = if args.json {
            document::line(&TopDocument::new(rates, &controls.view)).map_err(text)?
        } else {
            let head = if screen.has_keys() { controls.text() } else { String::new() };
            head + &show::text(rates, &controls.view, screen.size())
        };
        match screen.show(&text) {
            // The reader has closed the pipe.
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => break,
            shown => shown.map_err(|error| format!("standard output: {error}"))?,
        }
    }
    Ok(())
}

impl TopArgs {
    /// What is listed at first.
    fn view(&self) -> View {
        let (sort, turned) = self.sort.map_or((None, false), |(sort, turned)| (Some(sort), turned));
        View { sort, reverse: turned != self.reverse, filter: self.filter.clone() }
    }
}

/// The status of the same daemon. A restarted daemon counts from zero, and its meter is not switched
/// on for this process.
fn status_of(socket: &Path, pid: u32) -> Result<Status, String> {
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
