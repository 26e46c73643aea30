//! Storm control: how much a port may flood.

use std::time::Duration;

use frame::Frame;
use token_bucket::SharedBucket;

/// The copies per second that a port may cause by default.
///
/// One frame for each of 256 guests to each of 256 ports, every second and at once: a guest that resolves all its
/// neighbours does so within this, and ARP, neighbour discovery, DHCP and mDNS of a quiet network need a tenth. A
/// copy costs a worker up to a microsecond, so a storm takes up to a fifteenth of it.
pub const FLOOD_COPIES: u32 = 65_536;

/// Bytes of a frame that count as one copy.
const COPY_BYTES: u32 = 2048;

/// The budget for the frames that one port floods, in copies. All workers that carry its queues share it.
///
/// A flooded frame costs what its delivery costs: a copy for every port that it goes to, and for each of these one
/// more for every further 2 KiB, or for every further packet that it is cut into. The budget fills at the rate, up to
/// what the rate gives in a second. The last frame may leave a debt, so a frame passes at any rate but rarely.
#[derive(Debug)]
pub struct StormControl {
    /// Zero for no limit.
    copies_per_second: u32,
    tokens: SharedBucket,
}

impl StormControl {
    /// A full budget of this rate; zero for no limit.
    #[must_use]
    pub fn new(copies_per_second: u32) -> Self {
        Self { copies_per_second, tokens: SharedBucket::default() }
    }

    /// Whether a frame may go to `ports` ports at `now`, a clock that goes forward. Takes its copies out of the budget
    /// if so.
    pub fn admit(&self, frame: &Frame, ports: usize, now: Duration) -> bool {
        let rate = u64::from(self.copies_per_second);
        // No overflow: a u32 times nanoseconds of a second, and for 136 years times seconds.
        let parts = rate * u64::from(now.subsec_nanos()) / 1_000_000_000;
        let now = now.as_secs().saturating_mul(rate).saturating_add(parts);
        rate == 0 || self.tokens.take(copies(frame, ports), rate, now)
    }
}

/// What a flooded frame costs, in copies.
fn copies(frame: &Frame, ports: usize) -> u64 {
    let each = frame.packets().max(1 + frame.len / COPY_BYTES);
    u64::from(each).saturating_mul(ports as u64)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn frame(len: u32) -> Frame {
        let mut frame = Frame::empty();
        frame.len = len;
        frame
    }

    #[test]
    fn a_frame_costs_a_copy_for_every_port_and_2_kib() {
        for (len, ports, cost) in [(60, 0, 0), (60, 1, 1), (1514, 255, 255), (65_535, 10, 320)] {
            assert_eq!(copies(&frame(len), ports), cost, "{len} bytes to {ports} ports");
        }
    }

    #[test]
    fn zero_is_no_limit() {
        let control = StormControl::new(0);
        assert!((0..100_000).all(|_| control.admit(&frame(60), 1000, Duration::ZERO)));
    }

    #[test]
    fn the_largest_numbers() {
        let control = StormControl::new(u32::MAX);
        assert!(control.admit(&frame(u32::MAX), usize::MAX, Duration::MAX));
        assert!(!control.admit(&frame(60), 1, Duration::ZERO));
    }

    #[test]
    fn every_guest_of_256_resolves_all_others_at_once() {
        let control = StormControl::new(FLOOD_COPIES);
        for second in 0..3 {
            let now = Duration::from_secs(second);
            assert!((0..255).all(|_| control.admit(&frame(60), 255, now)));
        }
    }

    #[test]
    fn a_frame_for_more_ports_than_the_budget_has_copies_passes_rarely() {
        let control = StormControl::new(100);
        let seconds = (0..21).filter(|n| control.admit(&frame(60), 255, Duration::from_secs(*n)));
        assert!(seconds.eq([0, 2, 5, 7, 10, 12, 15, 17, 20]));
    }

    proptest! {
        /// From any moment on: what the rate gives, a burst and one frame.
        #[test]
        fn no_more_than_the_rate_and_a_second(
            rate in 1u32..=200_000,
            steps in prop::collection::vec((0u64..2_000_000_000, 1usize..300, 60u32..65_535), 1..100),
            from: prop::sample::Index,
        ) {
            let control = StormControl::new(rate);
            let from = from.index(steps.len());
            let (mut now, mut since, mut passed, mut largest) = (Duration::ZERO, Duration::ZERO, 0, 0);
            for (n, (pause, ports, len)) in steps.into_iter().enumerate() {
                now += Duration::from_nanos(pause);
                if n == from {
                    (since, passed) = (now, 0);
                }
                let frame = frame(len);
                while control.admit(&frame, ports, now) {
                    passed += u128::from(copies(&frame, ports));
                    largest = largest.max(u128::from(copies(&frame, ports)));
                }
                let earned = (now - since).as_nanos() * u128::from(rate) / 1_000_000_000;
                prop_assert!(passed <= earned + 1 + u128::from(rate) + largest);
            }
        }
    }
}
