//! A port whose memory is in swap: a page fault waits for the disk, here for as long as the test likes.
//!
//! Unlike a hole ([`sleepers`](crate::sleepers)) it is nobody's doing: the file has as many blocks as before.

use std::os::fd::AsRawFd;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use lab::{SlowSwap, Wish};
use port::{Egress, Outcome};
use port_testing::{FakeEgress, Sender};
use rustix::fs::fstat;
use shm::{PageSize, Region, create_memfd};

use crate::common::{frame, wait_until};
use crate::{Switch, plain, plug, refresh};

const PAGE: usize = 4096;
/// The kernel reads some pages at a time.
const APART: usize = 64 * PAGE;
const STALLS: u32 = 6;
const LEN: usize = STALLS as usize * APART;
/// The longest that a neighbour may wait. A busy machine may be late, so not each of the stalls counts.
const LIMIT: Duration = Duration::from_millis(50);

#[test]
fn neighbours_of_a_port_whose_memory_is_swapped_out_go_on() {
    let swap = match SlowSwap::new() {
        Ok(swap) => swap,
        // Also where all tests are demanded: no package mends a machine that swaps already, or a container that may not.
        Err(why) => return eprintln!("skipped: {why}"),
    };
    let mut sleeper = Command::new(std::env::current_exe().unwrap());
    sleeper.args(["--exact", "swapped::beside_memory_in_swap", "--ignored", "--nocapture"]);
    let mut sleeper = sleeper.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let served = swap.serve(&mut sleeper);
    // Or it might sleep for ever.
    drop(swap);
    assert!(sleeper.wait().unwrap().success() && served.is_ok(), "{served:?}");
}

#[test]
#[ignore = "neighbours_of_a_port_whose_memory_is_swapped_out_go_on runs it"]
fn beside_memory_in_swap() {
    let switch = Switch::new(1);
    let file = create_memfd("swapped", LEN / PAGE, PageSize::Small).unwrap();
    let region = Arc::new(Region::map(&file, 0, LEN).unwrap());
    let touched = region.clone();
    let next = AtomicUsize::new(0);
    let egress: Box<dyn Egress> = Box::new(FakeEgress::new(move |_, _| {
        let at = next.fetch_add(APART, Ordering::Relaxed);
        touched.read::<u8>(at).unwrap();
        Ok(Outcome::Delivered)
    }));
    let bad = plug(&switch.datapath, 0, Sender::new(), ((), egress));
    let (peer, red, blue) =
        (plain(&switch.datapath, 1), plain(&switch.datapath, 2), plain(&switch.datapath, 3));
    refresh(&switch.datapath);
    let blocks = || fstat(&file).unwrap().st_blocks;
    Wish::TakeOut(file.as_raw_fd(), LEN).ask().unwrap();
    let (before, mut waits) = (blocks(), Vec::new());
    for n in 1..=STALLS {
        Wish::Hold.ask().unwrap();
        peer.sender.send(frame(bad.mac, peer.mac, 100, n));
        wait_until("a page that is read", || Wish::Nothing.ask().unwrap() > 0);
        let began = Instant::now();
        red.sender.send(frame(blue.mac, red.mac, 100, n));
        wait_until("blue's frame", || blue.egress.count() == n as usize);
        waits.push(began.elapsed());
        assert!(peer.sender.answers().len() < n as usize, "no worker slept");
        assert_eq!(blocks(), before, "it looks as if the guest had made a hole");
        Wish::Release.ask().unwrap();
        wait_until("the answer", || peer.sender.answers().len() == n as usize);
    }
    waits.sort_unstable();
    assert!(waits[waits.len() / 2] < LIMIT, "{waits:?}");
    assert!(peer.sender.answers().iter().all(|(_, outcome)| *outcome == Outcome::Delivered));
}
