//! Pages come and go, where their grants permit it.

use hypervisor::{Guest, Hypervisor};

use super::*;
use crate::memory::MemorySize;
use crate::{Machine, MachineGuest};

fn machine() -> (Machine, Arc<Domain>, MachineGuest) {
    let machine = Machine::new();
    let size = MemorySize { pages: 64, grant_pages: 1, ..MemorySize::default() };
    let domain = machine.create(size).unwrap();
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
