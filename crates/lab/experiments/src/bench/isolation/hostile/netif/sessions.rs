//! Guests that come and go.

use super::attacker::Attacker;
use crate::bench::isolation::hostile::Attacker as _;

/// Leaves, joins as a new domain and connects its interface.
pub fn attach_detach(attacker: &mut Attacker) -> Result<u64, String> {
    attacker.leave();
    attacker.guest()?;
    Ok(1)
}
