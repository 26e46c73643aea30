//! Attacks on memory that is not the guest's own.

use std::time::Duration;

use cdna::call::MapEntry;
use cdna::{Descriptor, Direction, Flags};
use hypervisor::PageOwner;

use crate::guest::{LONG, LONG_PAGES, PAGE, PEER, frame, mac};
use crate::outcome::{Outcome, at_enqueue};
use crate::world::{BAD, NEIGHBOUR, PAGES, SECRET, SECRET_PAGE, World};

/// Where a frame's headers are.
const HEADERS: usize = 20;

/// Sends a frame whose payload is at some machine address. The guest wins if `secret` was on the wire.
fn steal(world: &mut World, address: u64, len: u16, secret: &[u8]) -> Outcome {
    let headers = frame(PEER, mac(BAD), b"");
    let guest = world.guest(BAD);
    guest.memory().copy_in(HEADERS * PAGE, &headers).unwrap();
    let first = Descriptor { flags: 0, ..guest.buffer(HEADERS, 14) };
    let chain = [first, Descriptor::buffer(0, address, len, Flags::EOP)];
    if let Err(refused) = world.post(BAD, Direction::Tx, &chain) {
        return refused;
    }
    world.settle();
    let is_sent = |frame: &Vec<u8>| frame.windows(secret.len()).any(|bytes| bytes == secret);
    let wins = world.net().sent.iter().any(is_sent);
    world.judge(wins, "the frame has nothing of others")
}

pub fn reads_another_guests_page(world: &mut World) -> Outcome {
    let address = world.guest(NEIGHBOUR).address(SECRET_PAGE);
    steal(world, address, SECRET.len().try_into().unwrap(), SECRET)
}

pub fn reads_across_the_end_of_its_memory(world: &mut World) -> Outcome {
    let address = world.guest(BAD).address(PAGES - 1);
    assert_eq!(address + PAGE as u64, world.guest(NEIGHBOUR).address(0));
    steal(world, address, 7 * 4096, SECRET)
}

/// With a mapping of each buffer, only the first of the two pages is mapped.
pub fn reads_across_the_end_of_a_page(world: &mut World) -> Outcome {
    let protection = world.protection;
    let (guest, contexts, _) = world.caller(BAD);
    let bytes = frame(PEER, mac(BAD), &[7; 200]);
    let at = 31 * PAGE - 100;
    guest.memory().copy_in(at, &bytes).unwrap();
    let address = guest.address(0) + at as u64;
    let whole = Descriptor::buffer(0, address, bytes.len().try_into().unwrap(), Flags::EOP);
    guest.map_buffer(contexts, &Descriptor { len: 1, ..whole });
    guest.put(contexts, protection, Direction::Tx, &[whole]).unwrap();
    world.settle();
    assert!(world.fault().is_some() || world.net().sent == [bytes]);
    world.judge(false, "both pages are its own")
}

pub fn writes_another_guests_page(world: &mut World) -> Outcome {
    let address = world.guest(NEIGHBOUR).address(SECRET_PAGE);
    let buffer = Descriptor::buffer(0, address, 2048, Flags::NONE);
    if let Err(refused) = world.post(BAD, Direction::Rx, &[buffer]) {
        return refused;
    }
    world.net().arriving.push_back(frame(mac(BAD), PEER, &[0xee; 100]));
    world.settle();
    let mut seen = vec![0; SECRET.len()];
    world.guest(NEIGHBOUR).memory().copy_out(SECRET_PAGE * PAGE, &mut seen).unwrap();
    world.judge(seen != SECRET, "nothing was written")
}

/// It has the IOMMU translate one of its own addresses to the neighbour's page.
pub fn maps_another_guests_page(world: &mut World) -> Outcome {
    let machine_page = world.guest(NEIGHBOUR).address(SECRET_PAGE) / PAGE as u64;
    let (guest, contexts, now) = world.caller(BAD);
    let permission = MapEntry::MAY_READ | MapEntry::MAY_WRITE;
    let entry = MapEntry { machine_page, page: 40, pages: 1, permission };
    let mapped = contexts.caller(guest.context, guest.domain.id()).map(&[entry], now);
    let address = guest.address(40);
    let stolen = steal(world, address, SECRET.len().try_into().unwrap(), SECRET);
    assert_ne!(stolen, Outcome::GuestWins);
    Outcome::RefusedAt("map", mapped.unwrap_err())
}

/// Posts RX buffers over most of the guest's memory.
fn post_many(world: &mut World) -> Result<Vec<usize>, Outcome> {
    let pages: Vec<_> = (16..PAGES - LONG_PAGES).step_by(LONG_PAGES).collect();
    let guest = world.guest(BAD);
    let buffers: Vec<_> = pages.iter().map(|page| guest.buffer(*page, LONG)).collect();
    world.post(BAD, Direction::Rx, &buffers).map(|()| pages)
}

/// Sends a frame for each buffer. Returns whether the card wrote into one of these pages that the guest does not own.
fn fill(world: &mut World, pages: &[usize]) -> bool {
    for _ in pages {
        world.net().arriving.push_back(frame(mac(BAD), PEER, &[0xee; 100]));
    }
    world.settle();
    let guest = world.guest(BAD);
    let is_written = |page: &usize| guest.memory().read::<[u8; 6]>(page * PAGE) == Ok(mac(BAD).0);
    pages.iter().any(|page| !guest.domain.owns(*page) && is_written(page))
}

pub fn gives_pages_to_the_balloon_that_are_in_use(world: &mut World) -> Outcome {
    let pages = post_many(world).unwrap();
    world.step();
    let given = world.while_asleep(|world| world.guest(BAD).inside.set_reservation(100));
    let is_any_out = pages.iter().any(|page| !world.guest(BAD).domain.owns(*page));
    assert_eq!(given.is_ok(), is_any_out, "{given:?}");
    let wins = fill(world, &pages);
    world.judge(wins, "it must keep the pages")
}

pub fn uses_pages_that_it_gave_to_the_balloon(world: &mut World) -> Outcome {
    world.while_asleep(|world| world.guest(BAD).inside.set_reservation(100).unwrap());
    match post_many(world) {
        Ok(pages) => {
            let wins = fill(world, &pages);
            world.judge(wins, "nothing was written")
        }
        Err(refused) => refused,
    }
}

/// A page that the driver domain takes and gives by page flips.
pub fn uses_a_page_that_can_be_transferred(world: &mut World) -> Outcome {
    let protection = world.protection;
    let (guest, contexts, _) = world.caller(BAD);
    let buffer = guest.buffer(PAGES, 2048);
    guest.map_buffer(contexts, &buffer);
    let posted = guest.put(contexts, protection, Direction::Rx, &[buffer]);
    if let Err(refused) = posted {
        return at_enqueue(refused);
    }
    world.net().arriving.push_back(frame(mac(BAD), PEER, &[0xee; 100]));
    world.settle();
    world.judge(false, "nothing was written")
}

/// It maps a page, has the card use it, unmaps it, and gives it to the balloon while the card may still have its
/// translation.
pub fn gives_a_page_away_that_it_unmapped(world: &mut World) -> Outcome {
    let buffers: Vec<_> = (0..2).map(|_| world.guest(BAD).buffer(PAGES - 1, 2048)).collect();
    world.post(BAD, Direction::Rx, &buffers).unwrap();
    world.net().arriving.push_back(frame(mac(BAD), PEER, &[0xdd; 100]));
    world.settle();
    world.guest(BAD).memory().zero((PAGES - 1) * PAGE, PAGE).unwrap();
    let (guest, contexts, _) = world.caller(BAD);
    let entry = MapEntry { page: (PAGES - 1).try_into().unwrap(), pages: 1, ..MapEntry::default() };
    let unmapped =
        contexts.caller(guest.context, guest.domain.id()).unmap(&[entry], Duration::ZERO);
    let given = world.while_asleep(|world| world.guest(BAD).inside.set_reservation(PAGES - 1));
    assert_eq!(given.is_err(), world.guest(BAD).domain.owns(PAGES - 1), "{unmapped:?}");
    let wins = fill(world, &[PAGES - 1]);
    world.judge(wins, "it must keep the pages")
}
