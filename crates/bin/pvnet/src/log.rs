//! The log on standard error. A guest cannot flood it: of each kind of message, each guest (or user,
//! before it is known which guest a process is) causes a few, and the rest is counted.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tracing::callsite::Identifier;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber, info};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

/// Messages of a kind and a guest at once.
const BURST: u32 = 10;
/// After a burst, one message in this time, and one line that counts the others.
const INTERVAL: Duration = Duration::from_secs(10);
/// Kinds and guests that are counted separately.
const KEYS_MAX: usize = 4096;
/// The lines that count others are not counted.
const SUMMARY: &str = "pvnet::log::summary";

/// Starts the log.
pub fn start() -> LogLimit {
    let filter = EnvFilter::try_from_env("PVNET_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    let limit = LogLimit::default();
    let writer = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    tracing_subscriber::registry().with(filter).with(limit.clone()).with(writer).init();
    limit
}

/// Drops what is too much of one kind from one guest.
#[derive(Clone, Default)]
pub struct LogLimit(Arc<Mutex<HashMap<Key, Bucket>>>);

/// A message's place in the code, and the guest that caused it.
type Key = (Identifier, String);

struct Bucket {
    left: u32,
    /// When `left` was last increased.
    since: Instant,
    /// Messages that were dropped and not yet counted in a line.
    dropped: u64,
    /// The last one's text.
    text: String,
}

/// What a message says, as far as it matters here.
#[derive(Default)]
struct Fields {
    about: String,
    text: String,
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        match field.name() {
            "guest" | "user" | "what" => self.about = format!("{value:?}"),
            "message" => self.text = format!("{value:?}"),
            _ => {}
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "guest" {
            value.clone_into(&mut self.about);
        } else {
            self.record_debug(field, &value);
        }
    }
}

impl LogLimit {
    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Bucket>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a message; returns whether it may be written.
    fn count(&self, callsite: Identifier, fields: Fields, now: Instant) -> bool {
        let mut buckets = self.lock();
        let mut key = (callsite, fields.about);
        if buckets.len() >= KEYS_MAX && !buckets.contains_key(&key) {
            buckets.retain(|_, bucket| bucket.dropped > 0 || now - bucket.since < INTERVAL);
            if buckets.len() >= KEYS_MAX {
                key.1.clear();
            }
        }
        let fresh = || Bucket { left: BURST, since: now, dropped: 0, text: String::new() };
        let bucket = buckets.entry(key).or_insert_with(fresh);
        let intervals = now.duration_since(bucket.since).as_secs() / INTERVAL.as_secs();
        if intervals > 0 {
            let more = u32::try_from(intervals).unwrap_or(BURST);
            (bucket.left, bucket.since) = (bucket.left.saturating_add(more).min(BURST), now);
        }
        let may = bucket.left > 0;
        match may {
            true => bucket.left -= 1,
            false => (bucket.dropped, bucket.text) = (bucket.dropped + 1, fields.text),
        }
        may
    }

    /// Writes a line for what was dropped of each kind. Called once in a while.
    pub fn summarise(&self) {
        let dropped: Vec<_> = {
            let mut buckets = self.lock();
            let dropped = buckets.iter_mut().filter(|(_, bucket)| bucket.dropped > 0);
            dropped
                .map(|((_, about), bucket)| {
                    let count = std::mem::take(&mut bucket.dropped);
                    (about.clone(), count, std::mem::take(&mut bucket.text))
                })
                .collect()
        };
        for (about, count, text) in dropped {
            info!(target: SUMMARY, about, "{count} more like this: {text}");
        }
    }

    /// Writes such lines until the process ends.
    pub fn keep_summarising(&self) {
        loop {
            std::thread::sleep(INTERVAL);
            self.summarise();
        }
    }
}

impl<S: Subscriber> Layer<S> for LogLimit {
    fn event_enabled(&self, event: &Event<'_>, _: Context<'_, S>) -> bool {
        let metadata = event.metadata();
        // Whoever asks for more than `info` wants all of it.
        if *metadata.level() > Level::INFO || metadata.target() == SUMMARY {
            return true;
        }
        let mut fields = Fields::default();
        event.record(&mut fields);
        self.count(metadata.callsite(), fields, Instant::now())
    }
}

#[cfg(test)]
mod tests {
    use tracing::{Metadata, callsite, subscriber::Interest};

    use super::*;

    /// A place in the code that writes nothing.
    struct Place;

    static PLACE: Place = Place;

    impl callsite::Callsite for Place {
        fn set_interest(&self, _: Interest) {}

        fn metadata(&self) -> &Metadata<'_> {
            unreachable!("it has no message")
        }
    }

    /// Keeps the lines that are written.
    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<String>>>);

    impl<S: Subscriber> Layer<S> for Lines {
        fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
            let mut fields = Fields::default();
            event.record(&mut fields);
            self.0.lock().unwrap().push(format!("{} {}", fields.about, fields.text));
        }
    }

    fn with_log(work: impl FnOnce(&LogLimit)) -> Vec<String> {
        let (limit, lines) = (LogLimit::default(), Lines::default());
        let log = tracing_subscriber::registry().with(limit.clone()).with(lines.clone());
        tracing::subscriber::with_default(log, || work(&limit));
        std::mem::take(&mut lines.0.lock().unwrap())
    }

    #[test]
    fn a_guest_that_floods_the_log_hides_no_other_guest() {
        let lines = with_log(|limit| {
            for _ in 0..1000 {
                info!(guest = "red", "connected");
            }
            for guest in ["blue", "green"] {
                info!(guest, "connected");
                info!(guest, "gone");
            }
            limit.summarise();
            limit.summarise();
        });
        let count = |line: &str| lines.iter().filter(|other| *other == line).count();
        assert_eq!(count("red connected"), 10);
        assert_eq!([count("blue connected"), count("green gone")], [1, 1]);
        assert_eq!(count(" 990 more like this: connected"), 1, "{lines:?}");
        assert_eq!(lines.len(), 10 + 4 + 1);
    }

    #[test]
    fn after_a_flood_messages_come_again() {
        let limit = LogLimit::default();
        let callsite = Identifier(&PLACE);
        let start = Instant::now();
        let count = |after: u64| {
            let now = start + Duration::from_secs(after);
            (0..100).filter(|_| limit.count(callsite.clone(), Fields::default(), now)).count()
        };
        assert_eq!([count(0), count(9), count(10), count(1000)], [10, 0, 1, 10]);
    }

    #[test]
    fn names_without_end_take_a_bounded_memory() {
        with_log(|limit| {
            for user in 0..3 * KEYS_MAX {
                info!(user, "refused");
            }
            assert!(limit.lock().len() <= KEYS_MAX + 1);
        });
    }
}
