//! Receivers that choose a slow pace. Frames for them must not hold back their senders' other frames.

use std::time::{Duration, Instant};

use super::attacker::Attacker;
use crate::bench::isolation::hostile::Attacker as _;

/// How long [`stops`] receives, and how long it stands still.
const RUNS: Duration = Duration::from_millis(10);
const STANDS: Duration = Duration::from_millis(150);
/// The interval of [`drips`].
const DRIP: Duration = Duration::from_millis(1);
/// The interval of [`bursts`]: below the 200 ms after which a guest counts as stalled.
const BURST: Duration = Duration::from_millis(199);

/// Receives for 10 ms, then stands still for 150 ms.
pub fn stops(attacker: &mut Attacker) -> Result<u64, String> {
    attacker.rest(Instant::now() + RUNS)?;
    std::thread::sleep(STANDS);
    Ok(1)
}

/// Posts one buffer per millisecond.
pub fn drips(attacker: &mut Attacker) -> Result<u64, String> {
    attacker.receive_and_post(1)?;
    std::thread::sleep(DRIP);
    Ok(1)
}

/// Posts a full ring of buffers every 199 ms.
pub fn bursts(attacker: &mut Attacker) -> Result<u64, String> {
    attacker.receive()?;
    std::thread::sleep(BURST);
    Ok(1)
}

/// Posts nothing.
pub fn never(_attacker: &mut Attacker) -> Result<u64, String> {
    std::thread::sleep(DRIP);
    Ok(1)
}
