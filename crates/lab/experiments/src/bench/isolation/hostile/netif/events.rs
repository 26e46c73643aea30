//! Notifications without frames.

use hypervisor::EventChannel as _;

use super::attacker::Attacker;
use crate::bench::guest::text;

/// Notifications per round.
const BATCH: u64 = 1024;

/// Notifies both rings' event channels without pause (XSA-332).
pub fn storm(attacker: &mut Attacker) -> Result<u64, String> {
    attacker.receive()?;
    let queue = &attacker.guest()?.queue;
    for _ in 0..BATCH / 2 {
        queue.tx.event().notify().map_err(text)?;
        queue.rx.event().notify().map_err(text)?;
    }
    Ok(BATCH)
}
