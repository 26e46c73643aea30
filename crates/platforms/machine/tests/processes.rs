//! A guest that is a separate process: this file runs itself again as the guest.

mod harness;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hypervisor::flip::{GrantTransfer, PageReceiver, PageTransfer, TransferStatus};
use hypervisor::{GrantRef, Hypervisor, PAGE_SIZE};
use machine::{DRIVER_DOMAIN, ExchangeCount, MemorySize, join};
use shm::{PageSize, Region};

use harness::{Host, SOCKET, say};

const AREA: usize = 64;
const SIZE: MemorySize = MemorySize {
    pages: 16,
    grant_pages: 1,
    exchange_pages: AREA,
    page_size: PageSize::Small,
    sealed: false,
    secret: false,
};
/// Pages of any domain's exchange area that this process has mapped.
fn mapped() -> u32 {
    let number = |text: &str| usize::from_str_radix(text, 16).unwrap();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let areas = maps
        .lines()
        .filter(|line| line.contains("/memfd:pvnet-domain-"))
        .map(|line| line.split_ascii_whitespace().collect::<Vec<_>>())
        .filter(|fields| number(fields[2]) >= SIZE.pages * PAGE_SIZE)
        .map(|fields| fields[0].split_once('-').unwrap());
    let bytes: usize = areas.map(|(start, end)| number(end) - number(start)).sum();
    u32::try_from(bytes / PAGE_SIZE).unwrap()
}

fn filled_with(page: &Region, mark: u32) -> bool {
    (0..PAGE_SIZE).step_by(4).all(|at| page.read(at) == Ok(mark))
}

fn wait_until(what: &str, done: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !done() {
        assert!(Instant::now() < deadline, "{what} did not happen");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The guest: takes as many pages as there are, twice, and then waits to be killed.
fn guest(socket: &Path) {
    let (guest, _store) = join(socket, "guest").unwrap();
    for round in 1..=2 {
        let (mut slots, grefs): (Vec<_>, Vec<_>) =
            (0..AREA).map(|_| guest.accept_transfer(DRIVER_DOMAIN).unwrap()).unzip();
        say(&grefs.iter().map(|gref| gref.0).collect::<Vec<_>>());
        assert_eq!(mapped(), 0, "transferred, but not claimed");
        let pages: Vec<_> =
            slots.iter_mut().map(|slot| slot.claim().unwrap().expect("a page")).collect();
        let whole = (0..).zip(&pages).filter(|(n, page)| filled_with(page, n * 1000 + round));
        let whole = u32::try_from(whole.count()).unwrap();
        let before = mapped();
        drop(pages);
        guest.surrender().unwrap();
        say(&[whole, before, mapped()]);
    }
    // Dies with half of the pages in hand, and the others on offer.
    let (_slots, grefs): (Vec<_>, Vec<_>) =
        (0..AREA).map(|_| guest.accept_transfer(DRIVER_DOMAIN).unwrap()).unzip();
    say(&grefs.iter().map(|gref| gref.0).collect::<Vec<_>>());
    say(&[]);
}

#[test]
fn pages_are_transferred_between_processes_until_one_is_killed() {
    const TEST: &str = "pages_are_transferred_between_processes_until_one_is_killed";
    if let Some(socket) = std::env::var_os(SOCKET) {
        return guest(Path::new(&socket));
    }
    let host = Host::new("pages", SIZE);
    let machine = &host.machine;
    let mut process = host.guest(TEST);
    let all = u32::try_from(AREA).unwrap();
    let exchange = |spare, held, guest| ExchangeCount { spare, held, guest };
    for round in 1..=2 {
        let grefs = process.hear();
        let peer = machine.peer(machine.list()[0]).unwrap();
        let pages: Vec<_> = grefs.iter().map(|_| machine.take_page(&peer).unwrap()).collect();
        assert_eq!((mapped(), peer.exchange_count()), (all, exchange(0, AREA, 0)));
        assert!(pages.iter().all(|page| filled_with(page, 0)), "pages come zeroed");
        for (n, page) in (0..).zip(&pages) {
            let mark: u32 = n * 1000 + round;
            (0..PAGE_SIZE).step_by(4).for_each(|at| page.write(at, mark).unwrap());
        }
        let mut batch: Vec<_> = grefs
            .iter()
            .zip(pages)
            .map(|(gref, page)| GrantTransfer::new(&peer, GrantRef(*gref), page))
            .collect();
        machine.transfer(&mut batch);
        assert!(batch.iter().all(|op| op.status == TransferStatus::Okay && op.page.is_none()));
        assert_eq!((mapped(), peer.exchange_count()), (0, exchange(0, 0, AREA)));
        process.tell();
        assert_eq!(process.hear(), [all, all, 0], "whole pages, mapped before, mapped after");
        assert_eq!(peer.exchange_count(), exchange(AREA, 0, 0));
        process.tell();
    }

    let grefs = process.hear();
    let peer = machine.peer(machine.list()[0]).unwrap();
    for gref in &grefs[..AREA / 2] {
        let page = machine.take_page(&peer).unwrap();
        machine.transfer(&mut [GrantTransfer::new(&peer, GrantRef(*gref), page)]);
    }
    let held = machine.take_page(&peer).unwrap();
    process.tell();
    assert!(process.hear().is_empty());
    process.child.kill().unwrap();
    wait_until("the end of the guest", || machine.list().is_empty());
    held.write(0, 1u8).unwrap();
    let mut batch = [GrantTransfer::new(&peer, GrantRef(grefs[AREA - 1]), held)];
    machine.transfer(&mut batch);
    assert_eq!(batch[0].status, TransferStatus::BadGrant);
    drop(batch);
    assert_eq!(mapped(), 0);
    let memory = Arc::downgrade(&peer);
    drop(peer);
    wait_until("the end of its memory", || memory.upgrade().is_none());
}
