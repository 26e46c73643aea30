//! References that grant nothing, were revoked, or are read-only.

use hypervisor::{GrantRef, Guest as _};
use wire::netif::keys;

use crate::Attack;
use crate::device::{Outcome, wait_until};
use crate::frames::{self, HostileDevice};
use crate::link::{Link, Shape};

/// A reserved entry that is never used (0 and 1 are the console's and the store's), one beyond the table's
/// maximum, and the last possible one.
const NEVER: [GrantRef; 3] = [GrantRef(5), GrantRef(1 << 20), GrantRef(u32::MAX)];

/// A reference that was just revoked. The next shared page may get it again.
fn revoked(device: &HostileDevice) -> Outcome<GrantRef> {
    let (page, grefs) = device.guest.share(device.domain, 1)?;
    drop(page);
    Ok(grefs[0])
}

pub fn transmit(attack: &mut Attack<'_>) -> Outcome<Option<Link>> {
    let mut link = Link::connect(attack.device)?;
    let bytes = frames::idle(attack.device, 300);
    link.fill(0, &bytes)?;
    let gone = revoked(attack.device)?;
    attack.did(format!("frames in pages {NEVER:?}, and {gone} which was revoked"));
    for gref in NEVER.into_iter().chain([gone]) {
        let mut slot = link.slot(0, 0, 300, 0);
        slot.gref = gref.0;
        attack.report.answers += link.transmit(&[slot])?;
        // The first slot is readable, the second is not.
        let mut slots = link.chain(2, 150);
        slots[1].gref = gref.0;
        attack.report.answers += link.transmit(&slots)?;
    }
    attack.prove(link)
}

pub fn receive(attack: &mut Attack<'_>) -> Outcome<Option<Link>> {
    let device = attack.device;
    let (_read_only, grefs) = device.guest.share_read_only(device.domain, 1)?;
    let (page, gone) = device.guest.share(device.domain, 1)?;
    let bad: Vec<_> = NEVER.into_iter().chain([gone[0], grefs[0]]).cycle().take(20).collect();
    attack.did(format!("20 buffers: never granted, revoked ({}), read-only", gone[0]));
    let wanted = u32::try_from(bad.len())?;
    let mut link = Link::new(device, Shape { bad_buffers: bad, ..Shape::default() })?;
    drop(page);
    link.join(device)?;
    // Each broadcast ARP request makes the peer send a reply to this guest.
    let question = frames::who_has(device);
    link.fill(0, &question)?;
    let waited = wait_until("an error for every bad buffer", || {
        let slot = link.slot(0, 0, u16::try_from(question.len())?, 0);
        link.transmit(&[slot])?;
        link.receive()?;
        Ok(link.rx_errors >= wanted)
    });
    attack.report.rx_errors = link.rx_errors;
    waited?;
    attack.prove(link)
}

pub fn rings(attack: &mut Attack<'_>) -> Outcome<Option<Link>> {
    let device = attack.device;
    let link = Link::new(device, Shape::default())?;
    let (_read_only, grefs) = device.guest.share_read_only(device.domain, 1)?;
    let gone = revoked(device)?;
    attack.did(format!("each ring in pages {NEVER:?}, {gone} (revoked), {} (read-only)", grefs[0]));
    for key in [keys::TX_RING_REF, keys::RX_RING_REF] {
        for gref in NEVER.into_iter().chain([gone, grefs[0]]) {
            link.refused(device, |device| device.key(key, &gref.to_string()))?;
            attack.report.refused += 1;
        }
    }
    Ok(Some(link))
}
