//! The line rate: when the wire is free again.

use token_bucket::TokenBucket;

/// Bytes of a frame's time on the wire that are not in the frame: preamble, frame check sequence and
/// inter-frame gap.
pub(crate) const WIRE_OVERHEAD: usize = 8 + 4 + 12;
/// How far a late frame may catch up, in bytes: the card's caller does not come at every frame's
/// moment.
const BURST: u64 = 128 * 1024;
/// How long after a frame the next one is tried, in nanoseconds.
const PAUSE: u64 = 20_000;
/// Bytes per second of a Mbit/s.
const BYTES_PER_MEGABIT: u64 = 125_000;

/// The rate of one direction. Times are in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LineRate {
    /// Of bytes; None is no limit.
    bucket: Option<TokenBucket>,
}

impl LineRate {
    /// A rate of `rate_mbps` Mbit/s after a pause; 0 is no limit.
    pub(crate) fn new(rate_mbps: u32) -> Self {
        let rate = u64::from(rate_mbps) * BYTES_PER_MEGABIT;
        Self { bucket: (rate != 0).then(|| TokenBucket::new(rate, BURST)) }
    }

    /// Whether the next frame may go.
    #[inline]
    pub(crate) fn is_ready(&mut self, now: u64) -> bool {
        self.bucket.as_mut().is_none_or(|bucket| has_tokens(bucket, now))
    }

    /// When a caller whose frame may not go at `now` tries again: late enough for some frames at once, which cost it no
    /// bandwidth.
    pub(crate) fn retry_at(&self, now: u64) -> u64 {
        now + self.bucket.map_or(0, |bucket| bucket.time_until(1)) + PAUSE
    }

    /// Takes the tokens of a frame that has `bytes` bytes on the wire.
    #[inline]
    pub(crate) fn take(&mut self, bytes: usize) {
        if let Some(bucket) = &mut self.bucket {
            take(bucket, bytes);
        }
    }
}

// Cold: a card without a rate, as most are, pays a look at the `Option` only.

#[cold]
fn has_tokens(bucket: &mut TokenBucket, now: u64) -> bool {
    bucket.fill(now);
    !bucket.is_empty()
}

#[cold]
fn take(bucket: &mut TokenBucket, bytes: usize) {
    bucket.take(bytes as u64);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_sender_reaches_the_rate() {
        let mut line = LineRate::new(1000);
        let (mut now, mut bytes) = (5_000_000_000, 0u64);
        let end = now + 1_000_000_000;
        while now < end {
            while line.is_ready(now) {
                line.take(1538);
                bytes += 1538;
            }
            now = now.max(line.retry_at(now));
        }
        let expected = 125_000_000;
        assert!(bytes >= expected && bytes <= expected + BURST + 2 * 1538, "{bytes}");
    }

    #[test]
    fn no_rate_is_no_limit() {
        let mut line = LineRate::new(0);
        (0..1000).for_each(|_| line.take(65_535));
        assert!(line.is_ready(7));
    }
}
