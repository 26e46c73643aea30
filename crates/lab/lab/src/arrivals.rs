//! When bytes arrive: how many so far, and the longest pause between two arrivals.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// What has arrived at one end. Others watch the number of bytes meanwhile.
#[derive(Debug)]
pub(crate) struct Arrivals {
    bytes: Arc<AtomicU64>,
    last: Option<Instant>,
    longest: Duration,
}

impl Arrivals {
    pub fn new(bytes: Arc<AtomicU64>) -> Self {
        Self { bytes, last: None, longest: Duration::ZERO }
    }

    /// Notes an arrival now.
    pub fn note(&mut self, length: usize) {
        let now = Instant::now();
        if let Some(last) = self.last.replace(now) {
            self.longest = self.longest.max(now - last);
        }
        self.bytes.fetch_add(length as u64, Ordering::Relaxed);
    }

    /// Bytes so far.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// The longest time in which nothing arrived, between the first arrival and the last.
    pub fn longest_pause(&self) -> Duration {
        self.longest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pause_is_between_two_arrivals() {
        let mut arrivals = Arrivals::new(Arc::default());
        assert_eq!((arrivals.bytes(), arrivals.longest_pause()), (0, Duration::ZERO));
        arrivals.note(3);
        // What comes before the first one is no pause.
        assert_eq!(arrivals.longest_pause(), Duration::ZERO);
        std::thread::sleep(Duration::from_millis(2));
        arrivals.note(4);
        assert_eq!(arrivals.bytes(), 7);
        assert!(arrivals.longest_pause() >= Duration::from_millis(2));
    }
}
