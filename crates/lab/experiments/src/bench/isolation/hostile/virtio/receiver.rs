//! Receivers that choose a slow pace. Frames for them must not hold back their senders' other frames.

use std::time::Duration;

use super::attacker::Attacker;

/// The interval of [`drips`].
const DRIP: Duration = Duration::from_millis(1);

/// Posts one buffer per millisecond.
pub fn drips(attacker: &mut Attacker) -> Result<u64, String> {
    let machine = attacker.machine()?;
    machine.take_all();
    machine.post(1)?;
    std::thread::sleep(DRIP);
    Ok(1)
}

/// Posts nothing.
pub fn never(_attacker: &mut Attacker) -> Result<u64, String> {
    std::thread::sleep(DRIP);
    Ok(1)
}
