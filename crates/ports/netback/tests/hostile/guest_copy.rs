//! Guest copies with hostile guests.

use std::sync::{Arc, Weak};
use std::time::Duration;

use hypervisor::guest_copy::{GuestCopier, GuestCopy};
use hypervisor::{CopyForm, Guest};
use machine::{DRIVER_DOMAIN, Machine, SharedPages};
use netback::{RxChannel, TxChannel, VifQueue};
use offload::Features;
use port::{
    Body, Broken, DropReason, Egress, Fragment, Frame, HEADER_MAX, KeptFrame, Outcome, Place,
    ReceiveBuffers,
};
use proptest::prelude::*;
use shm::Region;
use wire::netif::guest_copy::GUEST_COPY;
use wire::netif::{RxResponse, rx_flags};

use crate::common::guest::{BUFFERS, DATA, PAGE, REQ_PROD, RSP_PROD, RX_RING, Raw};
use crate::common::tampered::Random;

/// Bytes of a buffer, and where a body begins in it.
const BUFFER: usize = 1 << 16;
const SECRET: u8 = 0xee;
const HEADER: u32 = 128;
const _: () = assert!(HEADER as usize == HEADER_MAX);

/// An uplink's buffers, as many as there are frames: each frame is in a fresh one.
struct Uplink {
    regions: Arc<[Region]>,
    buffer: Arc<Region>,
    spares: bool,
}

impl Uplink {
    /// A frame of `len` bytes, all `fill` behind its Ethernet header, and the buffer that it lies in.
    fn frame(len: u32, fill: u8) -> (Self, Frame) {
        let whole = Arc::new(Region::anonymous(BUFFER).unwrap());
        whole.copy_in(0, &[SECRET; BUFFER]).unwrap();
        let mut frame = Frame::empty();
        let mut header = [fill; HEADER_MAX];
        header[12..14].copy_from_slice(&[0x88, 0xb5]);
        frame.set_header(&header[..HEADER_MAX.min(len as usize)]).unwrap();
        let body = u16::try_from(len.saturating_sub(HEADER)).unwrap();
        if body > 0 {
            whole.copy_in(HEADER_MAX, &vec![fill; body.into()]).unwrap();
            frame.fragments.push(Fragment::in_region(0, HEADER.into(), body));
        }
        frame.len = len;
        let regions = [whole.slice(0..BUFFER).unwrap()].into();
        (Self { regions, buffer: whole, spares: true }, frame)
    }
}

impl ReceiveBuffers for Uplink {
    fn regions(&self) -> &Arc<[Region]> {
        &self.regions
    }

    fn keep(&self, frame: &Frame) -> Option<KeptFrame> {
        let Place::Region { offset, .. } = frame.fragments.first()?.place else { return None };
        if offset.get() != 128 {
            return None;
        }
        self.buffer.copy_in(0, frame.header()).unwrap();
        self.spares.then(|| KeptFrame {
            memory: self.buffer.slice(0..BUFFER).map(Arc::new).unwrap(),
            offset: 0,
        })
    }
}

/// A guest that copies, from outside.
struct Copier {
    raw: Raw,
    queue: VifQueue<Machine>,
    /// Its pages: the first ones behind its grant table, where no ring is.
    pages: SharedPages,
    posted: u32,
    taken: u32,
}

impl Copier {
    fn new(machine: &Machine, rx: RxChannel) -> Self {
        let raw = Raw::new(machine);
        let (pages, _) = raw.inside.share(DRIVER_DOMAIN, 4).unwrap();
        // The grants that this test writes itself.
        raw.reset();
        raw.key("request-rx-guest-copy", 1);
        let mut vif = raw.announce_by(machine.clone(), TxChannel::Header, rx);
        let queue = raw.connect(&mut vif, Features::ALL);
        Self { raw, queue, pages, posted: 0, taken: 0 }
    }

    fn post(&mut self, count: u32) {
        let end = self.posted.wrapping_add(count);
        self.raw.post(std::mem::replace(&mut self.posted, end)..end);
    }

    fn deliver_at(
        &mut self,
        uplink: &Uplink,
        frame: &Frame,
        now: Duration,
    ) -> Result<Outcome, Broken> {
        port_testing::offer(&mut self.queue.rx, Body::Buffers(uplink), frame, now)
    }

    /// Delivers a frame from an uplink, which then forgets it. Returns its buffer.
    fn deliver(&mut self, len: u32, fill: u8) -> (Outcome, Weak<Region>) {
        let (uplink, frame) = Uplink::frame(len, fill);
        let outcome = self.deliver_at(&uplink, &frame, Duration::ZERO).unwrap();
        (outcome, Arc::downgrade(&uplink.buffer))
    }

    /// The next response.
    fn take(&mut self) -> RxResponse {
        assert!(self.raw.read::<u32>(RX_RING, RSP_PROD) != self.taken, "no answer");
        let response = self.raw.response(self.taken);
        self.taken = self.taken.wrapping_add(1);
        response
    }

    fn id(&self) -> u32 {
        self.queue.rx.guest_copies().unwrap().id()
    }

    fn copier(&self, form: CopyForm) -> Box<dyn GuestCopier<SharedPages>> {
        self.raw.inside.guest_copier(DRIVER_DOMAIN, self.id(), form).unwrap()
    }

    /// Copies what a response grants to the first of its pages. Returns the bytes.
    fn copy(&self, form: CopyForm, response: RxResponse) -> Option<Vec<u8>> {
        let RxResponse { id: number, offset, status, .. } = response;
        let len = u16::try_from(status).unwrap();
        let mut batch = [GuestCopy { number, offset, len, to: 0, done: false }];
        self.copier(form).copy(&self.pages, &mut batch);
        let mut bytes = vec![0; len.into()];
        self.pages.copy_out(0, &mut bytes).unwrap();
        batch[0].done.then_some(bytes)
    }
}

fn is_frame(bytes: &[u8], fill: u8) -> bool {
    bytes.iter().enumerate().all(|(at, byte)| (12..14).contains(&at) || *byte == fill)
}

#[test]
fn an_uplinks_frames_are_granted_and_copied_by_the_guest() {
    for (rx, form) in [
        (RxChannel::GuestCopy, CopyForm::Hypercall),
        (RxChannel::GuestCopyMapped, CopyForm::Mapped),
    ] {
        let machine = Machine::new();
        let mut guest = Copier::new(&machine, rx);
        guest.post(256);
        let before = guest.raw.snapshot();
        for (n, len) in [(0, 1514u32), (1, 4096), (2, 200)] {
            let (outcome, buffer) = guest.deliver(len, n + 1);
            assert_eq!(outcome, Outcome::Delivered);
            let kept = buffer.upgrade().is_some();
            assert_eq!(kept, form == CopyForm::Hypercall, "the guest's pool holds a copy");
            let response = guest.take();
            assert_ne!(response.flags & GUEST_COPY, 0);
            let bytes = guest.copy(form, response).unwrap();
            assert_eq!(bytes.len(), len as usize);
            assert!(is_frame(&bytes, n + 1));
            assert!(buffer.upgrade().is_none(), "the copy is the acknowledgement");
        }
        let data = DATA as usize * PAGE;
        assert_eq!(before[data..], guest.raw.snapshot()[data..], "the backend has copied nothing");
    }
}

#[test]
fn a_frame_of_several_pages_has_a_grant_for_each() {
    let machine = Machine::new();
    let mut guest = Copier::new(&machine, RxChannel::GuestCopy);
    guest.post(256);
    let (outcome, buffer) = guest.deliver(10_000, 9);
    assert_eq!(outcome, Outcome::Delivered);
    for (len, more) in [(4096, true), (4096, true), (10_000 - 8192, false)] {
        let response = guest.take();
        assert_eq!((response.status, response.flags & rx_flags::MORE_DATA != 0), (len, more));
        assert!(buffer.upgrade().is_some());
        let bytes = guest.copy(CopyForm::Hypercall, response).unwrap();
        assert!(is_frame(&bytes, 9));
    }
    assert!(buffer.upgrade().is_none());
}

/// What cannot be kept is copied, as for any guest: short frames, and those of an uplink whose spare
/// buffers others keep.
#[test]
fn what_is_not_granted_is_copied() {
    let machine = Machine::new();
    let mut guest = Copier::new(&machine, RxChannel::GuestCopy);
    guest.post(256);
    let (mut exhausted, frame) = Uplink::frame(1514, 3);
    exhausted.spares = false;
    assert_eq!(guest.deliver_at(&exhausted, &frame, Duration::ZERO), Ok(Outcome::Delivered));
    assert_eq!(guest.deliver(100, 4).0, Outcome::Delivered);
    for (len, fill) in [(1514, 3), (100, 4)] {
        let page = DATA + guest.taken % BUFFERS;
        let response = guest.take();
        assert_eq!((response.flags & GUEST_COPY, response.status), (0, len));
        assert!(is_frame(&guest.raw.received(page, response), fill));
    }
}

/// A frontend that does not know guest copies gets copies.
#[test]
fn a_stock_frontend_gets_copies() {
    let machine = Machine::new();
    let raw = Raw::new(&machine);
    let mut vif = raw.announce_by(machine, TxChannel::Header, RxChannel::GuestCopy);
    let queue = raw.connect(&mut vif, Features::ALL);
    assert!(queue.rx.guest_copies().is_none());
}

#[test]
fn a_guest_that_never_copies_loses_only_its_own_frames() {
    let machine = Machine::new();
    let [mut silent, mut other] = [(); 2].map(|()| Copier::new(&machine, RxChannel::GuestCopy));
    silent.post(256);
    other.post(256);
    let held: Vec<_> = (0..256).map(|_| silent.deliver(1514, 1)).collect();
    assert!(held.iter().all(|(outcome, _)| *outcome == Outcome::Delivered));
    let (uplink, frame) = Uplink::frame(1514, 1);
    // It posts no slot again: at first frames wait for it, then they are dropped with a reason.
    for (millis, outcome) in [(0, Outcome::Waiting), (201, Outcome::Dropped(DropReason::Stalled))] {
        let now = Duration::from_millis(millis);
        assert_eq!(silent.deliver_at(&uplink, &frame, now), Ok(outcome));
    }
    assert!(silent.queue.rx.is_stalled());
    for n in 1..200u8 {
        assert_eq!(other.deliver(1514, n).0, Outcome::Delivered);
        let response = other.take();
        assert!(is_frame(&other.copy(CopyForm::Hypercall, response).unwrap(), n));
    }
    // After the time limit the uplink has its buffers again.
    assert!(held.iter().all(|(_, buffer)| buffer.upgrade().is_some()));
    let copies = silent.queue.rx.guest_copies().unwrap().clone();
    assert_eq!(copies.expire(Duration::ZERO), 256);
    assert!(held.iter().all(|(_, buffer)| buffer.upgrade().is_none()));
    assert_eq!(copies.counts().expired, 256);
    let response = silent.take();
    assert_eq!(silent.copy(CopyForm::Hypercall, response), None, "too late");
}

/// With a pool, posting a slot again is the acknowledgement, so no time limit is needed: a guest that never posts one counts as
/// stalled, as with any other way to receive, and holds nothing but its own pool.
#[test]
fn a_guest_that_posts_no_slot_of_its_pool_again_loses_only_its_own_frames() {
    let machine = Machine::new();
    let rx = RxChannel::GuestCopyMapped;
    let [mut silent, mut other] = [(); 2].map(|()| Copier::new(&machine, rx));
    silent.post(256);
    other.post(256);
    for n in 0..256 {
        let (outcome, buffer) = silent.deliver(1514, 1);
        assert_eq!(outcome, Outcome::Delivered, "{n}");
        assert!(buffer.upgrade().is_none(), "the uplink has its buffer again at once");
    }
    for (millis, outcome) in [(0, Outcome::Waiting), (201, Outcome::Dropped(DropReason::Stalled))] {
        let (uplink, frame) = Uplink::frame(1514, 2);
        let now = Duration::from_millis(millis);
        assert_eq!(silent.deliver_at(&uplink, &frame, now), Ok(outcome));
        assert!(Weak::upgrade(&Arc::downgrade(&uplink.buffer)).is_some());
    }
    assert!(silent.queue.rx.is_stalled());
    for n in 1..200u8 {
        assert_eq!(other.deliver(1514, n).0, Outcome::Delivered);
        let response = other.take();
        assert!(is_frame(&other.copy(CopyForm::Mapped, response).unwrap(), n));
    }
    assert!(!other.queue.rx.is_stalled());
    // No page of its pool was written again meanwhile.
    for _ in 0..256 {
        let response = silent.take();
        assert!(is_frame(&silent.copy(CopyForm::Mapped, response).unwrap(), 1));
    }
    silent.post(256);
    assert_eq!(silent.deliver(1514, 3).0, Outcome::Delivered);
    assert!(!silent.queue.rx.is_stalled(), "it posts again");
}

/// A guest acknowledges with the hypercall: doing it twice, or for what it never got, is refused. The
/// next frame under the same number is not affected.
#[test]
fn a_grant_is_copied_once_and_only_if_it_was_given() {
    let machine = Machine::new();
    let mut guest = Copier::new(&machine, RxChannel::GuestCopy);
    guest.post(256);
    guest.deliver(1514, 1);
    let response = guest.take();
    assert!(guest.copy(CopyForm::Hypercall, response).is_some());
    assert_eq!(guest.copy(CopyForm::Hypercall, response), None);
    for id in [1, 255, 256, u16::MAX] {
        assert_eq!(guest.copy(CopyForm::Hypercall, RxResponse { id, ..response }), None);
    }
    guest.post(1);
    for n in 0..256u32 {
        assert_eq!(guest.deliver(1514, 2).0, Outcome::Delivered, "{n}");
    }
    guest.taken += 255;
    let response = guest.take();
    assert_eq!(response.id, 0);
    assert!(is_frame(&guest.copy(CopyForm::Hypercall, response).unwrap(), 2));
    assert_eq!(guest.queue.rx.guest_copies().unwrap().counts().refused, 5);
}

#[test]
fn a_guest_that_posts_more_than_a_ring_loses_its_interface_and_gives_back_all() {
    let machine = Machine::new();
    let mut guest = Copier::new(&machine, RxChannel::GuestCopy);
    guest.post(256);
    let held: Vec<_> = (0..10).map(|_| guest.deliver(1514, 1).1).collect();
    guest.raw.write(RX_RING, REQ_PROD, 1000u32);
    let (uplink, frame) = Uplink::frame(60_000, 1);
    let mut broken = None;
    for _ in 0..20 {
        if let Err(Broken(why)) = guest.deliver_at(&uplink, &frame, Duration::ZERO) {
            broken = Some(why);
            break;
        }
    }
    assert!(broken.is_some());
    // Its owner drops the queue.
    let Copier { queue, .. } = guest;
    drop(queue);
    assert!(held.iter().all(|buffer| buffer.upgrade().is_none()));
}

proptest! {
    /// Whatever a guest writes to its ring and asks for, it sees its own frames only, and holds a
    /// bounded number of buffers.
    #[test]
    fn a_guest_sees_its_own_frames_only(seed: u64, mapped: bool) {
        let machine = Machine::new();
        let (rx, form) = match mapped {
            true => (RxChannel::GuestCopyMapped, CopyForm::Mapped),
            false => (RxChannel::GuestCopy, CopyForm::Hypercall),
        };
        let [mut hostile, mut other] = [(); 2].map(|()| Copier::new(&machine, rx));
        hostile.post(256);
        other.post(256);
        let mut random = Random(seed);
        let mut copier = hostile.copier(form);
        let mut held = Vec::new();
        for _ in 0..200 {
            match random.below(6) {
                0 | 1 => {
                    let (uplink, frame) = Uplink::frame(60 + random.below(9000), 1);
                    held.push(Arc::downgrade(&uplink.buffer));
                    if hostile.deliver_at(&uplink, &frame, Duration::ZERO).is_err() {
                        break;
                    }
                }
                2 => {
                    let (outcome, buffer) = other.deliver(60 + random.below(4000), 2);
                    prop_assert_eq!(outcome, Outcome::Delivered);
                    let response = other.take();
                    if response.flags & GUEST_COPY != 0 {
                        prop_assert!(is_frame(&other.copy(form, response).unwrap(), 2));
                    }
                    prop_assert!(buffer.upgrade().is_none());
                    other.post(1);
                }
                3 => {
                    let at = random.below(64 * 8) as usize;
                    hostile.raw.write(RX_RING, 64 + at * 4, random.below(1 << 20));
                }
                4 => {
                    let more = random.below(40);
                    hostile.posted = hostile.posted.wrapping_add(more);
                    hostile.raw.write(RX_RING, REQ_PROD, hostile.posted);
                }
                _ => {
                    let copy = |random: &mut Random| GuestCopy {
                        number: u16::try_from(random.below(300)).unwrap(),
                        offset: u16::try_from(random.below(5000)).unwrap(),
                        len: u16::try_from(random.below(5000)).unwrap(),
                        to: random.below(5 * 4096) as usize,
                        done: false,
                    };
                    let mut batch: Vec<_> = (0..random.below(100)).map(|_| copy(&mut random)).collect();
                    copier.copy(&hostile.pages, &mut batch);
                }
            }
            held.retain(|buffer| buffer.strong_count() > 0);
            prop_assert!(held.len() <= 256);
        }
        let mut seen = vec![0; 4 * PAGE];
        hostile.pages.copy_out(0, &mut seen).unwrap();
        prop_assert!(seen.iter().all(|byte| [0, 1, 0x88, 0xb5].contains(byte)));
        prop_assert!(!hostile.raw.snapshot()[DATA as usize * PAGE..].contains(&SECRET));
    }
}
