//! A guest that forges its memory while no backend runs.

use std::path::Path;
use std::time::{Duration, Instant};

use hypervisor::Guest as _;
use ring::Slots as _;
use ring::netif::Tx;
use wire::netif::{TxResponse, status};
use xenlab::scenario::phase;

use crate::Attack;
use crate::device::{Outcome, wait_until};
use crate::frames;
use crate::link::Link;
use crate::ring::Ring;

/// How long the host may take to kill the backend, or to start the next one.
const HOST_TIMEOUT: Duration = Duration::from_secs(180);
/// How often the host's files are polled: rarely, because all domains share one processor.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);
/// Frames that wait while no backend runs.
const WAITING: u32 = 3;
/// A reserved grant reference that is never used.
const NEVER: u16 = 5;

pub fn producer(attack: &mut Attack<'_>) -> Outcome<Option<Link>> {
    let link = orphaned(attack)?;
    let req_prod = link.tx_prod().wrapping_add(Tx::COUNT + 1000);
    link.tx.publish(req_prod);
    closed_by_next(attack, link, format!("req_prod = {req_prod}"))
}

pub fn responses(attack: &mut Attack<'_>) -> Outcome<Option<Link>> {
    let link = orphaned(attack)?;
    let rsp_prod = link.tx_prod().wrapping_add(1);
    link.tx.forge_rsp_prod(rsp_prod);
    closed_by_next(attack, link, format!("rsp_prod = {rsp_prod}, one ahead of req_prod"))
}

/// Makes the last publication look interrupted: the next backend repeats it from its ledger.
pub fn repeated_responses(attack: &mut Attack<'_>) -> Outcome<Option<Link>> {
    let link = orphaned(attack)?;
    let rsp_prod = link.tx_prod().wrapping_sub(1);
    link.tx.forge_rsp_prod(rsp_prod);
    attack.did(format!("rsp_prod = {rsp_prod}, before the last response"));
    forged()?;
    wait_until("the repeated response", || Ok(link.tx.rsp_prod() == link.tx_prod()))?;
    attack.prove(link)
}

/// The next backend reads each forged response as the first half of a request: its id and status become a grant reference.
pub fn half_published(attack: &mut Attack<'_>) -> Outcome<Option<Link>> {
    let mut link = with_waiting_frames(attack)?;
    for n in 1..=WAITING {
        let response = TxResponse { id: NEVER, status: status::OKAY };
        link.tx.forge_response(link.tx_prod().wrapping_sub(n), response);
    }
    attack.did(format!("responses in the slots of {WAITING} requests"));
    forged()?;
    attack.report.answers = link.answers(WAITING as usize)?;
    attack.prove(link)
}

pub fn slots(attack: &mut Attack<'_>) -> Outcome<Option<Link>> {
    let link = with_waiting_frames(attack)?;
    link.tx.request(link.tx_prod().wrapping_sub(2), link.slot(0, 4050, 60, 0));
    closed_by_next(attack, link, "60 bytes at 4,050 in a request that waits".to_owned())
}

pub fn revoked_ring(attack: &mut Attack<'_>) -> Outcome<Option<Link>> {
    let mut link = orphaned(attack)?;
    // The new page has another reference, because it is granted before the old one is revoked.
    link.tx = Ring::new(&attack.device.guest, attack.device.domain)?;
    closed_by_next(attack, link, "the TX ring's grant is revoked".to_owned())
}

pub fn revoked_frames(attack: &mut Attack<'_>) -> Outcome<Option<Link>> {
    let mut link = orphaned(attack)?;
    let (page, grefs) = attack.device.guest.share(attack.device.domain, 1)?;
    let mut slot = link.slot(0, 0, 60, 0);
    slot.gref = grefs[0].0;
    link.send(&[slot; WAITING as usize])?;
    drop(page);
    attack.did(format!("{WAITING} frames wait in a page whose grant ({}) is revoked", grefs[0]));
    forged()?;
    attack.report.answers = link.answers(WAITING as usize)?;
    attack.prove(link)
}

/// Connects, sends an echo, and waits until the backend is dead. All requests of the TX ring are then answered; the
/// last publication had a single response.
fn orphaned(attack: &Attack<'_>) -> Outcome<Link> {
    let mut link = Link::connect(attack.device)?;
    link.echo(attack.device)?;
    println!("{}", phase::CONNECTED);
    wait_for_host(phase::KILLED)?;
    Ok(link)
}

/// The same, with valid frames on the TX ring that no backend has seen.
fn with_waiting_frames(attack: &Attack<'_>) -> Outcome<Link> {
    let mut link = orphaned(attack)?;
    link.fill(0, &frames::idle(attack.device, 60))?;
    let slot = link.slot(0, 0, 60, 0);
    link.send(&[slot; WAITING as usize])?;
    Ok(link)
}

/// Waits until the next backend runs, and has closed the connection.
fn closed_by_next(attack: &mut Attack<'_>, link: Link, what: String) -> Outcome<Option<Link>> {
    attack.did(what);
    forged()?;
    attack.device.wait_closed()?;
    Ok(Some(link))
}

/// Reports that the memory is forged, and waits until the next backend runs.
fn forged() -> Outcome {
    println!("{}", phase::FORGED);
    wait_for_host(phase::RESTARTED)
}

/// Waits for a file that the host creates.
fn wait_for_host(file: &str) -> Outcome {
    let deadline = Instant::now() + HOST_TIMEOUT;
    while !Path::new(file).exists() {
        if Instant::now() > deadline {
            return Err(format!("the host has not created {file}").into());
        }
        std::thread::sleep(CHECK_INTERVAL);
    }
    Ok(())
}
