//! Pages are transferred as they should be, and never otherwise.

use std::fmt;
use std::os::fd::AsFd;

use hypervisor::flip::{PageReceiver, PageTransfer};
use hypervisor::{CopyStatus, Dest, GrantCopy, Guest, Hypervisor, Source};

use super::*;
use crate::grant_table::GRANT_ENTRY_LEN;
use crate::guest::{MachineGuest, TransferredPage};
use crate::hypervisor::Machine;
use crate::memory::MemorySize;

mod ownership;

const AREA: usize = 4;
const SIZE: MemorySize = MemorySize {
    pages: 8,
    grant_pages: 1,
    exchange_pages: AREA,
    page_size: shm::PageSize::Small,
    sealed: false,
    secret: false,
};

struct Inside {
    machine: Machine,
    domain: Arc<Domain>,
    guest: MachineGuest,
}

impl Inside {
    fn new(machine: &Machine) -> Self {
        let domain = machine.create(SIZE).unwrap();
        let guest = MachineGuest::inside(machine, &domain).unwrap();
        Self { machine: machine.clone(), domain, guest }
    }

    fn take(&self) -> ExchangePage {
        ExchangePage::take(&self.domain).unwrap()
    }

    /// Transfers one page; returns it if it is refused.
    fn send(
        &self,
        gref: GrantRef,
        page: ExchangePage,
    ) -> Result<(), (TransferStatus, ExchangePage)> {
        let mut batch = [GrantTransfer::new(&self.domain, gref, Box::new(page))];
        self.machine.transfer(&mut batch);
        let [GrantTransfer { status, page, .. }] = batch;
        let page = page.map(|page| (page as Box<dyn Any>).downcast::<ExchangePage>().unwrap());
        page.map_or(Ok(()), |page| Err((status, *page)))
    }

    fn count(&self) -> [usize; 3] {
        let ExchangeCount { spare, held, guest } = self.domain.exchange_count();
        [spare, held, guest]
    }

    fn entry(&self, gref: GrantRef) -> (u16, u32) {
        let at = self.domain.entry_at(gref).unwrap();
        (self.domain.memory().read(at).unwrap(), self.domain.memory().read(at + 4).unwrap())
    }
}

fn inside() -> Inside {
    Inside::new(&Machine::new())
}

impl fmt::Debug for ExchangePage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExchangePage").field("frame", &self.frame()).finish()
    }
}

/// The number of a page that came, within its domain's memory.
fn number(page: &dyn FlipPage) -> u32 {
    let page: &dyn Any = page;
    page.downcast_ref::<TransferredPage>().unwrap().frame()
}

/// How many pages of the domain's exchange area this process has mapped, with repeats.
fn mapped(domain: &Domain) -> usize {
    // The kernel lists mappings entry by entry. Other tests' threads map and unmap meanwhile, which
    // may hide one of ours from a reading. So two readings must agree.
    let mut last = mapped_once(domain);
    loop {
        let now = mapped_once(domain);
        if now == last {
            return now;
        }
        last = now;
    }
}

fn mapped_once(domain: &Domain) -> usize {
    let inode = rustix::fs::fstat(domain.fd()).unwrap().st_ino;
    let number = |text: &str| usize::from_str_radix(text, 16).unwrap();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines()
        .map(|line| line.split_ascii_whitespace().collect::<Vec<_>>())
        .filter(|fields| fields[4].parse() == Ok(inode))
        .filter(|fields| number(fields[2]) >= domain.size().pages * PAGE_SIZE)
        .map(|fields| fields[0].split_once('-').unwrap())
        .map(|(start, end)| (number(end) - number(start)) / PAGE_SIZE)
        .sum()
}

fn bytes(page: &Region) -> Vec<u8> {
    let mut bytes = vec![0xee; page.len()];
    page.copy_out(0, &mut bytes).unwrap();
    bytes
}

#[test]
fn a_transferred_page_comes_back_zeroed() {
    let inside = inside();
    let (mut slot, gref) = inside.guest.accept_transfer(DRIVER_DOMAIN).unwrap();
    assert_eq!(inside.entry(gref), (gtf::ACCEPT_TRANSFER, 8));
    let page = inside.take();
    let frame = page.frame();
    assert_eq!(bytes(&page), [0; PAGE_SIZE]);
    page.copy_in(0, &[0xa5; PAGE_SIZE]).unwrap();
    assert!(slot.claim().unwrap().is_none(), "nothing has come yet");
    inside.send(gref, page).unwrap();
    assert_eq!(inside.entry(gref), (0b1110, frame));

    let page = slot.claim().unwrap().expect("the page has come");
    assert_eq!(number(&*page), frame);
    assert_eq!(bytes(&page), [0xa5; PAGE_SIZE]);
    assert!(slot.claim().is_err(), "a slot is claimed once");
    drop(page);
    inside.guest.surrender().unwrap();

    let page = inside.take();
    assert_eq!(page.frame(), frame, "this is the page that was used");
    assert_eq!(bytes(&page), [0; PAGE_SIZE]);
}

#[test]
fn a_page_is_mapped_only_by_its_owner() {
    let inside = inside();
    let (mut slot, gref) = inside.guest.accept_transfer(DRIVER_DOMAIN).unwrap();
    assert_eq!((mapped(&inside.domain), inside.count()), (0, [AREA, 0, 0]));
    let page = inside.take();
    let other = inside.take();
    assert_eq!((mapped(&inside.domain), inside.count()), (2, [AREA - 2, 2, 0]));
    inside.send(gref, page).unwrap();
    assert_eq!((mapped(&inside.domain), inside.count()), (1, [AREA - 2, 1, 1]));
    drop(other);
    assert_eq!((mapped(&inside.domain), inside.count()), (0, [AREA - 1, 0, 1]));
    let page = slot.claim().unwrap();
    assert_eq!((mapped(&inside.domain), inside.count()), (1, [AREA - 1, 0, 1]));
    drop(page);
    inside.guest.surrender().unwrap();
    assert_eq!((mapped(&inside.domain), inside.count()), (0, [AREA, 0, 0]));
}

#[test]
fn an_entry_accepts_one_page_from_the_domain_it_names() {
    let inside = inside();
    let refused = |gref, page| {
        let (status, page) = inside.send(gref, page).unwrap_err();
        assert_eq!(status, TransferStatus::BadGrant, "{gref}");
        page
    };
    let mut page = inside.take();
    page.write(0, 0x1234_5678u32).unwrap();
    let (_foreign, gref) = inside.guest.accept_transfer(DomId(5)).unwrap();
    page = refused(gref, page);
    let (_shared, grefs) = inside.guest.share(DRIVER_DOMAIN, 1).unwrap();
    page = refused(grefs[0], page);
    for outside in [0, 500, 512, 513, u32::MAX / 8 + 1, u32::MAX] {
        page = refused(GrantRef(outside), page);
    }
    let (_slot, gref) = inside.guest.accept_transfer(DRIVER_DOMAIN).unwrap();
    inside.send(gref, inside.take()).unwrap();
    page = refused(gref, page);
    assert_eq!(page.read(0), Ok(0x1234_5678u32), "a refused page keeps its bytes");
    assert_eq!(inside.count(), [AREA - 2, 1, 1]);

    let (_slot, gref) = inside.guest.accept_transfer(DRIVER_DOMAIN).unwrap();
    inside.machine.destroy(inside.domain.id());
    drop(refused(gref, page));
    let dead = inside.machine.take_page(&inside.domain);
    assert!(matches!(dead, Err(Error::NoDomain(_))));
}

#[test]
fn a_guest_never_gets_a_page_of_another() {
    let machine = Machine::new();
    let (one, other) = (Inside::new(&machine), Inside::new(&machine));
    let (_slot, gref) = other.guest.accept_transfer(DRIVER_DOMAIN).unwrap();
    let (status, _page) = other.send(gref, one.take()).unwrap_err();
    assert_eq!(status, TransferStatus::BadPage);
    assert_eq!(other.entry(gref).0, gtf::ACCEPT_TRANSFER, "the entry is still good");
    other.send(gref, other.take()).unwrap();

    let mut none = [GrantTransfer {
        page: None,
        ..GrantTransfer::new(&one.domain, gref, Box::new(one.take()))
    }];
    machine.transfer(&mut none);
    assert_eq!(none[0].status, TransferStatus::BadPage);
}

#[test]
fn each_transfer_of_a_batch_has_a_status() {
    let inside = inside();
    let (_slots, grefs): (Vec<_>, Vec<_>) =
        (0..2).map(|_| inside.guest.accept_transfer(DRIVER_DOMAIN).unwrap()).unzip();
    let mut batch = [grefs[0], grefs[0], grefs[1]]
        .map(|gref| GrantTransfer::new(&inside.domain, gref, Box::new(inside.take())));
    inside.machine.transfer(&mut batch);
    use TransferStatus::{BadGrant, Okay};
    assert_eq!(batch.each_ref().map(|op| op.status), [Okay, BadGrant, Okay]);
    assert_eq!(batch.each_ref().map(|op| op.page.is_some()), [false, true, false]);
}

#[test]
fn a_guest_that_gives_no_page_back_gets_no_more() {
    let inside = inside();
    let exhausted = || matches!(inside.machine.take_page(&inside.domain), Err(Error::Exhausted(_)));
    let mut taken: Vec<_> = (0..AREA).map(|_| inside.take()).collect();
    assert!(exhausted());
    drop(taken.pop());
    taken.push(inside.take());
    let mut slots = Vec::new();
    for page in taken {
        let (slot, gref) = inside.guest.accept_transfer(DRIVER_DOMAIN).unwrap();
        inside.send(gref, page).unwrap();
        slots.push(slot);
    }
    assert!(exhausted());
    let full = inside.guest.accept_transfer(DRIVER_DOMAIN);
    assert!(matches!(full, Err(Error::Exhausted(_))));
    let page = slots[2].claim().unwrap();
    assert!(exhausted());
    drop(page);
    inside.guest.surrender().unwrap();
    assert_eq!(inside.count(), [1, 0, AREA - 1]);
    inside.guest.accept_transfer(DRIVER_DOMAIN).unwrap();
}

#[test]
fn a_domain_without_an_area_has_nothing_to_exchange() {
    let machine = Machine::new();
    let domain = machine.create(MemorySize { exchange_pages: 0, ..SIZE }).unwrap();
    let guest = MachineGuest::inside(&machine, &domain).unwrap();
    assert!(matches!(machine.take_page(&domain), Err(Error::Exhausted(_))));
    assert!(matches!(guest.accept_transfer(DRIVER_DOMAIN), Err(Error::Exhausted(_))));
    assert!(guest.surrender().is_ok());
}

#[test]
fn an_offer_that_is_dropped_is_taken_back() {
    let inside = inside();
    let (slot, gref) = inside.guest.accept_transfer(DRIVER_DOMAIN).unwrap();
    drop(slot);
    let (status, page) = inside.send(gref, inside.take()).unwrap_err();
    assert_eq!(status, TransferStatus::BadGrant);
    // The reference and the place serve again.
    let (slot, again) = inside.guest.accept_transfer(DRIVER_DOMAIN).unwrap();
    assert_eq!(again, gref);
    inside.send(gref, page).unwrap();
    drop(slot);
    assert_eq!(inside.count(), [AREA - 1, 0, 1]);
    inside.guest.surrender().unwrap();
    assert_eq!(inside.count(), [AREA, 0, 0], "a page nobody claimed went back");
}

#[test]
fn a_dropped_offer_is_not_reused_before_its_page_has_come() {
    let inside = inside();
    let (slot, gref) = inside.guest.accept_transfer(DRIVER_DOMAIN).unwrap();
    let page = inside.take();
    assert!(inside.domain.commit_transfer(DRIVER_DOMAIN, gref));
    drop(slot);
    inside.guest.surrender().unwrap();
    let (_other, different) = inside.guest.accept_transfer(DRIVER_DOMAIN).unwrap();
    assert_ne!(different, gref);
    inside.domain.complete_transfer(gref, page.give());
    assert_eq!(inside.count(), [AREA - 1, 0, 1]);
    inside.guest.surrender().unwrap();
    assert_eq!(inside.count(), [AREA, 0, 0]);
    let (_slot, again) = inside.guest.accept_transfer(DRIVER_DOMAIN).unwrap();
    assert_eq!(again, gref);
}

#[test]
fn a_dropped_page_goes_back_with_the_next_surrender() {
    let inside = inside();
    let (mut slot, gref) = inside.guest.accept_transfer(DRIVER_DOMAIN).unwrap();
    inside.send(gref, inside.take()).unwrap();
    drop(slot.claim().unwrap());
    assert_eq!((mapped(&inside.domain), inside.count()), (0, [AREA - 1, 0, 1]));
    inside.guest.surrender().unwrap();
    assert_eq!(inside.count(), [AREA, 0, 0]);
}

#[test]
fn a_guest_gives_back_only_what_it_owns() {
    let machine = Machine::new();
    let (inside, other) = (Inside::new(&machine), Inside::new(&machine));
    let grefs = [(); 2].map(|()| inside.guest.accept_transfer(DRIVER_DOMAIN).unwrap());
    let pages = [(); 2].map(|()| inside.take());
    let frames = pages.each_ref().map(ExchangePage::frame);
    for ((_, gref), page) in grefs.iter().zip(pages) {
        inside.send(*gref, page).unwrap();
    }
    let held = inside.take();
    let spare = inside.take().frame();
    let id = inside.domain.id();
    for frame in [held.frame(), spare, 0, 7, 12, u32::MAX] {
        let refused = machine.surrender(id, &[frame]);
        assert!(matches!(refused, Err(Error::NotOwner { frame: f, .. }) if f == frame), "{frame}");
        assert_eq!(inside.count(), [1, 1, 2]);
    }
    assert!(machine.surrender(other.domain.id(), &frames).is_err());
    // The first is given back; the repeated one is refused, and the rest is skipped.
    assert!(machine.surrender(id, &[frames[0], frames[0], frames[1]]).is_err());
    assert_eq!(inside.count(), [2, 1, 1]);
    assert!(machine.surrender(id, &[frames[0]]).is_err());
    machine.surrender(id, &[frames[1]]).unwrap();
    assert_eq!(inside.count(), [3, 1, 0]);
    assert_eq!(other.count(), [AREA, 0, 0]);
    machine.destroy(id);
    assert!(matches!(machine.surrender(id, &[]), Err(Error::NoDomain(_))));
}

#[test]
fn a_grant_does_not_reach_into_the_area() {
    let inside = inside();
    let (_pages, grefs) = inside.guest.share(DRIVER_DOMAIN, 1).unwrap();
    let page = inside.take();
    let at = inside.domain.entry_at(grefs[0]).unwrap();
    inside.domain.memory().write(at + 4, page.frame()).unwrap();
    let source = Source::Grant { peer: &inside.domain, gref: grefs[0], offset: 0 };
    let mut buffer = [0; 1];
    let mut batch = [GrantCopy::new(source, Dest::Private(&mut buffer), 1)];
    inside.machine.copy(&mut batch);
    assert_eq!(batch[0].status, CopyStatus::BadSource);
    assert!(inside.machine.map(&inside.domain, &grefs).is_err());
}

/// The guest sees its own frames before they are sent, and nothing else.
#[test]
fn a_guest_that_keeps_a_page_mapped_reaches_only_its_own() {
    let machine = Machine::new();
    let (inside, other) = (Inside::new(&machine), Inside::new(&machine));
    let area = SIZE.pages * PAGE_SIZE;
    let kept = Region::map(inside.guest.memory(), area as u64, AREA * PAGE_SIZE).unwrap();
    let page = inside.take();
    let place = page.frame() as usize * PAGE_SIZE - area;
    page.write(100, 0xfeed_u16).unwrap();
    assert_eq!(kept.read(place + 100), Ok(0xfeed_u16));
    // The guest's writes reach nobody else, and are gone when the page is used again.
    kept.write(place, 0xbad_u16).unwrap();
    let (_slot, gref) = other.guest.accept_transfer(DRIVER_DOMAIN).unwrap();
    let (status, page) = other.send(gref, page).unwrap_err();
    assert_eq!(status, TransferStatus::BadPage);
    drop(page);
    assert_eq!(bytes(&inside.take()), [0; PAGE_SIZE]);
    // Taking the page away from under the driver domain only empties it.
    let page = inside.take();
    let punch = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
    page.write(0, 7u8).unwrap();
    let len = (AREA * PAGE_SIZE) as u64;
    rustix::fs::fallocate(inside.guest.memory().as_fd(), punch, area as u64, len).unwrap();
    assert_eq!(page.read(0), Ok(0u8));
}

#[test]
fn a_guest_that_rewrites_its_entry_gains_nothing() {
    use std::sync::atomic::AtomicBool;
    let inside = inside();
    let stop = AtomicBool::new(false);
    let gref = GrantRef(20);
    let table = Region::map(inside.guest.memory(), 0, PAGE_SIZE).unwrap();
    let entry = |flags: u16, domid: u16| {
        let [f0, f1] = flags.to_ne_bytes();
        let [d0, d1] = domid.to_ne_bytes();
        u64::from_ne_bytes([f0, f1, d0, d1, 9, 0, 0, 0])
    };
    let (mut given, mut refused) = (0, 0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let word = table.atomic_u64(gref.0 as usize * GRANT_ENTRY_LEN).unwrap();
            while !stop.load(Ordering::Relaxed) {
                for entry in [entry(2, 0), entry(1, 0), entry(2, 5), entry(6, 0), entry(14, 0)] {
                    word.store(entry, Ordering::Relaxed);
                }
            }
        });
        while given < 50 || refused < 50 {
            let page = inside.take();
            let frame = page.frame();
            match inside.send(gref, page) {
                Ok(()) => {
                    given += 1;
                    assert_eq!(inside.count(), [AREA - 1, 0, 1]);
                    inside.machine.surrender(inside.domain.id(), &[frame]).unwrap();
                }
                Err(_) => {
                    refused += 1;
                    std::thread::yield_now(); // on one core, let it rewrite
                }
            }
            assert_eq!(inside.count(), [AREA, 0, 0]);
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(mapped(&inside.domain), 0);
}
