//! Pages come and go, where their grants permit it.

use hypervisor::{Guest, Hypervisor};

use super::*;
use crate::memory::MemorySize;
use crate::share::Share;
use crate::{Machine, MachineGuest};

fn machine() -> (Machine, Arc<Domain>, MachineGuest) {
    machine_within(Share::default())
}

fn machine_within(share: Share) -> (Machine, Arc<Domain>, MachineGuest) {
    let machine = Machine::new();
    let size = MemorySize { pages: 64, grant_pages: 1, ..MemorySize::default() };
    let domain = machine.create_within(size, share).unwrap();
    let guest = MachineGuest::inside(&machine, &domain).unwrap();
    (machine, domain, guest)
}

#[test]
fn pages_are_mapped_and_unmapped() {
    let (machine, domain, guest) = machine();
    let (pages, grefs) = guest.share(DRIVER_DOMAIN, 3).unwrap();
    let mut aperture = machine.aperture(&domain, 8).unwrap();
    for round in 0..3u8 {
        let mut batch = [GrantMap::new(5, grefs[2]), GrantMap::new(4, grefs[0])];
        machine.map_at(&mut aperture, &mut batch);
        assert!(batch.iter().all(|op| op.status == MapStatus::Okay));
        assert_eq!(domain.pinned(), 2);
        pages.write(2 * PAGE_SIZE + 9, round).unwrap();
        assert_eq!(aperture.read::<u8>(5 * PAGE_SIZE + 9), Ok(round));
        machine.unmap(&mut aperture, 4..6);
        assert_eq!(domain.pinned(), 0);
    }
    machine.map_at(&mut aperture, &mut [GrantMap::new(0, grefs[1])]);
    drop(aperture);
    assert_eq!(domain.pinned(), 0);
}

#[test]
fn a_page_is_writable_only_if_its_grant_permits_it() {
    let (machine, domain, guest) = machine();
    let (pages, grefs) = guest.share(DRIVER_DOMAIN, 2).unwrap();
    let read_only = 1 << 2;
    let flags = domain.memory().atomic_u16(grefs[1].0 as usize * 8).unwrap();
    flags.fetch_or(read_only, std::sync::atomic::Ordering::Relaxed);
    let mut aperture = machine.aperture(&domain, 3).unwrap();
    let mut batch = [
        GrantMap::writable(0, grefs[0]),
        GrantMap::writable(1, grefs[1]),
        GrantMap::new(2, grefs[1]),
    ];
    machine.map_at(&mut aperture, &mut batch);
    use MapStatus::{BadGrant, Okay};
    assert_eq!(batch.map(|op| op.status), [Okay, BadGrant, Okay]);
    aperture.write(7, 42u8).unwrap();
    assert_eq!(pages.read::<u8>(7), Ok(42));
    drop(aperture);
    assert_eq!(domain.pinned(), 0);
}

#[test]
fn pages_without_a_grant_or_a_place_are_refused() {
    let (machine, domain, guest) = machine();
    let (_pages, grefs) = guest.share(DRIVER_DOMAIN, 2).unwrap();
    let mut aperture = machine.aperture(&domain, 2).unwrap();
    let mut batch = [
        GrantMap::new(0, grefs[0]),
        GrantMap::new(0, grefs[1]),
        GrantMap::new(2, grefs[1]),
        GrantMap::new(1, GrantRef(300)),
    ];
    machine.map_at(&mut aperture, &mut batch);
    use MapStatus::{BadGrant, Okay};
    assert_eq!(batch.map(|op| op.status), [Okay, BadGrant, BadGrant, BadGrant]);
    assert_eq!(domain.pinned(), 1);
    machine.unmap(&mut aperture, 0..9);
    machine.unmap(&mut aperture, 0..2);
    assert_eq!(domain.pinned(), 0);
    machine.destroy(domain.id());
    let mut late = [GrantMap::new(0, grefs[0])];
    machine.map_at(&mut aperture, &mut late);
    assert_eq!(late[0].status, BadGrant);
}

/// The mappings of this process in an aperture.
fn mappings(aperture: &Aperture) -> usize {
    let start = aperture.address(0, aperture.len()).unwrap() as usize;
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let number = |text| usize::from_str_radix(text, 16).unwrap();
    let ranges = maps.lines().filter_map(|line| line.split_once(' ')?.0.split_once('-'));
    let ranges = ranges.map(|(first, end)| number(first)..number(end));
    ranges.filter(|range| range.start < start + aperture.len() && range.end > start).count()
}

#[test]
fn scattered_pages_are_mapped_within_the_guests_share() {
    let (machine, domain, guest) = machine_within(Share { mappings: 6, ..Share::default() });
    let (_pages, grefs) = guest.share(DRIVER_DOMAIN, 16).unwrap();
    let mut aperture = machine.aperture(&domain, 16).unwrap();
    let mut mapped = 0;
    for n in 0..16u32 {
        // In reverse, so that no two of them are one mapping.
        let mut batch = [GrantMap::new(n, grefs[15 - n as usize])];
        machine.map_at(&mut aperture, &mut batch);
        mapped += usize::from(batch[0].status == MapStatus::Okay);
    }
    assert_eq!((mapped, domain.pinned()), (5, 5));
    assert!(mappings(&aperture) <= 6 + 2, "its neighbours in the address space may join in");
    assert!(machine.aperture(&domain, 1).is_err(), "the share is of all apertures");
    machine.unmap(&mut aperture, 0..16);
    assert_eq!(domain.pinned(), 0);
    // Pages that follow each other are one mapping.
    let mut batch: Vec<_> = (0..16).map(|n| GrantMap::new(n, grefs[n as usize])).collect();
    machine.map_at(&mut aperture, &mut batch);
    assert!(batch.iter().all(|op| op.status == MapStatus::Okay));
    assert!(mappings(&aperture) <= 1 + 2, "{}", mappings(&aperture));
    machine.unmap(&mut aperture, 0..16);
    batch.iter_mut().for_each(|op| *op = GrantMap::writable(op.place, op.gref));
    machine.map_at(&mut aperture, &mut batch);
    assert!(batch.iter().all(|op| op.status == MapStatus::Okay));
    assert!(mappings(&aperture) <= 1 + 2, "{}", mappings(&aperture));
    drop(aperture);
    assert_eq!(domain.pinned(), 0);
    assert!(machine.aperture(&domain, 16).is_ok(), "a dropped aperture takes nothing");
}

#[test]
fn a_hole_beyond_the_share_is_made_later() {
    let (machine, domain, guest) = machine_within(Share { mappings: 4, ..Share::default() });
    let (_pages, grefs) = guest.share(DRIVER_DOMAIN, 8).unwrap();
    let mut aperture = machine.aperture(&domain, 8).unwrap();
    let mut batch: Vec<_> = (0..8).map(|n| GrantMap::new(n, grefs[n as usize])).collect();
    machine.map_at(&mut aperture, &mut batch);
    machine.unmap(&mut aperture, 3..4);
    assert_eq!(domain.pinned(), 7);
    machine.unmap(&mut aperture, 5..6);
    assert_eq!(domain.pinned(), 7, "it would take two mappings more");
    machine.unmap(&mut aperture, 0..3);
    assert_eq!(domain.pinned(), 4);
    // Any operation tries again.
    machine.unmap(&mut aperture, 0..1);
    assert_eq!(domain.pinned(), 3);
    let mut again = [GrantMap::new(5, grefs[5])];
    machine.map_at(&mut aperture, &mut again);
    assert_eq!(again[0].status, MapStatus::Okay, "the place is not lost");
}

#[test]
fn an_unpinned_page_is_replaced_and_its_owner_can_end_the_grant() {
    let (machine, domain, guest) = machine();
    let (pages, grefs) = guest.share(DRIVER_DOMAIN, 8).unwrap();
    let mut aperture = machine.aperture(&domain, 4).unwrap();
    let mut map = |place, gref, writable| {
        let mut batch = [GrantMap::unpinned(place, gref, writable)];
        machine.map_at(&mut aperture, &mut batch);
        (batch[0].status, batch[0].frame)
    };
    for round in 0..3 {
        for (n, gref) in grefs.iter().enumerate() {
            let (status, frame) = map(1, *gref, round % 2 == 0);
            assert_eq!((status, domain.pinned()), (MapStatus::Okay, 0));
            assert!(machine.is_current(&domain, *gref, frame, true));
            let other = FrameNumber(frame.0 + 1);
            assert!(!machine.is_current(&domain, *gref, other, false), "page {n}");
        }
    }
    // A refused mapping leaves the page that was there.
    assert_eq!(map(1, GrantRef(300), false).0, MapStatus::BadGrant);
    let (_, frame) = map(1, grefs[7], false);
    // Pinned pages are neither replaced nor do they replace others.
    assert_eq!(map(2, grefs[3], true).0, MapStatus::Okay);
    let mut pinned = [GrantMap::new(1, grefs[2]), GrantMap::new(3, grefs[2])];
    machine.map_at(&mut aperture, &mut pinned);
    use MapStatus::{BadGrant, Okay};
    assert_eq!(pinned.map(|op| op.status), [BadGrant, Okay]);
    pages.write(7 * PAGE_SIZE, 9u8).unwrap();
    assert_eq!((aperture.read::<u8>(PAGE_SIZE), domain.pinned()), (Ok(9), 1));
    let mut late = [GrantMap::unpinned(3, grefs[4], false)];
    machine.map_at(&mut aperture, &mut late);
    assert_eq!((late[0].status, domain.pinned()), (BadGrant, 1));
    drop((pages, aperture));
    assert!(!machine.is_current(&domain, grefs[7], frame, false));
    assert_eq!(domain.pinned(), 0);
}
