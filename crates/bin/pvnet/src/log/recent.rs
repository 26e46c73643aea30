//! The last lines of the log, for `pvnet status --json` and the live page.

use std::collections::VecDeque;
use std::fmt::{self, Write as _};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use control_socket::LogEvent;
use parking_lot::Mutex;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::layer::{Context, Layer};

use super::line::{cut, escaped};

/// Lines that are kept.
const LINES_MAX: usize = 32;
/// Bytes that are kept of each.
const TEXT_MAX: usize = 512;

/// Keeps the last lines that the other layers let through, without those for debugging.
#[derive(Clone, Default)]
pub struct Recent(Arc<Mutex<VecDeque<LogEvent>>>);

impl Recent {
    /// The lines, the newest first.
    pub fn lines(&self) -> Vec<LogEvent> {
        self.0.lock().iter().cloned().collect()
    }
}

impl<S: Subscriber> Layer<S> for Recent {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let level = *event.metadata().level();
        if level > Level::INFO {
            return;
        }
        let mut text = Text::default();
        event.record(&mut text);
        let Text { message, fields } = text;
        let mut text = escaped(&(message + &fields)).into_owned();
        cut(&mut text, TEXT_MAX);
        let at = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let line = LogEvent { at, level: level.as_str().to_lowercase(), text };
        let mut lines = self.0.lock();
        lines.truncate(LINES_MAX - 1);
        lines.push_front(line);
    }
}

/// A message with its fields behind it, as the log has them.
#[derive(Default)]
struct Text {
    message: String,
    fields: String,
}

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Writing into a string cannot fail.
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.fields, " {name}={value:?}"),
        };
    }
}

#[cfg(test)]
mod tests {
    use tracing::{debug, info, warn};
    use tracing_subscriber::layer::SubscriberExt as _;

    use super::*;
    use crate::log::LogLimit;

    fn recorded(work: impl FnOnce()) -> Vec<LogEvent> {
        let recent = Recent::default();
        let log = tracing_subscriber::registry().with(LogLimit::default()).with(recent.clone());
        tracing::subscriber::with_default(log, work);
        recent.lines()
    }

    #[test]
    fn the_last_lines_are_kept_newest_first_and_bounded() {
        let lines = recorded(|| {
            for port in 0..100 {
                info!(port, reason = "x\ny", "came");
            }
            warn!(port = "red", "{}", "ä".repeat(TEXT_MAX));
            debug!("for developers");
        });
        assert_eq!(lines.len(), LINES_MAX);
        assert_eq!(lines[0].level, "warn");
        assert!(lines[0].text.len() <= TEXT_MAX, "{}", lines[0].text.len());
        let second = (&*lines[1].level, &*lines[1].text);
        assert_eq!(second, ("info", r#"came port=99 reason="x\ny""#));
    }

    #[test]
    fn a_guest_forges_no_line_and_hides_no_other() {
        let lines = recorded(|| {
            info!(guest = "blue", "connected");
            for _ in 0..1000 {
                info!(guest = "red", reason = %"x\n\u{1b}[2Jroot", "not connected");
            }
        });
        assert_eq!(lines[0].text, r#"not connected guest="red" reason=x\n\u{1b}[2Jroot"#);
        assert_eq!(lines.last().unwrap().text, "connected guest=\"blue\"");
    }
}
