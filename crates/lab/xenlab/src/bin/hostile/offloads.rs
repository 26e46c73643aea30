//! Extras and flags that are invalid, or that the headers contradict.

use wire::netif::extra::{Extra, ExtraInfo};
use wire::netif::tx_flags::{CSUM_BLANK, DATA_VALIDATED, EXTRA_INFO};
use wire::netif::{GsoKind, TxRequest};

use crate::Attack;
use crate::device::Outcome;
use crate::frames;
use crate::link::Link;

const BLANK: u16 = CSUM_BLANK | DATA_VALIDATED;

fn with_extra(link: &Link, len: usize, flags: u16, extra: ExtraInfo) -> Outcome<Vec<TxRequest>> {
    let first = link.slot(0, 0, u16::try_from(len)?, flags | EXTRA_INFO);
    Ok(vec![first, extra.to_tx_slot()])
}

fn disables(attack: &mut Attack<'_>, what: &str, extra: ExtraInfo) -> Outcome<Option<Link>> {
    let mut link = Link::connect(attack.device)?;
    let bytes = frames::tcp(attack.device, 6);
    link.fill(0, &bytes)?;
    attack.did(what);
    let slots = with_extra(&link, bytes.len(), BLANK, extra)?;
    link.send(&slots)?;
    attack.device.wait_closed()?;
    Ok(Some(link))
}

pub fn unknown_extra(attack: &mut Attack<'_>) -> Outcome<Option<Link>> {
    disables(attack, "an extra of type 9", ExtraInfo { kind: 9, ..ExtraInfo::default() })
}

/// A backend that accepted a GSO size of 0 would loop for ever.
pub fn empty_segments(attack: &mut Attack<'_>) -> Outcome<Option<Link>> {
    let extra = ExtraInfo { kind: 1, flags: 0, data: [0, 0, 1, 0, 0, 0] };
    disables(attack, "a GSO size of 0", extra)
}

pub fn wrong_segments(attack: &mut Attack<'_>) -> Outcome<Option<Link>> {
    let mut link = Link::connect(attack.device)?;
    attack
        .did("GSO of UDP, of ARP, of the wrong IP version, without a blank checksum, of one byte");
    let (tcp, udp) = (frames::tcp(attack.device, 2000), frames::udp(attack.device, 1000));
    let arp = frames::who_has(attack.device);
    let (v4, v6) = (GsoKind::TcpV4, GsoKind::TcpV6);
    for (bytes, flags, size, kind) in [
        (&udp, BLANK, 500, v4),
        (&arp, BLANK, 500, v4),
        (&tcp, BLANK, 500, v6),
        (&tcp, 0, 500, v4),
        (&tcp, BLANK, 1, v4),
    ] {
        link.fill(0, bytes)?;
        let gso = Extra::Gso { size: size.try_into()?, kind, features: 0 };
        let slots = with_extra(&link, bytes.len(), flags, gso.encode(false)?)?;
        attack.report.answers += link.transmit(&slots)?;
    }
    attack.prove(link)
}

pub fn no_checksum(attack: &mut Attack<'_>) -> Outcome<Option<Link>> {
    let mut link = Link::connect(attack.device)?;
    attack.did("ARP and a fragment with a checksum to complete, then without");
    let mut fragment = frames::udp(attack.device, 100);
    // "More fragments", in the IP header.
    fragment[20] = 0x20;
    for bytes in [frames::who_has(attack.device), fragment] {
        link.fill(0, &bytes)?;
        for flags in [BLANK, 0] {
            let slot = link.slot(0, 0, u16::try_from(bytes.len())?, flags);
            attack.report.answers += link.transmit(&[slot])?;
        }
    }
    attack.prove(link)
}
