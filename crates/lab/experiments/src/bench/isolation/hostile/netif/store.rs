//! Requests to the store.

use super::attacker::Attacker;
use crate::bench::guest::text;

/// Requests of each kind per round.
const BATCH: u64 = 16;

/// Writes keys that the backend watches and keys that nobody reads, lists folders, and opens a
/// transaction whose commit conflicts with them.
pub fn flood(attacker: &mut Attacker) -> Result<u64, String> {
    attacker.receive()?;
    let first = attacker.next() * BATCH;
    let store = attacker.guest()?.frontend.store();
    let transaction = store.begin().map_err(text)?;
    for n in first..first + BATCH {
        store.write(None, "device/vif/0/flood", &n.to_string()).map_err(text)?;
        store.write(None, &format!("device/vif/0/flood-{}", n % 100), "x").map_err(text)?;
        store.write(Some(transaction), "device/vif/0/in-transaction", "x").map_err(text)?;
        store.directory(None, "device/vif/0").map_err(text)?;
    }
    // A conflict is the store's right.
    let _ = store.end(transaction, true);
    Ok(4 * BATCH + 2)
}
