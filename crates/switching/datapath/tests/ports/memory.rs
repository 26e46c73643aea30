//! Bodies that lie beyond 4 GiB, and bodies that belong to another platform than the receiver.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use hypervisor::{GrantRef, Hypervisor};
use netback::{RxChannel, TxChannel};
use port::{
    Armed, Body, Broken, Budget, DropReason, Event, Ingress, Outcome, Outcomes, Received, WINDOW,
    Window,
};
use port_testing::Sender;
use shm::{PageSize, Region, create_memfd};
use switch::MacAddr;

use crate::common::{Guest, Host, frame, receive, send, wait_until};
use crate::receiver::Receiver;
use crate::{ALL, plain, plug, slow};

const PAGE: usize = 4096;
const GIB: usize = 1 << 30;
/// The addresses of the guests.
const M: [u8; 6] = [2, 0, 0, 0, 0, 0xa];
const P: [u8; 6] = [2, 0, 0, 0, 0, 0xb];

/// Waits for a guest's next frame.
fn next<H: Hypervisor>(guest: &mut Guest<H>) -> Vec<u8> {
    let mut got = None;
    wait_until("the next frame", || {
        got = receive(&mut guest.queues[0]);
        got.is_some()
    });
    got.unwrap()
}

#[test]
fn bodies_in_several_regions_and_beyond_4_gib_arrive() {
    let host = Host::new(1, 1);
    let mut guest = host.guest("02:00:00:00:00:0a", netfront::Config::default());
    host.datapath.teach(guest.port.id(), MacAddr(M)).unwrap();
    // A file of 5 GiB that has hardly any pages.
    let file = create_memfd("beyond", 5 * GIB / PAGE, PageSize::Small).unwrap();
    let far = Region::map(&file, 0, 5 * GIB).unwrap();
    let near = Region::anonymous(WINDOW * 16 * PAGE).unwrap();
    let sender = Sender::with_layout([near, far].into(), |slot, fragment| {
        let offset = (slot * 16 + fragment) * PAGE;
        // Every other fragment, across page boundaries.
        if fragment % 2 == 0 { (1, (4 * GIB + 100 + offset) as u64) } else { (0, offset as u64) }
    });
    let a = plug(&host.datapath, 0, sender, Receiver::new());
    let (p, d) = (plain(&host.datapath, 1), slow(&host.datapath, 2));
    for (n, len) in (0u32..).zip([60, 1514, 4000, 9000, 30_000, 65_000]) {
        let to = |mac| frame(mac, a.mac, len, n);
        for mac in [M, p.mac, d.mac] {
            a.sender.send(to(mac));
        }
        assert!(next(&mut guest) == to(M), "{len} bytes, to the guest");
        wait_until("the frame", || p.egress.count() == 1);
        assert!(p.egress.take() == [to(p.mac)], "{len} bytes, to the port");
        wait_until("the device", || d.egress.in_flight() == 1);
        assert!(d.egress.finish(0) == to(d.mac), "{len} bytes, to the device");
    }
    wait_until("the answers", || a.sender.answers().len() == 18);
    assert!(a.sender.answers().iter().all(|(_, outcome)| *outcome == Outcome::Delivered));
}

/// An ingress side that lends other memory than its frames lie in.
pub struct Lends {
    pub inner: Box<dyn Ingress>,
    pub regions: Arc<[Region]>,
}

impl Ingress for Lends {
    fn event(&self) -> Arc<dyn Event> {
        self.inner.event()
    }

    fn window(&self) -> &Window {
        self.inner.window()
    }

    fn receive(&mut self, budget: &mut Budget, received: &mut Received) -> Result<(), Broken> {
        self.inner.receive(budget, received)
    }

    fn with_body(&self, work: &mut dyn FnMut(Body<'_>)) {
        work(Body::Regions(&self.regions));
    }

    fn finish(&mut self, outcomes: &Outcomes) {
        self.inner.finish(outcomes);
    }

    fn arm(&mut self) -> Result<Armed, Broken> {
        self.inner.arm()
    }
}

#[test]
fn a_body_outside_its_regions_is_its_senders_fault() {
    let host = Host::new(1, 1);
    let mut guest = host.guest("02:00:00:00:00:0a", netfront::Config::default());
    host.datapath.teach(guest.port.id(), MacAddr(M)).unwrap();
    let p = plain(&host.datapath, 1);
    let no_regions: Arc<[Region]> = Arc::new([]);
    // It has most of the body's 872 bytes, but not all.
    let page = Arc::new(Region::anonymous(PAGE).unwrap());
    let short: Arc<[Region]> = Arc::new([page.slice(0..800).unwrap()]);
    for (n, regions) in (2..).zip([no_regions, short]) {
        let (sender, inner) = Sender::new();
        let ingress = Box::new(Lends { inner, regions });
        let bad = plug(&host.datapath, n, (sender, ingress), Receiver::new());
        for to in [M, p.mac] {
            bad.sender.send(frame(to, bad.mac, 1000, 0));
        }
        wait_until("the answers", || bad.sender.answers().len() == 2);
        let faults = bad.sender.answers();
        assert!(faults.iter().all(|(_, outcome)| *outcome == Outcome::SourceFault), "{faults:?}");
        p.sender.send(frame(M, p.mac, 1000, 1));
        assert!(next(&mut guest) == frame(M, p.mac, 1000, 1));
    }
    assert_eq!(p.egress.count(), 0);
    for port in [&guest.port, &p.port] {
        assert_eq!(port.counters().snapshot().dropped(DropReason::MemoryFault), 2);
    }
}

#[test]
fn frames_cross_from_any_platform_to_any_other() {
    use RxChannel::{Copy, Flip, GuestCopy, GuestCopyMapped};
    use TxChannel::{Header, Remap};
    let pairs = [Copy, Flip, GuestCopy, GuestCopyMapped].map(|rx| [(Header, rx), (Remap, rx)]);
    for (tx, rx) in pairs.concat() {
        println!("tx {tx}, rx {rx}");
        let host = Host::with_channels(1, 1, tx, rx);
        let config = netfront::Config::default();
        let mut metered = host.guest("02:00:00:00:00:0a", config);
        let mut plain_machine = host.guest_on(&host.machine, "02:00:00:00:00:0b", config);
        host.datapath.teach(metered.port.id(), MacAddr(M)).unwrap();
        host.datapath.teach(plain_machine.port.id(), MacAddr(P)).unwrap();
        let (t, d) = (plain(&host.datapath, 1), slow(&host.datapath, 2));
        for (n, len) in (0u32..).zip([60, 1514, 65_000]) {
            let bytes = |to, from| frame(to, from, len, n);
            transmit(&mut metered, &bytes(P, M));
            assert!(next(&mut plain_machine) == bytes(P, M), "{len} bytes, metered to plain");
            transmit(&mut plain_machine, &bytes(M, P));
            assert!(next(&mut metered) == bytes(M, P), "{len} bytes, plain to metered");
            t.sender.send(bytes(M, t.mac));
            assert!(next(&mut metered) == bytes(M, t.mac), "{len} bytes, mapped to metered");
            t.sender.send(bytes(P, t.mac));
            assert!(next(&mut plain_machine) == bytes(P, t.mac), "{len} bytes, mapped to plain");
            transmit(&mut metered, &bytes(t.mac, M));
            transmit(&mut plain_machine, &bytes(t.mac, P));
            wait_until("both frames", || t.egress.count() == 2);
            let mut got = t.egress.take();
            got.sort();
            assert!(got == [bytes(t.mac, M), bytes(t.mac, P)], "{len} bytes, to mapped");
            transmit(&mut metered, &bytes(d.mac, M));
            wait_until("the device", || d.egress.in_flight() == 1);
            transmit(&mut plain_machine, &bytes(d.mac, P));
            wait_until("the device", || d.egress.in_flight() == 2);
            assert!(d.egress.finish(0) == bytes(d.mac, M), "{len} bytes, metered to device");
            assert!(d.egress.finish(0) == bytes(d.mac, P), "{len} bytes, plain to device");
            // To all of them at once.
            transmit(&mut metered, &bytes(ALL, M));
            assert!(next(&mut plain_machine) == bytes(ALL, M), "{len} bytes, to all");
            wait_until("the rest", || t.egress.count() == 1 && d.egress.in_flight() == 1);
            assert!(t.egress.take() == [bytes(ALL, M)] && d.egress.finish(0) == bytes(ALL, M));
        }
        wait_until("all answers", || {
            metered.queues[0].tx.reclaim().unwrap();
            plain_machine.queues[0].tx.reclaim().unwrap();
            t.sender.answers().len() == 6
        });
        assert_eq!(metered.queues[0].tx.take_errors(), 0);
        assert_eq!(plain_machine.queues[0].tx.take_errors(), 0);
        for domain in [&metered.domain, &plain_machine.domain] {
            wait_until("the end of every exchange", || domain.exchange_count().held == 0);
        }
    }
}

/// Sends a frame from a guest, which has room for it.
fn transmit<H: Hypervisor>(guest: &mut Guest<H>, bytes: &[u8]) {
    wait_until("room", || send(&mut guest.queues[0], bytes));
}

/// Revokes grants of a guest behind its frontend's back.
struct Revoked {
    table: Region,
    entries: Vec<(GrantRef, u64)>,
}

impl Revoked {
    fn new<H: Hypervisor>(guest: &Guest<H>) -> Self {
        let table = Region::map(guest.inside.memory(), 0, 4 * PAGE).unwrap();
        let revoke = |gref: &GrantRef| {
            let word = table.atomic_u64(gref.0 as usize * 8).unwrap();
            (*gref, word.swap(0, Ordering::SeqCst))
        };
        let entries = guest.queues[0].tx.grefs().iter().map(revoke).collect();
        Self { table, entries }
    }

    fn restore(self) {
        for (gref, entry) in self.entries {
            let word = self.table.atomic_u64(gref.0 as usize * 8).unwrap();
            word.store(entry, Ordering::SeqCst);
        }
    }
}

#[test]
fn a_bad_grant_on_another_platform_costs_the_receiver_nothing() {
    const BAD: u32 = 300; // more than the receiver has buffers
    for header_channel in [true, false] {
        let host = Host::new(1, 1);
        // Of pages that are mapped, no grant is asked.
        let config = netfront::Config {
            persistent_grants: false,
            header_channel,
            ..netfront::Config::default()
        };
        let mut metered = host.guest("02:00:00:00:00:0a", config);
        let mut foreign = host.guest_on(&host.machine, "02:00:00:00:00:0b", config);
        host.datapath.teach(metered.port.id(), MacAddr(M)).unwrap();
        let (t, d) = (plain(&host.datapath, 1), slow(&host.datapath, 2));
        let revoked = Revoked::new(&foreign);
        for n in 0..BAD {
            for to in [M, t.mac, d.mac] {
                transmit(&mut foreign, &frame(to, P, 1514, n));
            }
        }
        let mut answers = 0;
        wait_until("the answers", || {
            foreign.queues[0].tx.reclaim().unwrap();
            answers += foreign.queues[0].tx.take_errors();
            answers == u64::from(3 * BAD)
        });
        assert!(receive(&mut metered.queues[0]).is_none());
        assert_eq!((t.egress.count(), d.egress.in_flight()), (0, 0));
        // Where the header lies in the same page, the frame never gets to a receiver.
        let dropped = if header_channel { u64::from(BAD) } else { 0 };
        for port in [&metered.port, &t.port, &d.port] {
            let counted = port.counters().snapshot();
            assert_eq!(counted.dropped(DropReason::MemoryFault), dropped);
            assert_eq!(counted.egress_frames, 0);
            assert!(!port.has_failed());
        }
        let malformed = foreign.port.counters().snapshot().dropped(DropReason::Malformed);
        assert_eq!(malformed, u64::from(3 * BAD) - 3 * dropped);
        revoked.restore();
        for n in 0..BAD {
            transmit(&mut foreign, &frame(M, P, 1514, n));
            assert!(next(&mut metered) == frame(M, P, 1514, n));
        }
        assert_eq!(foreign.queues[0].tx.take_errors(), 0);
    }
}
