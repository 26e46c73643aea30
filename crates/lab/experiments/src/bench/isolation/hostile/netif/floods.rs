//! Endless notifications without frames, control ring messages, and requests to the store.

use hypervisor::EventChannel as _;
use wire::netif::GrefMapping;

use super::attacker::Attacker;
use crate::bench::guest::text;
use crate::bench::isolation::hostile::Attacker as _;

/// Notifications per round.
const NOTIFICATIONS: u64 = 1024;

/// Notifies both rings' event channels without pause (XSA-332).
pub fn events(attacker: &mut Attacker) -> Result<u64, String> {
    attacker.receive()?;
    let queue = &attacker.guest()?.queue;
    for _ in 0..NOTIFICATIONS / 2 {
        queue.tx.event().notify().map_err(text)?;
        queue.rx.event().notify().map_err(text)?;
    }
    Ok(NOTIFICATIONS)
}

/// Has all its pages unmapped and mapped again, by messages with as many entries as fit a list. netif allows one list
/// at a time here, so each message waits for the answer to the one before.
pub fn control(attacker: &mut Attacker) -> Result<u64, String> {
    attacker.receive()?;
    let guest = attacker.guest()?;
    let sent = guest.queue.tx.grefs().iter().map(|gref| (gref.0, GrefMapping::READ_ONLY));
    let received = guest.queue.rx.grefs().iter().map(|gref| (gref.0, 0));
    let entry = |(gref, flags)| GrefMapping { gref, flags, status: 0 };
    let entries: Vec<_> = sent.chain(received).map(entry).collect();
    let control = guest.frontend.control().ok_or("the backend has no control ring")?;
    let mut messages = 0;
    for list in entries.chunks(GrefMapping::PER_PAGE) {
        // A page that a pending packet uses stays mapped.
        let removed = control.remove(0, list).map_err(text)?;
        let again: Vec<_> =
            list.iter().zip(removed).filter(|(_, gone)| *gone).map(|(entry, _)| *entry).collect();
        control.add(0, &again).map_err(text)?;
        messages += 2;
    }
    Ok(messages)
}

/// Requests of each kind per round.
const REQUESTS: u64 = 16;

/// Writes keys that the backend watches and keys that nobody reads, lists folders, and opens a
/// transaction whose commit conflicts with them.
pub fn store(attacker: &mut Attacker) -> Result<u64, String> {
    attacker.receive()?;
    let first = attacker.next() * REQUESTS;
    let keys = attacker.guest()?.frontend.store();
    let transaction = keys.begin().map_err(text)?;
    for n in first..first + REQUESTS {
        keys.write(None, "device/vif/0/flood", &n.to_string()).map_err(text)?;
        keys.write(None, &format!("device/vif/0/flood-{}", n % 100), "x").map_err(text)?;
        keys.write(Some(transaction), "device/vif/0/in-transaction", "x").map_err(text)?;
        keys.directory(None, "device/vif/0").map_err(text)?;
    }
    // The store may refuse it for a conflict.
    let _ = keys.end(transaction, true);
    Ok(4 * REQUESTS + 2)
}

/// Leaves, joins as a new domain and connects its interface.
pub fn attach_detach(attacker: &mut Attacker) -> Result<u64, String> {
    attacker.leave();
    attacker.guest()?;
    Ok(1)
}
