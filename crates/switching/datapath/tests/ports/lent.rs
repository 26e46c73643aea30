//! Frames that lie in the buffers of their receiver, which makes holes in its memory while there are others in its inbox.

use std::cell::Cell;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use datapath::PortMemory;
use offload::Features;
use port::{Body, Broken, Egress, Event, LentMemory, Offer, Outcome};
use port_testing::{FakeEgress, Sender, Sent};
use shm::Region;

use crate::common::{frame, wait_until};
use crate::memory::Lends;
use crate::sleepers::{LEN, Memory, assert_once, sleeps};
use crate::{Plugged, Switch, plain, plug, plug_with, refresh};

const LENDER: u64 = 7;
/// A process guest with a balloon.
const GUEST: PortMemory = PortMemory { can_sleep: true, is_replaceable: false, borrows: false };
/// An uplink with a queue for it.
const UPLINK: PortMemory = PortMemory { can_sleep: false, is_replaceable: false, borrows: true };

/// An egress side that lends buffers.
struct Lending {
    inner: FakeEgress,
    region: Arc<Region>,
}

impl Egress for Lending {
    fn deliver(
        &mut self,
        body: Body<'_>,
        offers: &mut [Offer<'_>],
        now: Duration,
    ) -> Result<(), Broken> {
        self.inner.deliver(body, offers, now)
    }

    fn room_event(&self) -> Option<Arc<dyn Event>> {
        self.inner.room_event()
    }

    fn lent_memory(&self) -> Option<LentMemory> {
        let region = self.region.slice(0..LEN).unwrap();
        Some(LentMemory { lender: LENDER, region, features: Features::NONE })
    }
}

/// A frame that came to the guest: the number of its sender's port, its length, and whether it lies in a lent buffer.
type Came = (u8, u32, bool);

/// Asserts that all frames of a sender that were delivered came once and in order.
fn assert_in_order(came: &[Came], sender: &Plugged<()>, port: u8) {
    let lens: Vec<_> = came.iter().filter(|came| came.0 == port).map(|came| came.1).collect();
    assert!(lens.windows(2).all(|pair| pair[0] < pair[1]), "port {port}: {lens:?}");
    let answers = sender.sender.answers().into_iter();
    let delivered = answers.filter(|(_, outcome)| *outcome == Outcome::Delivered).count();
    assert_eq!(lens.len(), delivered, "port {port}");
}

#[test]
fn a_hole_in_buffers_that_were_lent_beside_a_busy_inbox_delays_nobody_else() {
    assert_once("others had their frames only when the hole was made", || {
        let switch = Switch::new(1);
        let (sender, heard) = std::sync::mpsc::channel();
        switch.datapath.on_sleep(Box::new(move |sleep| drop(sender.send(sleep))));
        let (memory, came) = (Memory::new(), Arc::<Mutex<Vec<Came>>>::default());
        let region = Arc::new(memory.region.slice(0..LEN).unwrap());
        let (touched, seen) = (memory.clone(), came.clone());
        let inner = FakeEgress::new(move |frame, _| {
            touched.touch();
            seen.lock().unwrap().push((frame.bytes[11], frame.len, frame.lent.is_any()));
            Ok(Outcome::Delivered)
        });
        let egress: Box<dyn Egress> = Box::new(Lending { inner, region: region.clone() });
        let guest = plug_with(&switch.datapath, 0, GUEST, Sender::new(), ((), egress));
        let (sender, inner) = Sender::new();
        let lends = Box::new(Lends { inner, regions: [region.slice(0..LEN).unwrap()].into() });
        let egress: Box<dyn Egress> = Box::new(FakeEgress::new(|_, _| Ok(Outcome::Delivered)));
        let uplink = plug_with(&switch.datapath, 1, UPLINK, (sender, lends), ((), egress));
        let egress: Box<dyn Egress> = Box::new(FakeEgress::new(|_, _| Ok(Outcome::Delivered)));
        let peer = plug(&switch.datapath, 2, Sender::new(), ((), egress));
        let (red, blue) = (plain(&switch.datapath, 3), plain(&switch.datapath, 4));
        refresh(&switch.datapath);
        // A frame's length is its number.
        let next = Cell::new(200);
        let send = |from: &Plugged<()>, is_lent: bool| {
            next.set(next.get() + 1);
            let mut sent = Sent::from(frame(guest.mac, from.mac, next.get(), 0));
            if is_lent {
                sent.frame.lent.lender = LENDER;
                sent.frame.lent.tokens.push(0);
            }
            from.sender.send(sent);
        };
        let (mut by_uplink, mut slept) = (0, false);
        let in_time = memory.punch(
            || send(&peer, false),
            || {
                // First the guest's own turn sleeps, with a frame of its inbox.
                if sleeps(&memory, &heard, || send(&peer, false)) {
                    // Then that of the uplink, whose frame lies in the hole. It overtakes none in the inbox, so it is copied.
                    by_uplink = 1;
                    send(&uplink, true);
                    slept = sleeps(&memory, &heard, || {});
                }
                for n in (1..4).filter(|_| slept) {
                    send(&peer, false);
                    red.sender.send(frame(blue.mac, red.mac, 100, n));
                    wait_until("red's frame", || blue.egress.count() == n as usize);
                }
            },
        );
        let is_answered = |from: &Plugged<()>, sent| from.sender.answers().len() == sent;
        let by_peer = next.get() - 200 - by_uplink;
        wait_until("the answers", || {
            is_answered(&uplink, by_uplink) && is_answered(&peer, by_peer)
        });
        send(&uplink, true);
        send(&peer, false);
        wait_until("the last answers", || {
            is_answered(&uplink, by_uplink + 1) && is_answered(&peer, by_peer + 1)
        });
        let is_there = |len| came.lock().unwrap().iter().any(|came| came.1 as usize == len);
        wait_until("the last frames", || is_there(next.get()) && is_there(next.get() - 1));
        let came = came.lock().unwrap();
        assert_in_order(&came, &uplink, 1);
        assert_in_order(&came, &peer, 2);
        slept && in_time
    });
}
