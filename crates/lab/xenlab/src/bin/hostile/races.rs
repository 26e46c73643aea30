//! A guest that rewrites its memory while the backend reads it, and guests that flood the backend.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hypervisor::EventChannel as _;
use lab::Random;
use ring::Slots as _;
use ring::netif::Tx;
use wire::ethernet::MacAddr;
use wire::netif::TxRequest;
use wire::netif::tx_flags::{CSUM_BLANK, DATA_VALIDATED};
use xenstore::XenbusState;

use crate::Attack;
use crate::device::{Outcome, holds_within};
use crate::frames;
use crate::link::Link;

/// How long the slots of one connection are rewritten. The next round makes a new connection.
const ROUND: Duration = Duration::from_millis(400);
/// Frames of a flood per batch.
const BATCH: u32 = 128;

/// Repeats `hostile` on another thread while `other` runs.
fn while_doing<T>(mut hostile: impl FnMut() + Send, other: impl FnOnce() -> T) -> T {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                hostile();
            }
        });
        let result = other();
        done.store(true, Ordering::Relaxed);
        result
    })
}

/// A request of one slot that does not break the ring. Its grant may be wrong.
fn valid_request(link: &Link, random: &mut Random) -> TxRequest {
    let flags = [0, DATA_VALIDATED, CSUM_BLANK | DATA_VALIDATED][usize::from(random.below(3))];
    let mut slot = link.slot(random.below(64), random.below(1000), random.below(3000), flags);
    if random.below(8) == 0 {
        slot.gref = u32::from(random.below(u16::MAX));
    }
    slot
}

fn random_request(random: &mut Random) -> TxRequest {
    let [gref, offset, flags, id] = [64, 5000, 16, u16::MAX].map(|n| random.below(n));
    TxRequest { gref: gref.into(), offset, flags, id, size: random.below(5000) }
}

/// Every slot may change between two reads. A backend that reads a slot twice would send a frame that it has not checked.
pub fn rewritten_slots(attack: &mut Attack<'_>) -> Outcome<Option<Link>> {
    let device = attack.device;
    let deadline = Instant::now() + attack.duration();
    let mut random = Random::new(1);
    let (mut rounds, mut disabled) = (0, 0);
    while Instant::now() < deadline {
        let link = Link::connect(device)?;
        for page in 0..64 {
            link.fill(page, &frames::tcp(device, 1000))?;
        }
        let valid = rounds % 2 == 0;
        let rewrite = || {
            let slot = match valid || random.below(4) > 0 {
                true => valid_request(&link, &mut random),
                false => random_request(&mut random),
            };
            link.tx.request(random.below(256).into(), slot);
            // The ring is always full, so that requests in flight are rewritten too.
            link.tx.publish(link.tx.rsp_prod().wrapping_add(Tx::COUNT));
        };
        let ended = while_doing(rewrite, || {
            holds_within(ROUND, || {
                link.notify()?;
                Ok(device.backend_state()? != Some(XenbusState::Connected))
            })
        })?;
        rounds += 1;
        disabled += u32::from(ended);
    }
    attack.did(format!(
        "{rounds} connections with rewritten slots, of which {disabled} were disabled"
    ));
    let link = Link::connect(device)?;
    attack.prove(link)
}

pub fn event_storm(attack: &mut Attack<'_>) -> Outcome<Option<Link>> {
    let device = attack.device;
    let link = Link::connect(device)?;
    let deadline = Instant::now() + attack.duration();
    let mut events = 0u64;
    while Instant::now() < deadline {
        link.event.notify()?;
        events += 1;
    }
    attack.did(format!("{events} events without requests"));
    attack.prove(link)
}

/// Broadcasts that the peer's stack drops.
pub fn flood(attack: &mut Attack<'_>) -> Outcome<Option<Link>> {
    let frame = frames::idle(attack.device, 1514);
    flood_with(attack, &frame)
}

pub fn unknown_flood(attack: &mut Attack<'_>) -> Outcome<Option<Link>> {
    let frame = frames::plain(MacAddr([2, 0x66, 0, 0, 0xff, 0xff]), attack.device.mac, 1514);
    flood_with(attack, &frame)
}

pub fn multicast_flood(attack: &mut Attack<'_>) -> Outcome<Option<Link>> {
    let frame = frames::plain(MacAddr([3, 0x66, 0, 0, 0, 1]), attack.device.mac, 1514);
    flood_with(attack, &frame)
}

/// The backend refuses each of these frames. A refusal must not cost it more than a valid frame.
pub fn malformed_flood(attack: &mut Attack<'_>) -> Outcome<Option<Link>> {
    flood_with(attack, &[0xff; 13])
}

/// Keeps the ring full of copies of one frame. Prints [`FLOWS`] to standard error once frames flow.
fn flood_with(attack: &mut Attack<'_>, frame: &[u8]) -> Outcome<Option<Link>> {
    let device = attack.device;
    let mut link = Link::connect(device)?;
    link.fill(0, frame)?;
    let len = u16::try_from(frame.len())?;
    let deadline = Instant::now() + attack.duration();
    let mut announced = false;
    while Instant::now() < deadline {
        attack.report.answers += link.present_answers();
        let slots: Vec<_> = (0..link.free().min(BATCH)).map(|_| link.slot(0, 0, len, 0)).collect();
        match slots.is_empty() {
            true => std::thread::yield_now(),
            false => link.send(&slots)?,
        }
        link.receive()?;
        if attack.report.answers.okay > 0 && !std::mem::replace(&mut announced, true) {
            eprintln!("{FLOWS}");
        }
    }
    let left = Tx::COUNT - link.free();
    attack.report.answers += link.answers(left as usize)?;
    let (okay, error) = (attack.report.answers.okay, attack.report.answers.error);
    attack.did(format!("{} frames of {len} bytes", okay + error));
    attack.prove(link)
}

/// The line that a flood prints once frames flow.
pub const FLOWS: &str = "it flows";

pub fn many_addresses(attack: &mut Attack<'_>) -> Outcome<Option<Link>> {
    let device = attack.device;
    let mut link = Link::connect(device)?;
    attack.did("4,096 source addresses");
    for first in (0..4096u16).step_by(64) {
        let mut slots = Vec::new();
        for page in 0..64 {
            let [x, y] = (first + page).to_be_bytes();
            // The destination is this guest, so that no other one receives them.
            let frame = frames::plain(device.mac, MacAddr([2, 0x66, 0, 0, x, y]), 60);
            link.fill(page, &frame)?;
            slots.push(link.slot(page, 0, 60, 0));
        }
        attack.report.answers += link.transmit(&slots)?;
    }
    attack.prove(link)
}
