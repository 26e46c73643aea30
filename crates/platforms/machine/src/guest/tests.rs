//! A guest's memory, grants and channels.

use hypervisor::{
    CopyOut, CopyStatus, Dest, EventChannel, GrantCopy, Granted, GrantedMemory, Hypervisor,
    PeerMemory, Source, Target,
};

use super::*;

fn machine() -> (Machine, Arc<Domain>, MachineGuest) {
    let machine = Machine::new();
    let size = MemorySize { pages: 64, grant_pages: 1, ..MemorySize::default() };
    let domain = machine.create(size).unwrap();
    let guest = MachineGuest::inside(&machine, &domain).unwrap();
    (machine, domain, guest)
}

fn fetch(machine: &Machine, peer: &Arc<Domain>, gref: u32, offset: u16, len: u16) -> CopyStatus {
    let mut bytes = [0; 8192];
    let source = Source::Grant { peer, gref: GrantRef(gref), offset };
    let mut batch = [GrantCopy::new(source, Dest::Private(&mut bytes), len)];
    machine.copy(&mut batch);
    batch[0].status
}

#[test]
fn a_grant_is_checked_at_every_use() {
    let (machine, domain, guest) = machine();
    let (pages, grefs) = guest.share(DRIVER_DOMAIN, 2).unwrap();
    assert_eq!(fetch(&machine, &domain, grefs[1].0, 4000, 96), CopyStatus::Okay);
    assert_eq!(fetch(&machine, &domain, grefs[0].0, 4000, 97), CopyStatus::BadSource);
    assert_eq!(fetch(&machine, &domain, grefs[0].0, 0, 8000), CopyStatus::BadSource);
    assert_eq!(fetch(&machine, &domain, 100, 0, 1), CopyStatus::BadSource);
    assert_eq!(fetch(&machine, &domain, u32::MAX, 0, 1), CopyStatus::BadSource);
    drop(pages);
    assert_eq!(fetch(&machine, &domain, grefs[1].0, 0, 1), CopyStatus::BadSource);
    let (_pages, grefs) = guest.share(DomId(5), 1).unwrap();
    assert_eq!(fetch(&machine, &domain, grefs[0].0, 0, 1), CopyStatus::BadSource);
}

#[test]
fn copies_out_stay_at_their_places_in_a_target() {
    let (machine, domain, guest) = machine();
    let (pages, grefs) = guest.share(DRIVER_DOMAIN, 2).unwrap();
    pages.write(4000, *b"abcdefgh").unwrap();
    let memory = PeerMemory { hypervisor: machine, peer: domain };
    let copy = |at, offset, len| {
        let from = Granted { gref: grefs[0], offset, mapped: None };
        CopyOut { from, at, len }
    };
    let region = Region::anonymous(4096).unwrap();
    let mut bytes = [b'.'; 10];
    let batch = [copy(1, 4000, 3), copy(4, 4004, 1), copy(6, 4006, 2)];
    assert!(memory.copy_out(None, &batch, &mut Target::Private(&mut bytes)));
    assert_eq!(&bytes, b".abce.gh..");
    assert!(memory.copy_out(None, &batch, &mut Target::Mapped(&region)));
    assert_eq!(region.read::<[u8; 8]>(0), Ok(*b"\0abce\0gh"));
    // Beyond the target, over an earlier copy, beyond the page.
    for (private, batch) in [
        (true, &[copy(0, 4000, 4), copy(8, 4000, 3)][..]),
        (true, &[copy(u32::MAX, 4000, 1)]),
        (true, &[copy(0, 4000, 4), copy(3, 4000, 1)]),
        (true, &[copy(0, 4090, 7)]),
        (false, &[copy(4090, 4000, 7)]),
        (false, &[copy(u32::MAX, 4000, 1)]),
    ] {
        let mut to = if private { Target::Private(&mut bytes) } else { Target::Mapped(&region) };
        assert!(!memory.copy_out(None, batch, &mut to), "{batch:?}");
    }
}

#[test]
fn a_grant_of_a_page_outside_is_refused() {
    let (machine, domain, guest) = machine();
    for frame in [64, 65, u32::MAX] {
        let frame = frame as usize;
        let access = gtf::PERMIT_ACCESS;
        guest.inner.publish(GrantRef(9), DRIVER_DOMAIN, frame, access).unwrap();
        assert_eq!(fetch(&machine, &domain, 9, 0, 1), CopyStatus::BadSource);
        assert!(machine.map(&domain, &[GrantRef(9)]).is_err());
    }
    assert_eq!(domain.pinned(), 0);
}

#[test]
fn read_only_grants_are_not_written() {
    let (machine, domain, guest) = machine();
    let (_pages, grefs) = guest.share(DRIVER_DOMAIN, 1).unwrap();
    guest.inner.flags(grefs[0]).unwrap().fetch_or(gtf::READONLY, Ordering::Relaxed);
    let dest = Dest::Grant { peer: &domain, gref: grefs[0], offset: 0 };
    let mut batch = [GrantCopy::new(Source::Private(b"x"), dest, 1)];
    machine.copy(&mut batch);
    assert_eq!(batch[0].status, CopyStatus::BadDest);
    assert_eq!(fetch(&machine, &domain, grefs[0].0, 0, 1), CopyStatus::Okay);
    assert!(machine.map(&domain, &grefs).is_err());
}

#[test]
fn mapped_pages_are_shared_and_cannot_be_taken_back() {
    let (machine, domain, guest) = machine();
    let (pages, grefs) = guest.share(DRIVER_DOMAIN, 3).unwrap();
    let mapping = machine.map(&domain, &[grefs[2], grefs[0]]).unwrap();
    pages.write(8192 + 5, 77u8).unwrap();
    assert_eq!(mapping.read::<u8>(5), Ok(77));
    mapping.write(4096, 78u8).unwrap();
    assert_eq!(pages.read::<u8>(0), Ok(78));
    assert_eq!(domain.pinned(), 2);
    assert!(!guest.inner.revoke(grefs[2]));
    drop(mapping);
    assert_eq!(domain.pinned(), 0);
    assert!(guest.inner.revoke(grefs[2]));
}

#[test]
fn pages_come_back_zeroed_unless_they_are_still_mapped() {
    let (machine, domain, guest) = machine();
    let (pages, grefs) = guest.share(DRIVER_DOMAIN, 63).unwrap();
    assert!(guest.share(DRIVER_DOMAIN, 1).is_err());
    pages.write(0, [0xaau8; 64]).unwrap();
    let mapping = machine.map(&domain, &grefs[..1]).unwrap();
    drop(pages);
    assert!(guest.share(DRIVER_DOMAIN, 63).is_err());
    let (pages, _) = guest.share(DRIVER_DOMAIN, 62).unwrap();
    assert_eq!(pages.read::<[u8; 64]>(0), Ok([0; 64]));
    drop(mapping);
}

#[test]
fn a_page_is_released_once_and_not_while_it_is_mapped() {
    let (machine, domain, guest) = machine();
    let (pages, grefs) = guest.share(DRIVER_DOMAIN, 63).unwrap();
    let mapping = machine.map(&domain, &grefs[..1]).unwrap();
    assert!(!guest.release(&pages, 0) && guest.release(&pages, 5));
    assert!(!guest.release(&pages, 5) && !guest.release(&pages, 63));
    assert_eq!(fetch(&machine, &domain, grefs[5].0, 0, 1), CopyStatus::BadSource);
    let (other, again) = guest.share(DRIVER_DOMAIN, 1).unwrap();
    assert_eq!(again, [grefs[5]]);
    drop(mapping);
    assert!(guest.release(&pages, 0));
    drop(pages);
    // The page that `other` got was not freed with `pages`.
    assert_eq!(fetch(&machine, &domain, again[0].0, 0, 1), CopyStatus::Okay);
    drop(other);
    assert!(guest.share(DRIVER_DOMAIN, 63).is_ok());
}

#[test]
fn a_dead_domain_grants_nothing() {
    let (machine, domain, guest) = machine();
    let (_pages, grefs) = guest.share(DRIVER_DOMAIN, 1).unwrap();
    machine.destroy(domain.id());
    assert_eq!(fetch(&machine, &domain, grefs[0].0, 0, 1), CopyStatus::BadSource);
    assert!(machine.map(&domain, &grefs).is_err());
    assert!(guest.alloc_unbound(DRIVER_DOMAIN).is_err());
}

#[test]
fn events_go_both_ways_and_a_port_is_bound_once_at_a_time() {
    let (machine, domain, guest) = machine();
    let (theirs, port) = guest.alloc_unbound(DRIVER_DOMAIN).unwrap();
    assert!(guest.alloc_unbound(DomId(3)).is_err());
    assert!(machine.bind_interdomain(&domain, EvtchnPort(port.0 + 1)).is_err());
    let ours = machine.bind_interdomain(&domain, port).unwrap();
    assert!(machine.bind_interdomain(&domain, port).is_err());
    assert!(!readable(&theirs));
    ours.notify().unwrap();
    assert!(readable(&theirs));
    theirs.take().unwrap();
    assert!(!readable(&theirs));
    theirs.notify().unwrap();
    assert!(readable(&ours));
    // A backend that ends leaves the channel unbound, as on Xen, for the next one.
    drop(ours);
    theirs.take().unwrap();
    let ours = machine.bind_interdomain(&domain, port).unwrap();
    ours.notify().unwrap();
    assert!(readable(&theirs));
    theirs.take().unwrap();
    drop(ours);
    machine.destroy(domain.id());
    assert!(matches!(theirs.take(), Err(Error::Gone)));
}

#[test]
fn channels_that_the_guest_has_closed_make_room_for_others() {
    let (machine, domain, guest) = machine();
    let offer = || guest.alloc_unbound(DRIVER_DOMAIN);
    let (first, port) = offer().unwrap();
    let _ours = machine.bind_interdomain(&domain, port).unwrap();
    let others: Vec<_> = (1..256).map(|_| offer().unwrap()).collect();
    assert!(matches!(offer(), Err(Error::Exhausted(_))));
    drop(others);
    let (_event, _) = offer().unwrap();
    // The first channel was kept: it is bound as it was.
    assert!(machine.bind_interdomain(&domain, port).is_err());
    drop(first);
}

fn readable(event: &impl std::os::fd::AsFd) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    let mut fds = [PollFd::new(event, PollFlags::IN)];
    poll(&mut fds, Some(&now)).unwrap();
    fds[0].revents().contains(PollFlags::IN)
}
