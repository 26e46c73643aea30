//! A page that was given up cannot be granted, and comes back zeroed.

use std::sync::Arc;

use hypervisor::{
    CopyStatus, Dest, DomId, GrantCopy, GrantRef, Guest, Hypervisor, PAGE_SIZE, Source,
};

use super::*;
use crate::domain::DRIVER_DOMAIN;
use crate::guest::MachineGuest;
use crate::guest::balloon::BalloonError;
use crate::hypervisor::Machine;

const PAGES: usize = 4 * BLOCK_PAGES;
const GRANTS: usize = 4;

fn inside() -> (Machine, Arc<Domain>, MachineGuest) {
    let machine = Machine::new();
    let size = MemorySize { pages: PAGES, grant_pages: GRANTS, ..MemorySize::default() };
    let domain = machine.create(size).unwrap();
    let guest = MachineGuest::inside(&machine, &domain).unwrap();
    (machine, domain, guest)
}

fn copies(machine: &Machine, peer: &Arc<Domain>, gref: GrantRef) -> bool {
    let mut bytes = [0; 8];
    let source = Source::Grant { peer, gref, offset: 0 };
    let mut batch = [GrantCopy::new(source, Dest::Private(&mut bytes), 8)];
    machine.copy(&mut batch);
    batch[0].status == CopyStatus::Okay
}

/// Writes an entry for any page, as a guest may.
fn grant(domain: &Domain, gref: u32, page: u32) -> GrantRef {
    let at = domain.entry_at(GrantRef(gref)).unwrap();
    domain.memory().write(at + 2, DRIVER_DOMAIN.0).unwrap();
    domain.memory().write(at + 4, page).unwrap();
    domain.memory().write(at, crate::grant_table::gtf::PERMIT_ACCESS).unwrap();
    GrantRef(gref)
}

#[test]
fn a_run_of_no_pages_is_refused() {
    let (_machine, domain, _guest) = inside();
    for at in [0, 20, BLOCK_PAGES + 3, PAGES] {
        assert!(domain.increase_reservation(at..at).is_err());
        assert!(domain.decrease_reservation(at..at).is_err());
    }
}

#[test]
fn a_page_that_was_given_up_cannot_be_granted() {
    let (machine, domain, _guest) = inside();
    let [before, first, last, behind] =
        [9, 10, 11, 12].map(|page| grant(&domain, page + 100, page));
    domain.decrease_reservation(10..12).unwrap();
    assert_eq!(domain.pages_out(), 2);
    for (gref, granted) in [(before, true), (first, false), (last, false), (behind, true)] {
        assert_eq!(copies(&machine, &domain, gref), granted, "{gref}");
        assert_eq!(machine.map(&domain, &[gref]).is_ok(), granted, "{gref}");
    }
    domain.increase_reservation(11..12).unwrap();
    assert!(!copies(&machine, &domain, first));
    assert!(copies(&machine, &domain, last));
    domain.increase_reservation(10..11).unwrap();
    assert!(copies(&machine, &domain, first));
    assert_eq!(domain.pages_out(), 0);
}

#[test]
fn a_guest_gives_up_and_takes_back_only_its_own_pages() {
    let (_, domain, _guest) = inside();
    domain.decrease_reservation(20..30).unwrap();
    let end = PAGES;
    for refused in [0..1, 0..2, 29..31, 20..21, end - 1..end + 1, end..end + 1, 0..usize::MAX] {
        assert!(domain.decrease_reservation(refused.clone()).is_err(), "{refused:?}");
        assert!(refused == (20..21) || domain.increase_reservation(refused).is_err());
    }
    assert!(domain.increase_reservation(19..21).is_err());
    assert_eq!(domain.pages_out(), 10);
}

#[test]
fn the_host_gets_the_memory_of_pages_that_were_given_up() {
    let (_, domain, guest) = inside();
    let (pages, _) = guest.share(DRIVER_DOMAIN, 100).unwrap();
    (0..100).for_each(|page| pages.write(page * PAGE_SIZE, 1u8).unwrap());
    let blocks = || rustix::fs::fstat(domain.fd()).unwrap().st_blocks;
    let before = blocks();
    drop(pages);
    domain.decrease_reservation(50..80).unwrap();
    assert_eq!(before - blocks(), 30 * 8);
    domain.increase_reservation(50..80).unwrap();
    assert_eq!(domain.memory().read(60 * PAGE_SIZE), Ok(0u8));
}

#[test]
fn a_guest_gives_up_its_free_pages_and_reports_the_rest() {
    let (machine, domain, guest) = inside();
    assert_eq!(guest.reservation(), PAGES);
    guest.set_reservation(PAGES - 2 * BLOCK_PAGES - 5).unwrap();
    assert_eq!(domain.pages_out(), 2 * BLOCK_PAGES + 5);
    let free = 2 * BLOCK_PAGES - 5 - GRANTS;
    assert!(guest.share(DRIVER_DOMAIN, free + 1).is_err());
    let (pages, grefs) = guest.share(DRIVER_DOMAIN, 2 * BLOCK_PAGES - 10).unwrap();
    assert!(grefs.iter().all(|gref| copies(&machine, &domain, *gref)));
    let error = guest.set_reservation(10).unwrap_err();
    assert!(error.to_string().starts_with("not enough free memory in the guest"), "{error}");
    assert!(matches!(error, BalloonError::InUse { asked: 40, .. }));
    let error = guest.set_reservation(PAGES + 1).unwrap_err();
    assert!(error.to_string().contains("8196 KiB are more than the guest's 8192 KiB"), "{error}");
    drop(pages);
    guest.set_reservation(PAGES).unwrap();
    assert_eq!((domain.pages_out(), guest.reservation()), (0, PAGES));
    guest.share(DRIVER_DOMAIN, 500).unwrap();
}

#[test]
fn a_refusal_leaves_the_guest_as_it_was() {
    let (machine, domain, guest) = inside();
    machine.destroy(domain.id());
    let error = guest.set_reservation(PAGES - 10).unwrap_err();
    assert!(matches!(error, BalloonError::Refused(Error::NoDomain(DomId(_)))), "{error}");
    assert_eq!(guest.reservation(), PAGES);
}
