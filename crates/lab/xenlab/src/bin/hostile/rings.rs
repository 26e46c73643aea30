//! Wrong ring indices.

use ring::Slots as _;
use ring::netif::{Rx, Tx};
use wire::netif::keys;

use crate::Attack;
use crate::device::{Outcome, holds_within, wait_until};
use crate::frames;
use crate::link::{Link, Shape};

/// More requests than there are slots: a backend that trusted the index would read slots twice or loop for ever.
pub fn producer_ahead(attack: &mut Attack<'_>) -> Outcome<Option<Link>> {
    let link = Link::connect(attack.device)?;
    let req_prod = link.tx_prod() + Tx::COUNT + 1000;
    attack.did(format!("req_prod = {req_prod} on an empty ring"));
    link.tx.publish(req_prod);
    link.notify()?;
    attack.device.wait_closed()?;
    Ok(Some(link))
}

/// The producer index goes back to before answered requests.
pub fn producer_back(attack: &mut Attack<'_>) -> Outcome<Option<Link>> {
    let mut link = Link::connect(attack.device)?;
    link.fill(0, &frames::idle(attack.device, 60))?;
    let slots = [link.slot(0, 0, 60, 0); 3];
    attack.report.answers += link.transmit(&slots)?;
    attack.did("three frames, then req_prod = 1");
    link.tx.publish(1);
    link.notify()?;
    attack.device.wait_closed()?;
    Ok(Some(link))
}

/// The RX ring's producer index is out of range before the backend connects.
pub fn rx_producer_ahead(attack: &mut Attack<'_>) -> Outcome<Option<Link>> {
    let link = Link::new(attack.device, Shape::default())?;
    link.rx.publish(2 * Rx::COUNT + 1);
    attack.did(format!("req_prod = {} of the RX ring, then Connected", 2 * Rx::COUNT + 1));
    link.refused(attack.device, |_| Ok(()))?;
    attack.report.refused += 1;
    Ok(Some(link))
}

/// The backend's responses on one ring appear as requests on the other.
pub fn shared_ring(attack: &mut Attack<'_>) -> Outcome<Option<Link>> {
    let device = attack.device;
    device.start_over()?;
    let mut link = Link::new(device, Shape { buffers: 0, ..Shape::default() })?;
    link.offer(device)?;
    device.key(keys::RX_RING_REF, &link.tx.gref().to_string())?;
    device.enter(xenstore::XenbusState::Connected)?;
    wait_until("the backend's reaction", || {
        let state = device.backend_state()?;
        Ok(state != Some(xenstore::XenbusState::InitWait))
    })?;
    attack.did("one page for both rings, twenty broadcasts");
    // Broadcasts, so that replies arrive on the same page.
    link.fill(0, &frames::who_has(device))?;
    let slots = [link.slot(0, 0, 42, 0); 20];
    link.send(&slots)?;
    holds_within(attack.duration(), || {
        Ok(device.backend_state()? != Some(xenstore::XenbusState::Connected))
    })?;
    Ok(Some(link))
}
