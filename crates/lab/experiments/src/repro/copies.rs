//! What a copy of a packet costs on this machine.

use std::hint::black_box;
use std::time::Instant;

use report::Samples;

/// Buffers on each side, a page apart: as many as a ring has.
const BUFFERS: usize = 256;
const PAGE: usize = 4096;
/// How often all of them are copied. The median counts.
const TIMES: usize = 51;

/// Nanoseconds of a copy of `bytes` bytes from one page to another, with as many pages in turn as a ring has.
pub fn copy_ns(bytes: u16) -> f64 {
    let (from, mut to) = (vec![1_u8; BUFFERS * PAGE], vec![0_u8; BUFFERS * PAGE]);
    let len = usize::from(bytes).min(PAGE);
    let mut copy_all = || {
        let start = Instant::now();
        for (from, to) in from.chunks(PAGE).zip(to.chunks_mut(PAGE)) {
            to[..len].copy_from_slice(black_box(&from[..len]));
        }
        black_box(&mut to);
        start.elapsed().as_secs_f64() * 1e9 / BUFFERS as f64
    };
    let all: Samples = (0..TIMES).map(|_| copy_all()).collect();
    all.stats().map_or(0.0, |stats| stats.median)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_takes_time() {
        assert!(copy_ns(1500) > 0.0);
    }
}
