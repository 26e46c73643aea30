//! The device is another process, which is killed again and again in the middle of its work.

use std::collections::VecDeque;
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::common::{DATA, LEN, USER, addresses, options, setup};
use shm::{PageSize, Region};
use virtqueue::driver::{Driver, Offered};
use virtqueue::{Chain, GuestMemory, InflightLog, Layout, Queue, Range};

const SIZE: u16 = 64;
/// Where the device finds the memory, and which layout the ring has.
const VARIABLE: &str = "VIRTQUEUE_TEST_DEVICE";
const KILLS: usize = 25;

/// The guest's memory, and the log behind it.
fn map(file: &File) -> (Arc<GuestMemory>, InflightLog) {
    let whole = Arc::new(Region::map(file, 0, LEN + 4096).unwrap());
    let range = Range { guest: 0, user: USER, len: LEN as u64 };
    let memory = GuestMemory::new(vec![(range, whole.slice(0..LEN).unwrap())]).unwrap();
    let log = whole.slice(LEN..LEN + InflightLog::bytes(SIZE)).unwrap();
    (Arc::new(memory), InflightLog::new(log, SIZE).unwrap())
}

/// The device's process: takes chains and returns them, in batches, for ever.
#[test]
fn device() {
    let Ok(variable) = std::env::var(VARIABLE) else { return };
    let (layout, path) = variable.split_once(' ').unwrap();
    let layout = if layout == "packed" { Layout::Packed } else { Layout::Split };
    let (memory, log) = map(&File::options().read(true).write(true).open(path).unwrap());
    let queue = Queue::with_log(memory, setup(SIZE, options(layout, false)), Some(log));
    let (mut queue, mut chain) = (queue.unwrap(), Chain::new());
    let mut held = Vec::new();
    loop {
        while held.len() < 16 && queue.pop(&mut chain).unwrap() {
            held.push(chain.index);
        }
        // In another order than they came.
        for index in held.drain(..).rev() {
            queue.complete(index, 7);
        }
        let _ = queue.publish();
    }
}

fn spawn(layout: &str, file: &OwnedFd) -> Child {
    let path = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "killed::device"]).env(VARIABLE, format!("{layout} {path}"));
    command.stdout(Stdio::null()).spawn().unwrap()
}

fn run(name: &str, layout: Layout) {
    let file = shm::create_memfd("killed", LEN / 4096 + 1, PageSize::Small).unwrap();
    let (memory, _) = map(&file.try_clone().unwrap().into());
    let mut driver = Driver::new(&memory.regions()[0], addresses(0), SIZE, options(layout, false));
    let mut offered = VecDeque::new();
    let (mut offers, mut returned) = (0u64, 0u64);
    for kill in 0..KILLS {
        let mut device = spawn(name, &file);
        let before = returned;
        let mut until = None;
        let late = Instant::now() + Duration::from_secs(60);
        loop {
            let buffer = |n: u64| Offered { address: DATA + n * 64, len: 64, writable: true };
            while let Some(id) = driver.offer(&[buffer(0), buffer(1)][..1 + kill % 2], None) {
                offered.push_back(id);
                offers += 1;
            }
            driver.publish();
            while let Some(used) = driver.take() {
                assert_eq!(Some(used.id), offered.pop_front(), "{name}, after {kill} kills");
                assert_eq!(used.written, 7);
                returned += 1;
            }
            // Some moment after it has begun to work.
            if until.is_none() && returned > before {
                until = Some(Instant::now() + Duration::from_micros(kill as u64 * 137 % 1500));
            }
            if until.is_some_and(|until| Instant::now() > until) {
                break;
            }
            assert!(Instant::now() < late, "{name}: nothing comes back after {kill} kills");
        }
        device.kill().unwrap();
        device.wait().unwrap();
    }
    assert_eq!(offers - returned, offered.len() as u64);
}

#[test]
fn a_split_ring_is_continued_by_the_next_process() {
    run("split", Layout::Split);
}

#[test]
fn a_packed_ring_is_continued_by_the_next_process() {
    run("packed", Layout::Packed);
}
