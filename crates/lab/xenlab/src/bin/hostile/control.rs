//! Control ring requests that are out of bounds.

use std::time::Instant;

use hypervisor::{EventChannel as _, Guest as _};
use ring::netif::Ctrl;
use wire::netif::ctrl::status;
use wire::netif::{CtrlRequest, keys};
use xen::XenEvent;
use xenstore::XenbusState;

use crate::Attack;
use crate::device::{Outcome, wait_until};
use crate::link::{Link, Shape};
use crate::ring::Ring;

/// The backend must refuse each request, because of a reference that grants nothing, a length beyond the page, an
/// offset whose sum with the length wraps (XSA-270), or an unknown type.
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
    let Some((link, mut control)) = connect(attack)? else { return Ok(None) };
    attack.did(format!("{} requests", REQUESTS.len()));
    attack.report.refused = control.ask_all()?;
    leave(attack, link)
}

/// The same requests without pause. The worker that serves them also has frames to carry.
pub fn flood(attack: &mut Attack<'_>) -> Outcome<Option<Link>> {
    let Some((link, mut control)) = connect(attack)? else { return Ok(None) };
    let deadline = Instant::now() + attack.duration();
    let mut refused = 0;
    while Instant::now() < deadline {
        refused += control.ask_all()?;
    }
    attack.did(format!("{refused} requests"));
    leave(attack, link)
}

/// The control ring.
struct Control {
    ring: Ring<Ctrl>,
    event: XenEvent,
    prod: u32,
}

impl Control {
    /// Sends all requests and waits for their answers. Returns how many were refused.
    fn ask_all(&mut self) -> Outcome<u32> {
        let first = self.prod;
        for (id, (kind, data)) in (0..).zip(REQUESTS) {
            self.ring.request(self.prod, CtrlRequest { id, kind, data });
            self.prod = self.prod.wrapping_add(1);
        }
        self.ring.publish(self.prod);
        self.event.notify()?;
        wait_until("an answer to each", || Ok(self.ring.rsp_prod() == self.prod))?;
        let answers = (0..u32::try_from(REQUESTS.len())?).map(|n| first.wrapping_add(n));
        let refused = answers.filter(|n| self.ring.response(*n).status != status::SUCCESS);
        Ok(u32::try_from(refused.count())?)
    }
}

/// Connects with a control ring, or notes that the backend offers none.
fn connect(attack: &mut Attack<'_>) -> Outcome<Option<(Link, Control)>> {
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
    Ok(Some((link, Control { ring, event, prod: 0 })))
}

/// Removes the ring's keys, so that the next attack has none.
fn leave(attack: &mut Attack<'_>, link: Link) -> Outcome<Option<Link>> {
    for key in [keys::CTRL_RING_REF, keys::EVENT_CHANNEL_CTRL] {
        attack.device.remove(key)?;
    }
    attack.prove(link)
}
