//! The line rate: when the wire is free again.
//!
//! It is a bucket of its own and no `TokenBucket`, which costs the card's loop 8 instructions a frame even where no rate is set (`make gate`).

/// Bytes of a frame's time on the wire that are not in the frame: preamble, frame check sequence and
/// inter-frame gap.
pub(crate) const WIRE_OVERHEAD: usize = 8 + 4 + 12;
/// How many bytes may catch up at once, because the card's caller does not come exactly when a
/// frame may go.
const BURST: u64 = 128 * 1024;
/// How long after the wire is free the next frame is tried, in nanoseconds.
const PAUSE: u64 = 20_000;

/// A token bucket, as the time at which it has a token again. Times are in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LineRate {
    /// Picoseconds per byte; 0 is no limit.
    per_byte: u64,
    /// When the frames so far have left.
    free_at: u64,
    /// The part of it below a nanosecond.
    picoseconds: u64,
}

impl LineRate {
    /// A full bucket of `rate_mbps` Mbit/s; 0 is no limit.
    pub(crate) fn new(rate_mbps: u32) -> Self {
        let per_byte = match u64::from(rate_mbps) {
            0 => 0,
            rate => 8_000_000 / rate,
        };
        Self { per_byte, free_at: 0, picoseconds: 0 }
    }

    /// Whether the next frame may go.
    #[inline]
    pub(crate) fn is_ready(&self, now: u64) -> bool {
        self.free_at <= now
    }

    /// When a caller whose frame may not go tries again: late enough for several frames at once. The delay costs no bandwidth.
    pub(crate) fn retry_at(&self) -> u64 {
        self.free_at + PAUSE
    }

    /// Takes the tokens of frames that have `bytes` bytes on the wire.
    #[inline]
    pub(crate) fn take(&mut self, bytes: usize, now: u64) {
        if self.per_byte == 0 {
            return;
        }
        let burst = BURST * self.per_byte / 1000;
        let cost = self.picoseconds + bytes as u64 * self.per_byte;
        self.free_at = self.free_at.max(now.saturating_sub(burst)) + cost / 1000;
        self.picoseconds = cost % 1000;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn no_more_passes_than_the_rate_and_a_burst(
            rate in 1u32..100_000,
            waits in prop::collection::vec((0u64..2_000_000, 60usize..65_535), 1..200),
        ) {
            let mut line = LineRate::new(rate);
            let (start, mut now) = (1_000_000_000, 1_000_000_000);
            let (mut passed, mut last) = (0, 0);
            for (wait, bytes) in waits {
                now += wait;
                if line.is_ready(now) {
                    line.take(bytes, now);
                    (passed, last) = (passed + bytes as u64, bytes as u64);
                }
                // Bits of `rate` per microsecond.
                let allowed = (now - start) * u64::from(rate) / 8000 + BURST;
                // A frame may begin when there is any token. The cost of a byte is cut to picoseconds.
                prop_assert!((passed - last) * 99 / 100 <= allowed + 1, "{passed} of {allowed}");
            }
        }
    }

    #[test]
    fn a_busy_sender_reaches_the_rate() {
        let mut line = LineRate::new(1000);
        let (mut now, mut bytes) = (5_000_000_000, 0u64);
        let end = now + 1_000_000_000;
        while now < end {
            while line.is_ready(now) {
                line.take(1538, now);
                bytes += 1538;
            }
            now = now.max(line.retry_at());
        }
        let expected = 125_000_000;
        assert!(bytes >= expected && bytes <= expected + BURST + 2 * 1538, "{bytes}");
    }

    #[test]
    fn no_rate_is_no_limit() {
        let mut line = LineRate::new(0);
        (0..1000).for_each(|_| line.take(65_535, 7));
        assert!(line.is_ready(7));
    }
}
