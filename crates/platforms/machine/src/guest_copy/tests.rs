//! Guests that copy what they may and what they may not, against a naive model of the grants.

use std::collections::HashMap;
use std::sync::Weak;

use hypervisor::Hypervisor;
use hypervisor::guest_copy::GuestCopy;
use hypervisor::{Guest, Metered};
use proptest::prelude::*;

use super::*;
use crate::{DRIVER_DOMAIN, Domain, Machine, MachineGuest, MemorySize};

const PAGES: usize = 64;

fn domain(machine: &Machine) -> (Arc<Domain>, MachineGuest) {
    let size = MemorySize { pages: PAGES, grant_pages: 1, ..MemorySize::default() };
    let domain = machine.create(size).unwrap();
    let guest = MachineGuest::inside(machine, &domain).unwrap();
    (domain, guest)
}

fn table(machine: &Machine, domain: &Arc<Domain>) -> Arc<dyn GuestCopies> {
    machine.guest_copies(domain, CopyForm::Hypercall).unwrap()
}

/// A buffer of `len` bytes, all `fill`, behind as many that are not granted.
fn buffer(fill: u8, len: u16) -> (GrantedBuffer, Weak<Region>) {
    let memory = Arc::new(Region::anonymous(3 * PAGE_SIZE).unwrap());
    memory.copy_in(0, &[0xee; 3 * PAGE_SIZE]).unwrap();
    memory.copy_in(100, &vec![fill; len.into()]).unwrap();
    let weak = Arc::downgrade(&memory);
    (GrantedBuffer { memory, offset: 100, len }, weak)
}

fn request(number: u16, len: u16, page: u32) -> Request {
    Request { number, offset: 0, len, page, page_offset: 0 }
}

#[test]
fn a_granted_buffer_is_copied_once_and_then_free() {
    let machine = Machine::new();
    let (domain, guest) = domain(&machine);
    let copies = table(&machine, &domain);
    let (granted, weak) = buffer(7, 1000);
    copies.grant(&mut [(3, granted)].into_iter());
    assert_eq!(copies.counts().granted, 1);
    let ask = |number| machine.copy_granted(domain.id(), copies.id(), &[request(number, 1000, 40)]);
    assert_eq!(ask(4).unwrap(), 0, "never granted");
    assert_eq!(ask(3).unwrap(), 1);
    assert!(weak.upgrade().is_none(), "the buffer is the driver domain's again");
    assert_eq!(ask(3).unwrap(), 0, "copied twice");
    let at = 40 * PAGE_SIZE;
    assert_eq!(guest.region().read::<[u8; 1000]>(at).unwrap(), [7; 1000]);
    assert_eq!(guest.region().read(at + 1000), Ok(0u8));
    let counts = copies.counts();
    assert_eq!((counts.hypercalls, counts.copies, counts.bytes, counts.refused), (3, 1, 1000, 2));
}

#[test]
fn nothing_but_the_granted_bytes_reaches_nothing_but_the_guests_pages() {
    let machine = Machine::new();
    let (domain, guest) = domain(&machine);
    let copies = table(&machine, &domain);
    let ordinary = Request { number: 0, offset: 0, len: 500, page: 40, page_offset: 0 };
    let last_page = u32::try_from(PAGES).unwrap();
    for bad in [
        Request { len: 501, ..ordinary },
        Request { offset: 1, ..ordinary },
        Request { offset: u16::MAX, len: u16::MAX, ..ordinary },
        Request { page: last_page, ..ordinary },
        Request { page: u32::MAX, ..ordinary },
        Request { page_offset: 4096 - 499, ..ordinary },
        Request { page_offset: u16::MAX, ..ordinary },
        Request { number: 256, ..ordinary },
        Request { number: u16::MAX, ..ordinary },
    ] {
        copies.grant(&mut [(0, buffer(9, 500).0)].into_iter());
        let done = machine.copy_granted(domain.id(), copies.id(), &[bad]);
        assert_eq!(done.unwrap(), 0, "{bad:?}");
    }
    let mut bytes = vec![0; PAGES * PAGE_SIZE];
    guest.region().copy_out(0, &mut bytes).unwrap();
    assert!(!bytes.contains(&9) && !bytes.contains(&0xee));
    assert_eq!(copies.counts().bytes, 0);
    // More copies than one hypercall does: the rest is ignored.
    let many = vec![ordinary; 100];
    copies.grant(&mut [(0, buffer(9, 500).0)].into_iter());
    assert_eq!(machine.copy_granted(domain.id(), copies.id(), &many).unwrap(), 1);
}

#[test]
fn one_guest_copies_nothing_of_anothers() {
    let machine = Machine::new();
    let [(one, one_inside), (other, other_inside)] = [(); 2].map(|()| domain(&machine));
    let _unused = table(&machine, &other);
    let copies = machine.guest_copies(&one, CopyForm::Mapped).unwrap();
    let hypercall = table(&machine, &one);
    hypercall.grant(&mut [(0, buffer(5, 100).0)].into_iter());
    // Each guest has its own numbers.
    for id in [copies.id(), hypercall.id(), u32::MAX] {
        let done = machine.copy_granted(other.id(), id, &[request(0, 100, 40)]).unwrap_or(0);
        assert_eq!(done, 0);
        assert!(other_inside.guest_copier(DRIVER_DOMAIN, id, CopyForm::Mapped).is_err());
    }
    assert!(
        one_inside.guest_copier(DRIVER_DOMAIN, hypercall.id(), CopyForm::Mapped).is_err(),
        "no pool"
    );
    assert_eq!(hypercall.counts().granted, 1);
    // A guest that is gone copies nothing either.
    machine.destroy(one.id());
    assert!(machine.copy_granted(one.id(), hypercall.id(), &[request(0, 100, 40)]).is_err());
}

#[test]
fn a_guest_that_does_not_copy_holds_a_buffer_for_a_limited_time() {
    let machine = Machine::new();
    let (domain, _guest) = domain(&machine);
    let copies = table(&machine, &domain);
    let (granted, weak) = buffer(7, 1000);
    copies.grant(&mut [(200, granted)].into_iter());
    assert_eq!(copies.expire(Duration::from_secs(3600)), 0);
    assert!(weak.upgrade().is_some());
    assert_eq!(copies.expire(Duration::ZERO), 1);
    assert!(weak.upgrade().is_none());
    assert_eq!((copies.counts().granted, copies.counts().expired), (0, 1));
    let done = machine.copy_granted(domain.id(), copies.id(), &[request(200, 1000, 40)]);
    assert_eq!(done.unwrap(), 0, "too late");
    // A backend that goes takes its grants along.
    let (granted, weak) = buffer(7, 1000);
    copies.grant(&mut [(200, granted)].into_iter());
    let id = copies.id();
    drop(copies);
    assert!(weak.upgrade().is_none());
    assert!(machine.copy_granted(domain.id(), id, &[request(200, 1000, 40)]).is_err());
}

#[test]
fn a_pool_is_read_and_not_written_by_its_guest() {
    let machine = Machine::new();
    let (domain, guest) = domain(&machine);
    let copies = machine.guest_copies(&domain, CopyForm::Mapped).unwrap();
    let pool = copies.pool().unwrap();
    pool.copy_in(5 * PAGE_SIZE + 10, b"frame").unwrap();
    let (pages, _grefs) = guest.share(DRIVER_DOMAIN, 2).unwrap();
    let mut copier = guest.guest_copier(DRIVER_DOMAIN, copies.id(), CopyForm::Mapped).unwrap();
    let ask = |number, offset, len, to| GuestCopy { number, offset, len, to, done: false };
    let mut batch = [
        ask(5, 10, 5, 100),
        ask(256, 0, 5, 200),
        ask(255, 4090, 7, 200),
        ask(5, 10, 5, 2 * PAGE_SIZE - 4),
    ];
    copier.copy(&pages, &mut batch);
    assert_eq!(batch.map(|copy| copy.done), [true, false, false, false]);
    assert_eq!(pages.read::<[u8; 5]>(100).as_ref(), Ok(b"frame"));
    // The guest can neither write to its file, nor make holes in it, nor shorten it.
    let file = machine.pool(domain.id(), copies.id()).unwrap();
    let file = file.pool_file().unwrap();
    assert!(Region::map(file, 0, PAGE_SIZE).is_err());
    assert!(rustix::io::write(file, b"x").is_err());
    let flags = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
    assert!(rustix::fs::fallocate(file, flags, 0, 4096).is_err());
    assert!(rustix::fs::ftruncate(file, 0).is_err());
    assert_eq!(pool.read::<[u8; 5]>(5 * PAGE_SIZE + 10).as_ref(), Ok(b"frame"));
}

#[test]
fn the_meter_counts_what_guests_copy() {
    let machine = Metered::new(Machine::new());
    machine.meter().switch(true);
    let (domain, _guest) = domain(&machine);
    let copies = machine.guest_copies(&domain, CopyForm::Hypercall).unwrap();
    copies.grant(&mut (0..3).map(|number| (number, buffer(1, 200).0)));
    let requests: Vec<_> = (0..3).map(|number| request(number, 200, 40)).collect();
    machine.copy_granted(domain.id(), copies.id(), &requests).unwrap();
    use Counted::{BuffersGranted, GuestCopiedBytes, GuestCopies, GuestHypercalls, Hypercalls};
    let counted = [BuffersGranted, GuestHypercalls, GuestCopies, GuestCopiedBytes, Hypercalls];
    let counts = counted.map(|what| machine.meter().count(what));
    assert_eq!(counts, [3, 1, 3, 600, 0], "the driver domain made no hypercall");
}

proptest! {
    #[test]
    fn grants_and_copies_are_as_a_naive_model_says(
        steps in prop::collection::vec((0..6u8, 0..300u16, 1..600u16), 1..150),
    ) {
        let machine = Machine::new();
        let (domain, guest) = domain(&machine);
        let copies = table(&machine, &domain);
        let mut model = HashMap::<u16, (u8, u16)>::new();
        let mut live = Vec::<Weak<Region>>::new();
        for (n, (step, number, len)) in steps.into_iter().enumerate() {
            let fill = u8::try_from(n % 200 + 1).unwrap();
            match step {
                0..=2 => {
                    let (granted, weak) = buffer(fill, len);
                    copies.grant(&mut [(number, granted)].into_iter());
                    if number < 256 {
                        model.insert(number, (fill, len));
                        live.push(weak);
                    }
                }
                3 | 4 => {
                    guest.region().zero(40 * PAGE_SIZE, PAGE_SIZE).unwrap();
                    let asked = [request(number, len, 40)];
                    let done = machine.copy_granted(domain.id(), copies.id(), &asked).unwrap();
                    let expected = model.remove(&number).filter(|(_, granted)| len <= *granted);
                    prop_assert_eq!(done == 1, expected.is_some());
                    let mut got = vec![0; len.into()];
                    guest.region().copy_out(40 * PAGE_SIZE, &mut got).unwrap();
                    let fill = expected.map_or(0, |(fill, _)| fill);
                    prop_assert!(got.iter().all(|byte| *byte == fill));
                }
                _ => {
                    copies.expire(Duration::ZERO);
                    model.clear();
                }
            }
            live.retain(|buffer| buffer.strong_count() > 0);
            prop_assert_eq!(live.len(), model.len(), "a buffer is held without a grant");
            prop_assert_eq!(copies.counts().granted, model.len() as u64);
        }
    }
}
