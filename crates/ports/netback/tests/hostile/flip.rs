//! Page flipping with hostile guests.

use std::time::Duration;

use hypervisor::flip::{PageReceiver, TransferSlot};
use hypervisor::{GrantRef, Granted};
use machine::{DRIVER_DOMAIN, Machine};
use netback::{RxChannel, TxChannel, VifQueue};
use offload::Features;
use port::{DropReason, Fragment, Outcome};
use port_testing::{offer, with_body};
use proptest::prelude::*;
use wire::netif::{RxRequest, status};

use crate::common::guest::{DATA, PAGE, PAGES, REQ_PROD, RSP_PROD, RX_RING, Raw};
use crate::common::tampered::Tampered;

/// Pages between the driver domain and each guest.
const EXCHANGE: usize = 8;
/// The flags of an entry that accepts a page, and of one that has received it.
const ACCEPT: u16 = 2;
const TRANSFERRED: u16 = 2 | 4 | 8;

/// A guest that receives by page flipping.
struct Receiver {
    raw: Raw,
    queue: VifQueue<Machine>,
    posted: u32,
    taken: u32,
}

impl Receiver {
    fn new(machine: &Machine) -> Self {
        let raw = Raw::with_exchange(machine, EXCHANGE);
        let mut vif = raw.announce_by(machine.clone(), TxChannel::Header, RxChannel::Flip);
        let queue = raw.connect(&mut vif, Features::ALL);
        Self { raw, queue, posted: 0, taken: 0 }
    }

    /// Posts a slot that names entry `gref`.
    fn post(&mut self, gref: u32) {
        let id = u16::try_from(self.posted % 256).unwrap();
        let request = RxRequest { id, pad: 0, gref };
        self.raw.write(RX_RING, Raw::slot::<RxRequest>(self.posted), request);
        self.posted += 1;
        self.raw.write(RX_RING, REQ_PROD, self.posted);
    }

    /// Posts a slot that accepts a page.
    fn post_place(&mut self) -> Box<dyn TransferSlot> {
        let (place, gref) = self.raw.inside.accept_transfer(DRIVER_DOMAIN).unwrap();
        self.post(gref.0);
        place
    }

    /// Delivers a frame that is all header, without a sender.
    fn deliver(&mut self, bytes: &[u8]) -> Outcome {
        self.deliver_with(bytes, &[])
    }

    /// Delivers a frame with a body in pages that this guest may or may not grant.
    fn deliver_with(&mut self, header: &[u8], body: &[Fragment]) -> Outcome {
        let mut frame = port_testing::frame(header);
        frame.fragments.extend(body.iter().copied());
        frame.len += body.iter().map(|fragment| u32::from(fragment.len)).sum::<u32>();
        let VifQueue { tx, rx } = &mut self.queue;
        with_body(tx, |body| offer(rx, body, &frame, Duration::ZERO).unwrap())
    }

    /// The status of the next response.
    fn take(&mut self) -> i16 {
        assert!(self.raw.read::<u32>(RX_RING, RSP_PROD) > self.taken, "no answer");
        let response = self.raw.response(self.taken);
        self.taken += 1;
        response.status
    }
}

fn frame(len: usize, fill: u8) -> Vec<u8> {
    let mut bytes = vec![fill; len];
    bytes[12..14].copy_from_slice(&[0x88, 0xb5]);
    bytes
}

proptest! {
    #[test]
    fn a_flipped_page_holds_its_frame_and_nothing_else(
        frames in prop::collection::vec((14usize..128, 1u8..), 1..40),
    ) {
        let machine = Machine::new();
        let [mut one, mut other] = [(); 2].map(|()| Receiver::new(&machine));
        for (n, (len, fill)) in frames.iter().enumerate() {
            // In turns: one guest's data must not reach the other either.
            let receiver = if n % 2 == 0 { &mut one } else { &mut other };
            let mut place = receiver.post_place();
            let sent = frame(*len, *fill);
            prop_assert_eq!(receiver.deliver(&sent), Outcome::Delivered);
            prop_assert_eq!(usize::try_from(receiver.take()).unwrap(), *len);
            let page = place.claim().unwrap().unwrap();
            let bytes: [u8; PAGE] = page.read(0).unwrap();
            prop_assert_eq!(&bytes[..*len], &sent[..]);
            prop_assert!(bytes[*len..].iter().all(|byte| *byte == 0), "remains of another frame");
            // The guest writes to the page before it gives it back.
            page.copy_in(0, &[0xee; PAGE]).unwrap();
            drop(page);
            receiver.raw.inside.surrender().unwrap();
        }
    }
}

#[test]
fn a_slot_that_accepts_nothing_loses_the_frame_but_no_page() {
    let machine = Machine::new();
    let mut receiver = Receiver::new(&machine);
    let free = receiver.raw.domain.exchange_count();
    // A page granted for copies, an empty entry, a used one, one far outside the table.
    receiver.raw.grant(DATA + 1, 0, 0, 0);
    receiver.raw.grant(DATA + 2, TRANSFERRED, 0, PAGES);
    for gref in [DATA, DATA + 1, DATA + 2, u32::MAX] {
        receiver.post(gref);
        let outcome = receiver.deliver(&frame(60, 7));
        assert_eq!(outcome, Outcome::Dropped(DropReason::MemoryFault));
        assert_eq!(receiver.take(), status::ERROR);
        assert_eq!(receiver.raw.domain.exchange_count(), free);
    }
}

#[test]
fn a_guest_that_keeps_its_pages_gets_no_more_frames_until_it_gives_one_back() {
    let machine = Machine::new();
    let mut receiver = Receiver::new(&machine);
    let mut kept = Vec::new();
    for n in 0..EXCHANGE {
        let mut place = receiver.post_place();
        assert_eq!(receiver.deliver(&frame(60, 1)), Outcome::Delivered, "page {n}");
        kept.push(place.claim().unwrap().unwrap());
    }
    // It has no transfer slot left, but can write entries.
    receiver.raw.grant(DATA, ACCEPT, DRIVER_DOMAIN.0, 0);
    receiver.post(DATA);
    for _ in 0..3 {
        // No sender waits for it, and its slot is not used.
        assert_eq!(receiver.deliver(&frame(60, 2)), Outcome::Dropped(DropReason::NoRoom));
    }
    drop(kept.pop());
    receiver.raw.inside.surrender().unwrap();
    assert_eq!(receiver.deliver(&frame(60, 3)), Outcome::Delivered);
}

#[test]
fn a_platform_without_page_flipping_is_named_when_a_guest_connects() {
    let machine = Machine::new();
    let raw = Raw::new(&machine);
    // It does as little as Xen, where no process can transfer a page.
    let hypervisor = Tampered::new(&machine);
    let mut vif = raw.announce_by(hypervisor, TxChannel::Header, RxChannel::Flip);
    raw.prepare(Features::ALL);
    raw.key("state", 4);
    let reason = vif.frontend_changed().err().expect("nothing to flip pages with");
    assert!(reason.to_string().contains("rx = \"copy\""), "{reason}");
}

#[test]
fn a_sender_that_grants_nothing_costs_the_receiver_no_slot() {
    let machine = Machine::new();
    let mut receiver = Receiver::new(&machine);
    let mut place = receiver.post_place();
    let free = receiver.raw.domain.exchange_count();
    for _ in 0..3 {
        let body = [Fragment::granted(
            Granted { gref: GrantRef(PAGES + 3), offset: 0, mapped: None },
            1000,
        )];
        assert_eq!(receiver.deliver_with(&frame(100, 1), &body), Outcome::SourceFault);
        assert_eq!(receiver.raw.read::<u32>(RX_RING, RSP_PROD), 0);
        assert_eq!(receiver.raw.domain.exchange_count(), free);
    }
    assert_eq!(receiver.deliver(&frame(60, 2)), Outcome::Delivered);
    assert_eq!(receiver.take(), 60);
    assert!(place.claim().unwrap().is_some());
}
