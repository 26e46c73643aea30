//! A guest cannot flood the log: of each kind of message, each guest, port or card (or user, before it is known which guest a
//! process is) causes a few, and the rest is counted. What an operator does is never suppressed.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::thread::Builder;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use token_bucket::Pace;
use tracing::callsite::Identifier;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber, info};
use tracing_subscriber::layer::{Context, Layer};

use super::line::cut;
use crate::program::text;

/// Messages of a kind and a guest at once.
const BURST: u32 = 10;
/// After a burst, one message in this time, and one line that counts the others.
const INTERVAL: Duration = Duration::from_secs(10);
/// Kinds and guests that are counted separately.
const KEYS_MAX: usize = 4096;
/// What has caused no message for this long may be forgotten. It is long, because what is forgotten has a whole burst again: a
/// user with many user ids would get one for each.
const FORGET: Duration = Duration::from_secs(3600);
/// The target of what an operator did: such lines are never suppressed.
pub const OPERATOR: &str = "pvnet::operator";
/// The lines that count others are not counted.
const SUMMARY: &str = "pvnet::log::summary";
/// The fields that say who caused a message, the most exact first. All are names of the configuration, or few. A domain is none of
/// them: its number changes with each connection.
const SUBJECTS: [&str; 8] = ["guest", "port", "uplink", "card", "device", "tap", "user", "what"];
/// Bytes that are kept of a subject.
const SUBJECT_MAX: usize = 64;
/// Bytes that are kept of a message's text.
const TEXT_MAX: usize = 256;

/// Drops what is too much of one kind from one guest.
#[derive(Clone, Default)]
pub struct LogLimit(Arc<Mutex<Buckets>>);

#[derive(Default)]
struct Buckets {
    by_key: HashMap<Key, Bucket>,
    /// When forgotten ones were last looked for.
    swept: Option<Instant>,
}

/// A message's place in the code, and who caused it.
type Key = (Identifier, String);

struct Bucket {
    pace: Pace,
    /// When the last message was counted.
    last: Instant,
    /// Messages that were dropped and not yet counted in a line.
    dropped: u64,
    /// The last one's text.
    text: String,
}

/// What a message says, as far as it matters here.
#[derive(Default)]
struct Fields {
    about: String,
    /// The place of `about` in [`SUBJECTS`].
    rank: Option<usize>,
    text: String,
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            self.text = format!("{value:?}");
            cut(&mut self.text, TEXT_MAX);
        } else if let Some(rank) = self.better(field) {
            self.set_subject(rank, format!("{value:?}"));
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        match self.better(field) {
            Some(rank) => self.set_subject(rank, value.to_owned()),
            None => self.record_debug(field, &value),
        }
    }
}

impl Fields {
    /// The rank of a field that says better who caused the message.
    fn better(&self, field: &Field) -> Option<usize> {
        let rank = SUBJECTS.iter().position(|subject| *subject == field.name())?;
        self.rank.is_none_or(|known| rank < known).then_some(rank)
    }

    fn set_subject(&mut self, rank: usize, mut subject: String) {
        cut(&mut subject, SUBJECT_MAX);
        (self.rank, self.about) = (Some(rank), subject);
    }
}

impl Buckets {
    /// Makes room if there is none. Looks at all buckets only now and then: a guest decides how often this is called.
    fn sweep(&mut self, now: Instant) {
        if self.swept.is_none_or(|swept| now.duration_since(swept) >= INTERVAL) {
            let is_needed =
                |bucket: &Bucket| bucket.dropped > 0 || now.duration_since(bucket.last) < FORGET;
            self.by_key.retain(|_, bucket| is_needed(bucket));
            self.swept = Some(now);
        }
    }
}

impl LogLimit {
    /// Counts a message; returns whether it may be written.
    fn count(&self, callsite: Identifier, fields: Fields, now: Instant) -> bool {
        let mut buckets = self.0.lock();
        let mut key = (callsite, fields.about);
        if buckets.by_key.len() >= KEYS_MAX && !buckets.by_key.contains_key(&key) {
            buckets.sweep(now);
            if buckets.by_key.len() >= KEYS_MAX {
                // One bucket for all that are new.
                key.1.clear();
            }
        }
        let pace = Pace::one_in(INTERVAL, BURST, now);
        let fresh = || Bucket { pace, last: now, dropped: 0, text: String::new() };
        let bucket = buckets.by_key.entry(key).or_insert_with(fresh);
        bucket.last = now;
        let may = bucket.pace.wait(now).is_zero();
        match may {
            true => bucket.pace.count(1, now),
            false => (bucket.dropped, bucket.text) = (bucket.dropped + 1, fields.text),
        }
        may
    }

    /// Writes a line for what was dropped of each kind. Called once in a while, and at the end.
    pub fn summarise(&self) {
        let mut dropped: Vec<_> = {
            let mut buckets = self.0.lock();
            let dropped = buckets.by_key.iter_mut().filter(|(_, bucket)| bucket.dropped > 0);
            dropped
                .map(|((_, about), bucket)| {
                    let count = std::mem::take(&mut bucket.dropped);
                    (about.clone(), count, std::mem::take(&mut bucket.text))
                })
                .collect()
        };
        dropped.sort();
        for (about, suppressed, text) in dropped {
            info!(target: SUMMARY, about, suppressed, "{suppressed} more like this: {text}");
        }
    }

    /// Writes such lines until the process ends.
    pub fn keep_summarising(&self) {
        loop {
            std::thread::sleep(INTERVAL);
            self.summarise();
        }
    }

    /// Writes such lines in another thread.
    pub fn spawn(&self) -> Result<(), String> {
        let (this, thread) = (self.clone(), Builder::new().name("log".to_owned()));
        thread.spawn(move || this.keep_summarising()).map(drop).map_err(text)
    }
}

impl<S: Subscriber> Layer<S> for LogLimit {
    fn event_enabled(&self, event: &Event<'_>, _: Context<'_, S>) -> bool {
        let metadata = event.metadata();
        // Whoever asks for more than `info` wants all of it.
        if *metadata.level() > Level::INFO || [SUMMARY, OPERATOR].contains(&metadata.target()) {
            return true;
        }
        let mut fields = Fields::default();
        event.record(&mut fields);
        self.count(metadata.callsite(), fields, Instant::now())
    }
}

#[cfg(test)]
mod tests {
    use tracing::{Metadata, callsite, subscriber::Interest, warn};
    use tracing_subscriber::layer::SubscriberExt as _;

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
            self.0.lock().push(format!("{} {}", fields.about, fields.text));
        }
    }

    fn with_log(work: impl FnOnce(&LogLimit)) -> Vec<String> {
        let (limit, lines) = (LogLimit::default(), Lines::default());
        let log = tracing_subscriber::registry().with(limit.clone()).with(lines.clone());
        tracing::subscriber::with_default(log, || work(&limit));
        std::mem::take(&mut lines.0.lock())
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
            assert!(limit.0.lock().by_key.len() <= KEYS_MAX + 1);
        });
    }

    #[test]
    fn a_port_that_floods_the_log_hides_no_other_port() {
        let lines = with_log(|limit| {
            let ended = |port: &str| {
                warn!(port, why = "a ring outside its memory", "its front-end's session has ended");
            };
            (0..500).for_each(|_| ended("vm1"));
            ended("vm2");
            limit.summarise();
        });
        let of = |port: &str| lines.iter().filter(|line| line.starts_with(port)).count();
        assert_eq!([of("vm1 "), of("vm2 "), lines.len()], [10, 1, 12], "{lines:?}");
        assert!(lines[11].starts_with(" 490 more like this"), "{lines:?}");
    }

    #[test]
    fn a_guest_that_connects_under_ever_new_numbers_is_one_guest() {
        let lines = with_log(|limit| {
            for domain in 0..100_u16 {
                info!(vif = format!("{domain}.0"), domain, guest = "red", "connected");
            }
            limit.summarise();
        });
        assert_eq!(lines.len(), 10 + 1, "{lines:?}");
    }

    #[test]
    fn what_an_operator_did_is_all_written() {
        let lines = with_log(|limit| {
            for port in 0..200 {
                info!(target: OPERATOR, port, "a port changes");
                info!(uplink = port, "up");
            }
            limit.summarise();
        });
        assert_eq!(lines.len(), 400);
    }

    #[test]
    fn what_is_forgotten_was_silent_for_long_and_had_nothing_to_report() {
        let (limit, start) = (LogLimit::default(), Instant::now());
        let count = |subject: usize, after: Duration| {
            let fields = Fields { about: subject.to_string(), ..Fields::default() };
            limit.count(Identifier(&PLACE), fields, start + after)
        };
        for subject in 0..KEYS_MAX {
            assert!(count(subject, Duration::ZERO));
        }
        let flood = (0..100).filter(|_| count(0, Duration::ZERO)).count();
        assert_eq!(flood, 9);
        // While the table is full, all new subjects share one bucket.
        let flood = (KEYS_MAX..2 * KEYS_MAX).filter(|new| count(*new, INTERVAL)).count();
        assert_eq!(flood, 10);
        assert!(count(7, INTERVAL), "a subject that is known has its own");
        let flood = (KEYS_MAX..KEYS_MAX + 100).filter(|new| count(*new, 2 * FORGET)).count();
        assert_eq!(flood, 100);
        let dropped: u64 = limit.0.lock().by_key.values().map(|bucket| bucket.dropped).sum();
        assert_eq!(dropped, 91 + KEYS_MAX as u64 - 10);
    }
}
