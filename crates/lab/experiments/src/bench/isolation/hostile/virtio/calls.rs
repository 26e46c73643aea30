//! Eventfds whose next write waits.

use std::time::{Duration, Instant};

use super::attacker::Attacker;
use crate::bench::guest::addressed;
use crate::bench::isolation::class::Class;
use crate::bench::virtio::{Crowd, PAIRS_MAX};
use wire::ethernet::MacAddr;

/// How long the back-end has to end the session.
const END: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(300);
/// Bytes of a frame.
const FRAME_LEN: usize = 60;

/// Fills the calls of all rings, sends a frame by each pair of them, and waits for the session's end. Each time by another port: that of
/// the last one is closed.
pub fn full(attacker: &mut Attacker) -> Result<u64, String> {
    let port = attacker.next_port();
    if port >= Class::VirtioFullCalls.ports() {
        // All are closed.
        std::thread::sleep(PAUSE);
        return Ok(0);
    }
    let stream = attacker.connect_to(port)?;
    let mut crowd = Crowd::boot(stream, PAIRS_MAX)?;
    let mac = attacker.mac();
    crowd.fill_calls()?;
    crowd.send_by_all(&addressed(mac, MacAddr([2, 0, 0, 0, 0, 0x77]), FRAME_LEN))?;
    let start = Instant::now();
    while crowd.is_served() {
        if start.elapsed() > END {
            return Err("a front-end that blocks the worker keeps its session".into());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    std::thread::sleep(PAUSE);
    Ok(1)
}
