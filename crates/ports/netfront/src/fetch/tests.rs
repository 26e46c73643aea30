//! A backend that is started again while responses wait.

use std::sync::{Arc, Mutex};

use machine::{DRIVER_DOMAIN, Machine, MachineGuest, MemorySize, SharedPages};
use shm::Region;

use super::*;

/// The pool that the backend grants now, by a number; none while no backend runs.
type Granted = Arc<Mutex<Option<u32>>>;

/// Copies out of one pool.
struct FromPool {
    granted: Granted,
    pool: u32,
    is_stale: bool,
    done: CopierCounts,
}

impl GuestCopier<SharedPages> for FromPool {
    fn copy(&mut self, _: &SharedPages, batch: &mut [GuestCopy]) {
        let is_there = *self.granted.lock().unwrap() == Some(self.pool);
        batch.iter_mut().for_each(|copy| copy.done = is_there);
        self.is_stale |= !is_there;
        self.done.hypercalls += 1;
        self.done.copies += if is_there { batch.len() as u64 } else { 0 };
    }

    fn is_stale(&self) -> bool {
        self.is_stale
    }

    fn done(&self) -> CopierCounts {
        self.done
    }
}

fn open(granted: &Granted) -> Option<Copier<MachineGuest>> {
    let pool = (*granted.lock().unwrap())?;
    let (is_stale, done) = (false, CopierCounts::default());
    Some(Box::new(FromPool { granted: granted.clone(), pool, is_stale, done }))
}

struct World {
    granted: Granted,
    fetcher: Fetcher<MachineGuest>,
    ring: FrontRing<Rx, RegionPage<SharedPages>>,
    pages: SharedPages,
    answered: u32,
}

impl World {
    fn new() -> Self {
        let machine = Machine::new();
        let size = MemorySize { pages: 600, ..MemorySize::default() };
        let guest = MachineGuest::inside(&machine, &machine.create(size).unwrap()).unwrap();
        let share = |pages| guest.share(DRIVER_DOMAIN, pages).unwrap().0;
        let ring = FrontRing::init(RegionPage::new(share(1)).unwrap());
        let granted = Granted::new(Mutex::new(Some(1)));
        let (copier, of_opener) = (open(&granted).unwrap(), granted.clone());
        let fetcher = Fetcher::new(copier, Box::new(move || open(&of_opener)));
        Self { granted, fetcher, ring, pages: share(RING_LEN), answered: 0 }
    }

    fn region(&self) -> &Region {
        self.ring.page().region()
    }

    /// The backend answers requests, which are posted before. The answers name granted pages if they have this flag.
    fn answer(&mut self, count: u32, flags: u16) {
        for _ in 0..count {
            self.ring.request(wire::netif::RxRequest { id: 0, pad: 0, gref: 0 });
        }
        let _ = self.ring.publish();
        for _ in 0..count {
            let slot = 64 + self.answered as usize % RING_LEN * 8;
            self.region().write(slot, RxResponse { id: 0, offset: 0, flags, status: 100 }).unwrap();
            self.answered += 1;
        }
        self.region().write(8, self.answered).unwrap();
    }

    /// Takes all responses. Returns how many have bytes, and how many are errors.
    fn take(&mut self) -> [usize; 2] {
        let mut seen = [0; 2];
        while let Some((_, response)) = self.fetcher.next(&mut self.ring, &self.pages).unwrap() {
            seen[usize::from(response.status < 0)] += 1;
        }
        seen
    }
}

#[test]
fn what_a_backend_that_is_gone_granted_is_lost_and_nothing_else() {
    let mut world = World::new();
    world.answer(100, GUEST_COPY);
    assert_eq!(world.take(), [100, 0]);
    assert_eq!(world.fetcher.done(), CopierCounts { copies: 100, hypercalls: 2 });
    // Killed with responses on the ring.
    world.answer(150, GUEST_COPY);
    *world.granted.lock().unwrap() = None;
    assert_eq!(world.take(), [0, 150]);
    // Those that are copied by the backend need no pool.
    world.answer(5, 0);
    assert_eq!(world.take(), [5, 0]);
    // Another backend has another pool. Its first use costs a batch.
    *world.granted.lock().unwrap() = Some(2);
    world.answer(1, GUEST_COPY);
    assert_eq!(world.take(), [0, 1]);
    world.answer(200, GUEST_COPY);
    assert_eq!(world.take(), [200, 0]);
    assert_eq!(world.fetcher.done().copies, 300);
}

/// The second backend is there before the guest has noticed: the responses of the first must not be copied out of
/// the second one's pool, also not those beyond the first batch.
#[test]
fn responses_of_an_earlier_backend_are_not_copied_from_a_later_pool() {
    let mut world = World::new();
    world.answer(200, GUEST_COPY);
    *world.granted.lock().unwrap() = Some(2);
    assert_eq!(world.take(), [0, 200]);
    world.answer(200, GUEST_COPY);
    assert_eq!(world.take(), [200, 0]);
}
