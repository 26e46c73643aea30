//! Runs kernels on this host.

use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use super::kernel::{BUFFER, Kernel, LINE, SEGMENT};

/// The time that this thread has spent on a processor: others may run in between.
fn spent() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    let nanoseconds = u32::try_from(time.tv_nsec).unwrap_or(0);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), nanoseconds)
}

/// The time for which a kernel runs at least.
const TIME: Duration = Duration::from_millis(20);
/// How often it is measured: the shortest time counts, as others were disturbed.
const TIMES: usize = 5;

/// A processor's cycle in nanoseconds.
pub fn cycle() -> f64 {
    const STEPS: u32 = 100_000;
    // A multiplication takes three cycles on every processor since 2008, and the addition one.
    const CYCLES: f64 = 4.0;
    let chain = || {
        let mut number = black_box(3u64);
        for _ in 0..STEPS {
            number = number.wrapping_mul(number | 1);
        }
        black_box(number);
    };
    fastest(chain) / f64::from(STEPS) / CYCLES
}

/// The time of a kernel in nanoseconds, for each of its units.
pub fn nanoseconds(kernel: &Kernel) -> f64 {
    match *kernel {
        Kernel::List(bytes) | Kernel::Scattered(bytes) => follow(kernel, bytes),
        Kernel::Pages(pages) => follow(kernel, pages * 4096),
        Kernel::Read(bytes) => read(bytes),
        Kernel::Copied(bytes) => copy(bytes),
        Kernel::Locked => {
            const STEPS: u32 = 10_000;
            let number = AtomicU64::new(0);
            let add = || {
                for _ in 0..STEPS {
                    number.fetch_add(1, Ordering::SeqCst);
                }
            };
            fastest(add) / f64::from(STEPS)
        }
        Kernel::SystemCall => {
            const STEPS: u32 = 1000;
            let call = || {
                for _ in 0..STEPS {
                    black_box(std::os::unix::process::parent_id());
                }
            };
            fastest(call) / f64::from(STEPS)
        }
    }
}

/// The shortest time of a run in nanoseconds. The first run is not measured.
fn fastest(mut run: impl FnMut()) -> f64 {
    run();
    let mut best = f64::INFINITY;
    for _ in 0..TIMES {
        let (start, mut runs, mut time) = (spent(), 0u32, Duration::ZERO);
        while time < TIME {
            run();
            runs += 1;
            time = spent().saturating_sub(start);
        }
        best = best.min(time.as_nanos() as f64 / f64::from(runs));
    }
    best
}

/// How often `steps` steps are repeated, so that reading the clock takes no part of the time.
fn rounds(steps: usize) -> usize {
    const ENOUGH: usize = 100_000;
    ENOUGH.div_ceil(steps.max(1))
}

/// A line with the number of the next one.
#[derive(Clone, Copy, Default)]
#[repr(align(64))]
struct Node(u32);

fn follow(kernel: &Kernel, bytes: usize) -> f64 {
    let order = kernel.order();
    let mut nodes = vec![Node::default(); bytes / LINE];
    for (at, next) in order.iter().zip(order.iter().cycle().skip(1)) {
        nodes[*at as usize] = Node(*next);
    }
    let first = order.first().copied().unwrap_or(0);
    let steps = order.len() * rounds(order.len());
    let chase = || {
        let mut at = first;
        for _ in 0..steps {
            at = nodes[at as usize].0;
        }
        black_box(at);
    };
    fastest(chase) / steps as f64
}

fn read(bytes: usize) -> f64 {
    let words = vec![1u64; bytes / size_of::<u64>()];
    let rounds = rounds(bytes / LINE);
    let sum = || {
        for _ in 0..rounds {
            black_box(black_box(&words).iter().fold(0u64, |sum, word| sum.wrapping_add(*word)));
        }
    };
    fastest(sum) / (rounds * (bytes / LINE)) as f64
}

fn copy(bytes: usize) -> f64 {
    let (from, mut to) = (vec![1u8; bytes], vec![0u8; BUFFER]);
    let run = || {
        let places = (0..BUFFER / SEGMENT).cycle();
        for (segment, place) in from.chunks_exact(SEGMENT).zip(places) {
            black_box(&mut to[place * SEGMENT..][..SEGMENT]).copy_from_slice(segment);
        }
    };
    fastest(run) / (bytes / LINE) as f64
}
