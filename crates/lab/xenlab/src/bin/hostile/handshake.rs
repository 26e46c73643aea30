//! Wrong values in the store, and states in any order.

use std::time::{Duration, Instant};

use hypervisor::Guest as _;
use lab::Random;
use wire::netif::keys;
use xenstore::XenbusState;

use crate::Attack;
use crate::device::Outcome;
use crate::frames::HostileDevice;
use crate::link::{Link, Shape};

/// How long each state stays: usually long enough for the backend to react.
const STATE_INTERVAL: Duration = Duration::from_millis(5);
/// Values that are not states.
const NONSENSE: [&str; 6] = ["", "0", "9", "-1", "4294967300", "four"];
/// How often to connect after many state changes: the backend may still be handling old ones.
const TRIES: u32 = 5;

pub fn queue_counts(attack: &mut Attack<'_>) -> Outcome<Option<Link>> {
    let device = attack.device;
    let offered = device.offered(keys::MULTI_QUEUE_MAX_QUEUES)?;
    let link = Link::new(device, Shape::default())?;
    attack.did(format!("0, {} and 4294967295 queues, where {offered} are offered", offered + 1));
    for count in [0, offered + 1, u32::MAX] {
        let key =
            |device: &HostileDevice| device.key(keys::MULTI_QUEUE_NUM_QUEUES, &count.to_string());
        link.refused(device, key)?;
        attack.report.refused += 1;
    }
    Ok(Some(link))
}

pub fn bad_keys(attack: &mut Attack<'_>) -> Outcome<Option<Link>> {
    let device = attack.device;
    let link = Link::new(device, Shape::default())?;
    let values = ["", "-1", "4294967296", "1000\n1001"];
    attack.did(format!("{values:?} for each ring and the event channel"));
    for key in [keys::TX_RING_REF, keys::RX_RING_REF, keys::EVENT_CHANNEL] {
        for value in values {
            link.refused(device, |device| device.key(key, value))?;
            attack.report.refused += 1;
        }
    }
    Ok(Some(link))
}

pub fn bad_ports(attack: &mut Attack<'_>) -> Outcome<Option<Link>> {
    let device = attack.device;
    let link = Link::new(device, Shape::default())?;
    // A port that is offered to this domain, not to the backend's.
    let (_another, port) = device.guest.alloc_unbound(device.guest.domid())?;
    attack.did(format!("ports 0, 1000, 4294967295, and {port}, which is for another domain"));
    for port in [0, 1000, u32::MAX, port.0] {
        link.refused(device, |device| device.key(keys::EVENT_CHANNEL, &port.to_string()))?;
        attack.report.refused += 1;
    }
    Ok(Some(link))
}

/// The backend must keep its first connection.
pub fn connects_twice(attack: &mut Attack<'_>) -> Outcome<Option<Link>> {
    let device = attack.device;
    let link = Link::connect(device)?;
    let other = Link::new(device, Shape::default())?;
    other.offer(device)?;
    attack.did(
        "Connected again with other rings, from Connected, Initialised, InitWait, Reconfiguring",
    );
    for before in [
        XenbusState::Connected,
        XenbusState::Initialised,
        XenbusState::InitWait,
        XenbusState::Reconfiguring,
    ] {
        device.enter(before)?;
        device.enter(XenbusState::Connected)?;
        std::thread::sleep(STATE_INTERVAL);
    }
    attack.prove(link)
}

pub fn state_jumps(attack: &mut Attack<'_>) -> Outcome<Option<Link>> {
    let device = attack.device;
    let link = Link::new(device, Shape::default())?;
    link.offer(device)?;
    attack.did("every pair of the eight states");
    for first in XenbusState::ALL {
        for second in XenbusState::ALL {
            for state in [first, second] {
                device.enter(state)?;
                std::thread::sleep(STATE_INTERVAL);
            }
        }
    }
    drop(link);
    reconnect(attack)
}

pub fn state_storm(attack: &mut Attack<'_>) -> Outcome<Option<Link>> {
    let device = attack.device;
    let link = Link::new(device, Shape::default())?;
    link.offer(device)?;
    let (deadline, mut random) = (Instant::now() + attack.duration(), Random::new(1));
    let mut writes = 0u64;
    while Instant::now() < deadline {
        let state = match random.below(10) {
            0 => NONSENSE[usize::from(random.below(6))].to_owned(),
            _ => (1 + random.below(8)).to_string(),
        };
        device.key("state", &state)?;
        writes += 1;
    }
    attack.did(format!("{writes} states"));
    drop(link);
    reconnect(attack)
}

/// Connects like a normal driver after the attack.
fn reconnect(attack: &mut Attack<'_>) -> Outcome<Option<Link>> {
    let mut tries = 1;
    let link = loop {
        match Link::connect(attack.device) {
            Ok(link) => break link,
            Err(error) if tries == TRIES => return Err(error),
            Err(_) => tries += 1,
        }
    };
    attack.did(format!("connected in try {tries}"));
    attack.prove(link)
}
