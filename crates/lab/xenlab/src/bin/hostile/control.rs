//! Control ring requests that are out of bounds.

use hypervisor::{EventChannel as _, Guest as _};
use ring::netif::Ctrl;
use wire::netif::ctrl::status;
use wire::netif::{CtrlRequest, keys};
use xenstore::XenbusState;

use crate::attack::Attack;
use crate::link::{Link, Shape};
use crate::ring::Ring;
use crate::wait::{Outcome, wait_until};

/// The backend must refuse each: it has a reference that grants nothing, a length beyond the page, an offset whose sum
/// with the length wraps (XSA-270), or an unknown type.
const REQUESTS: [(u16, [u32; 3]); 9] = [
    (0, [0, 0, 0]),
    (0xffff, [0, 0, 0]),
    (3, [u32::MAX, 40, 0]),
    (3, [5, u32::MAX, 0]),
    (5, [u32::MAX, 0, 0]),
    (6, [5, 128, 0xffff_ffc0]),
    (6, [5, u32::MAX, 1]),
    (7, [77, 0, 0]),
    (9, [9, 5, 513]),
];

/// The backend must refuse all requests, and carry frames as before. Skipped without a control ring.
pub fn nonsense(attack: &mut Attack<'_>) -> Outcome<Option<Link>> {
    let device = attack.device;
    if device.offered(keys::FEATURE_CTRL_RING)? == 0 {
        attack.report.skipped = Some(format!("no {} offered", keys::FEATURE_CTRL_RING));
        return Ok(None);
    }
    device.start_over()?;
    let link = Link::new(device, Shape::default())?;
    link.offer(device)?;
    let ring = Ring::<Ctrl>::new(&device.guest, device.domain)?;
    let (event, port) = device.guest.alloc_unbound(device.domain)?;
    device.key(keys::CTRL_RING_REF, &ring.gref().to_string())?;
    device.key(keys::EVENT_CHANNEL_CTRL, &port.to_string())?;
    device.enter(XenbusState::Connected)?;
    device.wait_connected()?;
    attack.did(format!("{} requests", REQUESTS.len()));
    for (id, (kind, data)) in (0..).zip(REQUESTS) {
        ring.request(id.into(), CtrlRequest { id, kind, data });
    }
    let count = u32::try_from(REQUESTS.len())?;
    ring.publish(count);
    event.notify()?;
    wait_until("an answer to each", || Ok(ring.rsp_prod() == count))?;
    let refused = (0..count).filter(|n| ring.response(*n).status != status::SUCCESS);
    attack.report.refused = u32::try_from(refused.count())?;
    for key in [keys::CTRL_RING_REF, keys::EVENT_CHANNEL_CTRL] {
        device.remove(key)?;
    }
    attack.prove(link)
}
