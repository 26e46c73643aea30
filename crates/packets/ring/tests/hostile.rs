//! The other end may write anything at any time. No index makes this end loop, panic or take
//! a slot that was not offered.

use std::sync::Arc;

use proptest::prelude::*;
use ring::{BackRing, Broken, FrontRing, Index, LEDGER_LEN, Ledger, RegionPage, SharedPage, Slots};
use shm::Region;

struct Words;

impl Slots for Words {
    type Request = [u32; 3];
    type Response = u32;
}

type Page = RegionPage<Arc<Region>>;

fn page() -> (Page, Page) {
    let region = Arc::new(Region::anonymous(4096).unwrap());
    (RegionPage::new(region.clone()).unwrap(), RegionPage::new(region).unwrap())
}

fn ledger() -> Ledger<Words> {
    Ledger::new(Region::anonymous(LEDGER_LEN).unwrap()).unwrap()
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
    let mut back = BackRing::<Words, _>::attach(back, ledger()).unwrap();
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
fn responses_are_published_in_the_order_of_the_requests() {
    let (front, back) = page();
    let mut front = FrontRing::<Words, _>::init(front);
    let mut back = BackRing::attach(back, ledger()).unwrap();
    (0..100).for_each(|n| front.request([n, 0, 0]));
    assert!(front.publish());
    while back.take().unwrap().is_some() {}
    // The first one is unanswered, so none after it is published.
    (1..100).rev().for_each(|n| back.answer(n, n + 500));
    assert_eq!(back.unanswered(), 1);
    assert!(!back.has_unpublished());
    assert!(!back.publish());
    assert_eq!(front.take(), Ok(None));
    back.answer(0, 500);
    assert_eq!(back.unanswered(), 0);
    assert!(back.publish());
    for n in 0..100 {
        assert_eq!(front.take(), Ok(Some((n, n + 500))));
    }
}

#[test]
fn requests_once_announced_are_not_taken_back() {
    let (hostile, back) = page();
    let mut back = BackRing::<Words, _>::attach(back, ledger()).unwrap();
    hostile.store(Index::ReqProd, 10);
    assert_eq!(back.refresh(), Ok(10));
    back.consume(4);
    // Still ahead of the requests taken, but the caller knows of six.
    hostile.store(Index::ReqProd, 9);
    assert_eq!(back.refresh(), Err(Broken::RequestsBackwards { before: 10, now: 9 }));
    assert_eq!(back.unconsumed(), Ok(6));
}

#[test]
fn no_slot_is_used_again_before_its_response_is_published() {
    let (hostile, back) = page();
    let mut back = BackRing::attach(back, ledger()).unwrap();
    hostile.store(Index::ReqProd, 256);
    for _ in 0..256 {
        back.take().unwrap();
        back.respond(0);
    }
    hostile.store(Index::ReqProd, 257);
    let overflow = Broken::RequestOverflow { req_prod: 257, rsp_prod: 0, slots: 256 };
    assert_eq!(back.refresh(), Err(overflow));
    let _ = back.publish();
    assert_eq!(back.refresh(), Ok(1));
}

proptest! {
    #[test]
    fn no_request_index_breaks_the_backend(writes in prop::collection::vec((any::<u32>(), any::<bool>()), 1..40)) {
        let (hostile, back) = page();
        let mut back = BackRing::<Words, _>::attach(back, ledger()).unwrap();
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
        prop_assert!(back.unanswered() <= 256);
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
