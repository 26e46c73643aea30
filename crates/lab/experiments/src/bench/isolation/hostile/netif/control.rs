//! Control ring messages.

use wire::netif::GrefMapping;

use super::attacker::Attacker;
use crate::bench::guest::text;

/// Has all its pages unmapped and mapped again, by messages of as many entries as fit a list. netif
/// allows one list at a time here, so each message begins when the one before it is answered.
pub fn flood(attacker: &mut Attacker) -> Result<u64, String> {
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
