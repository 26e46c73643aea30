//! The other end may write anything at any time: no index makes this end loop, panic or take
//! a slot that was not offered.

use std::sync::Arc;

use proptest::prelude::*;
use ring::{BackRing, Broken, FrontRing, Index, RegionPage, SharedPage, Slots};
use shm::Region;

struct Words;

impl Slots for Words {
    type Request = [u32; 3];
    type Response = u32;
}

type Page = RegionPage<Arc<Region>>;

fn page() -> (Page, Page) {
    let region = Arc::new(Region::anonymous(4096).unwrap());
    (RegionPage::new(region.clone(), 0).unwrap(), RegionPage::new(region, 0).unwrap())
}

#[test]
fn sizes_are_xens() {
    assert_eq!(<Words as Slots>::SLOT_LEN, 12);
    assert_eq!(<Words as Slots>::COUNT, 256);
}

#[test]
fn requests_come_back_as_responses_through_many_wraps() {
    let (front, back) = page();
    let mut front = FrontRing::<Words, _>::init(front);
    let mut back = BackRing::<Words, _>::attach(back).unwrap();
    for round in 0..2000u32 {
        for n in 0..=round % 256 {
            front.request([round, n, 7]);
        }
        let _ = front.publish();
        for n in 0..=round % 256 {
            assert_eq!(back.take().unwrap(), Some([round, n, 7]));
            back.respond(n);
        }
        assert_eq!(back.take().unwrap(), None);
        let _ = back.publish();
        for n in 0..=round % 256 {
            assert_eq!(front.take().unwrap().unwrap().1, n);
        }
        assert_eq!(front.free(), 256);
    }
}

#[test]
fn a_second_backend_attaches_where_the_first_stopped() {
    let (front, back) = page();
    let shared = back.region().clone();
    let mut front = FrontRing::<Words, _>::init(front);
    let mut first = BackRing::<Words, _>::attach(back).unwrap();
    for n in 0..5 {
        front.request([n, 0, 0]);
    }
    let _ = front.publish();
    for n in 0..3 {
        first.take().unwrap();
        if n < 2 {
            first.respond(n);
        }
    }
    let _ = first.publish();
    drop(first);
    // The third request was taken but not answered: the second backend serves it again.
    let mut second = BackRing::<Words, _>::attach(RegionPage::new(shared, 0).unwrap()).unwrap();
    assert_eq!(second.take().unwrap(), Some([2, 0, 0]));
}

#[test]
fn requests_once_announced_are_not_taken_back() {
    let (hostile, back) = page();
    let mut back = BackRing::<Words, _>::attach(back).unwrap();
    hostile.store(Index::ReqProd, 10);
    assert_eq!(back.refresh(), Ok(10));
    back.consume(4);
    // Still ahead of what was taken, but the caller counts on six.
    hostile.store(Index::ReqProd, 9);
    assert_eq!(back.refresh(), Err(Broken::RequestsBackwards { before: 10, now: 9 }));
    assert_eq!(back.unconsumed(), Ok(6));
}

proptest! {
    #[test]
    fn no_request_index_breaks_the_backend(writes in prop::collection::vec((any::<u32>(), any::<bool>()), 1..40)) {
        let (hostile, back) = page();
        let mut back = BackRing::<Words, _>::attach(back).unwrap();
        let mut taken: u32 = 0;
        for (value, near) in writes {
            let index = if near { taken.wrapping_add(value % 300) } else { value };
            hostile.store(Index::ReqProd, index);
            match back.refresh() {
                Ok(waiting) => prop_assert!(waiting <= 256),
                Err(Broken::RequestOverflow { .. } | Broken::RequestsBackwards { .. }) => break,
                Err(other) => prop_assert!(false, "{other}"),
            }
            while let Ok(Some(_)) = back.take() {
                taken = taken.wrapping_add(1);
                back.respond(0);
            }
            let _ = back.publish();
        }
        prop_assert!(back.owed() <= 256);
    }

    #[test]
    fn no_response_index_breaks_the_frontend(values in prop::collection::vec(any::<u32>(), 1..40), sent in 0u32..256) {
        let (front, hostile) = page();
        let mut front = FrontRing::<Words, _>::init(front);
        for n in 0..sent {
            front.request([n, 0, 0]);
        }
        let _ = front.publish();
        for value in values {
            hostile.store(Index::RspProd, value % 600);
            let mut taken = 0;
            while let Ok(Some(_)) = front.take() {
                taken += 1;
            }
            prop_assert!(taken <= sent);
            prop_assert!(front.free() <= 256);
        }
    }
}
