//! Malformed packets.

use wire::netif::TxRequest;
use wire::netif::tx_flags::MORE_DATA;

use crate::Attack;
use crate::device::Outcome;
use crate::frames;
use crate::link::Link;

/// Connects, with the beginning of a valid frame in every page that the attacks use.
fn connect(attack: &Attack<'_>) -> Outcome<Link> {
    let link = Link::connect(attack.device)?;
    let bytes = frames::idle(attack.device, 200);
    for page in 0..32 {
        link.fill(page, &bytes)?;
    }
    Ok(link)
}

/// Sends slots for which the backend must disable the interface.
fn disables(
    attack: &mut Attack<'_>,
    what: &str,
    slots: impl FnOnce(&Link) -> Vec<TxRequest>,
) -> Outcome<Option<Link>> {
    let mut link = connect(attack)?;
    attack.did(what);
    let slots = slots(&link);
    link.send(&slots)?;
    attack.device.wait_closed()?;
    Ok(Some(link))
}

pub fn too_many(attack: &mut Attack<'_>) -> Outcome<Option<Link>> {
    let mut link = connect(attack)?;
    attack.did("a packet of 19 slots, then one of 18");
    for count in [19, 18] {
        let chain = link.chain(count, 60);
        attack.report.answers += link.transmit(&chain)?;
    }
    attack.prove(link)
}

pub fn fatal(attack: &mut Attack<'_>) -> Outcome<Option<Link>> {
    disables(attack, "a packet of 24 slots", |link| link.chain(24, 60))
}

pub fn unfinished(attack: &mut Attack<'_>) -> Outcome<Option<Link>> {
    disables(attack, "two slots, both with more to come", |link| {
        vec![link.slot(0, 0, 200, MORE_DATA), link.slot(1, 0, 100, MORE_DATA)]
    })
}

pub fn crossing_page(attack: &mut Attack<'_>) -> Outcome<Option<Link>> {
    disables(attack, "60 bytes at 4,050", |link| vec![link.slot(0, 4050, 60, 0)])
}

pub fn oversized(attack: &mut Attack<'_>) -> Outcome<Option<Link>> {
    disables(attack, "61 bytes of a packet of 60", |link| {
        vec![link.slot(0, 0, 60, MORE_DATA), link.slot(1, 0, 61, 0)]
    })
}

pub fn runts(attack: &mut Attack<'_>) -> Outcome<Option<Link>> {
    let mut link = connect(attack)?;
    attack.did("frames of 0, 1 and 13 bytes, and a valid one of 14");
    for size in [0, 1, 13, 14] {
        let slot = link.slot(0, 0, size, 0);
        attack.report.answers += link.transmit(&[slot])?;
    }
    attack.prove(link)
}

/// Linux's netback treated an empty fragment as a page with data.
pub fn empty(attack: &mut Attack<'_>) -> Outcome<Option<Link>> {
    let mut link = connect(attack)?;
    attack.did("packets whose first, last or middle fragment is empty");
    let shapes = [
        vec![link.slot(0, 0, 60, MORE_DATA), link.slot(1, 0, 60, 0)],
        vec![link.slot(0, 0, 60, MORE_DATA), link.slot(1, 0, 0, 0)],
        vec![
            link.slot(0, 0, 200, MORE_DATA),
            link.slot(1, 0, 0, MORE_DATA),
            link.slot(2, 0, 60, 0),
        ],
    ];
    for slots in shapes {
        attack.report.answers += link.transmit(&slots)?;
    }
    attack.prove(link)
}

/// Linux's netback passed such packets on to drivers that expect contiguous headers. The packets are valid:
/// pvnet must join and deliver them.
pub fn split_headers(attack: &mut Attack<'_>) -> Outcome<Option<Link>> {
    let mut link = Link::connect(attack.device)?;
    // The headers of Ethernet and IP, 34 bytes, never fit one slot.
    for size in [4, 10, 33] {
        let tries = link.echo_split(attack.device, size)?;
        attack.did(format!("an echo in slots of {size} bytes, try {tries}"));
        attack.report.echoes += 1;
    }
    Ok(Some(link))
}
