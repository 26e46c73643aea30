//! A guest that sleeps is notified of its frames: of all, of several at once, and of one at once.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use hypervisor::EventChannel;
use netfront::Config;
use port::Coalescing;
use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::common::{A, B, Guest, Host, frame, receive, send};

/// Takes what has come, and otherwise sleeps until it is notified. Returns how many frames have come.
fn take(guest: &mut Guest) -> usize {
    loop {
        let frames = taken(guest);
        if frames > 0 {
            return frames;
        }
        if !guest.queues[0].rx.arm().unwrap() {
            sleep(guest);
        }
    }
}

/// What has come.
fn taken(guest: &mut Guest) -> usize {
    std::iter::from_fn(|| receive(&mut guest.queues[0])).count()
}

/// Sleeps until it is notified.
fn sleep(guest: &Guest) {
    let event = guest.queues[0].rx.event();
    let limit = Timespec { tv_sec: 10, tv_nsec: 0 };
    let woken = poll(&mut [PollFd::from_borrowed_fd(event.as_fd(), PollFlags::IN)], Some(&limit));
    assert_eq!(woken, Ok(1), "no notification");
    event.take().unwrap();
}

const SETTINGS: [Option<(u32, u64)>; 5] =
    [None, Some((1, 0)), Some((2, 10)), Some((64, 50)), Some((16, 500))];

fn settings() -> impl Iterator<Item = Option<Coalescing>> {
    SETTINGS.into_iter().map(|setting| {
        setting.map(|(frames, micros)| Coalescing { frames, after: Duration::from_micros(micros) })
    })
}

#[test]
fn no_notification_is_lost_whatever_is_coalesced() {
    for coalescing in settings() {
        let host = Host::new(1, 1).coalescing(coalescing);
        let [mut a, mut b] = host.pair(Config::default());
        let count = 2000;
        let sender = std::thread::spawn(move || {
            let mut random = 0x9e37_79b9_u32;
            for n in 0..count {
                random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                // Half of the frames come in a row, the others after up to 128 µs.
                let pause = if random & 1 == 0 { 0 } else { random >> 25 };
                let end = Instant::now() + Duration::from_micros(pause.into());
                while Instant::now() < end {
                    std::hint::spin_loop();
                }
                while !send(&mut a.queues[0], &frame(B, A, 100, n)) {
                    std::thread::yield_now();
                }
            }
            a
        });
        let mut taken = 0;
        while taken < count as usize {
            taken += take(&mut b);
        }
        drop(sender.join().unwrap());
    }
}

#[test]
fn a_guest_is_woken_once_for_the_wanted_frames() {
    let coalescing = Coalescing { frames: 8, after: Duration::from_secs(5) };
    let host = Host::new(1, 1).coalescing(Some(coalescing));
    let [mut a, mut b] = host.pair(Config::default());
    for _ in 0..3 {
        assert!(!b.queues[0].rx.arm().unwrap());
        let sender = std::thread::spawn(move || {
            for n in 0..8 {
                std::thread::sleep(Duration::from_millis(10));
                assert!(send(&mut a.queues[0], &frame(B, A, 100, n)));
            }
            a
        });
        sleep(&b);
        assert_eq!(taken(&mut b), 8);
        a = sender.join().unwrap();
    }
}

#[test]
fn fewer_frames_come_when_their_time_is_over() {
    let after = Duration::from_millis(100);
    let host = Host::new(1, 1).coalescing(Some(Coalescing { frames: 8, after }));
    let [mut a, mut b] = host.pair(Config::default());
    assert!(!b.queues[0].rx.arm().unwrap());
    let began = Instant::now();
    let sender = std::thread::spawn(move || {
        (0..3).for_each(|n| assert!(send(&mut a.queues[0], &frame(B, A, 100, n))));
        a
    });
    sleep(&b);
    assert_eq!(taken(&mut b), 3);
    assert!(began.elapsed() >= after);
    drop(sender.join().unwrap());
}

/// Without rustix's feature `linux_5_11`, `epoll` counts in whole milliseconds, and coalescing would be twenty times too long.
#[test]
fn a_worker_can_wait_for_less_than_a_millisecond() {
    let epoll = epoll::create(CreateFlags::CLOEXEC).unwrap();
    let took = |wait: Duration| {
        let wait = Timespec::try_from(wait).unwrap();
        let times = (0..20).map(|_| {
            let began = Instant::now();
            epoll::wait(&epoll, spare_capacity(&mut Vec::with_capacity(1)), Some(&wait)).unwrap();
            began.elapsed()
        });
        // The others also waited for a CPU.
        times.min().unwrap()
    };
    let (short, long) = (took(Duration::from_micros(10)), took(Duration::from_millis(1)));
    assert!(short < long / 2, "{short:?}, {long:?}");
}
